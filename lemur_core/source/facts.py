"""Static facts about one source file: its statements, and which names each binds and needs.

All facts are tuples of plain values, so that the index can store them by content. Offsets count bytes in the normalized
text (see `lemur_core.source.text`).
"""

from typing import NamedTuple

FACTS_VERSION = 29

# When a name is looked up: when the statement runs, when a function it defines is called, or only in an annotation.
AT_DEFINITION, AT_CALL, IN_ANNOTATION = 0, 1, 2

# Kinds of statements.
IMPORT, STAR, FUNCTION, CLASS, ASSIGN, OTHER = "import", "star", "function", "class", "assign", "other"


class Use(NamedTuple):
    """One read of a global name, with the attributes taken from it: `layers.drop.DropPath`."""

    name: str
    attributes: tuple[str, ...]
    when: int
    start: int  # -1 inside a string annotation
    ends: tuple[int, ...]  # end of the name, then of each attribute
    local: int  # -1: a global; else the name is bound by this entry of the statement's `locals`
    called: bool = False  # the name, or an attribute of it, is called or decorates
    inside: int = -1  # its offset inside a string annotation, if that is a plain one
    checked: bool = False  # it is a class of an instance check: `isinstance(x, layers.Drop)`


class Alias(NamedTuple):
    """One name of an import statement. `from ..a import b as c`: module a, level 2, name b, bound c."""

    module: str
    level: int
    name: str  # "" for `import module`
    bound: str  # the name that it binds
    whole: bool  # `import a.b as c` binds a.b itself; `import a.b` binds a


class LocalImport(NamedTuple):
    """One name imported inside a function or class body."""

    alias: Alias
    start: int  # of the whole import statement
    end: int
    stand_alone: bool  # the only binding of the name in its scope
    guarded: bool  # inside a try that catches ImportError
    in_class: bool
    is_global: bool  # it binds a global name: under `global`, or in a top-level statement


class NameStore(NamedTuple):
    """One binding of a global name (also in a `global` statement), for renaming."""

    name: str
    start: int
    end: int


class ObjectChange(NamedTuple):
    """One change of an object that it does not create: `TABLE["x"] = f`, `cls.kinds.append(f)`."""

    #: Global name and attributes; the first is "" for a method's own object, "*" for a parameter; "[]" at the end: an
    #: item of that object is changed.
    chain: tuple[str, ...]
    how: str  # the method called on it; "[]" for an item, ".name" for an attribute ("." if its name is computed)
    when: int  # AT_DEFINITION if it runs with the statement, else AT_CALL
    method: str  # the method of the statement's class that contains it; otherwise ""


class Decorator(NamedTuple):
    """A decorator of a top-level class or function, or of a method."""

    chain: tuple[str, ...]  # dotted name of the decorator or its callee; empty for other expressions
    column: int  # of the "@"
    start: int  # from the "@" …
    end: int  # … to the end of its last line
    keys: tuple[str, ...]  # string literals among its arguments


class Statement(NamedTuple):
    """A top-level statement, or one inside top-level `if` and `try` blocks."""

    number: int
    kind: str
    start: int  # with decorators, and the comment lines directly above
    end: int  # with the line end
    line: int
    end_line: int
    column: int
    path: tuple[tuple[int, int], ...]  # the enclosing (block, suite) pairs, outermost first
    binds: tuple[str, ...]
    late: tuple[str, ...]  # names that its functions bind as `global`
    touches: tuple[str, ...]  # global names whose object it changes: X.append(1), X["a"] = 1, X.a = 1
    uses: tuple[Use, ...]
    stores: tuple[NameStore, ...]
    aliases: tuple[Alias, ...]  # of an import statement
    locals: tuple[LocalImport, ...]
    decorators: tuple[Decorator, ...]
    calls: bool  # running it may call functions
    types: tuple[str, ...]  # string literals that name a class to build: dict(type="BN")
    shadows: tuple[str, ...]  # names bound in the scopes inside it
    registers: bool  # a decorator that returns its argument, or creates such a decorator
    changes: tuple[ObjectChange, ...] = ()
    searches: bool = False  # it looks up code by strings: `search_at`


class ConditionalBlock(NamedTuple):
    """A top-level `if` or `try`, whose suites contain statements or further blocks."""

    number: int
    kind: str  # "if" or "try"
    start: int
    end: int
    path: tuple[tuple[int, int], ...]
    uses: tuple[Use, ...]  # of the test, or of the exception types
    suites: tuple[tuple[str, int, int], ...]  # (body | handler | else | finally, start, end of its statements)
    static: str  # "never" (TYPE_CHECKING, __main__), "always", "imports" (try that catches ImportError) or ""
    errors: tuple[str, ...] = ()  # names of `except … as name`


class ClassFacts(NamedTuple):
    """A top-level class, for finding nn.Module subclasses."""

    name: str
    statement: int
    bases: tuple[tuple[str, ...], ...]  # dotted names; empty tuple for other expressions
    methods: tuple[str, ...]
    abstract: tuple[str, ...]  # methods under abc.abstractmethod, and names of constants (`forward = None`)
    registers: tuple[str, ...] = ()  # methods that return their argument, or create such a decorator


class NewerSyntax(NamedTuple):
    """Syntax in a file that the running Python does not know."""

    start: int
    needs: str  # "Python 3.12 (type parameters)"


class FileFacts(NamedTuple):
    """Everything that resolution needs to know of one file."""

    statements: tuple[Statement, ...]
    blocks: tuple[ConditionalBlock, ...]
    classes: tuple[ClassFacts, ...]
    #: Names in `__all__`; "*acts" are those of `acts.__all__`, and "*" is any public name, where it is computed.
    exports: tuple[str, ...] | None
    future: tuple[str, ...]  # names imported from __future__
    newer: tuple[NewerSyntax, ...] = ()  # without which the other facts are
