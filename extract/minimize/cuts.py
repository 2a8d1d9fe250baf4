"""Find the possible cuts of a closed file from the lines of it that ran. Works on text only, without side effects.

A suite that never ran becomes one `raise`, and so does the code after the last executed statement of a suite.
Methods that nothing can look up are removed; functions and classes that are referenced but were never entered keep
only their headers. `extract.minimize.cutter` decides which of the cuts to apply.
"""

import ast
import builtins
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from extract.proofs.visit import Watched
from lemur_core.source.scopes import last_name
from lemur_core.source.text import Lines, list_nodes

#: Prefix of the error message that replaces cut code.
LEFT_OUT = "left out of the lean form"

Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (*_FUNCTIONS, ast.ClassDef)
_DECIDING = (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await)
_SILENT = (ast.Pass, ast.Global, ast.Nonlocal)
_WORDS = 60  # characters of a condition in a message
_SHORT = 2  # lines; suites up to this length are kept if possible
_SHORT_ERROR = 8  # lines; the same for suites that only raise the author's own error

_DEFINITION = re.compile(rb"(?:async\s+)?def\s+\w+\s*\(")
#: Decorators that do not look at the parameters of a function.
_PLAIN = frozenset(
    {"abstractmethod", "cached_property", "classmethod", "no_grad", "property", "setter", "staticmethod"}
)

#: Comments that say where code is from or under which terms, or that a tool reads.
_KEPT_COMMENT = re.compile(
    rb"(?i)copyright|licen[cs]e|adapt|borrow|cop(?:y|ied)\b|\b(?:modified|taken) from|https?://|# *(?:type|fmt|noqa)\b"
)

_TERMS = re.compile(rb"(?i)copyright|licen[cs]e")

#: A docstring up to the end of its first paragraph; a section that follows without a blank line ends it, too.
_SUMMARY = re.compile(
    rb"""[rRuU]?(?P<quotes>\"{3}|'{3})(?P<text>\s*\S.*?)(?<!["'\\])"""
    rb"(?=[ \t]*\n[ \t]*(?:\n|[A-Z][a-z]+:[ \t]*\n|:param|\.\. |>>>|[-=]{4}))",
    re.DOTALL,
)
_SECTION = re.compile(rb"\s*(?:[A-Z][a-z]+:[ \t]*\n|[A-Z][a-z]+$)")

#: Bases whose subclasses are defined by the contents of their bodies.
_OF_A_KIND = frozenset({"NamedTuple", "TypedDict", "Protocol", "Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"})

#: Handlers of these exceptions would also catch the errors raised by cuts.
_BROAD = frozenset({"BaseException", "Exception", "NotImplementedError", "RuntimeError"})
_NARROW = (
    frozenset(
        name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
    )
    - _BROAD
)


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece of text that can be removed."""

    kind: str  # `branch`, `function`, `method`, `class` or `entry`
    start: int  # offset in the file; identifies the cut
    end: int
    text: str  # the replacement
    label: str  # a short description of the removed text
    short: bool = False  # whether to keep the text if everything that it references is kept anyway
    # The same cut together with the parameters of its function, which nothing but reflection can see.
    wide: "Cut | None" = None


@dataclass(frozen=True, slots=True)
class Method:
    """A method that was never entered: it is removed, or only its header is kept."""

    owner: str  # qualified name of the class
    name: str
    whole: Cut
    body: Cut | None


@dataclass(frozen=True, slots=True)
class UnusedEntry:
    """A table entry whose value refers to unentered code: the entry is removed, or only its value."""

    whole: Cut | None  # None if the entry shares a line with other text
    value: Cut


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a collection: a class of which no function was entered."""

    name: str  # of the class
    start: int  # of the name
    whole: Cut


