"""Stubs for the configurations of pretrained models: fields of dataclasses, other configurations inside them."""

import copy
import dataclasses
import inspect
from typing import ClassVar

import torch


class SubConfigSpec:
    """How a configuration inside another is made: its class or its model type, and what it is given."""

    def __init__(self, config_class, model_type=None, init_kwargs=None, optional=False):
        self.config_class = config_class
        self.model_type = getattr(config_class, "model_type", None) if model_type is None else model_type
        self.init_kwargs = init_kwargs or {}
        self.optional = optional

    def get_config_class(self, model_type=None):
        """The class of a model type, among those of this file; the common base if it has none."""
        waiting = [PreTrainedConfig]
        while waiting:
            kind = waiting.pop(0)
            if model_type and kind.__dict__.get("model_type") == model_type:
                return kind
            waiting += kind.__subclasses__()
        return PreTrainedConfig

    def create_subconfig(self, key, subconfig=None, **kwargs):
        """The configuration that `subconfig` (a configuration, its fields or None) stands for, and the other kwargs."""
        if isinstance(subconfig, PreTrainedConfig):
            return subconfig, kwargs
        if key == "backbone_config":
            for name in ("use_timm_backbone", "backbone_kwargs", "backbone", "use_pretrained_backbone"):
                kwargs.pop(name, None)
        kind = self.config_class
        if not (isinstance(kind, type) and issubclass(kind, PreTrainedConfig)):
            kind = self.get_config_class((subconfig or {}).get("model_type", self.model_type))
        return kind(**(self.init_kwargs if subconfig is None else subconfig)), kwargs


def _as_dataclass(kind):
    """Make a class a dataclass; what its annotations say in text is not looked up."""
    notes = inspect.get_annotations(kind)
    kind.__annotations__ = {
        name: (ClassVar if "ClassVar" in note else object) if isinstance(note, str) else note
        for name, note in notes.items()
    }
    return dataclasses.dataclass(kind, repr=False, kw_only=True)


class _LayerTypes(list):
    """The configuration of each layer, by its number or by its type: the common one with what differs."""

    def __init__(self, config, overrides):
        self._types = list(getattr(config, "layer_types", None) or ())
        super().__init__(
            _copy_with(config, overrides.get(number, {})) if overrides else config
            for number in range(config.num_hidden_layers)
        )

    def __getitem__(self, layer):
        return super().__getitem__(self._types.index(layer) if isinstance(layer, str) else layer)


def _copy_with(config, values):
    """A configuration with other values for one layer."""
    result = copy.copy(config)
    result._layer_overrides = {}  # a layer has no layers of its own
    for name, value in {"skip": [], **values}.items():
        setattr(result, name, value)
    return result


class _ByName(type):
    """Makes what is made in another file, with classes of its own, count as of the class of the same name here."""

    def __instancecheck__(cls, instance):
        if super().__instancecheck__(instance):
            return True
        key = (cls.__name__, cls.__dict__.get("model_type"))
        return any((kind.__name__, kind.__dict__.get("model_type")) == key for kind in type(instance).__mro__)


