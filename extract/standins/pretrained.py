"""Stubs for pretrained models: their configurations, base classes and attention, as far as it takes to build and run.

A configuration is a bag of attributes, with other configurations inside it. Left out: generating text, settings that
differ by layer, rotary positions that are scaled, weights that are tied by a pattern of names.
"""

import contextlib
import copy
import dataclasses
import inspect
import re

import torch
from torch import nn


class SubConfigSpec:
    """How a configuration inside another is made: its class, and what it is given; a bag where only a type is named."""

    def __init__(self, config_class, model_type=None, init_kwargs=None, optional=False):
        self.config_class = config_class
        self.init_kwargs = init_kwargs or {}
        self.optional = optional

    def create_subconfig(self, key, subconfig=None, **kwargs):
        """The configuration that `subconfig` (a configuration, its fields or None) stands for, and the other kwargs."""
        if isinstance(subconfig, PreTrainedConfig):
            return subconfig, kwargs
        kind = self.config_class
        if not (isinstance(kind, type) and issubclass(kind, PreTrainedConfig)):
            kind = PreTrainedConfig
        return kind(**(self.init_kwargs if subconfig is None else subconfig)), kwargs


class _ByName(type):
    """Makes what is made in another file, with classes of its own, count as of the class of the same name here."""

    def __instancecheck__(cls, instance):
        if super().__instancecheck__(instance):
            return True
        key = (cls.__name__, cls.__dict__.get("model_type"))
        return any((kind.__name__, kind.__dict__.get("model_type")) == key for kind in type(instance).__mro__)


class PreTrainedConfig(metaclass=_ByName):
    """Settings as attributes: what the classes annotate, by keyword or with its default, and whatever else is given.

    What is not annotated goes to `__post_init__`.
    """

    model_type = ""
    base_config_key = ""
    attribute_map = {}
    sub_configs_defaults = {}
    default_theta = 10_000.0
    default_rope_type = "default"
    ignore_keys_at_rope_validation = frozenset()

    transformers_version: str | None = None
    architectures: list | None = None
    output_hidden_states: bool | None = False
    output_attentions: bool | None = False
    return_dict: bool | None = True
    dtype: object = None
    chunk_size_feed_forward: int = 0
    is_encoder_decoder: bool = False
    id2label: dict | None = None
    label2id: dict | None = None
    problem_type: str | None = None

    def __init__(self, **kwargs):
        fields = {}
        for kind in reversed(type(self).__mro__):
            for name, note in inspect.get_annotations(kind).items():
                if "ClassVar" not in str(note):
                    fields[name] = kind.__dict__.get(name, dataclasses.MISSING)
        for name, value in fields.items():
            if isinstance(value, dataclasses.Field):
                value = value.default if value.default_factory is dataclasses.MISSING else value.default_factory()
            value = kwargs.pop(name, value)
            if value is dataclasses.MISSING:
                raise TypeError(f"{type(self).__name__} needs {name!r}")
            setattr(self, name, value)
        self.__post_init__(**kwargs)

    def __post_init__(self, **kwargs):
        for key, spec in self.sub_configs_defaults.items():
            spec = spec if hasattr(spec, "create_subconfig") else SubConfigSpec(spec)
            value = getattr(self, key)
            if value is not None or not spec.optional:
                value, kwargs = spec.create_subconfig(key, value, **kwargs)
                setattr(self, key, value)
        older_dtype = kwargs.pop("torch_dtype", None)
        self.dtype = older_dtype if self.dtype is None else self.dtype
        if isinstance(self.dtype, str):
            self.dtype = getattr(torch, self.dtype)
        if self.id2label is None:
            self.num_labels = kwargs.get("num_labels", 2 if self.num_labels is None else self.num_labels)
        else:
            self.id2label = {int(key): value for key, value in self.id2label.items()}
        if hasattr(self, "rope_parameters"):
            kwargs = self.convert_rope_params_to_dict(**kwargs)
        self._name_or_path = str(kwargs.pop("name_or_path", ""))
        self._attn_implementation = kwargs.pop("attn_implementation", None)
        self._experts_implementation = kwargs.pop("experts_implementation", None)
        for name, value in kwargs.items():
            setattr(self, name, value)

    def __setattr__(self, name, value):
        object.__setattr__(self, type(self).attribute_map.get(name, name), value)

    def __getattribute__(self, name):
        mapped = object.__getattribute__(self, "attribute_map").get(name, name)
        return object.__getattribute__(self, mapped)

    def __iter__(self):
        return iter(self.__dict__)

    @property
    def sub_configs(self):
        """The classes of the configurations inside this one."""
        return {key: getattr(spec, "config_class", spec) for key, spec in self.sub_configs_defaults.items()}

    @property
    def num_labels(self):
        """How many classes the model's head has."""
        return None if self.id2label is None else len(self.id2label)

    @num_labels.setter
    def num_labels(self, number):
        if self.num_labels != number:
            self.id2label = {index: f"LABEL_{index}" for index in range(number)}
            self.label2id = {label: index for index, label in self.id2label.items()}

    def convert_rope_params_to_dict(self, **kwargs):
        """Gather the rotary settings in `rope_parameters`, with a type and a base period; returns the other kwargs."""
        settings = kwargs.pop("rope_scaling", None) or getattr(self, "rope_parameters", None) or {}
        settings.setdefault("rope_type", settings.get("type", self.default_rope_type))
        settings.setdefault("rope_theta", kwargs.pop("rope_theta", getattr(self, "rope_theta", self.default_theta)))
        self.rope_parameters = settings
        return kwargs

    standardize_rope_params = convert_rope_params_to_dict

    def _check_nothing(self):
        """Whoever made the settings has checked them."""

    validate_rope = validate_architecture = validate_layer_type = _check_nothing
    validate_token_ids = validate_output_attentions = _check_nothing

    def get_text_config(self, decoder=None, encoder=None):
        """The settings of the text model: those inside that are named so, else these, which may be of both parts."""
        both = decoder == encoder
        names = ("text_encoder",) if both or not decoder else ()
        names += ("decoder", "generator", "text_config") if both or decoder else ()
        found = [name for name in names if getattr(self, name, None) is not None]
        if len(found) > 1:
            raise ValueError(f"{type(self).__name__} has several text configurations: {found}")
        return getattr(self, found[0]) if found else self

    def to_dict(self):
        """The attributes, those of configurations inside as dicts too."""
        found = {key: copy.deepcopy(value) for key, value in self.__dict__.items() if not key.startswith("_")}
        found = {key: value.to_dict() if isinstance(value, PreTrainedConfig) else value for key, value in found.items()}
        return {**found, "model_type": type(self).model_type}

    @classmethod
    def from_dict(cls, config_dict, **kwargs):
        """A configuration from its attributes."""
        return cls(**{**config_dict, **kwargs})

    def update(self, config_dict):
        """Set attributes."""
        for key, value in config_dict.items():
            setattr(self, key, value)

    @classmethod
    def from_pretrained(cls, *_, **__):
        """Not part of a block."""
        raise NotImplementedError("loading a configuration by name is not part of this block")


