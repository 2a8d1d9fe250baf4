"""Does a code load trained weights? A plain rule over its syntax tree: which calls load, and what their values request.

These count: a constructor from outside the file that requests trained weights (`weights="DEFAULT"`,
`pretrained=True`), `from_pretrained`, `torch.hub.load`, a checkpoint from a URL or file that reaches parameters (an
optimizer's state does not count).

A value is followed through names that the same function, class or file assigns, and the defaults of parameters. What
only a caller decides (`prm["name"]`, a parameter without default) never counts. A call under an `if` counts.
docs/similarity.md states the limits of such a rule.
"""

import ast
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

#: Quick rejection: 97 of 100 files of LEMUR contain none of these.
_WORDS = ("pretrained", "weights=", "load(", "load_", "from_url", "torchvision", "timm")
_HINTS = re.compile(
    r"pretrained|weights=|load_state_dict\(|[ .]load\(|load_(?:file|model|url)|from_url"
    r"|torchvision(?!\.(?:transforms|ops|datasets|io|utils)\b)|\btimm(?:\.create_model|\s*(?:import|as|[,;#\n]|$))"
)
_LOADERS = re.compile(
    r"load_state_dict_from_url$|\bload_url$|^load_file$|safetensors\..*load_(file|model)$"
    r"|\bjit\.load$"
)
_READERS = re.compile(r"^(torch|torch\.serialization|pickle|joblib|numpy|np|dill)\.load$")
_NO_WEIGHTS = re.compile(r"(Tokenizer|TokenizerFast|Config|Processor|FeatureExtractor|Scheduler)$")
#: Calls that take `pretrained=` or `weights=` for something else, or only store it.
_NO_MODELS = re.compile(
    r"^(sklearn|numpy|np|scipy|random|torchmetrics|pandas|torch|nn|F|typing|argparse)\."
    r"|^(dict|super|print|setattr)$|(Config|Loss|Criterion|Sampler|Coder)$|\b(update|__init__|\w*loss|\w*average)$"
)
_TORCHVISION = re.compile(r"^torchvision\.models\.(?!feature_extraction\.)(\w+\.)*[a-z]\w*$")
_ENUM = re.compile(r"_Weights\b|WeightsEnum|\bget_(model_)?weights?$")
_OPTIMIZER = re.compile(r"\b(opt\w*|\w*(optim|sched|scaler)\w*)$", re.IGNORECASE)
_ASKING = {"pretrained", "weights", "pretrained_backbone", "weights_backbone", "encoder_weights", "checkpoint_path"}

