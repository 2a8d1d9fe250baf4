"""Code that means something else in a file with other parts: why a part cannot be inlined."""

import ast

from train.inline.mentions import Fault, Mention, Role
from train.inline.scopes import Kind

#: Names that stand for the module itself, or reach its names by strings. `__name__` alone is as good as before.
_OF_THE_MODULE = {
    "globals": "reads the module's names by `globals`",
    "eval": "reads names by `eval`",
    "exec": "reads names by `exec`",
    "__file__": "reads `__file__`",
    "__doc__": "reads the module's docstring",
    "__spec__": "reads `__spec__`",
    "__loader__": "reads `__loader__`",
    "__package__": "reads `__package__`",
    "__path__": "reads `__path__`",
    "__annotations__": "reads the module's annotations",
    "__all__": "reads `__all__`",
}
_OF_A_NAMESPACE = frozenset({"dir", "locals", "vars"})
_LOOKUPS = frozenset({"import_module", "__import__", "getmodule", "find_spec"})
_ANNOTATIONS = frozenset({"__annotations__", "get_annotations", "annotation", "return_annotation"})
_HOOKS = frozenset({"__getattr__", "__dir__"})


def faults_of(node: ast.AST, line: int, scope: Kind) -> list[Fault]:
    """What is wrong with one node by itself."""
    found = []
    if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
        found.append(Fault(line, f"has a star import of {'.' * node.level}{node.module or ''}"))
    elif isinstance(node, ast.ImportFrom) and node.level:
        found.append(Fault(line, f"has the relative import of {'.' * node.level}{node.module or ''}"))
    elif isinstance(node, ast.Attribute) and node.attr in {"__globals__", "f_globals"}:
        found.append(Fault(line, f"reads a module's names by `{node.attr}`"))
    elif isinstance(node, ast.Subscript) and _ends(node.value) == "modules" and _is_own_name(node.slice):
        found.append(Fault(line, "reads its own module by its `__name__`"))
    elif isinstance(node, ast.Call):
        name = _ends(node.func)
        if name in _LOOKUPS and any(_is_own_name(argument) for argument in node.args):
            found.append(Fault(line, "reads its own module by its `__name__`"))
        elif scope is Kind.MODULE and isinstance(node.func, ast.Name) and name in _OF_A_NAMESPACE and not node.args:
            found.append(Fault(line, f"reads the module's names by `{name}`", builtin=name))
    if getattr(node, "type_params", None) or type(node).__name__ == "TypeAlias":
        found.append(Fault(line, "has type parameters or a `type` statement (Python 3.12)"))
    return found


def fault_of_mention(mention: Mention, bound: set[str]) -> Fault | None:
    """What is wrong with naming that global; None if nothing."""
    if mention.role is Role.BIND:
        if mention.name in _HOOKS:
            return Fault(mention.line, f"defines the module's `{mention.name}`")
        return None
    if mention.name in _OF_THE_MODULE and (mention.name == "__all__" or mention.name not in bound):
        return Fault(mention.line, _OF_THE_MODULE[mention.name])
    return None


def reads_annotations(tree: ast.AST, words: set[str]) -> int:
    """The first line on which code reads annotations as objects; 0 if none does.

    What the standard library and torch read them for (dataclasses, named tuples, `typing.get_type_hints`,
    `torch.library`) takes strings as well; TorchScript takes them but for `Final` in class bodies.
    """
    if not words & _ANNOTATIONS:
        return 0
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load) and _ends(node) in _ANNOTATIONS
    ]
    return min(lines, default=0)


def _ends(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_own_name(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "__name__"
