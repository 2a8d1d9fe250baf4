"""Edits of a network's file that keep what it computes, and edits that change it, by construction.

Each gives a pair of files, both made from one real network: what is looked for (a loop, a sum, a shared layer) is
planted into both where the network may have none, at the head of `Net.forward`, so that every result depends on it.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

Pair = tuple[str, str]
_TAKEN = frozenset(dir(nn.Module)) | frozenset(dir(torch.Tensor)) | frozenset(dir(torch)) | frozenset(dir(nn))
_CONTRACT = frozenset({"train_setup", "learn", "forward", "criteria", "criterion", "optimizer", "device"})
_WIDTHS = (16, 24, 32, 48, 64, 96, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Plant:
    """One kind of edit. `same`: the two files compute the same; `pairs` gives candidates, the best first."""

    name: str
    same: bool
    pairs: Callable[[str, np.random.Generator], Iterator[Pair]]


def _net(tree: ast.Module) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Net")


def _method(owner: ast.ClassDef, name: str) -> ast.FunctionDef:
    return next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == name)


def _code(tree: ast.Module) -> str:
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _planted(code: str, forward: str, init: str = "") -> str:
    """The file with lines at the end of `Net.__init__` and at the head of `Net.forward`; `X` is its input, `C` the
    number of channels.
    """
    tree = ast.parse(code)
    net = _net(tree)
    made, run = _method(net, "__init__"), _method(net, "forward")
    shape, given = made.args.args[1].arg, run.args.args[1].arg

    def lines(text: str) -> list[ast.stmt]:
        return ast.parse(text.replace("X", given).replace("C", f"{shape}[1]").replace("cONV", "Conv")).body

    made.body += lines(init)
    run.body[:0] = lines(forward)
    return _code(tree)


def _both(one: str, other: str, init: str = "", other_init: str | None = None) -> Callable[..., Iterator[Pair]]:
    def pairs(code: str, _random: np.random.Generator) -> Iterator[Pair]:
        yield _planted(code, one, init), _planted(code, other, init if other_init is None else other_init)

    return pairs


# --- edits that keep what is computed -----------------------------------------------------------------------------


def _with_comments(code: str, random: np.random.Generator) -> Iterator[Pair]:
    lines = []
    for number, line in enumerate(_code(ast.parse(code)).splitlines()):
        if line.lstrip().startswith(("self.", "return ")) and random.random() < 0.3:
            lines.append(f"{line[: len(line) - len(line.lstrip())]}# step {number}")
        lines.append(line)
    yield code, "\n".join(lines) + "\n"


class _Renamed(ast.NodeTransformer):
    def __init__(self, attributes: dict[str, str], names: dict[str, str]) -> None:
        self.attributes, self.names = attributes, names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self.attributes.get(node.attr, node.attr)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.name = self.names.get(node.name, node.name)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.name = self.attributes.get(node.name, node.name)
        return node


def _with_other_names(code: str, random: np.random.Generator) -> Iterator[Pair]:
    """Attributes, methods, helper classes and local variables of `forward`, where nothing else bears the name."""
    tree = ast.parse(code)
    nodes = list(ast.walk(tree))
    texts = " ".join(str(node.value) for node in nodes if isinstance(node, ast.Constant))
    used: dict[str, set[bool]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            used.setdefault(node.attr, set()).add(isinstance(node.value, ast.Name) and node.value.id == "self")
    words = {node.id for node in nodes if isinstance(node, ast.Name)} | {
        keyword.arg for node in nodes if isinstance(node, ast.Call) for keyword in node.keywords if keyword.arg
    }
    fixed = _TAKEN | _CONTRACT
    attributes = {
        name: f"part_{random.integers(10**6)}"
        for name, places in sorted(used.items())
        if places == {True} and name not in fixed and name not in texts and name not in words and name[:2] != "__"
    }
    own = {name for node in nodes if isinstance(node, ast.ClassDef) for name in [node.name] if name != "Net"}
    names = {name: f"Part{random.integers(10**6)}" for name in sorted(own) if name not in used and name not in texts}
    for node in nodes:
        inner = (ast.Lambda, ast.FunctionDef, ast.ListComp, ast.GeneratorExp, ast.DictComp)
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            inside = [child for child in ast.walk(node) if child is not node]
            if not any(isinstance(child, inner) for child in inside):
                given = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
                stored = {c.id for c in inside if isinstance(c, ast.Name) and isinstance(c.ctx, ast.Store)} - given
                other = {c.id for c in nodes if isinstance(c, ast.Name) and c not in inside}
                names |= {name: f"value_{random.integers(10**6)}" for name in sorted(stored - other - set(names))}
    yield code, _code(_Renamed(attributes, names).visit(tree))


def _in_another_order(code: str, _random: np.random.Generator) -> Iterator[Pair]:
    """Methods of each class from last to first, and layers that are made in a row."""
    tree = ast.parse(code)
    for owner in [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]:
        methods = [node for node in owner.body if isinstance(node, ast.FunctionDef) and not node.decorator_list]
        if len(methods) == sum(isinstance(node, ast.FunctionDef) for node in owner.body):
            turned = iter(methods[::-1])
            owner.body = [next(turned) if node in methods else node for node in owner.body]
        for method in methods:
            if method.name == "__init__":
                method.body = _layers_turned(method.body)
    yield code, _code(tree)


def _layers_turned(body: list[ast.stmt]) -> list[ast.stmt]:
    made: list[ast.stmt] = []
    row: list[ast.stmt] = []
    for statement in [*body, None]:
        if statement is not None and _makes_a_layer(statement):
            row.append(statement)
            continue
        made += row[::-1]
        row = []
        made += [statement] if statement is not None else []
    return made


def _makes_a_layer(statement: ast.stmt) -> bool:
    if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)):
        return False
    called = statement.value.func
    of_torch = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "nn"
    reads = [node for node in ast.walk(statement.value) if isinstance(node, ast.Attribute) and _is_self(node.value)]
    return of_torch and not reads and all(isinstance(t, ast.Attribute) and _is_self(t.value) for t in statement.targets)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


_DEAD = """
class Spare(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.Tanh())

    def forward(self, values):
        return self.layers(values) + 1
