"""The policy step: what the text of a network may import, name and reach. The text is read, not run.

A model that is optimized against the steps would learn to write networks that only claim to pass them: their code would
walk the frames of its process up to ours, and answer in our place. So a text must say openly what it uses: attributes
are written out, no module with files, processes or frames is named, and of Python's own names (`__globals__`) only a
short list is allowed. This is a filter, not a security boundary: that is the sandbox, and `confirm` trusts no claim.
"""

import ast
import re
import string
from collections.abc import Iterator

from curate.model.pretrained import find_pretrained


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Modules that a file may import.
_MAY_IMPORT = _words(
    """
    abc collections contextlib copy dataclasses enum functools __future__ itertools math numbers numpy
    operator random torch torchvision types typing warnings
    """
)
_ONLY = "only the standard library without files, torch, torchvision, numpy"
_NEVER_NAMED = _words("breakpoint compile eval exec globals locals open vars")
_BY_NAME = _words("delattr getattr hasattr setattr")
#: Modules that are reachable as attributes of libraries, like `torch.hub.os`, with or without underscores before them.
_MODULES = _words(
    """
    ast asyncio atexit bdb bltns builtins codeop concurrent copyreg ctypes dill dis distutils faulthandler
    fcntl gc glob http imp importlib inspect io linecache logging marshal mmap multiprocessing nt os pathlib
    pdb pickle pkgutil posix posixpath pty pydoc runpy selectors shelve shutil site socket sqlite3 ssl
    subprocess sys sysconfig tarfile tempfile thread threading timeit traceback tracemalloc unittest urllib
    weakref zipfile zipimport
    """
)
#: Frames and code; what runs or loads a text, looks attributes up by a name, or reads memory.
_NEVER_REACHED = _words(
    """
    ag_await ag_code ag_frame attrgetter CodeGen CodeType CompilationUnit cpp_extension cr_await cr_code
    cr_frame cr_origin ctypeslib currentframe data_ptr evaluate_forward_ref exec_module f2py f_back f_builtins
    f_code f_globals f_locals f_trace ForwardRef fx get_type_hints getattr_static getmembers getmembers_static
    gi_code gi_frame gi_yieldfrom GraphModule import_module load load_inline load_library load_module loads
    make_dataclass methodcaller PackageImporter runstring set_codegen setprofile settrace stride_tricks
    tb_frame tb_next testing Timer
    """
)
#: Python's own names that a network may use or define.
_DUNDERS = frozenset(
    f"__{name}__"
    for name in _words(
        """
        add all author bool call class constants contains delattr delitem doc enter eq exit float
        floordiv format ge getitem gt hash iadd imul init int isub iter le len lt main matmul mod module mul
        name ne neg new next post_init pow qualname radd repr reversed rmul rsub rtruediv setattr setitem
        setstate slots str sub truediv version
        """
    )
)
#: Methods of `nn.Module` by which the proofs read a network.
_NEVER_CHANGED = frozenset(
    f"{prefix}{name}" for name in ("parameters", "buffers", "modules", "children") for prefix in ("", "named_")
) | {"state_dict", "load_state_dict", "get_submodule", "register_forward_hook"}
#: Names with one underscore that networks inherit or import.
_PRIVATE = _words(
    """
    _api _apply _asdict _assert _BatchNorm _buffers _C _check_input_dim _conv_forward _ConvNd _ConvTransposeNd
    _ff_block _fields _flat_weights _get_name _InstanceNorm _load_from_state_dict _log_api_usage_once _Loss
    _LRScheduler _make_divisible _make_ntuple _mha_block _modules _NormBase _ntuple _output_padding
    _overload_method _ovewrite_named_param _pair _parameters _qkv_same_embed_dim _quadruple _Reduction
    _replace _reset_parameters _reversed_padding_repeated_twice _sa_block _save_to_state_dict _single
    _specify_ddp_gpu_num _topk_min _triple _utils _WeightedLoss
    """
)


def find_forbidden(tree: ast.Module, code: str) -> Iterator[tuple[int, str]]:
    """Yield the uses that are forbidden in a network: the line, and the reason as it is sent back to the model.

    Args: tree: the file. code: its text.
    """
    for pretrained in find_pretrained(code):
        yield pretrained.line, f"loads trained weights: {pretrained.text}"
    reader = _Reader(tree)
    for node in ast.walk(tree):
        # An annotation that is a text is an expression, which typing and functools.singledispatch evaluate.
        for inner in (node, *(part for text in _annotations(node) for part in ast.walk(text))):
            yield from ((getattr(node, "lineno", 1), reason) for reason in reader.check(inner))