#: What is known of a value: it requests weights (True, text, a weights enumeration), it is false, it was read from a
#: checkpoint, or a caller decides it.
ASKS, FALSE, LOADED, SETTING = "asks", "false", "loaded", "setting"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line that loads trained weights."""

    line: int  # 1-based
    text: str  # the source line, stripped, cut at 160 characters


def find_pretrained(code: str) -> tuple[Evidence, ...]:
    """Return the lines of `code` that load trained weights; empty if the network starts from scratch.

    Args: code: text that parses.
    Returns: one piece of evidence per line, in the order of the lines, which count from 1.
    """
    if not (any(word in code for word in _WORDS) and _HINTS.search(code)):
        return ()
    lines = re.split(r"\r\n|\r|\n", code)  # as the parser counts them; str.splitlines also splits at form feeds
    rule = _PretrainedRule(ast.parse(code))
    try:
        line_numbers = sorted({call.lineno for call in rule.calls if rule.loads(call)})
    except RecursionError:  # values nested a thousand deep, which do not occur in networks with weights
        return ()
    return tuple(Evidence(line, lines[line - 1].strip()[:160]) for line in line_numbers if line <= len(lines))


class _PretrainedRule:
    """The names of one file (imported, defined, assigned, parameters), and what they imply for a call."""

    def __init__(self, tree: ast.Module) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self.calls: list[ast.Call] = []
        self._imports: dict[str, str] = {}
        self._defined: set[str] = set()
        self._known: dict[ast.expr, set[str]] = {}
        #: The possible values of a name in a scope, or of an attribute of `self` in a class; None if a caller decides.
        self._named: dict[tuple[ast.AST, str], list[ast.expr | None]] = {}
        waiting: deque[ast.AST] = deque([tree])
        while waiting:  # in the order of `ast.walk`
            node = waiting.popleft()
            below = list(ast.iter_child_nodes(node))
            waiting.extend(below)
            self.parents.update(dict.fromkeys(below, node))
            match node:
                case ast.Import() | ast.ImportFrom():
                    origin = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
                    for alias in node.names:
                        name = alias.name if alias.asname or origin else alias.name.partition(".")[0]
                        self._imports[alias.asname or name] = origin + name
                case ast.ClassDef(name=name):
                    self._defined.add(name)
                case ast.FunctionDef(name=name, args=given) | ast.AsyncFunctionDef(name=name, args=given):
                    self._defined.add(name)
                    plain = [*given.posonlyargs, *given.args]
                    defaults = [*[None] * (len(plain) - len(given.defaults)), *given.defaults, *given.kw_defaults]
                    for item, default in zip((*plain, *given.kwonlyargs), defaults, strict=True):
                        self._named[node, item.arg] = [default]
                case ast.Call():
                    self.calls.append(node)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        scopes = list(self._scopes(node))
                        if isinstance(target, ast.Name):
                            self._named.setdefault((scopes[0], target.id), []).append(value)
                        elif isinstance(target, ast.Attribute):
                            owner = next((scope for scope in scopes if isinstance(scope, ast.ClassDef)), node)
                            self._named.setdefault((owner, target.attr), []).append(value)

    def _scopes(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the functions, classes and the module around a node, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                yield parent
            node = parent

    def _path(self, node: ast.AST) -> str:
        """Return the dotted name of an expression, its first part as it was imported; empty for anything else."""
        if isinstance(node, ast.Name):
            return self._imports.get(node.id, node.id)
        owner = self._path(node.value) if isinstance(node, ast.Attribute) else ""
        return f"{owner}.{node.attr}" if owner else ""  # type: ignore[attr-defined]

    def loads(self, call: ast.Call) -> bool:
        """Return True if a call loads trained weights when it is reached."""
        path, name = self._path(call.func), getattr(call.func, "attr", "")
        owner = path.rpartition(".")[0]
        arguments = [*call.args, *(item.value for item in call.keywords)]
        keywords = {item.arg: item.value for item in call.keywords}
        if _LOADERS.search(path):
            return True
        takes_loaded = any(LOADED in self.values(value) for value in arguments)
        if name in ("load_state_dict", "copy_", "Parameter"):
            return takes_loaded and not _OPTIMIZER.search(ast.unparse(call.func).rpartition(".")[0])
        if name == "from_pretrained":
            return not _NO_WEIGHTS.search(owner) and (not owner.startswith("torch.nn.") or takes_loaded)
        if path in ("torch.hub.load", "hub.load"):
            stated = [keywords[key] for key in ("pretrained", "weights") if key in keywords]
            return not stated or any(ASKS in self.values(value) for value in stated)
        if path.partition(".")[0] in self._defined or _NO_MODELS.search(path) or name == "update":
            return False
        asking = [value for key, value in keywords.items() if key in _ASKING]
        if path == "timm.create_model" or path.endswith("_backbone"):
            asking += call.args[1:2]
        elif _TORCHVISION.search(path) and not path.endswith(("get_model", "get_weight")):
            asking += call.args[:1]
        return any(ASKS in self.values(value) for value in asking)

    def values(self, node: ast.expr | None) -> set[str]:
        """Return the possible values of an expression, as far as known; None means a caller's value."""
        if node is None:
            return {SETTING}
        if node not in self._known:
            self._known[node] = set()  # nothing, if a value depends on itself
            self._known[node] = self._values(node)
        return self._known[node]

    def _values(self, node: ast.expr) -> set[str]:
        match node:
            case ast.Constant(value=value):
                return {ASKS} if value is True or (isinstance(value, str) and value) else set() if value else {FALSE}
            case ast.Name():
                for scope in self._scopes(node):
                    if assigned := self._named.get((scope, node.id)):
                        return set().union(*(self.values(value) for value in assigned))
                return {ASKS} if _ENUM.search(self._imports.get(node.id, "")) else set()
            case ast.Attribute() | ast.Subscript() if _ENUM.search(self._path(node)):
                return {ASKS}
            case ast.Call(func=called) if _ENUM.search(self._path(called)):
                return {LOADED if self._path(called).endswith("get_state_dict") else ASKS}
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                owner = next((scope for scope in self._scopes(node) if isinstance(scope, ast.ClassDef)), node)
                return set().union(*(self.values(value) for value in self._named.get((owner, name), [])))
            case ast.IfExp(test=test, body=one, orelse=other):
                known = self.values(test)
                chosen = [other] if known and known <= {FALSE, SETTING} else [one, other]
                return set().union(*map(self.values, chosen))
            case ast.Call(args=arguments) if _READERS.search(self._path(node.func)):
                path = self.values(arguments[0]) if arguments else set()
                return {SETTING} if path and path <= {SETTING, FALSE} else {LOADED}
        below = (self.values(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
        return set().union(*below) & {LOADED, SETTING}
