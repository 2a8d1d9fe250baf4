"""LEMUR's contract, read without running: what its trainer needs of a network's file, and how it names things.

The trainer executes the file, constructs `Net(in_shape, out_shape, prm, device)`, calls `train_setup(prm)`, once an
epoch `learn(train_data)`, and evaluates `net(inputs)`; its search for hyperparameters draws a value in 0..1 for each
name that `supported_hyperparameters()` gives. All arguments are given by position.

Image transforms go by their names, and for a database that lacks one there is a module that does the same. `norm`
normalises with the mean and deviation of the dataset, `echo` leaves pixels in 0..1, `complex` makes complex numbers of
these; a number is the size that images are resized to; `flip` mirrors half of them. LEMUR does the same to test images,
flips included.

Source: `ab/nn/util/Train.py`, `ab/nn/util/Util.py`, `ab/nn/transform` and `ab/nn/loader/cifar-10.py` of
https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import ast
import hashlib
import re
from collections.abc import Iterator

from lemur_core.files.errors import UserError

#: In `prm` of every trial beside the supported hyperparameters; never in 0..1.
TRAINER_PARAMETERS = frozenset({"batch", "epoch", "transform"})

#: What is called of Net, and with what.
_METHODS = {
    "__init__": ("in_shape", "out_shape", "prm", "device"),
    "train_setup": ("prm",),
    "learn": ("train_data",),
    "forward": ("x",),
}
_NAMES_FUNCTION = "supported_hyperparameters"
_DIGEST_AT_END = re.compile(r"-?[0-9a-f]{32}$")
_NOT_MODULES = frozenset(
    {"object", "ABC", "abc.ABC", "Protocol", "typing.Protocol", "Exception", "dict", "list", "tuple"}
)

#: Mean and standard deviation of CIFAR-10's channels, as LEMUR's loader has them.
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_DEVIATION = (0.2470, 0.2435, 0.2616)

_TRANSFORM = re.compile(r"(norm|echo|complex)(?:_([1-9][0-9]{0,3}))?(_flip)?")
_LARGEST_SIZE = 1024

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def lemur_digest(value: object) -> str:
    """LEMUR's id of a code, a set of hyperparameters or a trial: MD5 of the printed value without white space."""
    return hashlib.md5(re.sub(r"\s", "", str(value)).encode(), usedforsecurity=False).hexdigest()


def lemur_name(code: str, prefix: str = "") -> str:
    """The name that LEMUR gives a network: `PREFIX-DIGEST`, the digest alone without a prefix.

    A digest at the end of the prefix is replaced; `_`, which LEMUR splits the names of its folders at, becomes `-`.
    """
    kept = re.sub(r"[^A-Za-z0-9.-]+", "-", _DIGEST_AT_END.sub("", prefix)).strip("-.")
    return f"{kept}-{lemur_digest(code)}" if kept else lemur_digest(code)


def check_contract(code: str) -> str | None:
    """Why a file cannot meet LEMUR's contract, in one line that starts with where; None when nothing speaks against it.

    Methods may be inherited: from classes of the file these are read, from imported classes they are taken on trust.
    """
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        return f"line {error.lineno or 1}: is not Python: {error.msg}"
    except ValueError as error:  # null bytes
        return f"line 1: is not Python: {error}"
    except (RecursionError, MemoryError):
        return "line 1: is nested too deep to be read"
    names = _top_level(tree)
    net = names.get("Net")
    if net is None:
        return "line 1: there is no class Net"
    if not isinstance(net, ast.ClassDef):
        return f"line {net.lineno}: Net is not a class defined here; write class Net(nn.Module)"
    return _check_net(net, names) or _check_names(names.get(_NAMES_FUNCTION))


def _top_level(tree: ast.Module) -> dict[str, ast.stmt]:
    """What binds each name when the file is executed, the last one; definitions in `if`, `try` and `with` too."""
    found: dict[str, ast.stmt] = {}
    for statement in _executed(tree.body):
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0]: statement for alias in statement.names}
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
    return found