@dataclass(slots=True)
class Cuts:
    """All possible cuts in one module-level statement."""

    branches: list[Cut] = field(default_factory=list)
    methods: list[Method] = field(default_factory=list)
    stub: tuple[Cut, ...] = ()  # all functions of an unused class
    entries: list[UnusedEntry] = field(default_factory=list)
    elements: list[Element] = field(default_factory=list)
    texts: list[Cut] = field(default_factory=list)  # docstrings


def has_entered(watched: Watched, node: Function) -> bool:
    """Return True if the function was called."""
    return (first_line(node), node.name) in watched.entered


def first_line(node: ast.stmt) -> int:
    """Return the first line of a statement, including its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def last_line(node: ast.stmt) -> int:
    """Return the last line of a statement."""
    assert node.end_lineno is not None
    return node.end_lineno


def functions_in(node: ast.AST) -> Iterator[Function]:
    """Yield all functions in a node, including the node itself."""
    return (item for item in list_nodes(node) if isinstance(item, _FUNCTIONS))


class CutFinder:
    """Finder of the possible cuts in the statements of one file."""

    def __init__(self, lines: Lines, watched: Watched) -> None:
        self._lines = lines
        self._watched = watched

    def find(self, node: ast.stmt, *, summary: bool = False) -> Cuts:
        """Return all possible cuts in a module-level statement. Args: summary: whether its docstring keeps it."""
        cuts = Cuts()
        self._statement(node, "", cuts, caught=False)
        if isinstance(node, ast.ClassDef) and self._is_never_used(node):
            cuts.stub = tuple(self._stub(node))
        for item in list_nodes(node):
            if isinstance(item, _DOCUMENTED) and _is_docstring(item.body[0]):
                cuts.texts += self._find_docstring(item, (summary and item is node) or len(item.body) == 1)
        return cuts

    def _find_docstring(self, node: Function | ast.ClassDef, summary: bool) -> Iterator[Cut]:
        """Yield the docstring of a definition. Args: summary: whether its first paragraph stays."""
        first = node.body[0]
        start, end = self._lines.span(first)
        match = _SUMMARY.match(self._lines.text, start, end)
        if summary and (len(node.body) == 1 or match is None or not _SECTION.match(match["text"])):
            if match is not None and not _TERMS.search(self._lines.text, match.end(), end):
                yield Cut("text", match.end(), end - len(match["quotes"]), "", node.name)
        elif self._is_on_own_line(first):
            end = skip_blank(self._lines.text, self._lines.start(last_line(first) + 1))
            if end <= self._lines.start(self._first_with_comments(node.body[1])):
                yield Cut("text", self._lines.start(first_line(first)), end, "", node.name)

    def _first_with_comments(self, node: ast.stmt) -> int:
        return self._with_comments(first_line(node), node.col_offset)

    # -- which ran -------------------------------------------------------------------------------------------------

    def _has_run(self, node: ast.stmt) -> bool:
        return any(line in self._watched.lines for line in range(first_line(node), last_line(node) + 1))

    def _is_never_used(self, node: ast.ClassDef) -> bool:
        """Return True if no method of the class was entered, it had no instances, and its bases are not special."""
        functions = {item.name for item in node.body if isinstance(item, _FUNCTIONS)}
        entered = any(has_entered(self._watched, function) for function in functions_in(node))
        special = any(last_name(base) in _OF_A_KIND for base in node.bases) or bool(node.keywords)
        if not functions or entered or special or node.name in self._watched.classes:
            return False
        rest = [item for item in node.body if not isinstance(item, _FUNCTIONS)]
        read = {part.id for item in rest for part in list_nodes(item) if isinstance(part, ast.Name)}
        return not functions & read and not any(isinstance(item, ast.ClassDef) for item in rest)

    # -- the walk --------------------------------------------------------------------------------------------------

    def _suite(self, body: Sequence[ast.stmt], where: str, what: str, cuts: Cuts, caught: bool) -> None:
        """Collect the cuts of a suite.

        Args:
            where: the enclosing function.
            what: a short description of when the suite runs.
            caught: whether an executed handler would catch the error raised by a cut.
        """
        ran = [self._has_run(node) for node in body]
        last = max((place for place, yes in enumerate(ran) if yes), default=-1)
        rest = body[last + 1 :]
        silent = all(isinstance(node, _SILENT) or _is_docstring(node) for node in rest)
        silent |= any(map(_decides, rest))
        if rest and not silent and not caught and self._is_on_own_line(rest[0]):
            cuts.branches.append(self._raise_instead("branch", rest, _label(where, what if last < 0 else "")))
        for node in body[: last + 1]:
            self._statement(node, where, cuts, caught)

    def _statement(self, node: ast.stmt, where: str, cuts: Cuts, caught: bool) -> None:
        if isinstance(node, _FUNCTIONS):
            self._function(node, where, cuts)
        elif isinstance(node, ast.ClassDef):
            self._class(node, _join_names(where, node.name), cuts)
        elif isinstance(node, ast.If):
            self._if(node, where, cuts, caught)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            kind = "while" if isinstance(node, ast.While) else "for"
            self._suite(node.body, where, f"the body of a {kind} loop", cuts, caught)
            self._suite(node.orelse, where, "else", cuts, caught)
        elif isinstance(node, ast.With | ast.AsyncWith):
            self._suite(node.body, where, "with", cuts, caught)
        elif isinstance(node, ast.Try | ast.TryStar):
            self._try(node, where, cuts, caught)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                self._suite(case.body, where, "case", cuts, caught)

    def _if(self, node: ast.If, where: str, cuts: Cuts, caught: bool) -> None:
        test = self._text(node.test)
        self._suite(node.body, where, f"if {test}", cuts, caught)
        if len(node.orelse) != 1 or not self._is_elif(node.orelse[0]):
            self._suite(node.orelse, where, f"not {test}", cuts, caught)
        elif self._has_run(node.orelse[0]):
            self._statement(node.orelse[0], where, cuts, caught)
        elif not caught and not _decides(node.orelse[0]):
            cuts.branches.append(self._no_elif(node.orelse[0], _label(where, f"not {test}")))

    def _try(self, node: ast.Try | ast.TryStar, where: str, cuts: Cuts, caught: bool) -> None:
        entered = [handler for handler in node.handlers if any(map(self._has_run, handler.body))]
        # A handler that ran would catch the error of a cut and hide it.
        swallows = any(is_broad(handler) for handler in entered)
        self._suite(node.body, where, "try", cuts, caught or swallows)
        for handler in node.handlers:
            inner = Cuts()
            self._suite(handler.body, where, "except", inner, caught)
            if is_broad(handler) and handler not in entered and not _only_raises(handler.body):
                # This handler would mistake the error of a cut for a real one.
                inner.branches = [replace(cut, short=False) for cut in inner.branches]
            cuts.branches += inner.branches
            cuts.methods += inner.methods
        self._suite(node.orelse, where, "else", cuts, caught or swallows)
        self._suite(node.finalbody, where, "finally", cuts, caught)

    def _function(self, node: Function, where: str, cuts: Cuts) -> None:
        name = _join_names(where, node.name)
        if has_entered(self._watched, node):
            self._suite(node.body, name, "", cuts, caught=False)
        elif not _is_empty(node.body) and self._is_on_own_line(node.body[0]):
            cut = self._raise_instead("function", node.body, name)
            cuts.branches.append(replace(cut, wide=self._widen(cut, node)))

    def _class(self, node: ast.ClassDef, where: str, cuts: Cuts) -> None:
        by_name: dict[str, list[Function]] = {}
        # Of a class inside another one, something has to remain if all of its methods go.
        only_methods = all(isinstance(item, _FUNCTIONS) or _is_docstring(item) for item in node.body)
        remains = node.body[-1] if only_methods and node.col_offset else None
        for item in node.body:
            if isinstance(item, _FUNCTIONS):
                by_name.setdefault(item.name, []).append(item)
            elif isinstance(item, ast.ClassDef):
                self._class(item, f"{where}.{item.name}", cuts)
            else:  # such as an `if` with methods in it
                self._statement(item, where, cuts, caught=False)
        for name, group in by_name.items():
            for function in group[:-1]:
                if is_overload(function):
                    cuts.branches.append(self._whole(function, "overload", f"{where}.{name}"))
            # A later definition replaces an earlier one, but a property and its setter share a name.
            group = [function for function in group[:-1] if not is_overload(function)] + group[-1:]
            if any(has_entered(self._watched, function) for function in group):
                for function in group:
                    self._function(function, where, cuts)
                continue
            for function in group:
                inner = Cuts()
                self._function(function, where, inner)
                whole = self._whole(function, "method", f"{where}.{name}")
                if function is remains:
                    whole = replace(whole, text=f"{' ' * function.col_offset}pass\n")
                cuts.methods.append(Method(where, name, whole, inner.branches[0] if inner.branches else None))

    # -- text ------------------------------------------------------------------------------------------------------

    def _raise_instead(self, kind: str, body: Sequence[ast.stmt], label: str) -> Cut:
        """Replace a suite, and the comments above and inside it, with one `raise`."""
        line = first_line(body[0])
        # Comments above a suite describe what is cut.
        while self._is_blank_or_comment(line - 1):
            line -= 1
        start, end = self._lines.start(line), self._lines.start(last_line(body[-1]) + 1)
        size = last_line(body[-1]) - first_line(body[0]) + 1
        short = size <= (_SHORT_ERROR if _only_raises(body) else _SHORT)
        return Cut(kind, start, end, f"{' ' * body[0].col_offset}{stop(label)}\n", label, short)

    def _widen(self, cut: Cut, node: Function) -> Cut | None:
        """Return the cut of a function's body, extended to its parameters if these take several lines."""
        parts = [*ast.iter_child_nodes(node.args), *([node.returns] if node.returns is not None else [])]
        several = any(
            part.end_lineno > node.lineno for part in parts if isinstance(part, ast.arg | ast.expr) and part.end_lineno
        )
        head = _DEFINITION.match(self._lines.text, self._lines.offset(node.lineno, node.col_offset))
        plain = all(last_name(decorator) in _PLAIN for decorator in node.decorator_list)
        if not several or head is None or not plain:
            return None
        return replace(cut, start=head.end(), text=f"*_, **__):\n{cut.text}")

    def _whole(self, node: Function, kind: str, label: str) -> Cut:
        start = self._lines.start(self._first_with_comments(node))
        return Cut(kind, start, skip_blank(self._lines.text, self._lines.start(last_line(node) + 1)), "", label)

    def _no_elif(self, node: ast.stmt, label: str) -> Cut:
        start, end = self._lines.start(node.lineno), self._lines.start(last_line(node) + 1)
        indent = " " * node.col_offset
        short = last_line(node) - node.lineno <= _SHORT
        return Cut("branch", start, end, f"{indent}else:\n{indent}    {stop(label)}\n", label, short)

    def _stub(self, node: ast.ClassDef) -> Iterator[Cut]:
        """Yield cuts that replace the methods by one raising `__init__` and remove the docstring; the rest is kept."""
        if not self._is_on_own_line(node.body[0]):
            return
        indent = " " * node.body[0].col_offset
        text = f"{indent}def __init__(self, *_, **__):\n{indent}    {stop(node.name)}\n"
        for item in node.body:
            if isinstance(item, _FUNCTIONS) or _is_docstring(item):
                start, end = self._lines.start(self._first_with_comments(item)), self._lines.start(last_line(item) + 1)
                replacement = "" if _is_docstring(item) else text
                yield Cut(
                    "class", start, end if replacement else skip_blank(self._lines.text, end), replacement, node.name
                )
                text = text if _is_docstring(item) else ""

    def _is_on_own_line(self, node: ast.stmt) -> bool:
        """Return True if nothing precedes the statement on its line, such as the header of a one-line `if`."""
        start = self._lines.start(first_line(node))
        end = self._lines.text.find(b"\n", start)
        line = self._lines.text[start:end]
        return len(line) - len(line.lstrip()) == node.col_offset

    def _is_blank_or_comment(self, line: int) -> bool:
        text = self._lines.line(line).strip()
        return line > 0 and (not text or text.startswith(b"#"))

    def _text(self, node: ast.expr) -> str:
        start, end = self._lines.span(node)
        text = " ".join(self._lines.text[start:end].decode().split())
        return text if len(text) <= _WORDS else f"{text[:_WORDS]} …"

    def _is_elif(self, node: ast.stmt) -> bool:
        if not isinstance(node, ast.If):
            return False
        start = self._lines.offset(node.lineno, node.col_offset)
        return self._lines.text[start : start + 4] == b"elif"

    def _with_comments(self, line: int, column: int) -> int:
        while line > 1:
            above = self._lines.line(line - 1)
            text = above.lstrip()
            if not text.startswith(b"#") or len(above) - len(text) != column:
                break
            line -= 1
        return line


