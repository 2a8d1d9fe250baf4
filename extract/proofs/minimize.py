"""Minimize blocks: cut the closed file to what its known calls reach, and confirm the digests which the visit signed.

Four kinds of cut, all of them over the whole file:

- *statement*: a module-level statement goes if nothing that is kept needs it.
- *function*: a function or method that was never entered keeps its header, and raises when it is called. Of a class
  whose own constructor is among them, and which nothing derives from, only the constructor stays: no instance exists.
- *suite*: outside of the block's own class, a branch, a loop or a handler that never ran raises where it begins.
- *docstring*: documentation goes, but for the summary of the block.

What is cut names nothing that is needed, so that statements go with it. The header of the file states its origin, the
arguments that it supports, and the cuts.
"""

import ast
import builtins
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Any, Unpack

from extract.arguments.messages import NAME, BlockUses, CallsToRun, CallTexts, join_arguments
from extract.emit.emit import Emitted
from extract.emit.render import describe_changes, describe_files, wrap
from extract.model.results import code_columns
from extract.proofs.visit import SIGN, Signed, Visit, Watched
from extract.resolve.distributions import find_requirement, list_imports
from extract.resolve.modules import RUNTIME
from lemur_core.files.foreign import decode_python
from lemur_core.files.markdown import plural
from lemur_core.files.progress import progress
from lemur_core.sandbox import Failure, Job
from lemur_core.sandbox.cached import Store
from lemur_core.sandbox.server.foreign import one_line
from lemur_core.sandbox.stage import SandboxOptions, open_sandbox
from lemur_core.source.facts import IMPORT, Statement, Use
from lemur_core.source.parse import read_facts
from lemur_core.source.text import Edit, Import, Lines, apply, import_section, list_nodes, normalise, parse_code
from manifests.provenance import header_lines, is_guess
from manifests.provenance.licenses import combine_licenses

#: Prefix of the error message of cut code.
LEFT_OUT = "left out of the lean form"

Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DECIDING = (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await)
_SHORT = 2  # lines of a body that stays if everything that it names stays anyway

#: Code that may depend on whether a module-level name exists.
_ASKS = re.compile(
    rb"\bglobals\(\)(?!\s*\[)|\bhasattr\(\s*sys\.modules|\bgetattr\(\s*sys\.modules\[[^\]]*\]\s*,[^,()]*,"
    rb"|^(?:\S.*)?\b(?:vars|dir|locals)\(\)",
    re.MULTILINE,
)
_POSTPONED = re.compile(rb"^from __future__ import annotations\b", re.MULTILINE)
_DOCUMENTATION = re.compile(rb"__doc__|\bgetdoc\(")
#: A docstring with the terms of a license, or an origin, stays.
_TERMS = re.compile(rb"(?i)copyright|licen[cs]e|\b(?:adapted|borrowed|copied|modified|taken) from")
#: The end of a docstring's first paragraph; a section that follows without a blank line ends it, too.
_SUMMARY_END = re.compile(rb"[ \t]*\n[ \t]*(?:\n|[A-Z][a-z]+:[ \t]*\n|:param|\.\. |>>>|[-=]{4})")
_QUOTES = re.compile(rb"[rRuU]?(\"{3}|'{3})\s*(?=\S)")

#: Handlers of any other built-in exception let the errors of cuts pass.
_CATCHING = frozenset({"BaseException", "Exception", "NotImplementedError", "RuntimeError"})


@dataclass(frozen=True, slots=True)
class _Cut:
    """A piece of text that can be replaced."""

    kind: str
    edit: Edit
    short: bool = False

    def covers(self, use: Use) -> bool:
        """Return whether a name is read in the replaced text."""
        return self.edit.start <= max(use.start, use.inside) < self.edit.end

    def overlaps(self, other: "_Cut") -> bool:
        """Return whether both replace some text."""
        return self.edit.start < other.edit.end and other.edit.start < self.edit.end


