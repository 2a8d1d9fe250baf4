"""Definitions that drag whole frameworks behind them, and the small stand-ins that take their place.

Each is known by its name together with its shape (methods of a class, parameters of a function), not by where it
comes from. A class that is itself extracted is never replaced.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heavy:
    """One definition that is replaced: `has` must be among its methods or parameters."""

    file: str  # below this folder
    name: str  # there
    has: frozenset[str]
    note: str


def _heavy(file: str, name: str, has: str, note: str) -> Heavy:
    return Heavy(file, name, frozenset(has.split()), note)


# Classes named like these look other classes up by name.
_AUTO = _heavy("auto.py", "AutoClass", "", "no class by name")
_AUTO_BASES = ("_BaseAutoModelClass", "_BaseAutoBackboneClass")


def find_heavy(name: str, shape: set[str], bases: Collection[str]) -> Heavy | None:
    """The stand-in for a definition of this name, with these methods or parameters and bases."""
    if any(base in _AUTO_BASES for base in bases) or (
        name in {"AutoConfig", "AutoTokenizer", "AutoProcessor"} and "from_pretrained" in shape
    ):
        return _AUTO
    found = HEAVY.get(name)
    return found if found is not None and found.has <= shape else None


HEAVY: dict[str, Heavy] = {
    "PreTrainedModel": _heavy(
        "pretrained.py", "PreTrainedModel", "from_pretrained post_init", "no loading, saving, quantisation, sharding"
    ),
    "PreTrainedConfig": _heavy(
        "settings.py", "PreTrainedConfig", "from_pretrained to_dict", "no files; checks nothing"
    ),
    "PretrainedConfig": _heavy(
        "settings.py", "PreTrainedConfig", "from_pretrained to_dict", "no files; checks nothing"
    ),
    "SubConfigSpec": _heavy("settings.py", "SubConfigSpec", "create_subconfig", "model types of this file only"),
    "_CanRecordRegistry": _heavy("pretrained.py", "RecordedOutputs", "get __setitem__", "asks the model"),
    "GenerationMixin": _heavy("pretrained.py", "GenerationMixin", "generate", "no text generation"),
    "AttentionInterface": _heavy(
        "attention.py", "AttentionInterface", "get_interface", "scaled dot-product attention; no flash, flex or paged"
    ),
    "load_backbone": _heavy("auto.py", "load_backbone", "config", "no class by name"),
    "requires": _heavy("backends.py", "requires", "backends", "checks nothing"),
    "requires_backends": _heavy("backends.py", "requires_backends", "obj backends", "checks nothing"),
    "_assert_has_ops": _heavy("backends.py", "assert_has_ops", "", "checks nothing"),
    "load_state_dict": _heavy("checkpoint.py", "load_state_dict", "module state_dict", "PyTorch's own"),
    "get_logger": _heavy("loggers.py", "get_logger", "name", "the standard library's logging"),
    "ConfigDict": _heavy("config.py", "ConfigDict", "__missing__ __getattr__", "a dict read by attributes"),
    "Config": _heavy("config.py", "ConfigDict", "fromfile", "a dict read by attributes; no files"),
    "print_log": _heavy("logs.py", "print_log", "msg logger level", "the standard library's logging"),
    "MMLogger": _heavy("logs.py", "NamedLogger", "get_current_instance", "the standard library's logging"),
    "build_from_cfg": _heavy("build.py", "build_from_cfg", "cfg registry default_args", "the registry builds"),
    "build_model_from_cfg": _heavy("build.py", "build_from_cfg", "cfg registry default_args", "the registry builds"),
    "load_checkpoint": _heavy("checkpoint.py", "load_checkpoint", "model filename map_location", "local files only"),
    "_load_checkpoint": _heavy("checkpoint.py", "read_checkpoint", "filename map_location", "local files only"),
    "_load_checkpoint_with_prefix": _heavy(
        "checkpoint.py", "read_checkpoint_with_prefix", "prefix filename", "local files only"
    ),
}