def list_comments(lines: Lines) -> Iterator[Cut]:
    """Yield the comments that have lines for themselves, except for those that name an origin or are read by tools."""
    text = lines.text
    runs: list[tuple[int, int, int]] = []  # column, first and last line
    for token in tokenize.tokenize(io.BytesIO(text).readline):
        (line, column), content = token.start, token.line
        if token.type == tokenize.COMMENT and not content[:column].strip():
            if runs and runs[-1][0] == column and runs[-1][2] == line - 1:
                runs[-1] = (column, runs[-1][1], line)
            else:
                runs.append((column, line, line))
    for _, first, last in runs:
        start, end = lines.start(first), lines.start(last + 1)
        if not _KEPT_COMMENT.search(text, start, end):
            # Not two blank lines in a row: those behind go, where there are some in front.
            if first == 1 or not lines.line(first - 1).strip():
                end = skip_blank(text, end)
            yield Cut("comment", start, end, "", "")


def skip_blank(text: bytes, offset: int) -> int:
    """Return the offset behind the blank lines that follow."""
    while (end := text.find(b"\n", offset)) >= 0 and not text[offset:end].strip():
        offset = end + 1
    return offset


def stop(label: str) -> str:
    """Return the statement that replaces cut code."""
    return f"raise NotImplementedError({json.dumps(f'{LEFT_OUT}: {label}', ensure_ascii=False)})"


