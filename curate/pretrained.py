"""Which lines of a network's code load trained weights, decided from the code itself.

The code is not searched for words: constants, defaults and arguments are followed (`curate._follow`) to the calls that
leave the file, and those calls decide:

- `pretrained=`, `weights=`, `weights_backbone=`, `encoder_weights=` with a value that is not False or None, by keyword
  or where the signature is known (`torchvision.models`, `timm.create_model`) by position or default: the detection and
  segmentation builders of torchvision, and segmentation_models_pytorch, take an ImageNet backbone unless told not to;
- `X.from_pretrained(...)`, except for tokenizers, configurations, processors and schedulers;
- `torch.hub.load(...)` unless it says `pretrained=False` or `weights=None`, `load_state_dict_from_url`, `load_url`,
  safetensors' `load_file`, `torch.jit.load`;
- `load_state_dict(...)` (not of an optimizer), `nn.Parameter(...)`, `.copy_(...)` of something read by `torch.load` and
  its like; a whole model read by `torch.load` that is then used.

What cannot be known from the file: a parameter without default of something that the file never calls, and
`prm["name"]`, are settings of the caller. A setting never counts as trained weights, nor does code that runs only
if a setting is true, unless its other branch loads weights too; `prm.get("name", default)` and a parameter's default
count as the default. Other unknown conditions (a file exists, an import worked) count as possible. Code under
`if __name__ == "__main__":`, after `return`, or behind a condition known to be false does not count.
"""

import ast
import re
from dataclasses import dataclass

from curate._follow import (
    LOADED,
    SETTING,
    UNKNOWN,
    Atom,
    Class,
    Const,
    Follower,
    Instance,
    Made,
    Mark,
    Outside,
    Value,
    is_loaded,
    truth,
)

#: Without one of these there is nothing to follow: 99 files in 100 of LEMUR stop here.
_HINTS = (
    *(
        "pretrained",
        "load_state_dict(",
        "weights=",
        ".load(",
        " load(",
        "load_file",
        "load_model",
        "load_url",
        "from_url",
    ),
    *("from torchvision.models", "torchvision import", "import torchvision", "from timm", "import timm", "torch.hub"),
    *("hub.load", "segmentation_models_pytorch", "sentence_transformers", "transformers.pipeline", "import pipeline"),
)