class GenerationMixin:
    """Nothing: text generation is not part of a block."""


class RecordedOutputs(dict):
    """Which outputs of submodules a model can collect."""

    def get(self, model):
        """As the model's class says."""
        return getattr(model, "_can_record_outputs", None) or {}


class PreTrainedModel(nn.Module):
    """A module with a configuration, initial weights, and access to its embeddings."""

    config_class = None
    base_model_prefix = ""
    main_input_name = "input_ids"
    input_modalities = "text"
    gradient_checkpointing = False
    _input_embed_layer = "embed_tokens"
    _tied_weights_keys = None
    _can_record_outputs = None
    _can_compile_fullgraph = False
    _supports_sdpa = False

    def __init__(self, config, *inputs, **kwargs):
        super().__init__()
        self.config = config
        # Only here, not in the configurations inside: their own models choose for themselves.
        if getattr(config, "_attn_implementation", "given") is None:
            config._attn_implementation = "sdpa" if self._supports_sdpa else "eager"
        if getattr(config, "_experts_implementation", "given") is None:
            config._experts_implementation = "grouped_mm"

    @classmethod
    def _from_config(cls, config, dtype=None, attn_implementation=None, **kwargs):
        """A model of a configuration, with weights of its type."""
        dtype = getattr(config, "dtype", None) if dtype is None else dtype
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        if attn_implementation is not None:
            config._attn_implementation = attn_implementation
        with _default_dtype(dtype):
            return cls(config, **kwargs)

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

    @torch.no_grad()
    def post_init(self):
        """Set the initial weights; called at the end of a model's constructor."""
        _initialize(self, self._initialize_weights)
        self.tie_weights()

    def _initialize_weights(self, module, is_custom_code=False):
        # Models inside have been here before: drawing their numbers again would change all that follow.
        if not getattr(module, "_is_hf_initialized", False):
            self._init_weights(module)
            module._is_hf_initialized = True

    @torch.no_grad()
    def _init_weights(self, module):
        name = type(module).__name__
        if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=getattr(self.config, "initializer_range", 0.02) or 0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
            if getattr(module, "padding_idx", None) is not None:
                nn.init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.MultiheadAttention):
            module._reset_parameters()
        elif "LayerNorm" in name or "RMSNorm" in name:  # other norms begin so by themselves
            for key, value in (("weight", 1.0), ("bias", 0.0)):
                if getattr(module, key, None) is not None:
                    nn.init.constant_(getattr(module, key), value)

    def tie_weights(self, *_, **__):
        """Let parameters be one as `_tied_weights_keys` says: the name of each, and of the other."""
        keys = self._tied_weights_keys
        if not getattr(self.config, "tie_word_embeddings", False) or not isinstance(keys, dict):
            return
        for target, source in keys.items():
            if not re.fullmatch(r"[\w.]+", target + source):
                raise NotImplementedError(f"tying weights by a pattern ({target!r}) is not part of this block")
            (holder, _, name), (origin, _, other) = target.rpartition("."), source.rpartition(".")
            setattr(self.get_submodule(holder), name, getattr(self.get_submodule(origin), other))

    def get_input_embeddings(self):
        """The module that embeds the input."""
        for holder in (self, getattr(self, "embeddings", None), getattr(self, "model", None)):
            if getattr(holder, self._input_embed_layer, None) is not None:
                return getattr(holder, self._input_embed_layer)
        for other in (getattr(self, "language_model", None), self.base_model):
            if other is not None and other is not self and hasattr(other, "get_input_embeddings"):
                return other.get_input_embeddings()
        raise NotImplementedError(f"{type(self).__name__} has no known input embeddings")

    def get_output_embeddings(self):
        """The module that maps to the vocabulary; None without one."""
        return getattr(self, "lm_head", None)

    def warn_if_padding_and_no_attention_mask(self, input_ids, attention_mask):
        """Do nothing: warnings are not part of a block."""

    @classmethod
    def from_pretrained(cls, *_, **__):
        """Not part of a block."""
        raise NotImplementedError("loading pretrained weights is not part of this block")


