"""The block that is moved: one of an extraction folder that takes one tensor and gives one, lean or whole."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from extract.model.blocks import damaged, find_block
from extract.specs.make import Call, Worked, worked_of
from lemur_core.files.errors import UserError
from manifests.provenance import SPECS, read_parts
from manifests.provenance.licenses import NOASSERTION, all_of
from manifests.records import Block, Case, Observed, SpecArgument

Shape = tuple[int, ...]

#: Layouts by the number of dimensions and the place of the channels.
_LAYOUTS = {(3, 1): "N×C×L", (3, -1): "N×L×C", (4, 1): "N×C×H×W", (4, -1): "N×H×W×C"}

_TENSOR = re.compile(r"float32 (\d+(?:x\d+)*)")


@dataclass(frozen=True, slots=True)
class Donor:
    """A block, and what is known of how it behaves.

    Attributes:
        row: the block's row.
        code: its closed file: the lean form, where `lean` is true.
        sha256: of the code.
        license: the expression of the licences of all code in it.
        init: the arguments of its constructor that worked.
        constructor: the parameters of its constructor.
        layout: of the tensor that it takes, a letter for each dimension; None where that is not known.
        cases: shapes that went in and came out, the first with these arguments.
        parameters: elements of all of them, with these arguments.
    """

    row: Block
    code: str
    sha256: str
    license: str
    lean: bool
    init: Call
    constructor: tuple[SpecArgument, ...]
    layout: str | None
    cases: tuple[tuple[Shape, Shape], ...]
    parameters: int

    @property
    def name(self) -> str:
        """Of its class."""
        return self.row.name

    @property
    def keeps_shape(self) -> bool:
        """Whether what comes out has the shape of what goes in, in all cases."""
        return all(before == after for before, after in self.cases)

    @property
    def otherwise(self) -> "Donor | None":
        """The block with its channels in the other place, where what was seen does not tell the two apart."""
        first, last = (_LAYOUTS.get((len(self.cases[0][0]), place)) for place in (1, -1))
        if first is None or last is None or any(shape[1] != shape[-1] for case in self.cases for shape in case):
            return None
        return replace(self, layout=last if self.axis == 1 else first)

    @property
    def needed(self) -> Call:
        """Of the arguments that worked those for which the constructor has no default."""
        optional = {one.name for one in self.constructor if one.default is not None}
        names = [one.name for one in self.constructor if one.kind == "positional"]
        count = sum(not (place < len(names) and names[place] in optional) for place in range(len(self.init.args)))
        kwargs = {name: text for name, text in (self.init.kwargs or {}).items() if name not in optional}
        return Call(self.init.args[:count], kwargs)

    @property
    def axis(self) -> int:
        """The dimension of the channels."""
        rank = len(self.cases[0][0])
        if self.layout is not None and "C" in self.layout and len(self.layout.split("×")) == rank:
            return self.layout.split("×").index("C")
        return 1 if rank != 3 else 2


def donor_of(folder: Path, wanted: str, *, lean: bool = True) -> Donor:
    """The block that a name stands for, ready to be moved into a network.

    Args:
        wanted: as for `lemur show`.
        lean: take its lean form where there is one.

    Raises: UserError if there is no such block, it has no code, it never ran, it needs packages beside torch,
        torchvision and numpy, or it takes or gives something else than one tensor of real numbers.
    """
    row = find_block(folder, wanted).row
    form = form_of(folder, row, lean=lean)
    if form.requires:
        raise UserError(
            f"{row.block}: needs {', '.join(form.requires)}, and a network imports only torch; choose another block"
        )
    worked = worked_of(row.arguments)
    if worked is None or worked.forward is None:
        raise UserError(
            f"{row.block}: came as far as {row.level} when it was extracted, and no call of it is known that works;"
            " choose another block"
        )
    if worked.method not in ("forward", "__call__") or len(worked.forward.args) + len(worked.forward.kwargs or {}) != 1:
        raise UserError(
            f"{row.block}: is called as `{worked.forward_call()}`, and a network hands a module one tensor;"
            " choose another block"
        )
    return Donor(
        row,
        form.code,
        form.digest,
        form.license,
        form.lean,
        worked.init,
        *_stated(folder, row.block),
        *_observed(row, worked),
    )


@dataclass(frozen=True, slots=True)
class Form:
    """The file of a block that is moved: its lean form or its full one."""

    code: str
    digest: str
    license: str
    requires: tuple[str, ...]
    lean: bool


def form_of(folder: Path, row: Block, *, lean: bool = True) -> Form:
    """The form of a block that is moved: the lean one where it is wanted and there is one.

    Raises: UserError if there is no code of it.
    """
    if lean and row.lean_code is not None and row.lean_sha256 is not None:
        license_ = row.lean_license or NOASSERTION
        return Form(row.lean_code, row.lean_sha256, license_, tuple(row.lean_requires or ()), True)
    if row.code is None or row.code_sha256 is None:
        raise UserError(f"{row.block}: has no code ({row.error_kind}: {row.error}); choose another block")
    license_ = all_of(read_parts(folder).licenses(row.model_dump(include={"block", "license"})))
    return Form(row.code, row.code_sha256, license_, tuple(row.requires), False)


def _stated(folder: Path, block: str) -> tuple[tuple[SpecArgument, ...], str | None]:
    """The constructor's parameters and the layout that the block's spec states; nothing where it has none."""
    named = json.dumps(block, ensure_ascii=False)
    try:
        with (folder / SPECS).open(encoding="utf-8") as lines:
            for line in lines:
                if named in line and (spec := json.loads(line))["block"] == block:
                    return tuple(map(SpecArgument.model_validate, spec["constructor"])), spec["layout"]
    except (OSError, ValueError, KeyError) as error:
        raise damaged(folder, error) from error
    return (), None


def _observed(row: Block, worked: Worked) -> tuple[tuple[tuple[Shape, Shape], ...], int]:
    """Shapes in and out, and parameters. Raises: UserError where there is no case of one tensor in and one out."""
    try:
        observed = Observed.model_validate_json(row.observed or "{}")
    except ValidationError:
        observed = None
    found = tuple(_pairs(observed.cases)) if observed is not None else ()
    if observed is not None and observed.identity_in_eval and not observed.train_differs:
        raise UserError(
            f"{row.block}: does nothing with the arguments that worked, {worked.constructor_call(row.name)}"
        )
    if observed is None or not found:
        told = observed.cases[0] if observed is not None and observed.cases else None
        seen = "was not seen to run"
        if told is not None:
            seen = f"takes {', '.join(told.inputs.values()) or 'nothing'} and gives {', '.join(told.outputs)}"
        raise UserError(
            f"{row.block}: {seen} when called as `{worked.forward_call()}`; a network hands a module one tensor of real"
            " numbers and takes one: choose another block"
        )
    return found, observed.parameters


def _pairs(cases: tuple[Case, ...]) -> Iterator[tuple[Shape, Shape]]:
    for case in cases:
        texts = [*case.inputs.values(), *case.outputs]
        found = [_TENSOR.fullmatch(text) for text in texts]
        if len(case.inputs) == len(case.outputs) == 1 and found[0] and found[1]:
            before, after = (tuple(map(int, one[1].split("x"))) for one in found if one)
            if len(before) > 1 and len(after) > 1:
                yield before, after
