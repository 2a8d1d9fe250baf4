"""How the walk takes in names, calls, annotations and strings: the part of it that knows places and roles."""

import ast
import re
import sys
from collections.abc import Callable, Iterable
from typing import ClassVar

from train.inline.faults import faults_of
from train.inline.mentions import Fault, Form, Mention, Role
from train.inline.scopes import Event, Kind, Scope, resolve
from train.inline.text import Inside, Piece, expression_at, fields, inside_literal

#: Methods that change nothing in the built-in types.
_READING = frozenset({"copy", "count", "format", "get", "index", "items", "join", "keys", "split", "values"})
_OLD_FIELDS = sys.version_info < (3, 12)  # `ast` does not give the true places inside f-strings


class NameWalk:
    """Takes in statements, then tells their `mentions()` and `faults`."""

    methods: ClassVar[dict[type[ast.AST], Callable[..., None]]] = {}

    def __init__(self, text: bytes, whole: Piece) -> None:
        self._text = text
        self._piece = whole
        self._line = 0  # of the file, while the walk is in another piece
        self._scope = Scope(Kind.MODULE)
        self._late = False
        self._note = False
        self._fixed = ""  # why nothing of this piece can be rewritten
        self._classes: list[str] = []
        self._roles: dict[ast.AST, Role] = {}
        self._events: list[Event] = []
        self.faults: list[Fault] = []

    def mentions(self) -> list[Mention]:
        """The places that name globals, in order."""
        found = {mention for event in self._events if (mention := resolve(event)) is not None}
        return sorted(found, key=lambda m: (m.start, m.end, m.name, m.role.value))

    def visit(self, node: ast.AST) -> None:
        """Take in a statement or expression."""
        self.faults += faults_of(node, self._line or getattr(node, "lineno", 0), self._scope.kind)
        method = self.methods.get(type(node))
        if method is not None:
            method(self, node)
        else:
            self._all(ast.iter_child_nodes(node))

    def _all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    # -- places --------------------------------------------------------------------------------------------------

    def _mention(self, name: str, role: Role, start: int, end: int, line: int, form: Form, scope: Scope) -> None:
        if self._classes and name.startswith("__") and not name.endswith("__") and "." not in name:
            name = f"_{self._classes[-1].lstrip('_')}{name}"
            form, why = Form.FIXED, "is a private name inside a class"
        else:
            why = self._fixed
        form = Form.FIXED if why else form
        state = scope.state(name)
        if role is Role.BIND and name not in scope.globals:
            scope.bind(name)
        self._events.append(Event(scope, state, Mention(name, role, self._late, start, end, line, form, why)))

    def _at(self, node: ast.expr, role: Role, name: str) -> None:
        line = self._line or node.lineno
        self._mention(name, role, self._piece.start(node), self._piece.end(node), line, Form.NAME, self._scope)

    def _bind_word(self, name: str, start: int, end: int, line: int, scope: Scope | None = None) -> None:
        """Bind a name that stands as a word between two offsets."""
        found = re.compile(rb"(?<!\w)" + re.escape(name.encode()) + rb"(?!\w)").search(self._text, start, end)
        at = found.start() if found is not None else start
        stop = found.end() if found is not None else start
        self._mention(name, Role.BIND, at, stop, self._line or line, Form.NAME, scope or self._scope)

    # -- names ---------------------------------------------------------------------------------------------------

    def _name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._at(node, Role.BIND, node.id)
        else:
            role = Role.NOTE if self._note else self._roles.get(node, Role.CHANGE)
            self._at(node, role, node.id)

    def _reading(self, *nodes: ast.AST | None, role: Role = Role.READ) -> None:
        """Names that stand there themselves are only read."""
        for node in nodes:
            if isinstance(node, ast.Name):
                self._roles.setdefault(node, role)

    def _access(self, node: ast.Attribute | ast.Subscript) -> None:
        role = self._roles.get(node, Role.READ) if isinstance(node.ctx, ast.Load) else Role.STORE
        if isinstance(node.value, ast.Name | ast.Attribute | ast.Subscript):
            self._roles.setdefault(node.value, role)
        self.visit(node.value)
        if isinstance(node, ast.Subscript):
            self._reading(node.slice)
            head = _last_name(node.value)
            if self._note and head == "Literal":
                return
            if self._note and head == "Annotated" and isinstance(node.slice, ast.Tuple):
                self.visit(node.slice.elts[0])
                note, self._note = self._note, False
                self._all(node.slice.elts[1:])
                self._note = note
                return
            self.visit(node.slice)

    def _call(self, node: ast.Call) -> None:
        name = _last_name(node.func)
        if isinstance(node.func, ast.Name):
            self._roles.setdefault(node.func, Role.READ)
        elif isinstance(node.func, ast.Attribute) and name not in _READING:
            self._roles.setdefault(node.func, Role.CHANGE)
        first = node.args[0] if node.args else None
        if name in {"isinstance", "issubclass", "len", "super"}:
            self._reading(*node.args)
        if name in {"cast", "ForwardRef"} or (name == "wrap" and self._scope.kind is Kind.MODULE):
            self._string_note(first)
        for word in node.keywords:
            if word.arg == "bound":
                self._string_note(word.value)
            if word.arg is None:
                self._reading(word.value)
        self._all(ast.iter_child_nodes(node))

    def _expression(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._reading(node.value.func, role=Role.CHANGE)  # it is called for what it does
        self.visit(node.value)

    def _reader(self, node: ast.AST) -> None:
        """Operators, tests, f-string fields and loops only read the names that stand there."""
        self._reading(*ast.iter_child_nodes(node))
        self._all(ast.iter_child_nodes(node))

    # -- annotations and strings ---------------------------------------------------------------------------------

    def _annotation(self, node: ast.expr | None) -> None:
        if node is not None:
            note, self._note = self._note, True
            self.visit(node)
            self._note = note

    def _string_note(self, node: ast.expr | None) -> None:
        """A string that names a global, as an annotation does."""
        if isinstance(node, ast.Constant):
            self._annotation(node)

    def _constant(self, node: ast.Constant) -> None:
        if not self._note or not isinstance(node.value, str):
            return
        start, end = self._piece.start(node), self._piece.end(node)
        bounds = inside_literal(self._text, start, end, node.value)
        if bounds is not None:
            inside = expression_at(self._text, *bounds)
        else:
            inside = expression_at(node.value.encode(), 0, len(node.value.encode()))
        if inside is not None:
            why = "" if bounds is not None else "is named by a string in several pieces or with escapes"
            self._visit_inside(inside, why, self._line or node.lineno)

    def _f_string(self, node: ast.JoinedStr) -> None:
        if not _OLD_FIELDS:
            self._all(node.values)
            return
        for inside in fields(self._text, self._piece.start(node), self._piece.end(node)):
            why = "is printed with its name by `=` in an f-string" if inside.shown else ""
            self._visit_inside(inside, why, self._line or node.lineno)

    def _field(self, node: ast.FormattedValue) -> None:
        end = self._piece.end(node.value)
        shown = re.compile(rb"[\s)]*=(?!=)").match(self._text, end) is not None
        fixed, self._fixed = self._fixed, "is printed with its name by `=` in an f-string" if shown else self._fixed
        self._reader(node)
        self._fixed = fixed

    def _visit_inside(self, inside: Inside, why: str, line: int) -> None:
        outer = (self._piece, self._fixed, self._line)
        self._piece, self._fixed, self._line = inside.piece, why or self._fixed, line
        self._reading(inside.tree)
        self.visit(inside.tree)
        self._piece, self._fixed, self._line = outer


def _last_name(node: ast.expr) -> str:
    """The name at the end of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
