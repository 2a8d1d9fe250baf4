"""Which lines of a network's code load trained weights: one rule over the syntax tree; nothing of the code is run.

A call counts when it is one of these, and the conditions around it do not rule it out:

- `X.from_pretrained(...)` (but of tokenizers, configurations, processors, schedulers), `torch.hub.load(...)` unless it
  says `pretrained=False` or `weights=None`, `load_state_dict_from_url`, `load_url`, safetensors, `torch.jit.load`;
- a constructor from outside the file with `pretrained=`, `weights=` or their like that is neither False nor None, by
  keyword or where torchvision and timm take it by position;
- `load_state_dict`, `copy_` or `Parameter` of what `torch.load` and its like read from a file that the code names (an
  optimizer's state does not count).

A value is followed through names, attributes of `self`, parameters (what the file's own calls hand over, else the
default) and what the file's functions return. What only a caller outside the file knows (`prm["name"]`, a parameter
without default) never counts, nor does code under a condition that is false or that only such a caller decides.
docs/similarity.md says what such a rule cannot see.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import UnionType

#: Without one of these there is nothing to look for: 99 files in 100 of LEMUR stop here.
_HINTS = re.compile(
    r"pretrained|weights=|load_state_dict\(|[ .]load\(|load_(?:file|model|url)|from_url"
    r"|torchvision|timm"
)
_LOADERS = re.compile(
    r"load_state_dict_from_url$|\bload_url$|^load_file$|safetensors\..*load_(file|model)$"
    r"|\bjit\.load$"
)
_READERS = re.compile(r"^(torch|torch\.serialization|pickle|joblib|numpy|np|dill)\.load$")
_NO_WEIGHTS = re.compile(r"(Tokenizer|TokenizerFast|Config|Processor|FeatureExtractor|Scheduler)$")
#: These take `pretrained=` or `weights=` for something else, or only keep it.
_NO_MODELS = re.compile(
    r"^(sklearn|numpy|np|scipy|random|torchmetrics|pandas|torch|nn|F|typing|argparse)\."
    r"|^(dict|super|print|setattr)$|(Config|Loss|Criterion|Sampler|Coder)$|\b(update|__init__|\w*loss|\w*average)$"
)
_TORCHVISION = re.compile(r"^torchvision\.models\.(?!feature_extraction\.)(\w+\.)*[a-z]\w*$")
_ENUM = re.compile(r"_Weights\b|WeightsEnum|\bget_(model_)?weights?$")
_OPTIMIZER = re.compile(r"\b(opt\w*|\w*(optim|sched|scaler)\w*)$", re.IGNORECASE)
_ASKING = {"pretrained", "weights", "pretrained_backbone", "weights_backbone", "encoder_weights", "checkpoint_path"}
_MAX_STEPS, _MAX_DEPTH = 5_000, 100

#: What is known of a value: it asks for weights (True, text, a weights enumeration), it is false, it was read from a
#: checkpoint, a caller outside the file decides it, or anything else.
ASKS, FALSE, LOADED, SETTING, UNKNOWN = "asks", "false", "loaded", "setting", "unknown"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


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
    if not _HINTS.search(code):
        return ()
    lines = re.split(r"\r\n|\r|\n", code)  # as the parser counts them; str.splitlines also splits at form feeds
    rule = _Rule(tree)
    found = sorted({call.lineno for call in rule.calls if rule.loads(call) and not rule.is_dead(call)})
    return tuple(Evidence(line, lines[line - 1].strip()[:160]) for line in found if line <= len(lines))


class _Rule:
    """The names of one file (imported, assigned, defined, called), and what they say about a call."""

    def __init__(self, tree: ast.Module) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self.calls: list[ast.Call] = []
        self.imports: dict[str, str] = {}
        self.defined: dict[str, ast.AST] = {}
        self.assigned: dict[tuple[ast.AST | None, str], list[tuple[ast.stmt, ast.expr]]] = {}
        self._steps = 0
        self._asked: set[tuple[ast.AST, str]] = set()
        for node in ast.walk(tree):
            self.parents.update(dict.fromkeys(ast.iter_child_nodes(node), node))
            match node:
                case ast.Import() | ast.ImportFrom():
                    origin = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
                    for alias in node.names:
                        name = alias.name if alias.asname or origin else alias.name.partition(".")[0]
                        self.imports[alias.asname or name] = origin + name
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self.defined[node.name] = node
                case ast.Call():
                    self.calls.append(node)
                case ast.Assign():
                    self._assign(node.targets, node.value, node)
                case ast.AnnAssign() if node.value is not None:
                    self._assign([node.target], node.value, node)
                case ast.For():
                    self._assign([node.target], node.iter, node)

    def _assign(self, targets: list[ast.expr], value: ast.expr, where: ast.stmt) -> None:
        for target in targets:
            if isinstance(target, ast.Tuple | ast.List):
                self._assign(target.elts, value, where)
            elif isinstance(target, ast.Subscript):
                self._assign([target.value], value, where)
            elif isinstance(target, ast.Name):
                self.assigned.setdefault((next(self.around(where, Scope)), target.id), []).append((where, value))
            elif isinstance(target, ast.Attribute):
                owner = next(self.around(where, ast.ClassDef), None)
                self.assigned.setdefault((owner, target.attr), []).append((where, value))

    def around(self, node: ast.AST, kind: type | UnionType) -> Iterator[ast.AST]:
        """The nodes of a kind around this one, inmost first."""
        while (parent := self.parents.get(node)) is not None:
            if isinstance(parent, kind):
                yield parent
            node = parent

    def path(self, node: ast.AST) -> str:
        """The dotted name of an expression, its first part as it was imported; empty for anything else."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, node.id)
        owner = self.path(node.value) if isinstance(node, ast.Attribute) else ""
        return f"{owner}.{node.attr}" if owner else ""  # type: ignore[attr-defined]

    def loads(self, call: ast.Call) -> bool:
        """Whether a call loads trained weights, should it be reached."""
        path, name = self.path(call.func), getattr(call.func, "attr", "")
        owner = path.rpartition(".")[0]
        keywords = {item.arg: item.value for item in call.keywords}
        if _LOADERS.search(path):
            return True
        if name in ("load_state_dict", "copy_", "Parameter"):
            return not _OPTIMIZER.search(ast.unparse(call.func).rpartition(".")[0]) and self.takes_loaded(call)
        if name == "from_pretrained":
            return not _NO_WEIGHTS.search(owner) and (not owner.startswith("torch.nn.") or self.takes_loaded(call))
        if path in ("torch.hub.load", "hub.load"):
            stated = [keywords[key] for key in ("pretrained", "weights") if key in keywords]
            return not stated or any(ASKS in self.values(value) for value in stated)
        if path.partition(".")[0] in self.defined or _NO_MODELS.search(path) or name == "update":
            return False
        asking = [value for key, value in keywords.items() if key in _ASKING]
        if path == "timm.create_model" or path.endswith("_backbone"):
            asking += call.args[1:2]
        elif _TORCHVISION.search(path) and not path.endswith(("get_model", "get_weight")):
            asking += call.args[:1]
        return any(ASKS in self.values(value) for value in asking)

    def takes_loaded(self, call: ast.Call) -> bool:
        """Whether an argument was read from a checkpoint."""
        return any(LOADED in self.values(value) for value in (*call.args, *(item.value for item in call.keywords)))

    def is_dead(self, node: ast.AST) -> bool:
        """Whether a condition around keeps every run away, or all but those that a caller outside the file asks for."""
        while (parent := self.parents.get(node)) is not None:
            if isinstance(parent, ast.If | ast.IfExp) and node is not parent.test:
                in_body = node is parent.body or (isinstance(parent.body, list) and node in parent.body)
                if self.truth(parent.test) in (FALSE if in_body else ASKS, SETTING):
                    return True
            node = parent
        return False

    def truth(self, test: ast.expr) -> str:
        """What is known of a condition: that it holds (ASKS), that it does not (FALSE), SETTING or UNKNOWN."""
        values = self.values(test)
        if SETTING in values or values == {FALSE}:
            return SETTING if SETTING in values else FALSE
        return UNKNOWN if values & {FALSE, UNKNOWN} else ASKS

    def sites(self, function: Function) -> list[ast.Call]:
        """The calls in the file of one of its functions; for `__init__` those of its class."""
        owner = self.parents[function]
        name = owner.name if function.name == "__init__" and isinstance(owner, ast.ClassDef) else function.name
        return [call for call in self.calls if name == getattr(call.func, "attr", getattr(call.func, "id", ""))]

    def values(self, node: ast.AST | None, name: str = "") -> set[str]:
        """What an expression can be, or the parameter `name` of a function; UNKNOWN in a circle or beyond bounds."""
        self._steps += 1
        key = (node or ast.Pass(), name)
        if key in self._asked or self._steps > _MAX_STEPS or len(self._asked) > _MAX_DEPTH:
            return {UNKNOWN}
        self._asked.add(key)
        found = self._parameter(node, name) if isinstance(node, Function) else self._values(node)
        self._asked.discard(key)
        return found or {UNKNOWN}

    def _values(self, node: ast.AST | None) -> set[str]:
        match node:
            case ast.Constant(value=value):
                return {ASKS if value is True or (isinstance(value, str) and value) else UNKNOWN if value else FALSE}
            case ast.Name():
                return self._named(node)
            case ast.Attribute() | ast.Subscript():
                if _ENUM.search(self.path(node)):
                    return {ASKS}
                own = next(self.around(node, ast.ClassDef), None)
                if isinstance(node, ast.Attribute) and (own, node.attr) in self.assigned:
                    return self._assigned(own, node.attr)
                return self.values(node.value) & {LOADED, SETTING}
            case ast.Call():
                return self._returned(node)
            case ast.UnaryOp(op=ast.Not()):
                return {_opposite(self.truth(node.operand))}
            case ast.BoolOp(op=ast.And()):
                known = {self.truth(value) for value in node.values}
                return next(({least} for least in (FALSE, SETTING) if least in known), self.values(node.values[-1]))
            case ast.BoolOp():
                return _union(map(self.values, node.values)) - {FALSE} or {FALSE}
            case ast.IfExp():
                sides = {ASKS: [node.body], FALSE: [node.orelse], SETTING: []}
                chosen = sides.get(self.truth(node.test), [node.body, node.orelse])
                return _union(map(self.values, chosen)) or {SETTING}
            case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
                return {self.truth(node.left)}
            case ast.Compare(ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
                return {_opposite(self.truth(node.left))}
            case ast.Compare(left=ast.Name(id="__name__")):
                return {FALSE}
            case ast.Compare(ops=[ast.Eq() | ast.In()]):
                return {UNKNOWN}  # one name of several that a caller chooses from: possible
        return _union(map(self.values, ast.iter_child_nodes(node) if node else ())) & {LOADED, SETTING}

    def _named(self, node: ast.Name) -> set[str]:
        """What a name can be where it stands: a parameter, assigned in a scope around it, or imported."""
        for scope in self.around(node, Scope):
            if (scope, node.id) in self.assigned:
                return self._assigned(scope, node.id)
            if isinstance(scope, Function) and node.id in _parameters(scope):
                return self.values(scope, node.id)
        return {ASKS} if _ENUM.search(self.imports.get(node.id, "")) else {UNKNOWN}

    def _assigned(self, scope: ast.AST | None, name: str) -> set[str]:
        """What is assigned to a name of a scope, and can be reached."""
        return _union(self.values(value) for where, value in self.assigned[scope, name] if not self.is_dead(where))

    def _parameter(self, function: Function, name: str) -> set[str]:
        """What the file's own calls hand over for a parameter, with its default; the default where there are none."""
        parameters = _parameters(function)
        default = parameters[name]
        otherwise = {SETTING} if default is None else self.values(default)
        place = [item for item in parameters if item not in ("self", "cls")].index(name) if name != "self" else 0
        found: set[str] = set()
        for call in self.sites(function):
            given = [item.value for item in call.keywords if item.arg == name] or call.args[place : place + 1]
            if not self.is_dead(call):
                found |= self.values(given[0]) if given else otherwise
        return found or otherwise

    def _returned(self, call: ast.Call) -> set[str]:
        path = self.path(call.func)
        name = getattr(call.func, "attr", path)
        values = [self.values(arg) for arg in (*call.args, *(item.value for item in call.keywords))]
        if _READERS.search(path):
            return {SETTING} if values and values[0] <= {SETTING, FALSE} else {LOADED}
        if _ENUM.search(path):
            return {LOADED if name == "get_state_dict" else ASKS}
        if (name in ("get", "pop") and len(call.args) == 2) or name == "bool":
            return values[-1] if values else {FALSE}
        if isinstance(function := self.defined.get(name), Function):
            return _union(self.values(item.value) for item in ast.walk(function) if isinstance(item, ast.Return))
        below = _union(values) | (self.values(call.func.value) if isinstance(call.func, ast.Attribute) else set())
        return {LOADED} if LOADED in below else below & {SETTING}


def _opposite(known: str) -> str:
    return {ASKS: FALSE, FALSE: ASKS}.get(known, known)


def _union(values: Iterable[set[str]]) -> set[str]:
    return set().union(*values)


def _parameters(function: Function) -> dict[str, ast.expr | None]:
    """The parameters of a function in order, each with its default."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(plain) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    return {item.arg: default for item, default in zip((*plain, *arguments.kwonlyargs), defaults, strict=True)}
