"""Parse one source file into its facts. Nothing is run; `ast` is several times faster than LibCST."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from lemur_core.source.changes import find_changes, search_at
from lemur_core.source.facts import (
    ASSIGN,
    CLASS,
    FUNCTION,
    IMPORT,
    OTHER,
    STAR,
    ClassFacts,
    ConditionalBlock,
    Decorator,
    FileFacts,
    NewerSyntax,
    Statement,
)
from lemur_core.source.scopes import BUILTINS, TYPE_ALIAS, ScopeNames, catches_import, import_aliases, last_name
from lemur_core.source.text import Edit, Lines, apply, list_nodes, normalise, parse_code, walk_scope

Path = tuple[tuple[int, int], ...]

_KINDS: dict[str, tuple[type[ast.AST], ...]] = {
    IMPORT: (ast.Import, ast.ImportFrom),
    FUNCTION: (ast.FunctionDef, ast.AsyncFunctionDef),
    CLASS: (ast.ClassDef,),
    ASSIGN: (ast.Assign, ast.AnnAssign, *TYPE_ALIAS),
}


def parse_file(raw: bytes, *, builtins: bool = False) -> FileFacts:
    """Return the facts of one file.

    Args:
        raw: the bytes of the file, in the encoding that it declares.
        builtins: include reads of built-in names; by default only of those that the file rebinds.
    Returns: facts whose offsets refer to the normalized text (see `normalise`); of a file with syntax of a newer
        Python, those without that.
    Raises: SyntaxError, as `parse_code`.
    """
    tree, known, newer = parse_known(normalise(raw))
    return read_facts(tree, known, builtins=builtins)._replace(newer=newer)


def read_facts(tree: ast.Module, text: bytes, *, builtins: bool = False) -> FileFacts:
    """Return the facts of a file that is parsed already. Args: as `parse_file`."""
    return _FactsVisitor(Lines(text)).read(tree, BUILTINS if builtins else frozenset())


def parse_known(text: bytes) -> tuple[ast.Module, bytes, tuple[NewerSyntax, ...]]:
    """Return the syntax tree of a file without syntax of a newer Python, the text without that, and what that is.

    Raises: SyntaxError, as `parse_code`.
    """
    try:
        return parse_code(text), text, ()
    except SyntaxError as error:
        if not error.lineno:  # nested too deeply, or no text
            raise
        known, newer = remove_newer_syntax(text)
        if not newer:
            raise
        return parse_code(known), known, newer


def remove_newer_syntax(text: bytes) -> tuple[bytes, tuple[NewerSyntax, ...]]:
    """Return a text without the syntax of Python 3.12 and later, and what was taken out, by position.

    Type parameters become spaces, `type A = B` becomes `A = B`, `except A, B` becomes `except A`, and formatted strings
    become empty: all offsets and lines stay as they are.

    Args: text: normalized, and not parsed by the running Python.
    Returns: the text as it is and nothing, if it is not Python of any version, or if only other syntax is newer.
    """
    import libcst as cst  # it loads slowly, and few files need it
    from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

    try:
        spans = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True).resolve(ByteSpanPositionProvider)
    except cst.ParserSyntaxError:
        return text, ()
    edits, newer = [], []
    for node, span in spans.items():
        start, end = span.start, span.start + span.length
        needs = ""
        if isinstance(node, cst.TypeParameters):
            version = "3.12" if all(parameter.default is None for parameter in node.params) else "3.13"
            needs, new = f"Python {version} (type parameters)", _blank(text[start:end])
        elif isinstance(node, cst.TypeAlias):
            needs, name = "Python 3.12 (type statement)", node.name.value
            end = text.index(name.encode(), start + len("type")) + len(name.encode())
            new = name.encode().ljust(end - start)
        elif isinstance(node, cst.ExceptHandler | cst.ExceptStarHandler):
            if isinstance(node.type, cst.Tuple) and not node.type.lpar:
                needs, listed = "Python 3.14 (except without parentheses)", spans[node.type]
                start = listed.start + spans[node.type.elements[0].value].length
                end = listed.start + listed.length
                new = _blank(text[start:end])
        elif isinstance(node, cst.FormattedString | cst.TemplatedString) and not _is_known(text[start:end]):
            is_template = isinstance(node, cst.TemplatedString)
            needs = "Python 3.14 (template strings)" if is_template else "Python 3.12 (formatted strings)"
            opening, closing = len(node.start), len(node.end)
            inside = _blank(text[start + opening : end - closing], continued=closing == 1)
            new = node.end.encode().rjust(opening) + inside + node.end.encode()
        if needs:
            edits.append(Edit(start, end, new.decode()))
            newer.append(NewerSyntax(start, needs))
    return apply(text, 0, len(text), edits).encode(), tuple(sorted(newer))


def _blank(text: bytes, *, continued: bool = True) -> bytes:
    """Return as many spaces, with the same lines; these are continued, where line ends would end the statement."""
    blank = re.sub(rb"[^\n]", b" ", text)
    return blank.replace(b" \n", b"\\\n") if continued else blank


def _is_known(expression: bytes) -> bool:
    try:
        parse_code(b"(" + expression + b")")
    except SyntaxError:
        return False
    return True


class _FactsVisitor:
    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.deferred = False
        self.drafts: list[tuple[Statement, ScopeNames]] = []
        self.blocks: list[tuple[ConditionalBlock, ScopeNames]] = []
        self.classes: list[ClassFacts] = []

    def read(self, tree: ast.Module, known: frozenset[str]) -> FileFacts:
        future = [
            alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module == "__future__"
            for alias in node.names
        ]
        self.deferred = "annotations" in future
        exports = _read_exports(tree)
        self._visit_suite(tree.body, ())
        bound = known.union(*((*draft.binds, *draft.late) for draft, _ in self.drafts))
        statements = tuple(draft._replace(uses=names.uses(bound)) for draft, names in self.drafts)
        blocks = tuple(block._replace(uses=names.uses(bound)) for block, names in self.blocks)
        return FileFacts(statements, blocks, tuple(self.classes), exports, tuple(future))

    def _visit_suite(self, body: Sequence[ast.stmt], path: Path) -> None:
        previous_line = 0
        for node in body:
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                previous_line = node.end_lineno or node.lineno
                continue
            if isinstance(node, ast.If | ast.Try) and node.lineno != previous_line and _is_separable(self.lines, node):
                self._visit_block(node, path)
            else:
                self._visit_statement(node, path, node.lineno == previous_line)
            previous_line = node.end_lineno or node.lineno

    # -- blocks --------------------------------------------------------------------------------------------------

    def _visit_block(self, node: ast.If | ast.Try, path: Path) -> None:
        index = len(self.blocks)
        names = ScopeNames(self.lines, deferred=self.deferred)
        suites: list[tuple[str, Sequence[ast.stmt]]] = [("body", node.body)]
        errors: list[str] = []
        if isinstance(node, ast.If):
            kind, static = "if", _evaluate_test(node.test)
            names.visit(node.test)
        else:
            importing = any(isinstance(item, ast.Import | ast.ImportFrom) for item in node.body)
            kind, static = "try", "imports" if importing and catches_import(node) else ""
            for handler in node.handlers:
                if handler.type is not None:
                    names.visit(handler.type)
                errors += [handler.name] if handler.name else []
                suites.append(("handler", handler.body))
        suites.append(("else", node.orelse))
        if isinstance(node, ast.Try):
            suites.append(("finally", node.finalbody))
        spans = tuple(
            (role, self._find_line_span(body[0])[0], self._find_line_span(body[-1])[1]) if body else (role, 0, 0)
            for role, body in suites
        )
        start, end = self._find_line_span(node)
        block = ConditionalBlock(index, kind, start, end, path, (), spans, static, tuple(errors))
        self.blocks.append((block, names))
        for number, (_, body) in enumerate(suites):
            self._visit_suite(body, (*path, (index, number)))

    def _find_line_span(self, node: ast.stmt) -> tuple[int, int]:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        assert node.end_lineno is not None
        return self.lines.start(self._with_comments(first, node.col_offset)), self.lines.start(node.end_lineno + 1)

    def _with_comments(self, line: int, column: int) -> int:
        """Return the first of the comment lines directly above a statement, at its indentation."""
        while line > 1:
            above = self.lines.line(line - 1)
            stripped = above.lstrip()
            if not stripped.startswith(b"#") or len(above) - len(stripped) != column or stripped.startswith(b"#!"):
                break
            line -= 1
        return line

    # -- statements ----------------------------------------------------------------------------------------------

    def _visit_statement(self, node: ast.stmt, path: Path, same_line: bool) -> None:
        before = self.drafts.pop() if same_line and self.drafts else None  # `a = 1; b = 2` counts as one statement
        index = len(self.drafts)
        if isinstance(node, ast.ClassDef) and before is None:
            self.classes.append(_read_class(node, index))
        registers = isinstance(node, ast.FunctionDef) and returns_its_argument(node)
        draft, names = before or (None, ScopeNames(self.lines, deferred=self.deferred))
        names.visit(node)
        start, end = self._find_line_span(node)
        kind = next((kind for kind, types in _KINDS.items() if isinstance(node, types)), OTHER)
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            kind = STAR
        aliases = tuple(import_aliases(node)) if isinstance(node, ast.Import | ast.ImportFrom) else ()
        only_imports = bool(aliases)
        if draft is not None:
            kind = kind if draft.kind == kind else OTHER
            only_imports = kind in {IMPORT, STAR}
            aliases = draft.aliases + aliases
            start, end = draft.start, max(draft.end, end)
        statement = Statement(
            number=index,
            kind=kind,
            start=start,
            end=end,
            line=self.lines.number(start),
            end_line=node.end_lineno or node.lineno,
            column=draft.column if draft is not None else node.col_offset,
            path=path,
            binds=names.binds,
            late=names.late,
            touches=tuple(dict.fromkeys(names.touches)),
            uses=(),
            stores=names.stores,
            aliases=aliases,
            locals=() if only_imports else names.locals,
            decorators=tuple(self._list_decorators(names.decorated)),
            calls=names.calls,
            types=tuple(dict.fromkeys(names.types)),
            shadows=names.shadows,
            registers=registers,
            changes=(*(draft.changes if draft else ()), *find_changes(node)),
            searches=bool(draft and draft.searches) or any(map(search_at, list_nodes(node))),
        )
        self.drafts.append((statement, names))

    def _list_decorators(self, nodes: Sequence[ast.expr]) -> Iterator[Decorator]:
        for item in nodes:
            chain, arguments = split_dotted_name(item), []
            if isinstance(item, ast.Call):
                chain, named = split_dotted_name(item.func), {"name", "module", None}
                arguments = [*item.args, *(word.value for word in item.keywords if word.arg in named)]
            keys: list[str] = []
            for argument in arguments:
                elements = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
                keys += [c.value for c in elements if isinstance(c, ast.Constant) and isinstance(c.value, str)]
            assert item.end_lineno is not None
            start, end = self.lines.start(item.lineno), self.lines.start(item.end_lineno + 1)
            yield Decorator(chain, item.col_offset - 1, start, end, tuple(keys))


def split_dotted_name(node: ast.expr) -> tuple[str, ...]:
    """Return the names of an attribute chain.

    Args: node: any expression.
    Returns: ("a", "b", "c") for `a.b.c`; empty for an expression that does not begin with a name.
    """
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ()
    return (node.id, *reversed(parts))


def returns_its_argument(node: ast.FunctionDef, position: int = 0) -> bool:
    """Return whether a function returns its argument at a position unchanged, or an inner function its first one.

    Such a decorator only registers a class or function; removing it does not change the decorated object itself.
    """
    last = node.body[-1]
    if isinstance(last, ast.Return) and not isinstance(last.value, ast.Name):  # most functions
        return False
    own = list(walk_scope(node.body))
    returned = [item.value for item in own if isinstance(item, ast.Return)]
    if not returned or any(not isinstance(value, ast.Name) for value in returned):
        return False
    names = {value.id for value in returned if isinstance(value, ast.Name)}
    inner = {item.name: item for item in own if isinstance(item, ast.FunctionDef)}
    first = next(iter([*node.args.posonlyargs, *node.args.args][position:]), None)
    for name in names:
        if name in inner:
            if not returns_its_argument(inner[name]):
                return False
        elif first is None or name != first.arg or _is_changed(own, name):
            return False
    return True


def _is_changed(nodes: Sequence[ast.AST], name: str) -> bool:
    return any(
        (
            isinstance(node, ast.Name | ast.Attribute)
            and not isinstance(node.ctx, ast.Load)
            and split_dotted_name(node)[:1] == (name,)
        )
        or (isinstance(node, ast.Call) and split_dotted_name(node.func) == ("setattr",))
        for node in nodes
    )


def _is_separable(lines: Lines, node: ast.If | ast.Try) -> bool:
    """Return whether each statement of a block can be copied separately, as whole lines."""
    if isinstance(node, ast.If) and any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node.test)):
        return False  # the test binds a name
    suites = [node.body, *(handler.body for handler in getattr(node, "handlers", ()))]
    suites += [node.orelse, getattr(node, "finalbody", [])]
    while isinstance(node, ast.If) and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        # An `elif` begins behind its own keyword.
        node = node.orelse[0]
        suites[-2:] = [node.body, node.orelse, []]
    return not any(body and lines.line(body[0].lineno)[: body[0].col_offset].strip() for body in suites)


def _evaluate_test(test: ast.expr) -> str:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return {"never": "always", "always": "never"}.get(_evaluate_test(test.operand), "")
    if last_name(test) == "TYPE_CHECKING":
        return "never"
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__":
        return "never" if isinstance(test.ops[0], ast.Eq) else ""
    return ""


def _read_class(node: ast.ClassDef, statement: int) -> ClassFacts:
    methods: list[str] = []
    abstract: list[str] = []
    registers: list[str] = []
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            methods.append(item.name)
            is_static = "staticmethod" in {last_name(d) for d in item.decorator_list}
            if isinstance(item, ast.FunctionDef) and returns_its_argument(item, 0 if is_static else 1):
                registers.append(item.name)
            if {last_name(d) for d in item.decorator_list} & {"abstractmethod", "abstractproperty"}:
                abstract.append(item.name)
        elif isinstance(item, ast.Assign):
            names = [t.id for t in item.targets if isinstance(t, ast.Name)]
            methods += names
            # `forward = NotImplemented`
            if isinstance(item.value, ast.Constant) or last_name(item.value) == "NotImplemented":
                abstract += names
        elif isinstance(item, ast.If | ast.Try):
            methods += [sub.name for sub in ast.walk(item) if isinstance(sub, ast.FunctionDef | ast.AsyncFunctionDef)]
    # `Generic` of `Generic[T]`.
    bases = tuple(split_dotted_name(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases)
    return ClassFacts(node.name, statement, bases, tuple(dict.fromkeys(methods)), tuple(abstract), tuple(registers))


def _read_exports(tree: ast.Module) -> tuple[str, ...] | None:
    """Return what `__all__` lists, as `FileFacts.exports`; None if the file has none."""
    exports: list[str] | None = None
    listing: set[str] = set()  # functions that add to it, such as `def public(c): __all__.append(c.__name__); return c`
    for node in _list_statements(tree.body):
        added: list[str] = []
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                exports = _list_exports(value)
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value):
                exports = _list_exports(value)
            case ast.AugAssign(target=ast.Name(id="__all__"), value=value):
                added = _list_exports(value)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="__all__"), attr=method), args=args)):
                names = [name for arg in args[-1:] for name in _list_exports(arg)]
                added = [] if method == "remove" else names
                exports = [name for name in exports or () if name not in names or method != "remove"]
            case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=args)) if name in listing:
                added = [
                    name for arg in args for name in ([arg.id] if isinstance(arg, ast.Name) else _list_exports(arg))
                ]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                decorators = {
                    last_name(item.func if isinstance(item, ast.Call) else item) for item in node.decorator_list
                }
                added = [node.name] if decorators & listing else []
                if not isinstance(node, ast.ClassDef) and any(map(_adds_exports, ast.walk(node))):
                    listing.add(node.name)
        exports = [*(exports or ()), *added] if added else exports
    return None if exports is None else tuple(dict.fromkeys(exports))


def _list_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements and those in their branches and loops, in the order of the text."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _list_statements(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def _adds_exports(node: ast.AST) -> bool:
    match node:
        case ast.AugAssign(target=ast.Name(id="__all__")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="__all__"), attr="append" | "extend")):
            return True
    return False


def _list_exports(value: ast.expr) -> list[str]:
    """Return the names in an expression for a list of exports."""
    match value:
        case ast.Constant(value=str() as name):
            return [name]
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [name for item in items for name in _list_exports(item)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [*_list_exports(left), *_list_exports(right)]
        case ast.Starred(value=inner) | ast.Call(func=ast.Name(id="list" | "tuple" | "set" | "sorted"), args=[inner]):
            return _list_exports(inner)
        case ast.Attribute(value=ast.Name(id=name), attr="__name__"):
            return [name]
        case ast.Attribute(value=module, attr="__all__") if split_dotted_name(module):
            return [f"*{'.'.join(split_dotted_name(module))}"]
    return ["*"]
