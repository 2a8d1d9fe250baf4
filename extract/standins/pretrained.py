"""Stubs for the base classes of pretrained models: what a model needs to be built and run, and no more."""

import contextlib
import itertools
import re

import torch
from torch import nn


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

    def post_init(self):
        """Set the initial weights; called at the end of a model's constructor."""
        self.all_tied_weights_keys = self.get_expanded_tied_weights_keys()
        for name, child in self.named_children():
            inner = getattr(child, "all_tied_weights_keys", None) or {}
            self.all_tied_weights_keys.update({f"{name}.{k}": f"{name}.{v}" for k, v in inner.items()})
        self.initialize_weights()
        self.tie_weights(recompute_mapping=False)

    @torch.no_grad()
    def initialize_weights(self):
        """Set the initial weights below this module: children first, and each model inside by its own rules."""
        _initialize(self, self._initialize_weights)

    def _initialize_weights(self, module, is_custom_code=False):
        # Models inside have been here before: drawing their numbers again would change all that follow.
        if not getattr(module, "_is_hf_initialized", False):
            self._init_weights(module)
            module._is_hf_initialized = True

    def _init_std(self):
        for name in ("initializer_range", "init_std", "initializer_factor"):
            if hasattr(self.config, name):
                return getattr(self.config, name) or (0.02 if name == "initializer_range" else 0.0)
        text = self.config.get_text_config() if hasattr(self.config, "get_text_config") else self.config
        return getattr(text, "initializer_range", 0.02)

    @torch.no_grad()
    def _init_weights(self, module):
        name = type(module).__name__
        if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding)):
            if getattr(module, "weight", None) is not None:
                nn.init.normal_(module.weight, mean=0.0, std=self._init_std())
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
            if getattr(module, "padding_idx", None) is not None:
                nn.init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LSTM):
            for key, parameter in module.named_parameters():
                nn.init.xavier_uniform_(parameter) if "weight" in key else nn.init.zeros_(parameter)
        elif isinstance(module, nn.MultiheadAttention):
            module._reset_parameters()
        elif (
            isinstance(module, (nn.GroupNorm, nn.modules.batchnorm._BatchNorm))
            or "LayerNorm" in name
            or "RMSNorm" in name
        ):
            ones = {"weight": 1.0, "running_var": 1.0, "bias": 0.0, "running_mean": 0.0, "num_batches_tracked": 0}
            for key, value in ones.items():
                if getattr(module, key, None) is not None:
                    nn.init.constant_(getattr(module, key), value)

    def get_expanded_tied_weights_keys(self, all_submodels=False):
        """Which parameter (name) is which other, patterns and modules in `_tied_weights_keys` taken apart."""
        if all_submodels:
            found = {}
            for prefix, model in self.named_modules(remove_duplicate=False):
                if isinstance(model, PreTrainedModel):
                    dot = f"{prefix}." if prefix else ""
                    keys = model.get_expanded_tied_weights_keys()
                    found.update({dot + target: dot + source for target, source in keys.items()})
            return found
        keys = self._tied_weights_keys
        if not getattr(self.config, "tie_word_embeddings", False) or not isinstance(keys, dict):
            return {}
        if all(re.match(r"^[A-Za-z0-9_\.]+(weight)|(bias)$", key) for key in [*keys, *keys.values()]):
            return dict(keys)
        names = {name for name, _ in self.named_parameters(remove_duplicate=False)}
        names |= {name for name, _ in self.named_buffers(remove_duplicate=False)}
        found = {}
        for target, source in keys.items():
            sources = sorted(name for name in names if re.search(f"^{source}", name))
            targets = sorted(name for name in names if re.search(f"^{target}", name))
            if not sources or not targets or len(targets) % len(sources):
                raise ValueError(f"{type(self).__name__}: {sources} cannot be tied to {targets}")
            for one, other in zip(targets, itertools.cycle(sources), strict=False):
                found[one] = found.get(other, other)
        return found

    def tie_weights(self, missing_keys=None, recompute_mapping=True):
        """Let parameters be one as `_tied_weights_keys` says."""
        keys = self.get_expanded_tied_weights_keys(all_submodels=True) if recompute_mapping else None
        for target, source in (self.all_tied_weights_keys if keys is None else keys).items():
            holder, _, name = target.rpartition(".")
            module, parameter = self.get_submodule(holder), self.get_parameter_or_buffer(source)
            setattr(module, name, parameter)
            if getattr(module, "bias", None) is not None and hasattr(module, "weight"):
                missing = module.weight.shape[0] - module.bias.shape[0]
                module.bias.data = nn.functional.pad(module.bias.data, (0, missing), "constant", 0)

    def get_parameter_or_buffer(self, target):
        """The parameter or buffer of that name."""
        holder, _, name = target.rpartition(".")
        return getattr(self.get_submodule(holder), name)

    def _input_embedding_holder(self):
        """The module that has the input embeddings as an attribute, or another model that knows them."""
        name = self._input_embed_layer
        for holder in (self, getattr(self, "embeddings", None), getattr(self, "model", None)):
            if getattr(holder, name, None) is not None:
                return holder
        for other in (getattr(self, "language_model", None), self.base_model):
            if other is not None and other is not self and hasattr(other, "get_input_embeddings"):
                return other
        raise NotImplementedError(f"{type(self).__name__} has no known input embeddings")

    def get_input_embeddings(self):
        """The module that embeds the input."""
        holder = self._input_embedding_holder()
        found = getattr(holder, self._input_embed_layer, None)
        return holder.get_input_embeddings() if found is None else found

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
