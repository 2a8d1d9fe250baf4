"""The edits of a call that failed, most likely first: other arguments of the constructor, or other inputs of forward.

PyTorch's messages say what is expected (`expected input[2, 32, 16, 16] to have 3 channels`), Python's what could not be
unpacked; the failing line names the argument, and of an assertion that compares two numbers, both can be evaluated.
"""

import ast
import inspect
import itertools
import linecache
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from types import TracebackType
from typing import Any, NamedTuple

import torch

from extract.arguments.constructing import Arguments, Constructor
from extract.arguments.messages import NAME, join_arguments
from extract.arguments.trials import MODULE_NAME, AttemptError, attempt
from extract.arguments.values import (
    FLOAT,
    INDEX,
    MASK,
    POSITIVE,
    Inputs,
    Literal,
    Tensor,
    candidates,
    change_tensors,
    format_call,
    format_dict,
    is_variadic,
    propose_like_main,
    read_parameters,
    tensors_in,
    with_value,
)
from lemur_core.sandbox.server.foreign import read_traceback

_MAX_SIZE = 32_768  # of one axis; audio is long
_MAX_RANK = 6
_FEW = 4  # values of a parameter that has a default, or that nothing names
_NONE = Literal("None")
_FIRST = "lambda x, *_, **__: x"  # a function that returns the first of what it is called with
_LAYERS = ("nn.Identity()", _FIRST, "[nn.Identity()]")
_FACTORS = (4, 16, 2)  # by which the last axes grow
_SIDES = (32, 64, 8, 7, 14, 224, 56, 128)  # of images
_LENGTHS = (64, 17, 49, 50, 4, 1)  # numbers of tokens
_SHARED_PREFIX = 3  # letters
_NEAR_FRAMES = 3  # outer ones compare something else

Change = dict[str, str]  # other expressions for some arguments of the constructor
ChangeTensor = Callable[[Tensor], Tensor | None]  # None: as it is