def stop_by_name(function: str) -> str:
    """Return the constructor that several stubs share. Args: function: its name."""
    return f'def {function}(self, *_, **__):\n    raise NotImplementedError(f"{LEFT_OUT}: {{type(self).__name__}}")'


def is_overload(node: ast.stmt) -> bool:
    """Return True for functions that exist only for type checkers."""
    return isinstance(node, _FUNCTIONS) and any(last_name(decorator) == "overload" for decorator in node.decorator_list)


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Return True if a handler might catch the error raised by a cut."""
    if handler.type is None:
        return True
    kinds: Iterable[ast.expr] = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return not all(isinstance(kind, ast.Name) and kind.id in _NARROW for kind in kinds)


def _decides(node: ast.stmt) -> bool:
    """Return True if a statement determines the kind of its function: a generator, or one that binds globals."""
    inner: list[ast.AST] = [node]
    while inner:
        item = inner.pop()
        if isinstance(item, _DECIDING):
            return True
        if not isinstance(item, (*_DOCUMENTED, ast.Lambda)):
            inner += ast.iter_child_nodes(item)
    return False


def _only_raises(body: Sequence[ast.stmt]) -> bool:
    return len(body) == 1 and isinstance(body[0], ast.Raise)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_empty(body: Sequence[ast.stmt]) -> bool:
    return all(isinstance(node, ast.Pass) or _is_docstring(node) for node in body)


def _label(where: str, what: str) -> str:
    return ", ".join(filter(None, [where, what])) or "this"


def _join_names(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
