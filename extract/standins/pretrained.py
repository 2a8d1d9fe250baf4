"""Stand-ins for the base classes of pretrained models: what a model needs to be built and run, and no more."""

import copy
import dataclasses

import torch
from torch import nn


class PreTrainedConfig:
    """Settings as attributes: fields of the subclass, and whatever else is given."""

    model_type = ""
    attribute_map = {}
    sub_configs = {}
    is_composition = False

    output_hidden_states = False
    output_attentions = False
    return_dict = True
    dtype = None
    chunk_size_feed_forward = 0
    is_encoder_decoder = False
    is_decoder = False
    add_cross_attention = False
    tie_word_embeddings = True
    tie_encoder_decoder = False
    problem_type = None
    pad_token_id = None
    bos_token_id = None
    eos_token_id = None
    initializer_range = 0.02
    name_or_path = ""
    rope_parameters = None
    _attn_implementation = "eager"
    _experts_implementation = "eager"

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "__init__" not in cls.__dict__:
            cls.__init__ = PreTrainedConfig.__init__

    def __init__(self, **kwargs):
        for kind in reversed(type(self).__mro__):
            for name in getattr(kind, "__annotations__", {}):
                if name in kind.__dict__:
                    value = kind.__dict__[name]
                    if isinstance(value, dataclasses.Field):
                        value = value.default_factory() if callable(value.default_factory) else value.default
                    setattr(self, name, copy.deepcopy(value))
        num_labels = kwargs.pop("num_labels", None)
        for name, value in kwargs.items():
            setattr(self, name, value)
        if "id2label" not in kwargs:
            self.id2label = {number: f"LABEL_{number}" for number in range(num_labels or 2)}
        self.label2id = {label: number for number, label in self.id2label.items()}
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    def __post_init__(self, **kwargs):
        """For subclasses."""

    def __setattr__(self, name, value):
        object.__setattr__(self, type(self).attribute_map.get(name, name), value)

    def __getattr__(self, name):
        mapped = type(self).attribute_map.get(name)
        if mapped is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self, mapped)

    @property
    def num_labels(self):
        """How many classes the model's head has."""
        return len(self.id2label)

    @property
    def use_return_dict(self):
        """Whether models return named outputs."""
        return self.return_dict

    def get_text_config(self, *_, **__):
        """The settings of the text model."""
        return getattr(self, "text_config", self)

    def to_dict(self):
        """The attributes."""
        return copy.deepcopy(self.__dict__)


class GenerationMixin:
    """Nothing: text generation is not part of a block."""


class PreTrainedModel(nn.Module):
    """A module with a configuration, initial weights, and access to its embeddings."""

    config_class = None
    base_model_prefix = ""
    main_input_name = "input_ids"
    supports_gradient_checkpointing = False
    gradient_checkpointing = False
    _no_split_modules = None
    _tied_weights_keys = None
    _can_record_outputs = None

    def __init__(self, config, *inputs, **kwargs):
        super().__init__()
        self.config = config
        self.name_or_path = getattr(config, "name_or_path", "")
        self.warnings_issued = {}

    @classmethod
    def _from_config(cls, config, **kwargs):
        return cls(config)

    @property
    def base_model(self):
        """The model without its head."""
        return getattr(self, self.base_model_prefix, self)

    @property
    def device(self):
        """Where the parameters are."""
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    @property
    def dtype(self):
        """The type of the parameters."""
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.float32)

    @property
    def can_record_outputs(self):
        """Which outputs of submodules can be collected."""
        return self._can_record_outputs or {}

    def post_init(self):
        """Set the initial weights; called at the end of a model's constructor."""
        self.init_weights()

    def init_weights(self):
        """Apply `_init_weights` to every module, then tie the weights."""
        self.apply(self._init_weights)
        self.tie_weights()

    @torch.no_grad()
    def _init_weights(self, module):
        std = getattr(self.config, "initializer_range", 0.02) or 0.02
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)):
            module.weight.normal_(0.0, std)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(0.0, std)
            if module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()
        elif isinstance(module, nn.MultiheadAttention):
            module._reset_parameters()
        elif "Norm" in type(module).__name__ and getattr(module, "weight", None) is not None:
            module.weight.fill_(1.0)
            if getattr(module, "bias", None) is not None:
                module.bias.zero_()

    def tie_weights(self, *_, **__):
        """Let parameters share storage as `_tied_weights_keys` says."""
        keys = self._tied_weights_keys
        if not isinstance(keys, dict) or not getattr(self.config, "tie_word_embeddings", True):
            return
        for target, source in keys.items():
            try:
                parameter = self.get_parameter(source)
                holder, _, name = target.rpartition(".")
                setattr(self.get_submodule(holder), name, parameter)
            except AttributeError:
                continue

    def get_input_embeddings(self):
        """The module that embeds the input."""
        base = self.base_model
        if base is not self:
            return base.get_input_embeddings()
        for name in ("embed_tokens", "word_embeddings", "wte", "embeddings"):
            if hasattr(self, name):
                return getattr(self, name)
        raise NotImplementedError(f"{type(self).__name__} has no known input embeddings")

    def get_output_embeddings(self):
        """The module that maps to the vocabulary; None without one."""
        return getattr(self, "lm_head", None)

    def get_extended_attention_mask(self, attention_mask, input_shape, device=None, dtype=None):
        """An additive mask that broadcasts over heads: 0 where attended, the lowest number elsewhere."""
        dtype = dtype or self.dtype
        mask = attention_mask[:, None, None, :] if attention_mask.dim() == 2 else attention_mask[:, None]
        return (1.0 - mask.to(dtype)) * torch.finfo(dtype).min

    def invert_attention_mask(self, encoder_attention_mask):
        """As `get_extended_attention_mask`, for the encoder's states."""
        return self.get_extended_attention_mask(encoder_attention_mask, None)

    def get_head_mask(self, head_mask, num_hidden_layers, is_attention_chunked=False):
        """One mask a layer, or None."""
        return [None] * num_hidden_layers if head_mask is None else head_mask

    def warn_if_padding_and_no_attention_mask(self, input_ids, attention_mask):
        """Do nothing: warnings are not part of a block."""

    def gradient_checkpointing_enable(self, *_, **__):
        """Not part of a block."""
        raise NotImplementedError("gradient checkpointing is not part of this block")

    @classmethod
    def from_pretrained(cls, *_, **__):
        """Not part of a block."""
        raise NotImplementedError("loading pretrained weights is not part of this block")