@dataclass(frozen=True)
class FailedCall:
    """A failed call of a constructor or of forward. Args: inputs, parameters: of forward; none if it was not called."""

    failure: AttemptError
    constructor: Constructor
    arguments: Arguments
    inputs: Inputs
    parameters: Mapping[str, inspect.Parameter]
    loss: bool

    @cached_property
    def text(self) -> str:
        """The error message in one line."""
        return " ".join(str(self.failure).split())

    @property
    def line(self) -> str:
        """The innermost failing line of the block."""
        return self.failure.lines[-1] if self.failure.lines else ""

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors among the inputs."""
        return [tensor for _, value in self.inputs for tensor in tensors_in(value)]

    @property
    def main(self) -> Tensor:
        """The first of them."""
        return self.tensors[0] if self.tensors else Tensor((2, 32))

    @cached_property
    def words(self) -> list[str]:
        """The words of the failing lines, innermost line first, then those of the message."""
        words = [word for line in reversed(self.failure.lines) for word in NAME.findall(line)]
        return list(dict.fromkeys(words + NAME.findall(self.text)))

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the message; at most ten, since a printed tensor has thousands."""
        return [int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", self.text)][:10]

    @cached_property
    def texts(self) -> dict[str, str]:
        """The arguments of the constructor, by name."""
        return self.arguments.by_name(self.constructor.parameters)

    def suspects(self) -> list[str]:
        """Return the inputs, first those that failing lines name, innermost line first, or name an item of."""
        names = [name for name, _ in self.inputs]
        named = [name for word in self.words for name in (word, f"{word}s") if name in names]
        return list(dict.fromkeys([*named, *names]))

    def each_with(self, change: ChangeTensor) -> Iterator[Inputs]:
        """Yield the inputs with the tensors of one of them changed, suspects first."""
        yield from (self.one_with(name, change) for name in self.suspects())

    def one_with(self, name: str, change: ChangeTensor) -> Inputs:
        """Return the inputs with the tensors of one of them changed."""
        return with_value(self.inputs, name, change_tensors(dict(self.inputs)[name], change))

    def all_with(self, change: ChangeTensor) -> Inputs:
        """Return the inputs with all tensors changed."""
        return tuple((name, change_tensors(value, change)) for name, value in self.inputs)


# -- sizes -----------------------------------------------------------------------------------------------------------


def resize(at: FailedCall, stated: re.Match[str]) -> Iterator[Inputs]:
    """Use the size that a message wants where it states the one that it has, or that is a part or a sum of inputs'.

    Where the message does not say which number is which, any two are tried of which one is a size of an input.
    """
    sizes = {size for tensor in at.tensors for size in tensor.shape if size > 2}
    if not stated.groupdict():
        for have in dict.fromkeys(number for number in at.numbers if number in sizes):
            for want in dict.fromkeys(number for number in at.numbers if number != have):
                yield from _change_sizes(at, have, want)
        return
    have, want = int(stated["have"]), int(stated["want"])
    yield from _change_sizes(at, have, want)
    for size in sorted(sizes - {have}) if have else ():
        wanted, rest = divmod(size * want, have)
        if not rest and not (size % have and have % size):
            yield from _change_sizes(at, size, wanted)
        elif size < have:
            yield from _change_sizes(at, size, size + want - have)


def other_sizes(at: FailedCall, stated: re.Match[str]) -> Iterator[Inputs]:
    """Use one shape for all, as of a prediction and its target, or other numbers of pixels and tokens.

    What is too small for a kernel or a pool grows first: a window of audio is very long.
    """
    if "alike" in stated.groupdict():
        yield at.all_with(lambda _: Tensor(at.main.shape))
        return
    far = 2 * max(at.numbers, default=0) // max(at.main.shape[-1:], default=1)
    factors = (far, *_FACTORS) if far > 64 else _FACTORS
    for factor, axes in itertools.product(factors, (1, 2)) if stated.groupdict() else ():

        def enlarge(tensor: Tensor, axes: int = axes, factor: int = factor) -> Tensor | None:
            kept, grown = tensor.shape[:-axes], [size * factor for size in tensor.shape[-axes:]]
            return tensor.with_shape((*kept, *grown)) if len(kept) >= axes and max(grown) <= _MAX_SIZE else None

        yield at.all_with(enlarge)
    for side in _SIDES:
        yield at.all_with(lambda t, n=side: _resize_axis(t, -1, n) if t.is_image else None)  # type: ignore[misc]
    for count in _LENGTHS:
        yield at.all_with(lambda t, n=count: _resize_axis(t, 1, n) if len(t.shape) == 3 else None)  # type: ignore[misc]


def _change_sizes(at: FailedCall, have: int, want: int) -> Iterator[Inputs]:
    """Replace every size `have` with `want`: in all inputs together, then in each."""
    if have == want or not 0 < want <= _MAX_SIZE:
        return
    # Channels first, then the last dimensions, the batch, and the side of an image that has so many positions.
    squares = ((axis, True) for axis in (1, -1, -2, 2, 0, None))
    for axis, square in (*squares, (-1, False), (-2, False)):

        def change(tensor: Tensor, axis: int | None = axis, square: bool = square) -> Tensor | None:
            if axis is None:
                area = tensor.shape[-1] ** 2 * want
                side = math.isqrt(area // max(have, 1))
                return _resize_axis(tensor, -1, side) if tensor.is_image and side**2 * have == area else None
            has = -len(tensor.shape) <= axis < len(tensor.shape) and tensor.shape[axis] == have
            return _resize_axis(tensor, axis, want, square=square) if has and (square or tensor.is_image) else None

        everywhere = at.all_with(change)
        yield everywhere
        yield from at.each_with(change) if everywhere != at.inputs else ()


def _resize_axis(tensor: Tensor, axis: int, size: int, *, square: bool = True) -> Tensor:
    """Return a tensor with another size on one axis. Args: square: images stay square."""
    shape = list(tensor.shape)
    shape[axis] = size
    if square and len(shape) in (4, 5) and axis % len(shape) >= len(shape) - 2:
        shape[-1] = shape[-2] = size
    return tensor.with_shape(shape)


# -- numbers of dimensions, and kinds of values ----------------------------------------------------------------------


def change_ranks(at: FailedCall, stated: re.Match[str]) -> Iterator[Inputs]:
    """Use as many dimensions as a message states, or that many more than it has, or one more than there are."""
    numbers = {name: int(number) for name, number in stated.groupdict().items()}
    if "most" in numbers:
        yield from at.each_with(partial(_change_rank, rank=numbers["most"] + 1))
        yield from at.each_with(lambda tensor: tensor.with_shape((*tensor.shape, 1)))
        return
    more = numbers["want"] - numbers.get("have", 0)

    def change(tensor: Tensor, sign: int = 1) -> Tensor | None:
        return _change_rank(tensor, sign * more + (len(tensor.shape) if "have" in numbers else 0))

    yield from at.each_with(change)
    yield at.all_with(change)
    yield from at.each_with(partial(change, sign=-1))


def _change_rank(tensor: Tensor, rank: int) -> Tensor | None:
    """Return a tensor of this rank with the same channels, or None if none can have it."""
    shape = tensor.shape
    if len(shape) == rank or not 1 <= rank <= _MAX_RANK:
        return None
    channels = shape[-1] if len(shape) != 4 else shape[1]
    fresh = {
        1: shape[:1],
        2: (shape[0], channels),
        3: (shape[0], 16, channels),
        4: (shape[0], channels, 16, 16),
        5: (shape[0], channels, 4, 16, 16),
        6: (shape[0], 1, channels, 4, 16, 16),
    }[rank]
    return tensor.with_shape(fresh)


def change_kind(at: FailedCall, _: re.Match[str], *, kind: str) -> Iterator[Inputs]:
    """Use the kind of numbers that a message asks for."""
    for name in at.suspects():
        yield at.one_with(name, partial(replace, kind=kind))
        for rank in (2, 1) if kind == INDEX else ():
            yield at.one_with(name, lambda tensor, rank=rank: Tensor(tensor.shape[:rank], INDEX))  # type: ignore[misc]
    yield at.all_with(lambda tensor: replace(tensor, kind=kind, below=1) if tensor.kind == INDEX else None)


def add_input(at: FailedCall, _: re.Match[str]) -> Iterator[Inputs]:
    """Add optional inputs that turn out to be needed."""
    values = dict(at.inputs)
    optional = [name for name, parameter in at.parameters.items() if not is_variadic(parameter)]
    named = [word for word in at.words if word in optional and values.get(word, _NONE) == _NONE]
    for name in named or [name for name in optional if name not in values][:2]:
        for value in propose_like_main(name, at.main, loss=at.loss):
            yield with_value(at.inputs, name, value)


# -- values that are read by name ------------------------------------------------------------------------------------


class Lack(NamedTuple):
    """What was read of a value that has no such item or attribute. Args: name: None if unknown. holder: its type."""

    name: str | int | None
    holder: str
    is_item: bool
    is_method: bool = False


def find_lack(cause: BaseException, line: str) -> Lack | None:
    """Return what an error says that a value lacks. Args: line: that failed."""
    text = str(cause)
    if isinstance(cause, KeyError) and cause.args and isinstance(cause.args[0], str | int) and "(" not in text:
        return Lack(cause.args[0], "dict", True)
    if isinstance(cause, AttributeError) and cause.name and cause.name.isidentifier():
        return Lack(cause.name, type(cause.obj).__name__, False, f".{cause.name}(" in line)
    indexed = re.search(
        r"'([\w.]+)' object is not subscript|argument of type '(\w+)' is not|^(\w+) ind\w+ must be integers", text
    )
    if isinstance(cause, TypeError) and indexed is not None:
        return Lack(None, (indexed[1] or indexed[2] or indexed[3]).replace("string", "str"), True)
    # A tensor takes a text for indices, and says so in several ways.
    is_text = re.search(r"too many indices|only integers, slices|invalid data type 'str'", text)
    return Lack(None, "Tensor", True) if is_text and re.search(r"\[f?[\"']", line) else None


def add_read(at: FailedCall, _: re.Match[str]) -> Iterator[Inputs | Change]:
    """Add the item, attribute or method that is read of an argument: it becomes a dict, or an object with it."""
    if (lack := find_lack(at.failure.cause, at.line)) is None:
        return
    values = dict(at.inputs)
    keys = [lack.name] if lack.name is not None else re.findall(r"\[['\"](\w+)['\"]\]", at.line)
    held = [name for name in (*at.texts, *values) if re.search(rf"\b{name}\b", at.line)]
    for name in [name for name in held if name in values] or list(values)[:1]:
        fresh = {key: propose_like_main(str(key), at.main, loss=at.loss)[0].expression() for key in keys}
        fresh = dict.fromkeys(fresh, _FIRST) if lack.is_method else fresh
        items = _read_items(values[name].expression()) | fresh
        text = format_dict(items) if lack.is_item else f"types.SimpleNamespace({join_arguments([], items)})"
        yield with_value(at.inputs, name, Literal(text))
    for name in [name for name in held if name in at.texts] or list(at.texts):
        text = at.texts[name]
        try:
            holder = type(attempt(partial(at.constructor.names.value, text))).__name__
        except AttemptError:  # the expression of a class that fails itself
            continue
        if holder == lack.holder:
            method = "lambda *_, **__: " if lack.is_method else ""
            inside = format_dict(_read_items(text) | {key: f"{method}{at.constructor.plain(str(key))}" for key in keys})
            is_stub = not lack.is_item or text.startswith("type(")
            changed = f"type('Stub', (nn.Identity,), {inside})()" if is_stub else inside
            yield {name: changed if keys else f"[{text}, {text}]"}


def _read_items(text: str) -> dict[Any, str]:
    """Return the items of the dict in an expression, or the attributes of a namespace."""
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.Call) and text.startswith("types."):
        return {item.arg: ast.unparse(item.value) for item in node.keywords}
    held = [item for item in ast.walk(node) if isinstance(item, ast.Dict)]
    pairs = zip(held[0].keys, held[0].values, strict=True) if held else ()
    return {key.value: ast.unparse(value) for key, value in pairs if isinstance(key, ast.Constant)}


# -- the constructor -------------------------------------------------------------------------------------------------


def choose_other(at: FailedCall, _: re.Match[str]) -> Iterator[Change]:
    """Use another value for what the failing lines or the message name; then for what is required, or has a class.

    What a base class requires of `**kwargs` is added first.
    """
    constructor = at.constructor
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in constructor.parameters.values()):
        quoted = dict.fromkeys(re.findall(r"['\"`](\w+)['\"`]", at.text))
        yield {
            name: constructor.choices(name)[0] for name in quoted if name not in {*constructor.parameters, *at.texts}
        }
    pairs = map("_".join, itertools.pairwise(NAME.findall(at.text)))  # "an output size" is `output_size`
    takes = {name for name, parameter in constructor.parameters.items() if not is_variadic(parameter)} | {*at.texts}
    named = [word for word in dict.fromkeys((*at.words, *pairs)) if word in takes]
    if "must be a mapping" in at.text:
        yield from ({name: "{}"} for name in re.findall(r"\*\*(\w+)", at.line) if name in takes)
    if "not callable" in at.text:  # an attribute of a name like that of its parameter
        called = re.findall(r"(\w+)(?:\[\w+\])?\(", at.line)
        named += [
            name for name in constructor.parameters if name in takes and any(_match(name, word) for word in called)
        ]
    known = {*constructor.required, *at.texts}
    for name in sorted(dict.fromkeys(named), key=lambda name: name not in known):
        texts = constructor.choices(name)[: None if name in known else _FEW]
        texts = (*_LAYERS, *texts) if "not callable" in at.text else texts
        yield from ({name: text} for text in texts)
    for name, texts in constructor.accepted.items():
        yield from ({name: text} for text in _list_with_field(at, at.texts.get(name, texts[0])))
    for name in (*constructor.accepted, *constructor.required):
        yield from ({name: text} for text in constructor.choices(name)[:_FEW] if name in known)


