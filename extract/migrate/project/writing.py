"""The files of a migration into a project as text: the new module, and its smoke test."""

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extract.migrate.codemod import USUAL
from extract.migrate.project.layout import Place, Project, TestPlace
from extract.migrate.project.reuse import ClosedFile, Option, names_of
from extract.migrate.project.style import ImportStyle, own_module, write_imports
from extract.model.categories import snake_of
from extract.specs.make import Call, Worked
from lemur_core.source.imports import Import
from manifests.provenance import provenance_lines
from manifests.provenance.licenses import is_permissive
from manifests.records import Block

_WIDTH = 118
_CODE = 80  # of a line in a test
_TENSOR = re.compile(r"(?:\w+=)?(torch\.(?:randn|rand|ones|zeros)\()")
#: Lines of a closed file's header that are said anew, or otherwise.
_SAID = re.compile(r"(?:Block|File|SWHID|Licence): ")


@dataclass(frozen=True, slots=True)
class Donated:
    """The block that is moved.

    Attributes:
        row: of the table, with `code_sha256` and `license` of the form that is moved.
        code: its closed file.
        lean: whether that is the lean form.
        requires: PEP 508, of that form.
        worked: the calls that worked.
    """

    row: Block
    code: str
    lean: bool
    requires: tuple[str, ...]
    worked: Worked

    @property
    def expressions(self) -> list[str]:
        """All that is given to its constructor and to forward."""
        calls = [self.worked.init, self.worked.forward]
        return [text for call in calls if call is not None for text in (*call.args, *(call.kwargs or {}).values())]


# --- the module -------------------------------------------------------------------------------------------------------


def module_text(
    donated: Donated,
    file: ClosedFile,
    place: Place,
    project: Project,
    style: ImportStyle,
    reused: Mapping[str, Option],
    exports: bool,
) -> str:
    """The new module: header, imports in the project's style, the author's definitions.

    Args:
        reused: definitions of the project that stand for the block's, by their names in its file.
        exports: whether it says by `__all__` that it offers its class alone.
    """
    body = file.body(reused)
    imports = {*body.imports}
    for name, option in reused.items():
        imports.add(Import(own_module(style, option.module, place.module), option.name, False, name))
    lines = [f"# {line}".rstrip() for line in _header(donated, file, reused, body.gone)]
    lines.append("")
    if body.future:
        lines += ["from __future__ import annotations", ""]
    lines += write_imports(imports, style, project.packages)
    if exports:
        lines += ["", f'__all__ = ["{donated.row.name}"]']
    blank = 1 if body.text.startswith("# Named by annotations only.") else 2
    return "\n".join(lines).rstrip("\n") + "\n" * (blank + 1) + body.text + "\n"


def _header(donated: Donated, file: ClosedFile, reused: Mapping[str, Option], gone: Sequence[str]) -> list[str]:
    row = donated.row
    head = [
        f"{row.name}, moved here from {row.source} by `lemur migrate`.",
        "",
        f"SPDX-License-Identifier: {row.license}",
        *_wrapped(notice_of(donated)),
        "",
        *provenance_lines("module", row.name, row.model_dump()),
        "",
    ]
    rest = [line for line in file.header[1:] if line and not _SAID.match(line)]
    for name, option in sorted(reused.items()):
        rest += _wrapped(f"Not copied: {name}; {option.dotted} is the same, and stands for it.")
    also = [name for name in gone if name not in reused]
    if also:
        rest += _wrapped(f"Not copied, for nothing else needs it: {', '.join(also)}.")
    return head + rest