class _Reader:
    """Checks the nodes of one file, each by itself."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        aliases = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
        self._imported = {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
        stored = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
        named = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
        variables = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        lookups = [node for node in nodes if isinstance(node, ast.Call) and _names_attribute(node)]
        self._written_out = {id(node.func) for node in lookups}
        names = {id(node.args[1]) for node in lookups}
        texts = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in names]
        registered = {node.value for node in texts if isinstance(node.value, str)}  # buffers, by their name
        self._defined = stored | named | variables | registered

    def check(self, node: ast.AST) -> Iterator[str]:
        """Yield the reasons against a node, without those against its parts."""
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from _check_import(node)
            case ast.Attribute():
                yield from self._check_attribute(node.value, node.attr, changes=not isinstance(node.ctx, ast.Load))
                if node.attr in ("format", "format_map"):
                    yield from _check_format(node.value)
            case ast.Name():
                yield from self._check_variable(node)
            case ast.FunctionDef(name=str(name)) | ast.AsyncFunctionDef(name=str(name)) | ast.ClassDef(name=str(name)):
                yield from _check_dunder(name)
                if name in _NEVER_CHANGED:
                    yield f"defines {name}, by which the network is checked"
            case ast.arg(arg=str(name)) | ast.keyword(arg=str(name)) | ast.alias(asname=str(name)):
                yield from _check_dunder(name)
            case ast.MatchClass():
                yield "matches a class pattern, which reads attributes; use isinstance and write them out"
            case ast.Call(func=ast.Name(id="input")):
                yield "calls input"
            case ast.Call(func=ast.Name(id="type")) if len(node.args) != 1 or node.keywords:
                yield "makes a class by calling type; write a class statement"
            case ast.Call(func=ast.Name(id=name), args=[owner, ast.Constant(value=str(attribute)), *_]):
                if name in _BY_NAME:
                    yield from self._check_attribute(owner, attribute, changes=name in ("setattr", "delattr"))

    def _check_variable(self, node: ast.Name) -> Iterator[str]:
        if node.id in _NEVER_NAMED:
            yield f"calls {node.id}"
        elif node.id in _BY_NAME and id(node) not in self._written_out:
            yield f"uses {node.id} with a name that is not written out; write it out, or use a dict or ModuleList"
        else:
            yield from _check_dunder(node.id)

    def _check_attribute(self, owner: ast.expr, name: str, *, changes: bool) -> Iterator[str]:
        """Yield why an attribute may not be used, or changed. Of private names, those count that the file defines."""
        yield from _check_name(name)
        foreign = self._is_imported(owner)
        if _is_private(name) and (foreign or name not in self._defined):
            yield f"reaches {name}, which the file does not define"
        text = f"{ast.unparse(owner)}.{name}" if changes else ""
        if changes and foreign and not text.startswith("torch.backends."):
            yield f"changes {text}; leave libraries as they are"
        elif changes and name in _NEVER_CHANGED:
            yield f"changes {text}, by which the network is checked"

    def _is_imported(self, root: ast.expr) -> bool:
        """Return whether an expression is a module or class from outside, or a chain of attributes of one."""
        while isinstance(root, ast.Attribute):
            root = root.value
        return isinstance(root, ast.Name) and root.id in self._imported


def _check_import(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    modules, names = [alias.name for alias in node.names], []
    if isinstance(node, ast.ImportFrom):
        modules, names = ["." * node.level + (node.module or "")], modules
    for module in modules:
        if module.partition(".")[0] not in _MAY_IMPORT:
            yield f"imports {module}; {_ONLY}"
    if "*" in names:
        yield "imports everything of a module; name what is used"
    for name in [*(part for module in modules for part in module.split(".")[1:]), *names]:
        if name.lstrip("_") in _MODULES:
            yield f"imports {name}; {_ONLY}"
        yield from _check_name(name)
        if _is_private(name):
            yield f"imports {name}, which is private"


def _check_name(name: str) -> Iterator[str]:
    """Yield why a name may not be that of an attribute."""
    yield from _check_dunder(name)
    if name.lstrip("_") in _MODULES:
        yield f"reaches {name}; {_ONLY}"
    elif name in _NEVER_REACHED:
        yield f"reaches {name}; frames, code, memory, and what runs or loads a text are not for networks"


def _check_dunder(name: str) -> Iterator[str]:
    if name == "__import__":
        yield "calls __import__"
    elif _is_dunder(name) and name not in _DUNDERS:
        yield f"uses {name}; of Python's own names only common ones may be used, such as __init__ and __name__"


def _check_format(text: ast.expr) -> Iterator[str]:
    """Check the attributes that `str.format` looks up."""
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
        yield "formats a text that is not written out; use an f-string"
        return
    waiting = [text.value]
    while waiting:
        try:
            fields = list(string.Formatter().parse(waiting.pop()))
        except ValueError:  # which is an error when it runs, too
            continue
        for _, field, nested, _ in fields:
            waiting += [nested] if nested else []
            for name in re.findall(r"[.\[]([^.\[\]]+)", field or ""):
                yield from _check_name(name)


def _names_attribute(call: ast.Call) -> bool:
    """Return whether a call of `getattr` and the like has the attribute's name as a literal."""
    return len(call.args) > 1 and isinstance(call.args[1], ast.Constant) and isinstance(call.args[1].value, str)


def _annotations(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in the texts of an annotation."""
    whole = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    for part in (part for annotation in whole if isinstance(annotation, ast.expr) for part in ast.walk(annotation)):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            try:
                yield ast.parse(part.value.strip(), mode="eval").body
            except SyntaxError:
                continue  # cannot be evaluated


def _is_private(name: str) -> bool:
    return name.startswith("_") and not _is_dunder(name) and name not in _PRIVATE


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