def _list_with_field(at: FailedCall, text: str) -> Iterator[str]:
    """Yield the expression of a configuration with other values for its fields that the failing lines name."""
    call = ast.parse(text, mode="eval").body
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args:
        given = {item.arg: ast.unparse(item.value) for item in call.keywords if item.arg}
        fields = read_parameters(at.constructor.names.names[call.func.id])
        for name in [word for word in at.words if word in fields]:
            values = candidates(name, fields[name].annotation)[:_FEW]
            yield from (format_call(call.func.id, {**given, name: value}) for value in values)


def _match(name: str, other: str) -> bool:
    """Return whether an attribute may hold a parameter: one name contains the other, or both start alike."""
    return name in other or other in name or name[:_SHARED_PREFIX] == other[:_SHARED_PREFIX]


# -- comparisons that failed ------------------------------------------------------------------------------------------


def compare(at: FailedCall, _: re.Match[str]) -> Iterator[Inputs]:
    """Use the numbers that a failed assertion or condition compares: sizes, or the rank of an argument."""
    for have, want, name in read_compared_numbers(read_traceback(at.failure.cause)):
        if name:
            for known in [name] if name in dict(at.inputs) else at.suspects():
                yield at.one_with(known, partial(_change_rank, rank=want))
        else:
            yield from _change_sizes(at, have, want)


