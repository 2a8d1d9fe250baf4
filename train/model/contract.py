"""LEMUR's contract for a network's file, checked without running it, and LEMUR's naming rules.

The trainer executes the file, constructs `Net(in_shape, out_shape, prm, device)`, calls `train_setup(prm)`, then
`learn(train_data)` once per epoch, and evaluates `net(inputs)`; its hyperparameter search draws a value in 0..1 for
each name that `supported_hyperparameters()` returns. All arguments are positional.

LEMUR's image transforms are modules with these names; for a database that lacks one, this module writes an equivalent.
`norm` normalizes with the mean and deviation of the dataset, `echo` leaves pixels in 0..1, `complex` converts these to
complex numbers; a number is the size to which images are resized; `flip` mirrors half of them. LEMUR transforms test
images in the same way, flips included.

Source: `ab/nn/util/Train.py`, `ab/nn/util/Util.py`, `ab/nn/transform` and `ab/nn/loader/cifar-10.py` of
https://github.com/ABrain-One/nn-dataset, 2.1.0
"""

import ast
import hashlib
import re

from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.source.text import parse_code

#: In `prm` of every trial in addition to the supported hyperparameters; not limited to 0..1.
TRAINER_PARAMETERS = frozenset({"batch", "epoch", "transform"})

#: The methods of Net that the trainer calls, with their arguments.
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

#: Mean and standard deviation of CIFAR-10's channels in LEMUR's loader.
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_DEVIATION = (0.2470, 0.2435, 0.2616)

_TRANSFORM = re.compile(r"(norm|echo|complex)(?:_([1-9][0-9]{0,3}))?(_flip)?")
_LARGEST_SIZE = 1024


def lemur_digest(value: object) -> str:
    """Return LEMUR's id of code, hyperparameters or a trial: MD5 of the printed value without white space.

    Args: value: code as text, or hyperparameters as a dict.
    Returns: 32 hexadecimal digits.
    """
    return hashlib.md5(re.sub(r"\s", "", str(value)).encode(), usedforsecurity=False).hexdigest()


def lemur_name(code: str, prefix: str = "", certificate: str | None = None) -> str:
    """Return the name that LEMUR gives a network.

    Args:
        code: the text of its file.
        prefix: any text. A digest at its end is replaced; `_` becomes `-`, because LEMUR splits folder names at `_`.
        certificate: by which LEMUR's head names it, instead of the digest.

    Returns: `PREFIX-DIGEST`, or the digest alone if nothing of the prefix is left.
    """
    kept = re.sub(r"[^A-Za-z0-9.-]+", "-", _DIGEST_AT_END.sub("", prefix)).strip("-.")
    digest = certificate or lemur_digest(code)
    return f"{kept}-{digest}" if kept else digest


def check_contract(code: str) -> str | None:
    """Return why a file cannot meet LEMUR's contract; None if it may.

    Methods may be inherited: those of classes in the file are checked, those of imported classes are assumed to exist.

    Args: code: any text; it is parsed, not executed.
    Returns: one line that starts with the location, such as `line 3: `.
    """
    try:
        tree = parse_code(code)
    except SyntaxError as error:
        return f"line {error.lineno or 1}: not Python: {error.msg}"
    names = _list_bindings(tree.body)
    net = names.get("Net")
    if net is None:
        return "line 1: there is no class Net"
    if not isinstance(net, ast.ClassDef):
        return f"line {net.lineno}: Net is not a class defined here; write class Net(nn.Module)"
    if fault := _check_net(net, names):
        return fault
    supported = names.get(_NAMES_FUNCTION)
    if supported is None:
        return f"line 1: there is no function {_NAMES_FUNCTION}() that returns the names of the hyperparameters"
    reason = _check_function(supported, 0, method=False)
    return reason and f"line {supported.lineno}: {_NAMES_FUNCTION} {reason}; LEMUR calls it without any"