#: Calls that return trained weights, or a model that has them.
_LOADERS = re.compile(
    r"load_state_dict_from_url|model_zoo\.load_url|^load_url$|safetensors\.(torch\.)?(load_file|load_model)$"
    r"|^(load_file|load_safetensors)$|(^|\.)jit\.load$|^clip\.load$|^transformers\.(pipelines\.)?pipeline$"
    r"|^sentence_transformers\.SentenceTransformer$"
)
#: Calls that read a file in which weights may be: they count when a network takes what was read.
_READERS = re.compile(r"^(torch|pickle|joblib|numpy|np|dill)\.load$|^torch\.serialization\.load$")
#: `from_pretrained` of these brings no weights.
_NO_WEIGHTS = re.compile(r"(Tokenizer|TokenizerFast|Config|Processor|FeatureExtractor|Scheduler)$")
#: These take `pretrained=` or `weights=` for something else, or only keep it.
_OTHER = re.compile(
    r"^(sklearn|numpy|np|scipy|random|torchmetrics|pandas|torch_geometric|torch(?!\.hub)|typing|logging)\."
    r"|^(super|print|setattr|argparse\.Namespace|types\.SimpleNamespace|SimpleNamespace|vars|hasattr|isinstance)$"
    r"|^object\.__init__$|(Config|Cfg|Loss|Criterion|Sampler|Coder)$|(^|\.)(add_argument|[a-z_]*(loss|average|entropy))$"
)
#: Builders of torchvision whose backbone has ImageNet weights by default.
_WITH_BACKBONE = re.compile(
    r"(fasterrcnn|maskrcnn|keypointrcnn|retinanet|fcos|ssd300|ssdlite320|deeplabv3|fcn|lraspp)_[a-z0-9_]+$"
)
_ENUM = re.compile(r"_Weights(\.|$)|\.get_(model_)?weights?\b|^get_(model_)?weights?\b|WeightsEnum\.")
_BUILDER = re.compile(
    r"^torchvision\.models\.(?!_[a-z]|.*\._[a-z])(?!feature_extraction\.|get_(?!model$)|list_)([a-z0-9_]+\.)*([a-z][a-z0-9_]*|\*)$"
)
_USED_AS_MODEL = frozenset(("eval", "train", "parameters", "named_parameters", "children", "named_children", "modules"))
_SAME = frozenset(("to", "eval", "train", "cuda", "cpu", "half", "float", "apply", "requires_grad_", "double"))
_OPTIMIZER = re.compile(r"^torch\.(optim|amp|cuda\.amp)\b|lr_scheduler|Optimizer|GradScaler")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line that loads trained weights."""

    line: int  # 1-based
    text: str  # the source line, stripped, cut at 160 characters


def find_pretrained(code: str, tree: ast.Module) -> tuple[Evidence, ...]:
    """Lines of `code` that load trained weights, in line order; empty when the network starts from scratch.

    Args:
        code: the source text.
        tree: its syntax tree, `ast.parse(code)`.
    """
    if not any(hint in code for hint in _HINTS):
        return ()
    rules = _Rules()
    rules.follower = follower = Follower(rules)
    lines = re.split(r"\r\n|\r|\n", code)  # as the parser counts them; str.splitlines also splits at form feeds
    return tuple(Evidence(n, lines[n - 1].strip()[:160]) for n in sorted(follower.follow(tree)) if n <= len(lines))


def _counts(value: Value | None) -> bool:
    """Whether this value of `pretrained=` or `weights=` asks for trained weights."""
    return value is not None and any(
        truth((atom,)) is True or (isinstance(atom, Made) and _is_enum(atom)) for atom in value
    )


def _is_enum(atom: Atom) -> bool:
    return isinstance(atom, Outside | Made) and bool(_ENUM.search(atom.path))


def _is_weights(value: Value | None) -> bool:
    """Whether this value can be nothing but trained weights: the name of some, or a member of a weights enumeration."""
    return any(
        _is_enum(atom) or (isinstance(atom, Const) and atom.kind == "str" and atom.value) for atom in value or ()
    )


def _takes(value: Value | None) -> bool:
    """Whether this first positional argument of a builder is the old `pretrained` or the new `weights`."""
    return value is not None and (_is_weights(value) or Const(True, "bool") in value)


class _Rules:
    """Which calls that leave the file load trained weights."""

    follower: Follower

    def call(self, path: str, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
        """A call of an outside name."""
        if path.startswith("builtins."):
            path = path.removeprefix("builtins.")
        owner, _, name = path.rpartition(".")
        if _READERS.search(path):
            source = args[0] if args else keywords.get("f", UNKNOWN)
            return LOADED if self.is_given(source) else SETTING
        if _LOADERS.search(path):
            self.follower.report(node)
            return LOADED
        if name == "get_state_dict":
            return LOADED if _ENUM.search(owner) else UNKNOWN
        if name in ("load_state_dict", "copy_"):
            return self.method(Outside(owner), name, args, node, keywords)
        if name == "from_pretrained":
            tensors = _is_torch_nn(owner)
            if not _NO_WEIGHTS.search(owner) and (not tensors or any(map(is_loaded, args))):
                self.follower.report(node)
        elif path in ("torch.hub.load", "hub.load") or (path.endswith(".hub.load") and path.startswith("torch")):
            self.hub(args, keywords, node)
        elif path in ("torch.nn.Parameter", "torch.nn.parameter.Parameter", "nn.Parameter"):
            if any(map(is_loaded, args)):
                self.follower.report(node)
        elif self.builds_trained(path, name, args, keywords):
            self.follower.report(node)
        if any(map(is_loaded, (*args, *keywords.values()))):
            return LOADED
        if any(Mark.SETTING in value for value in args) and not path.startswith("torchvision.models"):
            return SETTING if not _is_torch(path) else UNKNOWN
        return (Made(path),) if path else UNKNOWN

    def method(self, owner: Atom, name: str, args: list[Value], node: ast.Call, keywords: dict[str, Value]) -> Value:
        """A call of a method on a value from outside the file, or one that its class does not define."""
        loaded = any(map(is_loaded, (*args, *keywords.values())))
        if name == "load_state_dict" and loaded and not self.is_optimizer(owner, node):
            self.follower.report(node)
            return UNKNOWN
        if name == "copy_" and loaded:
            self.follower.report(node)
        if name == "get_state_dict":
            return LOADED if _is_enum(owner) else SETTING if owner is Mark.SETTING else UNKNOWN
        if name == "from_pretrained":
            if not isinstance(owner, Const):
                self.follower.report(node)
            return UNKNOWN
        if owner is Mark.LOADED:
            if name in _USED_AS_MODEL:
                self.follower.report(node)
            return LOADED
        if isinstance(owner, Made):
            return self.call(f"{owner.path}.{name}", args, keywords, node)
        if isinstance(owner, Instance) and name in _SAME:
            return (owner,)
        if name != "update" and self.builds_trained("", name, [], keywords):
            self.follower.report(node)
        return LOADED if loaded else SETTING if owner is Mark.SETTING else UNKNOWN

    def hub(self, args: list[Value], keywords: dict[str, Value], node: ast.Call) -> None:
        """`torch.hub.load(repo, model)`: trained unless it says otherwise."""
        entry = args[1] if len(args) > 1 else keywords.get("model", UNKNOWN)
        if any(isinstance(a, Const) and str(a.value).endswith(("okenizer", "config", "_utils")) for a in entry):
            return
        said = [keywords[k] for k in ("pretrained", "weights") if k in keywords]
        if not said or any(map(_counts, said)):
            self.follower.report(node)

    def builds_trained(self, path: str, name: str, args: list[Value], keywords: dict[str, Value]) -> bool:
        """Whether a call builds a model with trained weights."""
        if _OTHER.search(path) or (path.startswith("torchvision.models.") and "._utils." in path):
            return False
        if any(_counts(keywords.get(key)) for key in ("pretrained", "pretrained_backbone", "encoder_weights")):
            return True
        weights = keywords.get("weights")
        if path.startswith("timm."):
            second = args[1] if name == "create_model" and len(args) > 1 else args[0] if args else None
            path_given = _counts(keywords.get("checkpoint_path"))
            return path_given or (second is not None and Const(True, "bool") in second) or _is_weights(weights)
        if path.startswith("segmentation_models_pytorch.") and (name == "create_model" or name[:1].isupper()):
            return _counts(args[2]) if len(args) > 2 and name != "create_model" else "encoder_weights" not in keywords
        if not _BUILDER.match(path):
            return _is_weights(weights) or _is_weights(keywords.get("weights_backbone"))
        if _counts(weights) or _counts(keywords.get("weights_backbone")):
            return True
        if name in ("resnet_fpn_backbone", "mobilenet_backbone"):
            return len(args) > 1 and _takes(args[1])
        if name == "get_model":
            asked = args[0] if args else keywords.get("name", UNKNOWN)
            names = [str(a.value) for a in asked if isinstance(a, Const)]
        else:
            names = [name]
            if args and _takes(args[0]):
                return True
        untold = not keywords.keys() & {"weights_backbone", "pretrained_backbone"}
        return untold and any(map(_WITH_BACKBONE.match, names))

    def is_given(self, source: Value) -> bool:
        """Whether the file itself names what is read."""
        return not all(atom in (Mark.SETTING, Const(None, "NoneType"), Const("", "str")) for atom in source)

    def is_optimizer(self, owner: Atom, node: ast.Call) -> bool:
        """Whether `load_state_dict` restores an optimizer or scheduler, by what made it, else by its name."""
        if isinstance(owner, Made):
            return bool(_OPTIMIZER.search(owner.path))
        if isinstance(owner, Instance | Class) or not isinstance(node.func, ast.Attribute):
            return False
        receiver = node.func.value
        name = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
        return bool(re.search(r"^opt|optim|sched|scaler", name, re.IGNORECASE))


def _is_torch(path: str) -> bool:
    return path.startswith(("torch.", "nn."))


def _is_torch_nn(path: str) -> bool:
    return path.startswith(("torch.nn.", "nn."))
