"""Which definitions of two parts are one: same name, same text, and so on for every global that the text names.

What can be changed is one only if everything that may change it is the same in both parts. Found by refining a
colouring of all globals until it is stable: two of one colour can stand for each other.
"""

import ast
import builtins
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from train.inline.mentions import Mention, Role
from train.inline.reading import File, Unit

_BUILTINS = frozenset(dir(builtins))
_FROZEN_RESULTS = frozenset({"bool", "float", "frozenset", "getLogger", "int", "len", "str", "TypeVar", "NewType"})

Symbol = tuple[int, str]  # number of the part, name


class _Sort(Enum):
    IMPORT = "import"
    DEFINITION = "definition"
    CONSTANT = "constant"  # cannot be changed
    DATA = "data"


@dataclass(slots=True)
class Sharing:
    """The colours of all globals, and of the units the second and later copies.

    Attributes:
        colour: the same for globals that are one.
        copies: (part, index) of units that an earlier part has already.
    """

    colour: dict[Symbol, int] = field(default_factory=dict)
    copies: set[tuple[int, int]] = field(default_factory=set)


def find_shared(files: list[File]) -> Sharing:
    """What the parts have in common."""
    content: dict[Symbol, list[Unit]] = {}
    colour: dict[Symbol, Hashable] = {}
    for number, file in enumerate(files):
        for name, units in _content(file).items():
            content[number, name] = units
            imports = {unit.imported.identity if unit.imported else "" for unit in units}
            if "" not in imports and len(imports) == 1:
                colour[number, name] = ("import", name, *imports)
                content[number, name] = []
            else:
                colour[number, name] = ("own", name, tuple(_text(unit) for unit in units))
    refined = _refine(content, colour)
    return Sharing(refined, _copies(files, refined))


def _text(unit: Unit) -> Hashable:
    return unit.imported or unit.text


def _refine(content: dict[Symbol, list[Unit]], first: dict[Symbol, Hashable]) -> dict[Symbol, int]:
    colour = _numbered(first)
    count = 0
    while count < (count := len(set(colour.values()))):
        detailed: dict[Symbol, Hashable] = {}
        for symbol, units in content.items():
            named = tuple(_named(symbol[0], unit, colour) for unit in units)
            detailed[symbol] = (colour[symbol], named)
        colour = _numbered(detailed)
    return colour


def _numbered(colour: dict[Symbol, Hashable]) -> dict[Symbol, int]:
    numbers: dict[Hashable, int] = {}
    return {symbol: numbers.setdefault(value, len(numbers)) for symbol, value in colour.items()}


def _named(part: int, unit: Unit, colour: dict[Symbol, int]) -> tuple[tuple[str, int], ...]:
    """The globals that a unit names, with their colours; -1 for built-in ones."""
    names = sorted({mention.name for mention in unit.mentions})
    return tuple((name, colour.get((part, name), -1)) for name in names)


def _copies(files: list[File], colour: dict[Symbol, int]) -> set[tuple[int, int]]:
    """Units that do the same to the same globals as one of an earlier part."""
    copies = set()
    seen: set[Hashable] = set()
    for number, file in enumerate(files):
        times: Counter[Hashable] = Counter()
        keys = []
        for index, unit in enumerate(file.units):
            same = (_text(unit), _named(number, unit, colour))
            keys.append((same, times[same]))  # what stands twice in a part stands twice
            times[same] += 1
            if keys[-1] in seen:
                copies.add((number, index))
        seen.update(keys)
    return copies


def _content(file: File) -> dict[str, list[Unit]]:
    """For each global of a part, in order, the units that bind it or may change it."""
    sorts = _sorts(file)
    content: dict[str, list[Unit]] = {name: [] for name in sorts}
    for unit in file.units:
        effect = unit.has_effect
        touched = {m.name for m in unit.mentions if _touches(m, sorts.get(m.name), effect)}
        for name in sorted(touched):
            if name in content:
                content[name].append(unit)
    return content


def _touches(mention: Mention, sort: _Sort | None, effect: bool) -> bool:
    if mention.role in {Role.BIND, Role.STORE}:
        return True
    if mention.role is not Role.CHANGE or sort is _Sort.CONSTANT:
        return False
    # A class or function that is passed on by an assignment is taken not to be changed by that.
    return sort is _Sort.DATA or (effect and not mention.late)


def _sorts(file: File) -> dict[str, _Sort]:
    sorts: dict[str, _Sort] = {}
    for unit in file.units:
        for mention in unit.mentions:
            if mention.role is Role.BIND:
                here = _sort(unit, sorts)
                before = sorts.get(mention.name, here)
                sorts[mention.name] = here if here is before else _Sort.DATA
    return sorts


def _sort(unit: Unit, sorts: dict[str, _Sort]) -> _Sort:
    if unit.imported is not None:
        return _Sort.IMPORT
    if all(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for n in unit.nodes):
        return _Sort.DEFINITION
    values = []
    for node in unit.nodes:
        inner = node.body + node.orelse if isinstance(node, ast.If) else [node]
        for statement in inner:
            if not isinstance(statement, ast.Assign | ast.AnnAssign):
                return _Sort.DATA
            values.append(statement.value)
    frozen = all(value is None or _is_frozen(value, sorts) for value in values)
    return _Sort.CONSTANT if frozen else _Sort.DATA


def _is_frozen(node: ast.expr, sorts: dict[str, _Sort]) -> bool:
    """Whether an expression's value cannot be changed, or is not the part's own."""
    match node:
        case ast.Constant() | ast.Compare() | ast.JoinedStr() | ast.Lambda():
            return True
        case ast.Name():
            sort = sorts.get(node.id)
            return node.id in _BUILTINS if sort is None else sort is not _Sort.DATA
        case ast.Attribute() | ast.Starred():
            return _is_frozen(node.value, sorts)
        case ast.Subscript():  # `Optional[int]`
            return _is_frozen(node.value, sorts)
        case ast.Tuple():
            return all(_is_frozen(item, sorts) for item in node.elts)
        case ast.UnaryOp():
            return _is_frozen(node.operand, sorts)
        case ast.BinOp():
            return _is_frozen(node.left, sorts) and _is_frozen(node.right, sorts)
        case ast.BoolOp():
            return all(_is_frozen(value, sorts) for value in node.values)
        case ast.IfExp():
            return _is_frozen(node.body, sorts) and _is_frozen(node.orelse, sorts)
        case ast.Call():
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            return name in _FROZEN_RESULTS
        case _:
            return False
