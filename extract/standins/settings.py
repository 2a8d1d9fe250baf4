"""Stub for the configurations of pretrained models: a bag of attributes, with other configurations inside it."""

import copy
import dataclasses
import inspect

import torch


class SubConfigSpec:
    """How a configuration inside another is made: its class or its model type, and what it is given."""

    def __init__(self, config_class, model_type=None, init_kwargs=None, optional=False):
        self.config_class = config_class
        self.model_type = getattr(config_class, "model_type", None) if model_type is None else model_type
        self.init_kwargs = init_kwargs or {}
        self.optional = optional

    def create_subconfig(self, key, subconfig=None, **kwargs):
        """The configuration that `subconfig` (a configuration, its fields or None) stands for, and the other kwargs."""
        if isinstance(subconfig, PreTrainedConfig):
            return subconfig, kwargs
        if key == "backbone_config":
            for name in ("use_timm_backbone", "backbone_kwargs", "backbone", "use_pretrained_backbone"):
                kwargs.pop(name, None)
        kind = self.config_class
        if not (isinstance(kind, type) and issubclass(kind, PreTrainedConfig)):
            kind = _find_kind(PreTrainedConfig, (subconfig or {}).get("model_type", self.model_type))
        return (kind or PreTrainedConfig)(**(self.init_kwargs if subconfig is None else subconfig)), kwargs


def _find_kind(kind, model_type):
    """The class of a model type below another, among those of this file; None without one."""
    if model_type and kind.__dict__.get("model_type") == model_type:
        return kind
    return next((found for sub in kind.__subclasses__() if (found := _find_kind(sub, model_type))), None)


class _Layers(list):
    def __getitem__(self, layer):
        return super().__getitem__(self.types.index(layer) if isinstance(layer, str) else layer)


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
        if hasattr(self, "rope_parameters") or (kwargs.get("rope_scaling") and kwargs.get("rope_theta")):
            kwargs = self.convert_rope_params_to_dict(**kwargs)
        self._name_or_path = str(kwargs.pop("name_or_path", ""))
        self._attn_implementation = kwargs.pop("attn_implementation", None)
        self._experts_implementation = kwargs.pop("experts_implementation", None)
        layers = kwargs.pop("per_layer_config", None) or {}
        self._layer_overrides = {int(number): dict(values) for number, values in layers.items()}
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

    @property
    def per_layer_config(self):
        """The settings of every layer, by its number or by its type: the common ones with what differs."""
        layers = _Layers([self] * self.num_hidden_layers)
        layers.types = list(getattr(self, "layer_types", None) or ())
        for number in range(self.num_hidden_layers if self._layer_overrides else 0):
            layers[number] = copy.copy(self)
            for name, value in {"_layer_overrides": {}, "skip": [], **self._layer_overrides.get(number, {})}.items():
                setattr(layers[number], name, value)
        return layers

    def convert_rope_params_to_dict(self, **kwargs):
        """Gather the rotary settings in `rope_parameters`; returns the other kwargs."""
        self.rope_parameters = kwargs.pop("rope_scaling", None) or getattr(self, "rope_parameters", None) or {}
        theta = kwargs.pop("rope_theta", getattr(self, "rope_theta", self.default_theta))
        part = kwargs.pop("partial_rotary_factor", getattr(self, "partial_rotary_factor", None))
        self._set_rope(theta, part)
        return kwargs

    def standardize_rope_params(self):
        """Give the rotary settings their type and base period."""
        theta = getattr(self, "rope_theta", None)
        if theta or getattr(self, "rope_parameters", None):
            self.rope_parameters = getattr(self, "rope_parameters", None) or {}
            self._set_rope(theta, getattr(self, "partial_rotary_factor", None))

    def _set_rope(self, theta, part):
        labels = getattr(self, "_rope_type_labels", None) or getattr(self, "layer_types", None) or ()
        layers = [value for key, value in self.rope_parameters.items() if key in labels]  # where they differ by type
        for settings in layers or [self.rope_parameters]:
            if settings is None:
                continue
            settings.setdefault("rope_type", settings.get("type", "default"))
            settings.setdefault("rope_theta", theta)
            if part is not None:
                settings.setdefault("partial_rotary_factor", part)
            if settings["rope_type"] == "default":
                settings["rope_type"] = self.default_rope_type
            if settings["rope_type"] in {"llama3", "yarn", "longrope"}:
                if not layers and hasattr(self, "original_max_position_embeddings"):
                    settings["original_max_position_embeddings"] = self.original_max_position_embeddings
                else:
                    settings.setdefault("original_max_position_embeddings", self.max_position_embeddings)

    def _check_nothing(self):
        """Whoever made the settings has checked them."""

    validate_rope = validate_architecture = validate_layer_type = _check_nothing
    validate_token_ids = validate_output_attentions = _check_nothing

    def get_text_config(self, decoder=None, encoder=None):
        """The settings of the text model: those inside that are named so, else these.

        Flat settings of an encoder and a decoder are given the names of the one that is asked for.
        """
        both = decoder == encoder
        names = ("text_encoder",) if both or not decoder else ()
        names += ("decoder", "generator", "text_config") if both or decoder else ()
        found = [name for name in names if getattr(self, name, None) is not None]
        if len(found) > 1:
            raise ValueError(f"{type(self).__name__} has several text configurations: {found}")
        if found:
            return getattr(self, found[0])
        if both or not self.is_encoder_decoder:
            return self
        result, prefix = copy.deepcopy(self), "decoder_" if decoder else "encoder_"
        for key in [key for key in self.__dict__ if key.startswith(prefix)]:
            bare = key.removeprefix(prefix)
            bare = {"layers": "num_hidden_layers", "attention_heads": "num_attention_heads"}.get(bare, bare)
            setattr(result, bare, result.__dict__.pop(key))
        return result

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
