"""Where a statement names a global: what the walk of `scopes` finds."""

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What happens to the name's value there."""

    BIND = "bind"  # bound, deleted or declared
    STORE = "store"  # an attribute or item of it is set
    CHANGE = "change"  # it may be changed: a method is called, it is passed on, it gets another name
    READ = "read"
    NOTE = "note"  # named by an annotation


class Form(Enum):
    """How the place is rewritten for another name."""

    NAME = "name"  # the place is the name
    ALIAS = "alias"  # the place is an import's name; ` as new` follows it
    FIXED = "fixed"  # cannot be rewritten


@dataclass(frozen=True, slots=True)
class Mention:
    """A place that names a global, as byte offsets of the file."""

    name: str
    role: Role
    late: bool  # not as the statement runs
    start: int
    end: int
    line: int
    form: Form = Form.NAME
    why: str = ""  # it cannot be rewritten


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a part cannot be inlined; with a name, only where that is not one of the part's own."""

    line: int
    text: str
    builtin: str = ""