"""


def _with_dead_code(code: str, _random: np.random.Generator) -> Iterator[Pair]:
    tree = ast.parse(_planted(code, "if X.dim() == 1:\n    X = self.spare(X)", "self.spare = Spare(24)"))
    place = tree.body.index(_net(tree))
    tree.body[place:place] = ast.parse("import torch\n" + _DEAD).body
    yield code, _code(tree)


def _with_a_helper(code: str, _random: np.random.Generator) -> Iterator[Pair]:
    """`forward` as a method of another name, called by a new one."""
    tree = ast.parse(code)
    net = _net(tree)
    run = _method(net, "forward")
    given = ", ".join(argument.arg for argument in run.args.args[1:])
    run.name = "values_of"
    text = f"def forward(self, {given}):\n    found = self.values_of({given})\n    return found"
    net.body += ast.parse(text).body
    yield code, _code(tree)


def _with_a_base(code: str, _random: np.random.Generator) -> Iterator[Pair]:
    """All of `Net` in a class that it derives from."""
    tree = ast.parse(code)
    if any(isinstance(node, ast.Name) and node.id == "Net" for node in ast.walk(tree)):
        tree = _Renamed({}, {"Net": "NetCore"}).visit(tree)
    else:
        _net(tree).name = "NetCore"
    place = next(n for n, node in enumerate(tree.body) if isinstance(node, ast.ClassDef) and node.name == "NetCore")
    tree.body[place + 1 : place + 1] = ast.parse("class Net(NetCore):\n    pass").body
    yield code, _code(tree)


def _all_at_once(code: str, random: np.random.Generator) -> Iterator[Pair]:
    changed = code
    for edit in (_with_other_names, _in_another_order, _with_a_helper, _with_dead_code, _with_a_base, _with_comments):
        _, changed = next(edit(changed, random))
    yield code, changed


# --- edits that change it -----------------------------------------------------------------------------------------


def _changed_calls(change: Callable[[ast.Call, str], bool]) -> Callable[[str, np.random.Generator], Iterator[Pair]]:
    """The file with one call changed, each call in turn in an order drawn by chance.

    Args: change: changes a call of this name where it can, and says whether it did.
    """

    def pairs(code: str, random: np.random.Generator) -> Iterator[Pair]:
        count = sum(isinstance(node, ast.Call) for node in ast.walk(ast.parse(code)))
        for place in random.permutation(count).tolist():
            tree = ast.parse(code)
            call = [node for node in ast.walk(tree) if isinstance(node, ast.Call)][place]
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if change(call, name):
                yield code, _code(tree)

    return pairs


def _number(call: ast.Call, keyword: str, place: int) -> ast.Constant | None:
    """The literal whole number that an argument is."""
    found = next((given.value for given in call.keywords if given.arg == keyword), None)
    if found is None and len(call.args) > place:
        found = call.args[place]
    return found if isinstance(found, ast.Constant) and type(found.value) is int else None


def _other_kernel(call: ast.Call, name: str) -> bool:
    kernel, padding = _number(call, "kernel_size", 2), _number(call, "padding", 4)
    if name != "Conv2d" or kernel is None or padding is None or (kernel.value, padding.value) != (3, 1):
        return False
    kernel.value, padding.value = 5, 2
    return True


def _other_stride(call: ast.Call, name: str) -> bool:
    stride = _number(call, "stride", 3 if name == "Conv2d" else 1)
    if name not in ("Conv2d", "MaxPool2d", "AvgPool2d") or stride is None or stride.value not in (1, 2):
        return False
    stride.value = 2 if stride.value == 1 else 1
    return True


def _other_activation(call: ast.Call, name: str) -> bool:
    if name not in ("ReLU", "GELU", "SiLU", "relu") or not isinstance(call.func, ast.Attribute):
        return False
    call.func.attr = {"ReLU": "ELU", "GELU": "SiLU", "SiLU": "GELU", "relu": "tanh"}[name]
    return True


class _Wider(ast.NodeTransformer):
    def __init__(self, width: int) -> None:
        self.width = width

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) is int and node.value == self.width:
            node.value = self.width + 8
        return node


def _other_width(code: str, random: np.random.Generator) -> Iterator[Pair]:
    """One number of channels, wherever it stands in the file, eight more."""
    tree = ast.parse(code)
    there = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    for width in random.permutation([width for width in _WIDTHS if width in there]).tolist():
        yield code, _code(_Wider(width).visit(copy.deepcopy(tree)))


_LAYER = "torch.nn.cONV2d(C, C, 3, padding=1)"
_ONE, _TWO = f"import torch\nself.one = {_LAYER}", f"import torch\nself.one = {_LAYER}\nself.two = {_LAYER}"
_STEP = "X = 0.5 * X + torch.tanh(X)"
_T = "import torch\n"

PLANTS = (
    Plant("comments and layout", True, _with_comments),
    Plant("other names", True, _with_other_names),
    Plant("other order of definitions", True, _in_another_order),
    Plant("dead code", True, _with_dead_code),
    Plant("a sum in other words", True, _both(_T + "X = X + torch.tanh(X)", _T + "X = torch.add(X.tanh(), X)")),
    Plant(
        "an activation in other words",
        True,
        _both("X = self.act(X)", _T + "X = torch.nn.functional.silu(X)", _T + "self.act = torch.nn.SiLU()", ""),
    ),
    Plant("a loop unrolled", True, _both(f"{_T}for _ in range(3):\n    {_STEP}", _T + "\n".join([_STEP] * 3))),
    Plant("a helper method", True, _with_a_helper),
    Plant("a base class", True, _with_a_base),
    Plant("all of these at once", True, _all_at_once),
    Plant("kernel", False, _changed_calls(_other_kernel)),
    Plant("stride", False, _changed_calls(_other_stride)),
    Plant("activation", False, _changed_calls(_other_activation)),
    Plant("width", False, _other_width),
    Plant("order of a difference", False, _both(_T + "X = X - torch.tanh(X)", _T + "X = torch.tanh(X) - X")),
    Plant(
        "sharing",
        False,
        _both("X = self.one(self.one(X).tanh())", "X = self.two(self.one(X).tanh())", _ONE, _TWO),
    ),
    Plant("detach", False, _both("X = self.one(X) + self.two(X)", "X = self.one(X).detach() + self.two(X)", _TWO)),
)