def read_compared_numbers(trace: TracebackType | None) -> list[tuple[int, int, str]]:
    """Evaluate the pairs of integers that the failing lines compare, inner frames first.

    Returns: triples of the actual value, the value it is compared with, and the variable whose rank that is, or "".
    """
    frames = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(f"{MODULE_NAME}.py"):
            frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    pairs: list[tuple[int, int, str]] = []
    for frame, line in reversed(frames[-_NEAR_FRAMES:]):
        tests = [
            node
            for node in _list_tests("".join(linecache.getlines(frame.f_code.co_filename)))
            if node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        innermost = max(tests, key=lambda node: node.lineno, default=ast.Pass())
        tested = innermost.test if isinstance(innermost, ast.Assert | ast.If) else innermost
        for test in [node for node in ast.walk(tested) if isinstance(node, ast.Compare)]:
            for left, right in itertools.pairwise([test.left, *test.comparators]):
                for one, other in ((left, right), (right, left)):
                    values = [_integers(node, frame.f_globals, frame.f_locals) for node in (one, other)]
                    if isinstance(other, (ast.Tuple, ast.List, ast.Set)) and len(values[0]) == 1:
                        values[0] *= len(values[1])
                    name = _rank_variable(one)
                    if name or not _rank_variable(other):
                        pairs += [(a, b, name) for a, b in zip(*values, strict=False) if a != b]
    return list(dict.fromkeys(pairs))


def _rank_variable(node: ast.expr) -> str:
    """Return the variable of `x.ndim`, `x.dim()` or `len(x.shape)`, or ""."""
    match = re.fullmatch(r"(\w+)\.(ndim|dim\(\))|len\((\w+)\.(shape|size\(\))\)", ast.unparse(node))
    return (match[1] or match[3]) if match else ""


@lru_cache(maxsize=4)
def _list_tests(text: str) -> list[ast.stmt]:
    """Return the assertions, conditions around a raise, and expressions of a file."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert | ast.If | ast.Expr)]


def _integers(node: ast.expr, names: dict[str, Any], local: Mapping[str, Any]) -> list[int]:
    try:
        value = eval(compile(ast.Expression(node), "<compared>", "eval"), names, dict(local))
    except Exception:  # noqa: BLE001 - foreign code may raise anything; then the value is unknown
        return []
    values = value if isinstance(value, (tuple, list)) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]


# -- all of them -----------------------------------------------------------------------------------------------------


class Edit(NamedTuple):
    """What to change after a message; `message` is searched in it, and in the failing line behind it."""

    message: str
    change: Callable[[FailedCall, re.Match[str]], Iterator[Inputs | Change]]


#: Most likely first.
EDITS: tuple[Edit, ...] = (
    Edit(r"to have (?P<want>\d+) channels, but got (?P<have>\d+) channels", resize),
    Edit(r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<have>\d+) and (?P<want>\d+)x", resize),
    Edit(r"must have same reduction dim, but got \[\d+, (?P<have>\d+)\] X \[(?P<want>\d+),", resize),
    Edit(r"is not valid: got: (?P<have>\d+) expected: (?P<want>\d+)", resize),
    Edit(r"normalized_shape=\[(?P<want>\d+)\].*of size ?(?:torch\.Size\()?\[(?:\d+, )*(?P<have>\d+)\]", resize),
    Edit(r"[Ee]xpected (?:size )?(?P<want>\d+),? (?:but )?got:? (?:size )?(?P<have>\d+)", resize),
    Edit(r"tensor to be: \[\d+, (?P<have>\d+)\] but got: \[\d+, (?P<want>\d+)\]", resize),
    Edit(
        r"(?P<grows>too (small|short)|can't be greater|should be less than|at least|must be (greater|larger)|is empty)",
        other_sizes,
    ),
    Edit(r"no attribute|^'?\w+'?$|subscript|indices must be|too many indices|only integers|invalid data", add_read),
    Edit(r"input\.dim\(\) = (?P<have>\d+) is not equal to len\(dims\) = (?P<want>\d+)", change_ranks),
    Edit(r"in the equation \((?P<want>\d+)\) does not match the number of dimensions \((?P<have>\d+)\)", change_ranks),
    Edit(r"same number of dimensions: got (?P<have>\d+) and (?P<want>\d+)", change_ranks),
    Edit(r"\(expected (?:at least )?(?P<want>\d+), got (?P<have>\d+)\)", change_ranks),
    Edit(r"[Ww]rong shape: expected (?P<want>\d+) dims\. Received (?P<have>\d+)-dim", change_ranks),
    Edit(r"values to unpack \(expected (?P<want>\d+)", change_ranks),
    Edit(r"(?:but got |for tensor of dimension )(?P<most>\d+)(?:\)|$)", change_ranks),
    Edit(r"(?P<want>\d)-?D\b(?!.* got .*\d-?D)", change_ranks),
    Edit(r"(?P<want>\d)-?D\b", change_ranks),
    Edit(r"(?P<alike>does not match the shape of|must match the size of tensor|with a bool tensor is)", other_sizes),
    Edit(r"None|missing|must be (specified|provided|given|set)|required|expected|assert", add_input),
    Edit(r"long|int64|indices|one_hot|integer|'index'|int |Long", partial(change_kind, kind=INDEX)),
    Edit(r"[Ff]loat|dtype|complex", partial(change_kind, kind=FLOAT)),
    Edit(r"bool|mask|byte", partial(change_kind, kind=MASK)),
    Edit(r"between 0 and 1|>= ?0|NaN|index out of range|out of bounds", partial(change_kind, kind=POSITIVE)),
    Edit(r"assert|if|raise", compare),
    Edit(r"\d", resize),
    Edit(r"", other_sizes),
    Edit(r"", choose_other),
)


def list_edits(at: FailedCall) -> Iterator[tuple[str, Inputs | Arguments]]:
    """Yield other inputs and other arguments to try after a failure, with the name of the edit."""
    text, lack = f"{at.text}\n{at.line}", find_lack(at.failure.cause, at.line)
    # No other size supplies what is read by name.
    of_tensors = lack is not None and hasattr(torch.Tensor, str(lack.name))
    by_name = lack is not None and lack.holder != "NoneType" and not of_tensors
    for message, edit in EDITS:
        if (by_name and edit not in (add_read, choose_other)) or (of_tensors and edit is add_read):
            continue
        stated = re.search(message, text, re.MULTILINE)
        for item in edit(at, stated) if stated is not None else ():
            name = getattr(edit, "__name__", "change_kind")
            if isinstance(item, dict):
                fresh = {**at.texts, **item}
                if fresh != at.texts:
                    yield name, at.arguments.with_texts(at.constructor.parameters, fresh)
            elif at.inputs and item != at.inputs:
                yield name, item