@dataclass(slots=True)
class _Unit:
    """A module-level statement, or a whole `if` or `try` block; kept or removed as one."""

    start: int
    end: int
    statements: list[Statement] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    binds: set[str] = field(default_factory=set)
    touches: set[str] = field(default_factory=set)
    functions: list[_Cut] = field(default_factory=list)
    docstrings: list[_Cut] = field(default_factory=list)
    entered: bool = False  # whether one of its functions was called while the block was used
    text_only: bool = True

    @property
    def is_import(self) -> bool:
        """Whether it is an import that stands alone."""
        return not self.statements[0].path and self.statements[0].kind == IMPORT

    def is_kept(self, live: Collection[str]) -> bool:
        """Return whether it binds or changes something that is needed, or does something else."""
        named = self.binds or self.touches
        return not named.isdisjoint(live) if named else not self.text_only

    def active(self, live: Collection[str], defined: Collection[str]) -> list[_Cut]:
        """Return the cuts of functions to apply: a short one only if the text names something that goes."""
        return [
            cut
            for cut in self.functions
            if not cut.short
            or any(cut.covers(use) and use.name in defined and use.name not in live for use in self.uses)
        ]


def cut_file(
    code: str, name: str, watched: Watched, needed: Iterable[str] = ()
) -> tuple[str, dict[str, int], set[str]]:
    """Apply all cuts to a closed file.

    Args:
        name: of the block's class.
        watched: the functions that were entered.
        needed: further definitions that stay, such as those that its arguments use.
    Returns: its text without header, the number of cuts by kind, and the names that the kept statements define.
    """
    text = normalise(code)
    tree = parse_code(text)
    units = _read_units(text, tree, name, watched)
    defined = {bound for unit in units for bound in unit.binds}
    own = {bound for unit in units if not unit.is_import for bound in unit.binds}  # callers import torch themselves
    live = {name, *own.intersection(needed), *(bound for unit in units if unit.entered for bound in unit.binds)}
    waiting = units
    while fresh := [unit for unit in waiting if unit.is_kept(live)]:
        waiting = [unit for unit in waiting if not unit.is_kept(live)]
        for unit in fresh:
            live |= set() if unit.is_import else unit.binds
            live.update(use.name for use in unit.uses if not any(cut.covers(use) for cut in unit.functions))
            live |= defined if _asks(text, unit) else set()
    kept = [unit for unit in units if unit.is_kept(live)]
    documented = any(_DOCUMENTATION.search(text, unit.start, unit.end) for unit in kept)
    pieces, cut = [""], {"definition": 0, "function": 0, "suite": 0, "docstring": 0}
    lines, left = 0, {bound for unit in kept for bound in unit.binds}
    for unit, after in zip(units, [*(unit.start for unit in units[1:]), len(text)], strict=True):
        blank = text.count(b"\n", unit.end, after)
        if not unit.is_kept(live):
            cut["definition"] += not unit.is_import and not unit.binds <= left
            lines = max(lines, blank)  # as many blank lines as before or behind what goes
            continue
        functions, texts = unit.active(live, defined), [] if documented else unit.docstrings
        cuts = [*functions, *(text for text in texts if not any(map(text.overlaps, functions)))]
        for one in cuts:
            cut[one.kind] += 1
        aliases = [alias for alias in unit.statements[0].aliases if alias.bound in live]
        if unit.is_import and len(aliases) < len(unit.statements[0].aliases) and b"torch.ops" not in text:
            pieces.append("\n".join(import_section(Import(a.module, a.name, a.whole, a.bound) for a in aliases)) + "\n")
        else:
            pieces.append(apply(text, unit.start, unit.end, [one.edit for one in cuts]))
        pieces[-1] = "\n" * lines * (len(pieces) > 2) + pieces[-1].strip("\n") + "\n"
        lines = blank
    # Not a statement of its own: the compiler reads it.
    head = "from __future__ import annotations\n\n" if _POSTPONED.search(text) else ""
    return head + "".join(pieces), cut, left


def _asks(text: bytes, unit: _Unit) -> bool:
    """Return whether a statement asks which names its module has, outside of what is cut from it."""
    asked = [match.end() - 1 for match in _ASKS.finditer(text, unit.start, unit.end)]
    return any(not any(cut.edit.start <= at < cut.edit.end for cut in unit.functions) for at in asked)