@_as_dataclass
class PreTrainedConfig(metaclass=_ByName):
    """Settings as attributes: the fields of the class, and whatever else is given.

    Every subclass becomes a dataclass; keyword arguments that are no fields of it go to `__post_init__`.
    """

    model_type = ""
    base_config_key = ""
    attribute_map = {}
    sub_configs_defaults = {}
    default_theta = 10_000.0
    default_rope_type = "default"
    ignore_keys_at_rope_validation = frozenset()
    _layer_overrides = {}

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

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        specs = cls.__dict__.get("sub_configs_defaults")
        if specs is not None:
            cls.sub_configs_defaults = {
                key: spec if hasattr(spec, "create_subconfig") else SubConfigSpec(spec) for key, spec in specs.items()
            }
        own = cls.__dict__.get("__init__")
        _as_dataclass(cls)
        if own is None:
            cls.__init__ = lambda self, **given: _set_fields(self, cls, given)

    def __init__(self, **kwargs):
        _set_fields(self, PreTrainedConfig, kwargs)

    def __post_init__(self, **kwargs):
        for key, spec in self.sub_configs_defaults.items():
            value = getattr(self, key)
            if value is None and spec.optional:
                continue
            value, kwargs = spec.create_subconfig(key, value, **kwargs)
            setattr(self, key, value)
        older_dtype = kwargs.pop("torch_dtype", None)
        if self.dtype is None:
            self.dtype = older_dtype
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
        self._post_init_done = True

    def __setattr__(self, name, value):
        object.__setattr__(self, type(self).attribute_map.get(name, name), value)

    def __getattribute__(self, name):
        mapped = object.__getattribute__(self, "attribute_map").get(name, name)
        return object.__getattribute__(self, mapped)

    def __iter__(self):
        return iter(self.__dict__)

    # -- common settings -----------------------------------------------------------------------------------------

    @property
    def sub_configs(self):
        """The classes of the configurations inside this one."""
        return {key: spec.config_class for key, spec in self.sub_configs_defaults.items()}

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
        """The settings of every layer."""
        return _LayerTypes(self, self._layer_overrides)

    # -- rotary embeddings ---------------------------------------------------------------------------------------

    @property
    def rope_scaling(self):
        """The older name of `rope_parameters`."""
        return self.rope_parameters

    @rope_scaling.setter
    def rope_scaling(self, value):
        self.rope_parameters = value
        if value is not None and self.__dict__.get("_post_init_done"):
            self.standardize_rope_params()

    def nested_rope_parameter_keys(self, rope_parameters):
        """The layer types under which rotary settings are given; none where they are one for all layers."""
        labels = getattr(self, "_rope_type_labels", None) or getattr(self, "layer_types", None) or ()
        return [key for key in rope_parameters if key in labels]

    def convert_rope_params_to_dict(self, **kwargs):
        """Gather the rotary settings in `rope_parameters`; returns the other kwargs."""
        given = kwargs.pop("rope_scaling", None) or getattr(self, "rope_parameters", None)
        self.rope_parameters = {} if given is None else given
        theta = kwargs.pop("rope_theta", getattr(self, "rope_theta", self.default_theta))
        part = kwargs.pop("partial_rotary_factor", getattr(self, "partial_rotary_factor", None))
        for settings in self._rope_settings(self.rope_parameters):
            settings.setdefault("rope_theta", theta)
            if part is not None:
                settings.setdefault("partial_rotary_factor", part)
        if part is not None:
            self.ignore_keys_at_rope_validation = {*self.ignore_keys_at_rope_validation, "partial_rotary_factor"}
        self.standardize_rope_params()
        return kwargs

    def _rope_settings(self, rope_parameters):
        nested = self.nested_rope_parameter_keys(rope_parameters)
        found = [rope_parameters[key] for key in nested] or [rope_parameters]
        return [settings for settings in found if settings is not None]

    def standardize_rope_params(self):
        """Give the rotary settings (of every layer type, where they differ) their type and base period."""
        theta, part = getattr(self, "rope_theta", None), getattr(self, "partial_rotary_factor", None)
        rope_parameters = getattr(self, "rope_parameters", None) or {}
        if not rope_parameters and not theta:
            return
        nested = bool(self.nested_rope_parameter_keys(rope_parameters))
        for settings in self._rope_settings(rope_parameters):
            settings.setdefault("rope_type", settings.get("type", "default"))
            settings.setdefault("rope_theta", theta)
            if part is not None:
                settings.setdefault("partial_rotary_factor", part)
            if settings["rope_type"] == "default":
                settings["rope_type"] = self.default_rope_type
            if settings["rope_type"] in {"llama3", "yarn", "longrope"}:
                if not nested and hasattr(self, "original_max_position_embeddings"):
                    settings["original_max_position_embeddings"] = self.original_max_position_embeddings
                else:
                    settings.setdefault("original_max_position_embeddings", self.max_position_embeddings)
        self.rope_parameters = rope_parameters

    def _check_nothing(self):
        """Whoever made the settings has checked them."""

    validate_rope = validate_architecture = validate_layer_type = _check_nothing
    validate_token_ids = validate_output_attentions = _check_nothing

    # -- the whole -----------------------------------------------------------------------------------------------

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
        found = {key: copy.deepcopy(value) for key, value in self.__dict__.items() if key not in _INTERNAL}
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


_INTERNAL = {"_attn_implementation", "_experts_implementation", "_post_init_done"}


def _set_fields(config, kind, given):
    """Set the fields of a class, in their order; other arguments go to `__post_init__`."""
    names = set()
    for field in dataclasses.fields(kind):
        names.add(field.name)
        if field.name in given:
            value = given[field.name]
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            raise TypeError(f"{kind.__name__} needs {field.name!r}")
        setattr(config, field.name, value)
    config.__post_init__(**{name: value for name, value in given.items() if name not in names})
