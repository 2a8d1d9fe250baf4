"""What a call that leaves the file means: its value, and whether its line loads trained weights."""

import re
from typing import NamedTuple

from curate.pretrained.builders import asks_for_weights, builds_trained, is_enum
from curate.pretrained.operations import is_loaded
from curate.pretrained.values import (
    LOADED,
    NONE,
    SETTING,
    UNKNOWN,
    Atom,
    Call,
    Class,
    Const,
    Instance,
    Made,
    Mark,
    Outside,
    Value,
)

#: Calls that return trained weights, or a model that has them.
_LOADERS = re.compile(
    r"load_state_dict_from_url|model_zoo\.load_url|^load_url$|safetensors\.(torch\.)?(load_file|load_model)$"
    r"|^(load_file|load_safetensors)$|(^|\.)jit\.load$|^clip\.load$|^transformers\.(pipelines\.)?pipeline$"
    r"|^sentence_transformers\.SentenceTransformer$"
)
#: Calls that read a file in which weights may be: they count when a network takes what was read.
_READERS = re.compile(r"^(torch|pickle|joblib|numpy|np|dill)\.load$|^torch\.serialization\.load$")
_HUB = re.compile(r"^(torch.*\.)?hub\.load$")
#: Entries of a hub that bring no weights.
_HUB_OTHER = ("okenizer", "config", "_utils")
#: `from_pretrained` of these brings no weights.
_NO_WEIGHTS = re.compile(r"(Tokenizer|TokenizerFast|Config|Processor|FeatureExtractor|Scheduler)$")
_PARAMETER = frozenset(("torch.nn.Parameter", "torch.nn.parameter.Parameter", "nn.Parameter"))
_USED_AS_MODEL = frozenset(("eval", "train", "parameters", "named_parameters", "children", "named_children", "modules"))
_SAME = frozenset(("to", "eval", "train", "cuda", "cpu", "half", "float", "apply", "requires_grad_", "double"))
_OPTIMIZER = re.compile(r"^torch\.(optim|amp|cuda\.amp)\b|lr_scheduler|Optimizer|GradScaler")
_OPTIMIZER_NAME = re.compile(r"^opt|optim|sched|scaler", re.IGNORECASE)


class Verdict(NamedTuple):
    """What a call returns, and whether its line loads trained weights."""

    value: Value
    loads: bool = False


def judge_call(path: str, call: Call) -> Verdict:
    """A call of the outside name `path`, empty when the callee is not known."""
    path = path.removeprefix("builtins.")
    owner, _, name = path.rpartition(".")
    args = call.args
    if _READERS.search(path):
        source = args[0] if args else call.keywords.get("f", UNKNOWN)
        return Verdict(LOADED if _is_given(source) else SETTING)
    if _LOADERS.search(path):
        return Verdict(LOADED, True)
    if name == "get_state_dict":
        return Verdict(LOADED if is_enum(Outside(owner)) else UNKNOWN)
    if name in ("load_state_dict", "copy_"):
        return judge_method(Outside(owner), name, call)
    if name == "from_pretrained":
        own = owner.startswith(("torch.nn.", "nn.")) and not any(map(is_loaded, args))
        loads = not own and not _NO_WEIGHTS.search(owner)
    elif _HUB.match(path):
        loads = _is_trained_by_hub(call)
    elif path in _PARAMETER:
        loads = any(map(is_loaded, args))
    else:
        loads = builds_trained(path, call)
    return Verdict(_returned(path, call), loads)


def _returned(path: str, call: Call) -> Value:
    """What a call of an outside name returns: loaded or a setting if an argument is."""
    if _takes_loaded(call):
        return LOADED
    if any(Mark.SETTING in value for value in call.args) and not path.startswith("torchvision.models"):
        return UNKNOWN if path.startswith(("torch.", "nn.")) else SETTING
    return (Made(path),) if path else UNKNOWN


def judge_method(owner: Atom, name: str, call: Call) -> Verdict:
    """A call of a method on a value from outside the file, or one that its class does not define."""
    loaded = _takes_loaded(call)
    if name == "load_state_dict" and loaded and not _is_optimizer(owner, call):
        return Verdict(UNKNOWN, True)
    loads = name == "copy_" and loaded
    if name == "get_state_dict":
        return Verdict(LOADED if is_enum(owner) else SETTING if owner is Mark.SETTING else UNKNOWN)
    if name == "from_pretrained":
        return Verdict(UNKNOWN, not isinstance(owner, Const))
    if owner is Mark.LOADED:
        return Verdict(LOADED, loads or name in _USED_AS_MODEL)
    if isinstance(owner, Made):
        judged = judge_call(f"{owner.path}.{name}", call)
        return Verdict(judged.value, loads or judged.loads)
    if isinstance(owner, Instance) and name in _SAME:
        return Verdict((owner,), loads)
    loads = loads or (name != "update" and builds_trained("", call))
    return Verdict(LOADED if loaded else SETTING if owner is Mark.SETTING else UNKNOWN, loads)


def _takes_loaded(call: Call) -> bool:
    return any(map(is_loaded, (*call.args, *call.keywords.values())))


def _is_given(source: Value) -> bool:
    """Whether the file itself names what is read."""
    return not all(atom in (Mark.SETTING, NONE, Const("", "str")) for atom in source)


def _is_trained_by_hub(call: Call) -> bool:
    """`torch.hub.load(repo, model)`: trained unless it says otherwise."""
    entry = call.args[1] if len(call.args) > 1 else call.keywords.get("model", UNKNOWN)
    if any(isinstance(atom, Const) and str(atom.value).endswith(_HUB_OTHER) for atom in entry):
        return False
    said = [call.keywords[key] for key in ("pretrained", "weights") if key in call.keywords]
    return not said or any(map(asks_for_weights, said))


def _is_optimizer(owner: Atom, call: Call) -> bool:
    """Whether `load_state_dict` restores an optimizer or scheduler, by what made it, else by its name."""
    if isinstance(owner, Made):
        return bool(_OPTIMIZER.search(owner.path))
    return not isinstance(owner, Instance | Class) and bool(_OPTIMIZER_NAME.search(call.receiver))