# --- reading ----------------------------------------------------------------------------------------------------------


def _read_units(text: bytes, tree: ast.Module, name: str, watched: Watched) -> list[_Unit]:
    facts, lines = read_facts(tree, text, builtins=True), Lines(text)
    blocks = facts.blocks
    units: dict[int, _Unit] = {}
    for statement in facts.statements:
        whole = blocks[statement.path[0][0]] if statement.path else statement
        unit = units.setdefault(whole.start, _Unit(whole.start, whole.end))
        unit.statements.append(statement)
        unit.uses += [use for use in statement.uses if use.local < 0]
        unit.binds.update(statement.binds)
        unit.touches.update(statement.touches)
    for block in blocks:
        units[blocks[block.path[0][0]].start if block.path else block.start].uses += block.uses
    ordered = sorted(units.values(), key=lambda unit: unit.start)
    bases = (part for item in list_nodes(tree) if isinstance(item, ast.ClassDef) for part in item.bases)
    derived = {part.id for base in bases for part in list_nodes(base) if isinstance(part, ast.Name)}
    caught = _list_caught(tree)
    for node in tree.body:
        at = lines.start(first_line(node))
        around = next((unit for unit in ordered if unit.start <= at < unit.end), None)
        if around is None:  # what imports skip, such as a main block
            continue
        around.text_only &= _is_docstring(node)
        around.functions += _cut_functions(lines, [node], "", watched, caught, derived, own=name)
        for item in list_nodes(node):
            if isinstance(item, _FUNCTIONS):
                around.entered |= (first_line(item), item.name) in watched.used
            if isinstance(item, (*_FUNCTIONS, ast.ClassDef)) and _is_docstring(item.body[0]):
                is_block = item is node and name in around.binds
                around.docstrings += _cut_docstring(lines, item, summary=is_block or len(item.body) == 1)
    return ordered


def _cut_functions(
    lines: Lines,
    body: Iterable[ast.AST],
    owner: str,
    watched: Watched,
    caught: Collection[str],
    derived: Collection[str],
    *,
    own: str,
) -> Iterator[_Cut]:
    """Yield the cuts of functions that were never entered, and of suites of the others that never ran.

    Args:
        own: the block's class, of which no suite is cut.
        caught: names of functions and classes whose errors a handler may take for those of the author's code.
        derived: names of classes that others derive from.
    """
    for node in body:
        if isinstance(node, _FUNCTIONS):
            entered = (first_line(node), node.name) in watched.entered
            label = f"{owner}.{node.name}".lstrip(".")
            if node.name in caught:
                continue
            if entered and owner.partition(".")[0] != own:
                yield from _cut_suites(lines, node.body, label, watched)
            elif not entered and not all(map(_does_nothing, node.body)):
                first = next(item for item in node.body if not _is_docstring(item) or len(node.body) == 1)
                start = lines.offset(first_line(node.body[0]), node.body[0].col_offset)
                end = lines.span(node.body[-1])[1]
                size = lines.number(end) - first_line(first) + 1
                yield _Cut("function", Edit(start, end, _raise_left_out(label)), size <= _SHORT)
        elif isinstance(node, ast.ClassDef):
            if not owner and _is_never_made(node, watched, {*caught, *derived}):
                yield from _cut_methods(lines, node)
            elif node.name not in caught:
                inner = f"{owner}.{node.name}".lstrip(".")
                yield from _cut_functions(lines, node.body, inner, watched, caught, derived, own=own)
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _cut_functions(lines, ast.iter_child_nodes(node), owner, watched, caught, derived, own=own)