def _executed(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            parts = [getattr(statement, part, []) for part in ("body", "orelse", "finalbody")]
            parts += [handler.body for handler in getattr(statement, "handlers", [])]
            for part in parts:
                yield from _executed(part)


def _check_net(net: ast.ClassDef, names: dict[str, ast.stmt]) -> str | None:
    classes, foreign = _ancestors(net, names)
    modules = [base for base in foreign if base not in _NOT_MODULES]
    if not modules:
        return f"line {net.lineno}: class Net is no torch.nn.Module; write class Net(nn.Module)"
    for name, arguments in _METHODS.items():
        found = next((method for cls in classes if (method := _member(cls, name)) is not None), None)
        expected = f"{name}({', '.join(('self', *arguments))})"
        if found is None:
            if _may_inherit(name, modules):
                continue
            return f"line {net.lineno}: class Net has no method {expected}"
        reason = _check_function(found, len(arguments), method=True)
        if reason is not None:
            return f"line {found.lineno}: Net.{name} {reason}; LEMUR calls it as {expected}"
    return None


def _ancestors(net: ast.ClassDef, names: dict[str, ast.stmt]) -> tuple[list[ast.ClassDef], list[str]]:
    """Net and the classes of this file that it inherits from, nearest first; and bases from elsewhere, as written."""
    classes: list[ast.ClassDef] = []
    foreign: list[str] = []
    waiting = [net]
    while waiting:
        cls = waiting.pop(0)
        if cls in classes:
            continue
        classes.append(cls)
        for base in cls.bases:
            known = names.get(base.id) if isinstance(base, ast.Name) else None
            if isinstance(known, ast.ClassDef):
                waiting.append(known)
            else:
                foreign.append(ast.unparse(base))
    return classes, foreign


def _may_inherit(name: str, modules: list[str]) -> bool:
    """Whether one of these foreign bases may bring a method: torch's own classes know nothing of LEMUR's."""
    own = {"__init__", "forward"}
    return any(
        not base.endswith("Module") if name in own else not base.startswith(("nn.", "torch.")) and base != "Module"
        for base in modules
    )


def _member(cls: ast.ClassDef, name: str) -> ast.stmt | None:
    return _top_level(ast.Module(cls.body, [])).get(name)


def _check_function(found: ast.stmt, count: int, *, method: bool) -> str | None:
    """Why this cannot be called with so many positional arguments, and do its work then."""
    if not isinstance(found, _Function) or _decorators(found) - {"staticmethod", "classmethod"}:
        return None
    if isinstance(found, ast.AsyncFunctionDef):
        return "is a coroutine, which nothing awaits"
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in _own_nodes(found)):
        return "is a generator, which nothing runs"
    arguments = found.args
    bound = 1 if method and "staticmethod" not in _decorators(found) else 0
    positional = len(arguments.posonlyargs) + len(arguments.args) - bound
    needed = positional - len(arguments.defaults)
    unset = [
        arg.arg for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    if positional < 0 and arguments.vararg is None:
        return "takes no self"
    if count < needed:
        return f"needs {_plural(needed)}"
    if count > positional and arguments.vararg is None:
        return f"takes {_plural(max(positional, 0))}"
    return f"needs {', '.join(unset)} by name" if unset else None


def _plural(count: int) -> str:
    return f"{count or 'no'} argument{'' if count == 1 else 's'}"


def _decorators(function: _Function) -> set[str]:
    return {ast.unparse(decorator) for decorator in function.decorator_list}


def _own_nodes(function: _Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _check_names(function: ast.stmt | None) -> str | None:
    """Why `supported_hyperparameters` does not give names."""
    if function is None:
        return f"line 1: there is no function {_NAMES_FUNCTION}() that returns the names of the hyperparameters"
    if isinstance(function, ast.ClassDef):
        return f"line {function.lineno}: {_NAMES_FUNCTION} is a class, not a function that returns names"
    if not isinstance(function, _Function):
        return None
    reason = _check_function(function, 0, method=False)
    if reason is not None:
        return f"line {function.lineno}: {_NAMES_FUNCTION} {reason}; LEMUR calls it without any"
    if _decorators(function):
        return None
    returned = [node.value for node in _own_nodes(function) if isinstance(node, ast.Return) and node.value is not None]
    if not returned:
        return f"line {function.lineno}: {_NAMES_FUNCTION} returns nothing; return a set of names"
    wrong = next((value for value in returned if not _may_be_names(value)), None)
    if wrong is not None:
        return f"line {wrong.lineno}: {_NAMES_FUNCTION} returns {_shown(wrong)}, not a set or list of names"
    return None


def _may_be_names(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant | ast.JoinedStr | ast.Lambda):
        return False
    items: list[ast.expr | None] = []
    if isinstance(value, ast.Set | ast.List | ast.Tuple):
        items = list(value.elts)
    elif isinstance(value, ast.Dict):  # LEMUR goes through its keys
        items = list(value.keys)
    return not any(isinstance(item, ast.Constant) and not isinstance(item.value, str) for item in items)


def _shown(value: ast.expr) -> str:
    text = ast.unparse(value)
    return text if len(text) <= 60 else f"{text[:60]} …"


_RESIZED = "v2.Resize(({0}, {0}))"
_VALUES = {"norm": ["v2.Normalize(*norm)"], "echo": [], "complex": ["lambda image: image.to(torch.complex64)"]}
_PADDED = "lambda image: v2.functional.pad(image, (0, 0, 800 - image.shape[-1], 800 - image.shape[-2]))"
#: What is done to pixels of 0 to 255, and to those of 0 to 1.
_OTHER_TRANSFORMS: dict[str, tuple[list[str], list[str]]] = {
    "center_crop": (["v2.CenterCrop(48)", _RESIZED.format(64)], _VALUES["norm"]),
    "random_horizontal_flip": ([_RESIZED.format(64), "v2.RandomHorizontalFlip(0.24)"], _VALUES["norm"]),
    "random_vertical_flip": ([_RESIZED.format(64), "v2.RandomVerticalFlip(0.22)"], _VALUES["norm"]),
    "soft_pad": ([], [_PADDED]),
}


def transform_module(name: object) -> str:
    """A module with `transform(norm)`, as LEMUR calls it: for a database that holds no code of that name yet.

    Raises: UserError if there is no transform of that name.
    """
    found = _TRANSFORM.fullmatch(name) if isinstance(name, str) else None
    if name == "five_crop":
        raise UserError("transform five_crop: makes five images of one, which LEMUR's own trainer cannot take either")
    if found is not None and int(found[2] or 0) <= _LARGEST_SIZE:
        first = [_RESIZED.format(found[2])] if found[2] else []
        first, then = [*first, *(["v2.RandomHorizontalFlip(0.5)"] if found[3] else [])], _VALUES[found[1]]
    elif isinstance(name, str) and name in _OTHER_TRANSFORMS:
        first, then = _OTHER_TRANSFORMS[name]
    else:
        known = f"norm, echo or complex, with _SIZE (1 to {_LARGEST_SIZE}), _flip or both, for example norm_64_flip"
        raise UserError(
            f"transform {name!r}: is not one of LEMUR's; there are {known}; and {', '.join(_OTHER_TRANSFORMS)}"
        )
    steps = [*first, "v2.ToImage()", "v2.ToDtype(torch.float32, scale=True)", *then]
    lines = "".join(f"        {step},\n" for step in steps)
    return (
        "import torch\nfrom torchvision.transforms import v2\n\n\n"
        f"def transform({'norm' if then == _VALUES['norm'] else '_'}):\n    return v2.Compose([\n{lines}    ])\n"
    )