def notice_of(donated: Donated) -> str:
    """What the licence asks of who passes the file on, or that it does not let it be passed on."""
    row = donated.row
    if is_permissive(row.license):
        return (
            f"The definitions below are the work of the authors of {row.source}, under {row.license}; they were changed"
            " as told below. The copyright notices and the text of the licence are those of that source: keep them with"
            " copies of this file."
        )
    return (
        f"NOT KNOWN TO BE PERMISSIVE: the definitions below are the work of the authors of {row.source}, under"
        f" {row.license}. This file was put here at its user's own wish: pass it on only if that licence lets you."
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


# --- the smoke test ---------------------------------------------------------------------------------------------------


def smoke_text(
    donated: Donated,
    file: ClosedFile,
    place: Place,
    test: TestPlace,
    project: Project,
    style: ImportStyle,
    seen: Mapping[str, Any],
) -> str:
    """The smoke test: constructs with the arguments that worked, runs forward and backward, checks the shape.

    Args: seen: what `extract.migrate.project.equivalent_definition_guest.compare_definitions` tells of the block.
    """
    name = donated.row.name
    imports = {USUAL["torch"]}
    own = {name}
    for used in names_of(donated.expressions):
        if used in USUAL:  # as where the arguments were found: these names mean this, whatever the file calls so
            imports.add(USUAL[used])
        elif used in file.globals:
            own.add(used)
    absolute = ImportStyle(False, style.single, style.mixed, style.grouped, style.forms)
    imports |= {Import(place.module, one, False, one) for one in own}
    if test.style == "unittest":
        imports.add(Import("unittest", "", False, "unittest"))
    body = [*_setup(donated, seen), *_checks(donated, seen)]
    if any("tree_leaves" in line for line in body):
        imports.add(Import("torch.utils._pytree", "tree_leaves", False, "tree_leaves"))
    lines = [
        f'"""Smoke test of {name}, moved here from {donated.row.source}, with arguments that worked there."""',
        "",
        *write_imports(imports, absolute, project.packages),
        "",
        "",
    ]
    title = f"test_{snake_of(name)}_runs_forward" + "_and_backward" * seen["differentiable"]
    if test.style == "unittest":
        lines += [f"class Test{name}(unittest.TestCase):", f"    def {title}(self):"]
        lines += [f"        {line}".rstrip() for line in body]
        lines += ["", "", 'if __name__ == "__main__":', "    unittest.main()"]
    else:
        lines += [f"def {title}():", *(f"    {line}".rstrip() for line in body)]
    return "\n".join(lines) + "\n"


def _setup(donated: Donated, seen: Mapping[str, Any]) -> list[str]:
    call = donated.worked.init
    lines = ["torch.manual_seed(0)", *_call_lines("block = ", donated.row.name, _parts(call))]
    return lines if seen["trains"] else [*lines, "block.eval()"]


def _checks(donated: Donated, seen: Mapping[str, Any]) -> list[str]:
    """The call of forward, the check of shapes, and backward where anything can be differentiated."""
    reached, wanted = seen["reached"]
    lines, parts = _given(donated, by_input=seen["differentiable"] and not wanted)
    has_leaf = bool(lines)
    returns, shapes = seen["returns"], [tuple(shape) for shape in seen["shapes"]]
    total = "output.abs().sum()" if seen["complex"] else "output.sum()"
    if returns == "tensor":
        lines += [*_call_lines("output = ", "block", parts), f"assert output.shape == {shapes[0]}"]
    else:
        lines += _call_lines("outputs = ", "block", parts)
        if not isinstance(returns, list) or any(item != "tensor" for item in returns):
            lines.append("outputs = [item for item in tree_leaves(outputs) if isinstance(item, torch.Tensor)]")
        lines.append(f"assert [tuple(output.shape) for output in outputs] == {shapes}")
        some = "" if all(seen["floating"]) else " if output.requires_grad"
        total = f"sum({total} for output in outputs{some})"
    if not seen["differentiable"]:
        return lines
    lines.append(f"{total}.backward()")
    if reached:
        asked = "all" if reached == wanted else "any"
        some = " if parameter.requires_grad" if seen["frozen"] else ""
        lines.append(f"assert {asked}(parameter.grad is not None for parameter in block.parameters(){some})")
    elif has_leaf:
        lines.append("assert given.grad is not None")
    return lines


def _given(donated: Donated, *, by_input: bool) -> tuple[list[str], list[str]]:
    """Lines before the call of forward, and its arguments; the first tensor is a leaf if gradients are asked of it."""
    call = donated.worked.forward
    assert call is not None
    parts = _parts(call)
    for place, part in enumerate(parts if by_input else []):
        found = _TENSOR.match(part)
        if found and isinstance(ast.parse(part[found.start(1) :], mode="eval").body, ast.Call):
            name, text = part[: found.start(1)], part[found.start(1) :]
            return [f"given = {text}.requires_grad_()"], [*parts[:place], f"{name}given.clone()", *parts[place + 1 :]]
    return [], parts


def _parts(call: Call) -> list[str]:
    return [*call.args, *(f"{name}={text}" for name, text in (call.kwargs or {}).items())]


def _call_lines(before: str, name: str, parts: Sequence[str]) -> list[str]:
    """A call, an argument a line where it would be too long."""
    line = f"{before}{name}({', '.join(parts)})"
    return [line] if len(line) <= _CODE else [f"{before}{name}(", *(f"    {part}," for part in parts), ")"]