def _cut_suites(lines: Lines, body: Iterable[ast.stmt], label: str, watched: Watched) -> Iterator[_Cut]:
    """Yield the cuts of the suites in some statements of a function that never ran."""
    for node in body:
        if isinstance(node, ast.Try | ast.TryStar) and any(map(_may_catch, node.handlers)):
            suites = [handler.body for handler in node.handlers]  # a handler takes the error of a cut for its own
        else:
            suites = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
            suites += [part.body for name in ("handlers", "cases") for part in getattr(node, name, ())]
        for suite in suites if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)) else ():
            if not suite:
                continue
            first = first_line(suite[0])
            start, end = lines.offset(first, suite[0].col_offset), lines.span(suite[-1])[1]
            last = lines.number(end)
            if any(line in watched.lines for line in range(first, last + 1)):
                yield from _cut_suites(lines, suite, label, watched)
            elif not all(map(_does_nothing, suite)) and not any(map(_decides, suite)):
                error = _raise_left_out(label)
                if lines.text[start : start + 4] == b"elif":
                    error = f"else:\n{' ' * suite[0].col_offset}    {error}"
                if lines.text[lines.start(first) : start].isspace():
                    yield _Cut("suite", Edit(start, end, error), last - first < _SHORT)


def _raise_left_out(label: str) -> str:
    """Return the statement that replaces what is cut."""
    return f"raise NotImplementedError({json.dumps(f'{LEFT_OUT}: {label}', ensure_ascii=False)})"


def _decides(node: ast.stmt) -> bool:
    """Return whether a statement makes its function a generator, or one that binds names outside of it."""
    return any(isinstance(part, _DECIDING) for part in list_nodes(node))


def _is_never_made(node: ast.ClassDef, watched: Watched, kept: Collection[str]) -> bool:
    """Return whether no function of a class was entered, its own constructor among them, and none is needed."""
    functions = [item for item in node.body if isinstance(item, _FUNCTIONS)]
    names = {item.name for item in functions}
    others = [part for item in node.body if not isinstance(item, _FUNCTIONS) for part in list_nodes(item)]
    return (
        "__init__" in names
        and not any((first_line(item), item.name) in watched.entered for item in functions)
        and node.name not in kept
        and not node.decorator_list
        and not node.keywords
        and not any(isinstance(part, ast.Name) and part.id in names for part in others)
        and not any(isinstance(part, ast.ClassDef) for part in others)
    )


def _cut_methods(lines: Lines, node: ast.ClassDef) -> Iterator[_Cut]:
    """Yield the cuts of all methods of a class but the constructor, which raises."""
    indent = " " * node.body[0].col_offset
    text = f"{indent}def __init__(self, *_, **__):\n{indent}    {_raise_left_out(node.name)}\n"
    for item in node.body:
        if isinstance(item, _FUNCTIONS):
            assert item.end_lineno is not None
            after = item.end_lineno + 1
            while item.name != "__init__" and after < node.end_lineno and not lines.line(after).strip():  # type: ignore[operator]
                after += 1
            edit = Edit(lines.start(first_line(item)), lines.start(after), text if item.name == "__init__" else "")
            yield _Cut("function", edit)


def _cut_docstring(lines: Lines, node: Function | ast.ClassDef, *, summary: bool) -> Iterator[_Cut]:
    """Yield the cut of a docstring. Args: summary: keep its first paragraph."""
    start, end = lines.span(node.body[0])
    if _TERMS.search(lines.text, start, end):
        return
    if summary:
        begin = _QUOTES.match(lines.text, start, end)
        match = _SUMMARY_END.search(lines.text, begin.end(), end) if begin else None
        if begin and match and match.end() < end - len(begin[1]):
            yield _Cut("docstring", Edit(match.start(), end - len(begin[1]), ""))
    elif lines.text[lines.start(node.body[0].lineno) : start].isspace():
        after = lines.number(end) + 1
        while after < first_line(node.body[1]) and not lines.line(after).strip():
            after += 1
        begin_line = lines.start(node.body[0].lineno)
        if lines.start(after) > end and first_line(node.body[1]) > lines.number(end):
            yield _Cut("docstring", Edit(begin_line, lines.start(after), ""))


