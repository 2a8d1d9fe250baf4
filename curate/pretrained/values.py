"""What is known of a value: its possibilities, each a constant, an outside name, an object of the file or a mark."""

import ast
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias


class Mark(Enum):
    """What is known of a value that is no constant."""

    THING = "an object: true, not None"
    LOADED = "read from a checkpoint"
    SETTING = "decided by a caller outside the file: a parameter without default, prm['x']"
    UNKNOWN = "anything"


@dataclass(frozen=True, slots=True)
class Const:
    """A constant; `kind` keeps True and 1 apart."""

    value: object
    kind: str


@dataclass(frozen=True, slots=True)
class Outside:
    """A name from outside the file, by its full path: `torchvision.models.resnet18`."""

    path: str


@dataclass(frozen=True, slots=True)
class Made:
    """What a call of an outside name returned, or a part of it."""

    path: str


@dataclass(eq=False, slots=True)
class Table:
    """A dict, list or tuple display; list items are kept under their index."""

    items: dict[str, "Value"]


@dataclass(eq=False, slots=True)
class Function:
    """A function, method or lambda of the file, with the values of its defaults."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: "Scope"
    defaults: dict[str, "Value"]
    owner: "Class | None"
    decorators: frozenset[str]

    @property
    def name(self) -> str:
        """Its name; empty for a lambda."""
        return "" if isinstance(self.node, ast.Lambda) else self.node.name


@dataclass(eq=False, slots=True)
class Class:
    """A class of the file."""

    name: str
    line: int
    bases: tuple["Value", ...]
    attrs: dict[str, "Value"]

    def lineage(self) -> list["Class | Outside"]:
        """The class, then its bases depth first."""
        found: list[Class | Outside] = []
        stack: list[Atom] = [self]
        while stack:
            atom = stack.pop()
            if isinstance(atom, Class | Outside) and atom not in found:
                found.append(atom)
                if isinstance(atom, Class):
                    stack.extend(a for base in reversed(atom.bases) for a in base)
        return found

    def lookup(self, name: str, above: bool = False) -> "Value | None":
        """The attribute `name` of the class or its bases in the file; `above` leaves out the class itself."""
        owners = (c for c in self.lineage()[above:] if isinstance(c, Class))
        return next((c.attrs[name] for c in owners if name in c.attrs), None)

    def members(self) -> list[str]:
        """Names of attributes of the class and its bases in the file, each once."""
        return list(dict.fromkeys(n for c in self.lineage() if isinstance(c, Class) for n in c.attrs))

    def outside_base(self) -> str:
        """The first base from outside the file."""
        return next((c.path for c in self.lineage() if isinstance(c, Outside)), "object")


@dataclass(eq=False, slots=True)
class Instance:
    """An object of a class of the file; calls with equal arguments share one."""

    cls: Class
    attrs: dict[str, "Value"] = field(default_factory=dict)
    entered: set[Function] = field(default_factory=set)  # methods that were read with this receiver


@dataclass(frozen=True, slots=True)
class Bound:
    """A method with its receiver."""

    function: Function
    receiver: "Atom"


@dataclass(frozen=True, slots=True)
class Super:
    """`super()` inside a method of `cls`."""

    cls: Class
    receiver: "Atom"


@dataclass(eq=False, slots=True)
class Partial:
    """`functools.partial(callee, ...)`."""

    callee: "Value"
    args: list["Value"]
    keywords: dict[str, "Value"]


Atom: TypeAlias = Mark | Const | Outside | Made | Table | Function | Class | Instance | Bound | Super | Partial
Value: TypeAlias = tuple[Atom, ...]  # the possibilities, without repeats

UNKNOWN: Value = (Mark.UNKNOWN,)
SETTING: Value = (Mark.SETTING,)
LOADED: Value = (Mark.LOADED,)
NONE = Const(None, "NoneType")
TRUE = Const(True, "bool")


class Scope:
    """Names of a module, class or function body."""

    __slots__ = ("body_of", "cls", "names", "parent", "receiver", "returns")

    def __init__(self, parent: "Scope | None", names: dict[str, Value] | None = None) -> None:
        self.parent = parent
        self.names: dict[str, Value] = {} if names is None else names
        self.returns: list[Value] = []
        self.body_of: Class | None = None  # the class whose body this is
        self.cls: Class | None = parent.cls if parent else None  # the class around, and the `self` of its method
        self.receiver: Atom | None = parent.receiver if parent else None

    def find(self, name: str) -> Value | None:
        """The value of `name` here or further out."""
        scope: Scope | None = self
        while scope is not None:
            value = scope.names.get(name)
            if value is not None:
                return value
            scope = scope.parent
        return None


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call, and where it stands."""

    args: list[Value]
    keywords: dict[str, Value]
    line: int
    receiver: str = ""  # the last name before the dot: `opt` in `self.opt.load_state_dict(...)`
