"""The source block of a migration: a block of an extraction folder that maps one tensor to one tensor."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement

from extract.migrate.messages import Shape
from extract.model.blocks import find_block
from extract.specs.make import StatedArguments, StatedCalls, read_arguments, read_observed, read_spec
from lemur_core.files.errors import UserError
from manifests.provenance import header_lines, is_guess
from manifests.provenance.licenses import NOASSERTION, combine_licenses
from manifests.provenance.parts import read_parts
from manifests.records import Block, Case, SpecArgument

#: (number of dimensions, channel dimension) -> layout.
_LAYOUTS = {(3, 1): "N×C×L", (3, -1): "N×L×C", (4, 1): "N×C×H×W", (4, -1): "N×H×W×C"}

_TENSOR = re.compile(r"float32 (\d+(?:x\d+)*)")


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """A block and its known behavior."""

    row: Block  # the block's row
    code: str  # its closed file; the minimized form if `lean` is true
    sha256: str  # digest of the code
    license: str  # license expression that covers all of the code
    lean: bool
    init: StatedArguments  # working constructor arguments
    constructor: tuple[SpecArgument, ...]  # parameters of its constructor
    layout: str | None  # layout of the input tensor, one letter per dimension; None if unknown
    cases: tuple[tuple[Shape, Shape], ...]  # input and output shapes; those of the first case belong to these arguments
    parameters: int  # number of parameter elements with these arguments

    @property
    def name(self) -> str:
        """Name of its class."""
        return self.row.name

    @property
    def keeps_shape(self) -> bool:
        """Return whether the output has the shape of the input in all cases."""
        return all(before == after for before, after in self.cases)

    @property
    def otherwise(self) -> "SourceBlock | None":
        """The block with the other channel dimension, if the observations cannot distinguish the two."""
        first, last = (_LAYOUTS.get((len(self.cases[0][0]), axis)) for axis in (1, -1))
        if first is None or last is None or any(shape[1] != shape[-1] for case in self.cases for shape in case):
            return None
        return replace(self, layout=last if self.axis == 1 else first)

    @property
    def args_without_default(self) -> StatedArguments:
        """The working arguments for which the constructor has no default."""
        optional = {parameter.name for parameter in self.constructor if parameter.default is not None}
        names = [parameter.name for parameter in self.constructor if parameter.kind == "positional"]
        count = sum(not (index < len(names) and names[index] in optional) for index in range(len(self.init.args)))
        kwargs = {name: text for name, text in (self.init.kwargs or {}).items() if name not in optional}
        return StatedArguments(self.init.args[:count], kwargs)

    @property
    def axis(self) -> int:
        """The channel dimension."""
        rank = len(self.cases[0][0])
        if self.layout is not None and "C" in self.layout and len(self.layout.split("×")) == rank:
            return self.layout.split("×").index("C")
        return 1 if rank != 3 else 2


def load_source_block(folder: Path, wanted: str, *, lean: bool = True) -> SourceBlock:
    """Load a block by name, ready to be inserted into a network.

    Args:
        wanted: as for `lemur show`.
        lean: use its minimized form if there is one.

    Raises: UserError if there is no such block, it has no code, it never ran, it needs packages other than torch,
        torchvision and numpy, or its input or output is not a single real tensor.
    """
    row = find_block(folder, wanted).row
    form = choose_form(folder, row, lean=lean)
    if form.requires:
        raise UserError(
            f"{row.block}: needs {', '.join(form.requires)}, and a network imports only torch; choose another block"
        )
    worked = read_arguments(row.arguments)
    if worked is None or worked.forward is None:
        raise UserError(
            f"{row.block}: reached level {row.level} when it was extracted, and no working call of it is known;"
            " choose another block"
        )
    # A network calls its submodules with one tensor, and never another method.
    if len(worked.forward.parts) != 1:
        raise UserError(
            f"{row.block}: is called as `{worked.forward_call()}`, and a network passes a module one tensor;"
            " choose another block"
        )
    spec = read_spec(folder, row.block)
    return SourceBlock(
        row,
        form.code,
        form.digest,
        form.license,
        form.lean,
        worked.init,
        spec.constructor if spec is not None else (),
        spec.layout if spec is not None else None,
        *_read_observed(row, worked),
    )


@dataclass(frozen=True, slots=True)
class Form:
    """The file of a block to insert: its minimized or its full form."""

    code: str
    digest: str
    license: str
    requires: tuple[str, ...]
    lean: bool


def choose_form(folder: Path, row: Block, *, lean: bool = True) -> Form:
    """Return the form of a block to insert: the minimized form if it is requested and exists.

    Raises: UserError if the block has no code, or requires a distribution that is only guessed.
    """
    if lean and row.lean_code is not None and row.lean_sha256 is not None:
        license_ = row.lean_license or NOASSERTION
        form = Form(row.lean_code, row.lean_sha256, license_, tuple(row.lean_requires or ()), True)
    elif row.code is None or row.code_sha256 is None:
        raise UserError(f"{row.block}: has no code ({row.error_kind}: {row.error}); choose another block")
    else:
        # The full form may contain definitions of other sources; each has a license of its own.
        license_ = combine_licenses(read_parts(folder).licenses(row.block, row.license))
        form = Form(row.code, row.code_sha256, license_, tuple(row.requires), False)
    for package in (Requirement(text).name for text in form.requires if is_guess(text)):
        raise UserError(
            f"{row.block}: imports {package}, and its distribution was only guessed; extract it again with"
            f" --distribution {package.replace('-', '_')}=NAME"
        )
    return form


def _read_observed(row: Block, worked: StatedCalls) -> tuple[tuple[tuple[Shape, Shape], ...], int]:
    """Return input and output shapes and the parameter count. Raises: UserError if no case maps one tensor to one."""
    observed = read_observed(row)
    pairs = tuple(_list_shape_pairs(observed.cases)) if observed is not None else ()
    if observed is not None and observed.identity_in_eval and not observed.train_differs:
        raise UserError(
            f"{row.block}: does nothing with the arguments that worked, {worked.constructor_call(row.name)}"
        )
    if observed is None or not pairs:
        case = observed.cases[0] if observed is not None and observed.cases else None
        seen = "was not observed to run"
        if case is not None:
            seen = f"takes {', '.join(case.inputs.values()) or 'nothing'} and gives {', '.join(case.outputs)}"
        raise UserError(
            f"{row.block}: {seen} when called as `{worked.forward_call()}`; a network passes a module one real tensor"
            " and expects one: choose another block"
        )
    return pairs, observed.parameters


def _list_shape_pairs(cases: tuple[Case, ...]) -> Iterator[tuple[Shape, Shape]]:
    for case in cases:
        texts = [*case.inputs.values(), *case.outputs]
        matches = [_TENSOR.fullmatch(text) for text in texts]
        if len(case.inputs) == len(case.outputs) == 1 and matches[0] and matches[1]:
            before, after = (tuple(map(int, match[1].split("x"))) for match in matches if match)
            if len(before) > 1 and len(after) > 1:
                yield before, after


def read_header(code: str) -> list[str]:
    """Return the comment lines at the top of a closed file, without `# `."""
    return [line.removeprefix("#").removeprefix(" ") for line in header_lines(code)]