def _list_bindings(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Return the last statement that binds each name of a file or class, also in its `if`, `try` and `with`."""
    bindings: dict[str, ast.stmt] = {}
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            bindings[statement.name] = statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            bindings |= {alias.asname or alias.name.partition(".")[0]: statement for alias in statement.names}
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            bindings |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
        elif isinstance(statement, ast.If | ast.Try | ast.With):
            handlers = [handler.body for handler in getattr(statement, "handlers", [])]
            for part in (
                statement.body,
                getattr(statement, "orelse", []),
                getattr(statement, "finalbody", []),
                *handlers,
            ):
                bindings |= _list_bindings(part)
    return bindings


def _check_net(net: ast.ClassDef, names: dict[str, ast.stmt]) -> str | None:
    """Return why a class cannot be the network; what its imported bases, other than torch's, may define is assumed."""
    classes: list[ast.ClassDef] = [net]  # in this file, nearest first
    bases: list[str] = []  # others, as written
    for cls in classes:
        for base in cls.bases:
            definition = names.get(base.id) if isinstance(base, ast.Name) else None
            if not isinstance(definition, ast.ClassDef):
                bases.append(ast.unparse(base))
            elif definition not in classes:
                classes.append(definition)
    bases = [base for base in bases if base not in _NOT_MODULES]
    if not bases:
        return f"line {net.lineno}: class Net is not a torch.nn.Module; write class Net(nn.Module)"
    layers = [base for base in bases if not base.endswith("Module")]
    wrappers = [base for base in bases if not base.startswith(("nn.", "torch.")) and base != "Module"]
    for name, arguments in _METHODS.items():
        found = (_list_bindings(cls.body).get(name) for cls in classes)
        definition = next((member for member in found if member is not None), None)
        expected = f"{name}({', '.join(('self', *arguments))})"
        if definition is None:
            # Torch's classes lack LEMUR's own methods.
            if layers if name in ("__init__", "forward") else wrappers:
                continue
            return f"line {net.lineno}: class Net has no method {expected}"
        if reason := _check_function(definition, len(arguments), method=True):
            return f"line {definition.lineno}: Net.{name} {reason}; LEMUR calls it as {expected}"
    return None


def _check_function(function: ast.stmt, count: int, *, method: bool) -> str | None:
    """Return why a function cannot be called with `count` positional arguments; None if it can."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    if decorators - {"staticmethod", "classmethod"}:  # another may do anything
        return None
    arguments = function.args
    bound = 1 if method and "staticmethod" not in decorators else 0
    positional = max(0, len(arguments.posonlyargs) + len(arguments.args) - bound)
    needed = positional - len(arguments.defaults)
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    unset = [argument.arg for argument, default in by_name if default is None]
    if count < needed:
        return f"needs {plural(needed, 'argument')}"
    if count > positional and arguments.vararg is None:
        return f"takes {plural(positional, 'argument')}" if positional else "takes no arguments"
    return f"needs {', '.join(unset)} by name" if unset else None


_RESIZED = "v2.Resize(({0}, {0}))"
_VALUES = {"norm": ["v2.Normalize(*norm)"], "echo": [], "complex": ["lambda image: image.to(torch.complex64)"]}
_PADDED = "lambda image: v2.functional.pad(image, (0, 0, 800 - image.shape[-1], 800 - image.shape[-2]))"
#: For each, the steps on pixels in 0..255, then those on pixels in 0..1.
_OTHER_TRANSFORMS: dict[str, tuple[list[str], list[str]]] = {
    "center_crop": (["v2.CenterCrop(48)", _RESIZED.format(64)], _VALUES["norm"]),
    "random_horizontal_flip": ([_RESIZED.format(64), "v2.RandomHorizontalFlip(0.24)"], _VALUES["norm"]),
    "random_vertical_flip": ([_RESIZED.format(64), "v2.RandomVerticalFlip(0.22)"], _VALUES["norm"]),
    "soft_pad": ([], [_PADDED]),
}


def transform_module(name: object) -> str:
    """Return the text of a module that defines `transform(norm)`, for a database that lacks the transform of this name.

    Raises: UserError if there is no transform of that name.
    """
    match = _TRANSFORM.fullmatch(name) if isinstance(name, str) else None
    if name == "five_crop":
        raise UserError("transform five_crop: makes five images of one, which LEMUR's own trainer cannot handle either")
    if match is not None and int(match[2] or 0) <= _LARGEST_SIZE:
        first = [_RESIZED.format(match[2])] if match[2] else []
        first += ["v2.RandomHorizontalFlip(0.5)"] if match[3] else []
        then = _VALUES[match[1]]
    elif isinstance(name, str) and name in _OTHER_TRANSFORMS:
        first, then = _OTHER_TRANSFORMS[name]
    else:
        known = f"norm, echo or complex, with _SIZE (1 to {_LARGEST_SIZE}), _flip or both, for example norm_64_flip"
        raise UserError(
            f"transform {name!r}: not one of LEMUR's transforms; use {known}; or {', '.join(_OTHER_TRANSFORMS)}"
        )
    steps = [*first, "v2.ToImage()", "v2.ToDtype(torch.float32, scale=True)", *then]
    lines = "".join(f"        {step},\n" for step in steps)
    return (
        "import torch\nfrom torchvision.transforms import v2\n\n\n"
        f"def transform({'norm' if then == _VALUES['norm'] else '_'}):\n    return v2.Compose([\n{lines}    ])\n"
    )
