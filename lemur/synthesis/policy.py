"""The policy step: what the text of a network may import, name and reach. The text is read, not run.

A model that is optimized against the steps would learn to write networks that only claim to pass them: their code would
walk the frames of its process up to ours, and answer in our place. So of everything outside the file, only what is
listed here may be named, by whatever name it was imported, and no module is a value: there is no other way to what it
holds. What a value is, a text does not tell; of its attributes, those of Python and some others are refused. This is a
filter, not a security boundary: that is the sandbox, and `confirm` trusts no claim.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from curate.model.pretrained import find_pretrained

#: Modules, and the names or patterns of what may be used of each. The first line is for all that compute with arrays.
_TABLE = Path(__file__).with_name("allowed_names.txt").read_text(encoding="utf-8")
_MODULES: dict[str, list[str]] = {}
for _modules, _names in (_line.split(":") for _line in _TABLE.strip().replace("\n    ", " ").splitlines()):
    for _module in _modules.split():
        _MODULES.setdefault(_module, []).extend(_names.split())
#: Of Python's functions and own names, those that a network may use; it may use all classes.
_BUILTINS = re.compile(
    "abs|all|any|ascii|bin|callable|chr|dir|divmod|format|hash|hex|id|input|isinstance|issubclass|iter|len|max|min|next"
    "|oct|ord|pow|print|repr|round|sorted|sum|Ellipsis|NotImplemented"
)
_DUNDERS = re.compile(
    "__(add|all|author|bool|call|class|constants|contains|delattr|delitem|doc|enter|eq|exit|float|floordiv|format|ge"
    "|getitem|gt|hash|iadd|imul|init|int|isub|iter|le|len|lt|main|matmul|mod|module|mul|name|ne|neg|new|next|post_init"
    "|pow|qualname|radd|repr|reversed|rmul|rsub|rtruediv|setattr|setitem|setstate|slots|str|sub|truediv|version)__"
)
#: Attributes of values that lead to frames, code, modules, files or raw memory, or compile.
_NEVER_REACHED = re.compile(
    r"(ag|cr|gi)_(await|code|frame|origin|yieldfrom)|tb_(frame|next)|obj|_module|_evaluate|_python_dispatch|ctypes|dump"
    r"|(f|func)_(back|builtins|closure|code|dict|globals|locals|trace)|_(get|new|set|share|write)_\w*(cuda|fd|file)\w*"
    r"|_new_shared|_make_\w*subclass|_reduce_ex_internal|_?data_ptr|share_memory_?|from_file|tofile|save|export_\w+"
    r"|compile|multiprocessing_context|show|_ctx|_workers|_\w+_queues?|loads?|os|sys"
)
#: Methods of `nn.Module` by which the proofs read a network.
_NEVER_CHANGED = frozenset(
    f"{prefix}{name}" for name in ("parameters", "buffers", "modules", "children") for prefix in ("", "named_")
) | {"state_dict", "load_state_dict", "get_submodule", "register_forward_hook"}
#: Functions that are checked as what they look up.
_BY_NAME = frozenset({"delattr", "dir", "getattr", "hasattr", "setattr"})


def find_forbidden(tree: ast.Module, code: str) -> Iterator[tuple[int, str]]:
    """Yield the uses that are forbidden in a network: the line, and the reason as it is sent back to the model.

    Args: tree: the file. code: its text.
    """
    for pretrained in find_pretrained(code):
        yield pretrained.line, f"loads trained weights: {pretrained.text}"
    nodes = list(ast.walk(tree))
    reader = _Reader(pair for node in nodes for pair in _list_imports(node))
    yield from sorted({(getattr(node, "lineno", 1), reason) for node in nodes for reason in reader.check(node)})


class _Reader:
    """Checks the nodes of one file, each by itself, after the nodes around it. Args: imports: names and meanings."""

    def __init__(self, imports: Iterable[tuple[str, str]]) -> None:
        self._meanings = dict(sorted(imports, key=lambda pair: pair[1] in _MODULES))  # the last one stays, a module
        self._owners: set[ast.AST] = set()  # of attributes
        self._written_out: set[ast.AST] = set()  # calls of `getattr` and the like, by their functions

    def check(self, node: ast.AST) -> Iterator[str]:
        """Yield the reasons against a node, without those against its parts."""
        for name, meaning in (*_list_imports(node), (_find_bound(node), "")):
            yield from _check_dunder(name)
            known = self._meanings.get(name)
            if name in _BY_NAME or (known in _MODULES and meaning != known):
                yield f"gives the name {name} to something else; rename it"
        attribute = _as_attribute(node)
        if isinstance(attribute, ast.Attribute):
            self._owners.add(attribute.value)
            self._written_out |= {node.func} if isinstance(node, ast.Call) else set()
            yield from self._check_attribute(attribute)
        if (module := self._find_module(node)) and node not in self._owners:
            yield f"uses the module {module} as a value; write out what is needed of it"
        match node:
            case ast.Import(names=names):
                yield from (fault for each in names for fault in _check_import(each.name))
            case ast.ImportFrom(names=names):
                module = "." * node.level + (node.module or "")
                yield from (fault for each in names for fault in _check_import(module, each.name))
            case ast.Name(id=name, ctx=ast.Load()) if node not in self._written_out:
                yield from _check_dunder(name)
                if name in _BY_NAME:
                    yield f"uses {name} with a name that is not written out; write it out, or use a dict or ModuleList"
                elif not isinstance(getattr(builtins, name, ""), type | str) and not _BUILTINS.fullmatch(name):
                    yield f"calls {name}"
            case ast.keyword(arg=str(name)):
                yield from _check_dunder(name)
            case ast.MatchClass():
                yield "matches a class pattern, which reads attributes; use isinstance and write them out"
            case ast.Call(func=ast.Name(id="input")):
                yield "calls input"
            case ast.Call(func=ast.Name(id="type")) if len(node.args) != 1 or node.keywords:
                yield "makes a class by calling type; write a class statement"
            case ast.ClassDef():
                inside = list(_walk_class(node))
                if any(map(_list_imports, inside)):
                    yield "imports in the body of a class; import at the top of the file"
                for name in {_find_bound(each) for each in inside} & _NEVER_CHANGED:
                    yield f"defines {name}, by which the network is checked"

    def _check_attribute(self, node: ast.Attribute) -> Iterator[str]:
        name, module = node.attr, self._find_module(node.value)
        yield from _check_dunder(name)
        if module and name != "__name__" and not _is_listed(module, name):
            yield f"reaches {module}.{name}; of {module.partition('.')[0]}, only what networks are made of"
        elif _NEVER_REACHED.fullmatch(name):
            yield f"reaches {name}; frames, code, files, memory, and what compiles or evaluates are not for networks"
        if name in ("format", "format_map"):
            text = getattr(node.value, "value", None)
            if not isinstance(text, str) or re.search(r"[.\[]\w*_", text):
                yield "formats a text that is not written out, or hidden attributes; use an f-string"
        if not isinstance(node.ctx, ast.Load):
            text = ast.unparse(node)
            if name in _NEVER_CHANGED:
                yield f"changes {text}, by which the network is checked"
            elif text.partition(".")[0] in self._meanings and not (module or "").startswith("torch.backends."):
                yield f"changes {text}; leave libraries as they are"

    def _find_module(self, node: ast.AST) -> str:
        """Return the module that an expression means, if any."""
        names: list[str] = []
        while isinstance(node := _as_attribute(node), ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        meaning = ".".join([self._meanings.get(node.id, ""), *names]) if isinstance(node, ast.Name) else ""
        return meaning if meaning in _MODULES else ""


def _check_import(module: str, name: str = "") -> Iterator[str]:
    """Yield why a module, or a name of one, may not be imported."""
    whole = f"{module}.{name}".rstrip(".")
    if module.partition(".")[0] not in _MODULES:
        yield f"imports {module}; only the standard library without files, torch, torchvision, numpy"
    elif name == "*":
        yield "imports everything of a module; name what is used"
    elif whole not in _MODULES and not _is_listed(*whole.rpartition(".")[::2]):
        yield f"imports {whole}; of {whole.partition('.')[0]}, only what networks are made of"


@cache
def _is_listed(module: str, name: str) -> bool:
    return f"{module}.{name}" in _MODULES or any(fnmatchcase(name, each) for each in _MODULES.get(module, ()))


def _check_dunder(name: str | None) -> Iterator[str]:
    if name and name.startswith("__") and name.endswith("__") and not _DUNDERS.fullmatch(name):
        yield f"uses {name}; of Python's own names only common ones may be used, such as __init__ and __name__"


def _as_attribute(node: ast.AST) -> ast.AST:
    """Return the attribute that `getattr` and the like look up by a name that is written out; any other node itself."""
    match node:
        case ast.Call(func=ast.Name(id=how), args=[owner, ast.Constant(value=str(name)), *_]) if how in _BY_NAME:
            return ast.Attribute(owner, name, ast.Load() if how in ("getattr", "hasattr") else ast.Store())
        case ast.Call(func=ast.Name(id="dir"), args=[owner]):
            return ast.Attribute(owner, "__name__", ast.Load())  # it returns names alone, too
    return node


def _list_imports(node: ast.AST) -> list[tuple[str, str]]:
    """Return the names that an import binds, each with its meaning."""
    if isinstance(node, ast.Import):
        names = [(each.asname, each.name) for each in node.names]
        return [(asname, name) if asname else (name.partition(".")[0],) * 2 for asname, name in names]
    if isinstance(node, ast.ImportFrom):
        return [(each.asname or each.name, f"{node.module}.{each.name}") for each in node.names]
    return []


def _find_bound(node: ast.AST) -> str:
    """Return the name that a node binds, if it is no import."""
    if isinstance(node, ast.Name):
        return "" if isinstance(node.ctx, ast.Load) else node.id
    found = [getattr(node, field, None) for field in ("name", "arg", "rest") if not isinstance(node, ast.keyword)]
    return next((name for name in found if isinstance(name, str) and not isinstance(node, ast.alias)), "")


def _walk_class(node: ast.ClassDef) -> Iterator[ast.AST]:
    """Yield what stands in the body of a class, not in its functions."""
    waiting: list[ast.AST] = [*node.body]
    while waiting:
        yield (part := waiting.pop())
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            waiting += ast.iter_child_nodes(part)
