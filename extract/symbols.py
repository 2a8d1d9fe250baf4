"""What a block's file can contain, and what can keep a class from becoming a block."""

from enum import StrEnum
from typing import NamedTuple

from extract.modules import Module
from lemur_core.source.facts import Statement, Use


class Own(NamedTuple):
    """A name that statements of the corpus define; their text is copied."""

    module: Module
    name: str


class Imported(NamedTuple):
    """An import that stays: `import package as bound`, `from package import name as bound`."""

    package: str
    name: str  # "" for the module itself
    whole: bool
    bound: str


class Registered(NamedTuple):
    """A registry object; the file gets a small stand-in that holds the classes it names."""

    module: Module
    name: str


class Optional(NamedTuple):
    """An optional package, taken as not installed."""

    package: str
    bound: str


class Namespace(NamedTuple):
    """A module of the corpus that is used as a value: `getattr(layers, name)`, `vars(layers)`."""

    module: Module

    @property
    def name(self) -> str:
        """The last part of its name."""
        return self.module.name.rpartition(".")[2]


Symbol = Own | Imported | Registered | Optional | Namespace


class Reason(StrEnum):
    """Why a class cannot become a block."""

    UNRESOLVED_NAME = "unresolved_name"
    UNRESOLVED_IMPORT = "unresolved_import"
    NATIVE_OP = "native_op"
    DYNAMIC_MODULE = "dynamic_module"
    TOO_LARGE = "too_large"


class Problem(NamedTuple):
    """One thing in a statement that cannot be resolved."""

    reason: Reason
    detail: str


class How(StrEnum):
    """How a name was resolved, the surest first."""

    SAME_FILE = "same file"
    DIRECT_IMPORT = "direct import"
    RE_EXPORT = "re-export"
    QUALIFIED = "qualified name"
    STAR = "star import"
    LAZY_PACKAGE = "lazy package"
    REGISTRY = "registry"
    STAND_IN = "stand-in"
    HEURISTIC = "heuristic"


CONFIDENCE = {
    How.SAME_FILE: 1.0,
    How.DIRECT_IMPORT: 1.0,
    How.RE_EXPORT: 1.0,
    How.QUALIFIED: 1.0,
    How.STAR: 0.95,
    How.LAZY_PACKAGE: 0.9,
    How.STAND_IN: 0.9,
    How.REGISTRY: 0.8,
    How.HEURISTIC: 0.5,
}


class Link(NamedTuple):
    """One read of a name, and what it reads: the symbol stands for the name and `consumed` attributes after it."""

    use: Use
    symbol: Symbol
    consumed: int
    how: How


class Node(NamedTuple):
    """A statement of the corpus with its links."""

    module: Module
    statement: Statement

    @property
    def key(self) -> tuple[str, str, int]:
        """Source, path and number of the statement: unique, and in the order of the files."""
        return self.module.source.name, self.module.file.path, self.statement.number