def _initialize(module, rule):
    for child in module.children():
        _initialize(child, child._initialize_weights if isinstance(child, PreTrainedModel) else rule)
    rule(module)


@contextlib.contextmanager
def _default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def sdpa_attention_forward(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, position_bias=None, **_
):
    """Attention over (batch, heads, length, dim) tensors; returns (batch, length, heads, dim) and no weights.

    Heads of a group share keys and values. Causal where no mask is given and the module says so.
    """
    groups, length = getattr(module, "num_key_value_groups", 1), query.shape[2]
    key, value = (item.repeat_interleave(groups, dim=1) if groups > 1 else item for item in (key, value))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and length > 1
    if causal and (position_bias is not None or key.shape[2] > length):  # a cache may have places that are not filled
        attention_mask = torch.ones(length, key.shape[2], dtype=torch.bool, device=key.device).tril()
        causal = False
    if position_bias is not None and attention_mask is None:
        attention_mask = position_bias
    elif position_bias is not None and attention_mask.dtype == torch.bool:
        attention_mask = torch.where(attention_mask, position_bias, torch.finfo(key.dtype).min)
    elif position_bias is not None:
        attention_mask = position_bias + attention_mask
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, is_causal=causal
    )
    return output.transpose(1, 2).contiguous(), None


class AttentionInterface(dict):
    """Attention functions by name: "sdpa", and what is registered; "eager" is the caller's own."""

    def __init__(self):
        super().__init__(sdpa=sdpa_attention_forward)

    def register(self, key, value):
        """Add a function, or replace one."""
        self[key] = value

    def valid_keys(self):
        """The names."""
        return list(self)

    def get_interface(self, attn_implementation, default):
        """The function of a name; `default` for "eager" and for none.

        Raises: KeyError for a name that is not here.
        """
        if attn_implementation in (None, "eager"):
            return default
        return self[attn_implementation.removeprefix("paged|")]