def _list_caught(tree: ast.Module) -> set[str]:
    """Return the names in `try` bodies with a handler that would catch the error of a cut.

    Besides them the functions of the file that these call by name, and so on. Methods are not followed: of an attribute
    nobody knows whose it is.
    """
    named = {
        node.name: {part.id for part in list_nodes(node) if isinstance(part, ast.Name)}
        for node in tree.body
        if isinstance(node, _FUNCTIONS)
    }
    caught: set[str] = set()
    for node in list_nodes(tree):
        if isinstance(node, ast.Try | ast.TryStar) and any(map(_may_catch, node.handlers)):
            inner = [part for item in node.body for part in list_nodes(item)]
            caught |= {part.id for part in inner if isinstance(part, ast.Name)}
            caught |= {part.attr for part in inner if isinstance(part, ast.Attribute)}
    waiting = list(caught & named.keys())
    while waiting:
        further = (named[waiting.pop()] & named.keys()) - caught
        caught |= further
        waiting += further
    return caught


def _may_catch(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return not all(
        isinstance(kind, ast.Name) and hasattr(builtins, kind.id) and kind.id not in _CATCHING for kind in kinds
    )


def first_line(node: ast.stmt) -> int:
    """Return the first line of a statement, including its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _does_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass | ast.Raise) or _is_docstring(node)


_CHARACTERS = 300  # maximum length of an error message


# --- confirming -------------------------------------------------------------------------------------------------------


#: The columns of a block about its minimized form: those of its code, or `lean_error` alone.
LeanColumns = Mapping[str, Any]


def lean_columns(code: str, requires: Sequence[str], license_: str) -> LeanColumns:
    """Return the columns of a block about its minimized file.

    Args:
        requires: PEP 508 requirements apart from the standard library and the declared runtime.
        license_: the combined license of all files with its code.
    """
    columns = code_columns(code)
    named = {"lean_code": columns["code"], "lean_sha256": columns["code_sha256"], "lean_lines": columns["n_lines"]}
    return {**named, "lean_requires": tuple(requires), "lean_license": license_}


def minimize_all(
    visited: Mapping[str, tuple[BlockUses, Visit, Emitted]], store: Store | None, **sandbox: Unpack[SandboxOptions]
) -> Iterator[tuple[str, LeanColumns]]:
    """Yield the columns about the minimized file of each block, by key; outcomes are cached by content.

    Raises: UserError if no sandbox is available.
    """
    files: dict[str, tuple[LeanColumns, Mapping[str, str]]] = {}
    missing: dict[str, LeanColumns] = {}

    def requests() -> Iterator[Job]:  # files are cut while others are being confirmed
        for key, (request, visit, emitted) in visited.items():
            file = _minimize(request, visit, emitted)
            if isinstance(file, str) or isinstance(visit.uses, Failure):
                missing[key] = {"lean_error": str(file)}
                continue
            uses = visit.uses
            files[key] = file, uses.signature.steps
            yield SIGN.job(key, replace(request, code=file["lean_code"], sets=uses.list_sets(), sizes=uses.sizes))

    with open_sandbox(store, [SIGN], sandbox) as box, progress("minimized files", len(visited), "blocks") as advance:
        for reply in SIGN.run_jobs(box, requests()):
            file, steps = files[reply.key]
            signed = reply.answer or reply.failure(_CHARACTERS)
            if isinstance(signed, Failure):
                wrong = f"only the full form runs: {signed.error}"
            else:
                differs = difference(signed, steps) or "other steps" * (signed.steps.keys() != steps.keys())
                wrong = f"not as the full form: {differs}" if differs else ""
            yield reply.key, {"lean_error": one_line(wrong, _CHARACTERS)} if wrong else file
            advance(1)
    yield from missing.items()


def _minimize(request: BlockUses, visit: Visit, emitted: Emitted) -> LeanColumns | str:
    """Return the columns of the file to confirm, or why there is none."""
    if isinstance(visit.uses, Failure):
        return one_line(f"does not run again: {visit.uses.error}", _CHARACTERS)
    if failing := [mode for mode in ("eval", "train") if getattr(visit.uses.cases[0], mode) is None]:
        return f"{' and '.join(failing)} mode fails"
    needed = NAME.findall(str(request.arguments))
    cut = cut_file(request.code, request.name, visit.uses.watched, needed)
    return write_file(*cut, emitted, [request.arguments, *visit.uses.list_sets(running=True)])


def difference(signed: Signed, steps: Mapping[str, str]) -> str:
    """Return the first step whose signature differs from the expected one, with its error; "" if all agree.

    Args: steps: step -> expected signature.
    """
    wrong = next((name for name, value in steps.items() if signed.steps.get(name) != value), None)
    return "" if wrong is None else f"{wrong}: {signed.errors[wrong]}" if wrong in signed.errors else wrong


# --- the file as it is written: its header and requirements -----------------------------------------------------------


_LICENSE = "# Licence: "
_FIELD = re.compile(r"# \w+: ")  # the lines before the first one repeat what it says
_FURTHER = 2  # calls shown besides the first
_CALL = 120  # characters of a call


def write_file(
    text: str, cut: Mapping[str, int], names: Collection[str], emitted: Emitted, calls: Sequence[CallsToRun]
) -> LeanColumns | str:
    """Return the columns of the minimized file with its header, or why it is not written: a longer file is not lean.

    Args:
        text, cut, names: as from `cut_file`.
        emitted: the closed file.
        calls: those that it is confirmed with.
    """
    licenses = dict(zip(emitted.files, emitted.licenses, strict=True))
    notices = dict(zip(emitted.files, emitted.notices, strict=True))
    root = emitted.files[0]
    kept = {emitted.places[name] for name in names if name in emitted.places} - {root}
    further = [file for file in emitted.files if file in kept]
    license_ = combine_licenses(map(licenses.__getitem__, [root, *further]))
    renamed = [change for change in emitted.changes.get("renamed", ()) if change.partition(" -> ")[2] in names]
    head = [
        *_replace_license(emitted.code, license_),
        *dict.fromkeys(line for file in [root, *further] for line in notices[file]),
        *describe_files(further, licenses),
        *describe_changes({**emitted.changes, "renamed": renamed}),
        *_describe_use(calls, cut),
    ]
    code = "\n".join([*head, "", text.strip(), ""])
    try:
        decode_python(code)
    except SyntaxError as error:  # its first lines are others than those of the closed file
        return str(error.msg)
    if code.count("\n") >= emitted.code.count("\n"):
        return "not shorter than the closed file"
    requires = list_requirements(text, emitted.packages.values(), emitted.packages)
    return lean_columns(code, requires, license_)


def list_requirements(code: str, stated: Iterable[str], confirmed: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the requirements of a file, sorted: its imports outside of the standard library and the declared runtime.

    Args:
        stated: the requirements of the block, from which they are taken.
        confirmed: distributions by import name.
    """
    listed = tuple(stated)
    known, found = {*sys.stdlib_module_names, *RUNTIME}, set()
    for dotted, _ in list_imports(ast.parse(code)):
        if (top := dotted.partition(".")[0]) not in known:
            # The whole name first: distributions may share the first name of their packages.
            requirement = find_requirement(dotted, listed, confirmed)
            found.add(find_requirement(top, listed, confirmed) if is_guess(requirement) else requirement)
    return tuple(sorted(found))


def _replace_license(full: str, license_: str) -> Iterator[str]:
    """Yield the lines of a closed file's header that its minimized form has too, up to the license."""
    for line in dropwhile(lambda line: not _FIELD.match(line), header_lines(full)):
        if line.startswith(_LICENSE):
            yield f"{_LICENSE}{license_}"
            return
        yield line


def _describe_use(sets: Sequence[CallsToRun], cut: Mapping[str, int]) -> list[str]:
    """Return the lines about the calls that the minimized file was confirmed with, and about the cuts."""
    calls = [f"__init__{_call(pair['init'])}, forward{_call(pair['forward'])}" for pair in sets]
    more = f" and {len(calls) - 1 - _FURTHER} more" if len(calls) > 1 + _FURTHER else ""
    parts = [plural(number, kind) for kind, number in cut.items() if number]
    return wrap(
        f"Lean:    equal in every bit, in eval and train mode, for {'; '.join(calls[: 1 + _FURTHER])}{more}; elsewhere"
        f" it stops with an error. Cut: {', '.join(parts) or 'nothing'}."
    )


def _call(call: CallTexts) -> str:
    text = " ".join(join_arguments(**call).split())
    return f"({text if len(text) <= _CALL else f'{text[:_CALL]} …'})"
