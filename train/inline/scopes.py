"""The scopes of Python: which of the names in a statement are global.

Source of the rules: https://docs.python.org/3/reference/executionmodel.html#naming-and-binding
"""

import ast
from dataclasses import dataclass, field
from enum import Enum

from train.inline.mentions import Form, Mention, Role


class Kind(Enum):
    """The kinds of scope."""

    MODULE = "module"
    FUNCTION = "function"
    CLASS = "class"
    COMPREHENSION = "comprehension"


class Here(Enum):
    """Whether a class body has bound a name when it reads it."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


@dataclass(eq=False, slots=True)
class Scope:
    """One scope and what it binds; filled during the walk, asked after it."""

    kind: Kind
    parent: "Scope | None" = None
    bound: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    surely: set[str] = field(default_factory=set)  # of a class body: bound on every way to where the walk is
    perhaps: set[str] = field(default_factory=set)
    branches: int = 0  # of a class body: depth of `if`, loops and the like

    def bind(self, name: str) -> None:
        """Note that the scope binds a name here."""
        self.bound.add(name)
        self.perhaps.add(name)
        if not self.branches:
            self.surely.add(name)

    def state(self, name: str) -> Here:
        """Whether the name is bound where the walk is; of interest in class bodies alone."""
        if name in self.surely:
            return Here.YES
        return Here.MAYBE if name in self.perhaps else Here.NO

    def enter_branch(self, node: ast.stmt) -> None:
        """A class body's `if` or loop begins: in a loop, what it binds may be bound from its first statement on."""
        self.branches += 1
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            self.perhaps.update(_bound_in(node))

    def leave_branch(self) -> None:
        """It ends."""
        self.branches -= 1


def _bound_in(node: ast.stmt) -> set[str]:
    names = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
            names.add(inner.id)
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(inner.name)
        elif isinstance(inner, ast.alias):
            names.add((inner.asname or inner.name).split(".")[0])
    return names


@dataclass(frozen=True, slots=True)
class Event:
    """A mention of some name in some scope, before it is known whether the name is global there."""

    scope: Scope
    state: Here
    mention: Mention


_UNSURE = "is bound by the class body too, and which of the two is read cannot be told"


def resolve(event: Event) -> Mention | None:
    """The mention, if its name is global; None if it is local."""
    mention, scope = event.mention, event.scope
    name = mention.name
    if mention.role is Role.BIND:
        return mention if scope.kind is Kind.MODULE or name in scope.globals else None
    if scope.kind is Kind.CLASS and name in scope.bound and name not in scope.globals and name not in scope.nonlocals:
        # Read from the class body if bound by then, else from the module: never from a function around the class.
        if event.state is Here.YES:
            return None
        return mention if event.state is Here.NO else _fixed(mention, _UNSURE)
    here: Scope | None = scope
    while here is not None and here.kind is not Kind.MODULE:
        if here is scope or here.kind is not Kind.CLASS:
            if name in here.globals:
                return mention
            if name in here.bound and name not in here.nonlocals:
                return None
        here = here.parent
    return mention


def _fixed(mention: Mention, why: str) -> Mention:
    return Mention(mention.name, mention.role, mention.late, mention.start, mention.end, mention.line, Form.FIXED, why)
