"""The kind of folder that an export is: rows of its tables, its card, and the files of its problems."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from lemur_core.files import Json
from lemur_core.files.atomic import write_text
from lemur_core.files.markdown import code_span, count, table
from manifests.folders.cards import SNAPSHOT_DISCLOSURE, Card
from manifests.folders.kinds import Folder, Kind, Named, files_by_split
from manifests.folders.manifest import Manifest
from manifests.records import ChatMessage, Record, Sha256


class ExportedRow(Record):
    """A row of any form: license and code of its source."""

    license: str = Field(description="SPDX expression of the code in the row, or of the source of its facts")
    code_sha256: Sha256 = Field(description="SHA-256 of the code in the source folder that the row is about")


class KernelProblem(ExportedRow):
    """One block as a problem of KernelBench: a file with `Model`, `get_inputs()` and `get_init_inputs()`."""

    problem_id: int = Field(ge=1, description="the number before the name of the file")
    name: str = Field(min_length=1, description="name of the file in level1")
    level: int = Field(ge=1, description="always 1: blocks are not sorted into KernelBench's levels")
    code: str = Field(min_length=1, description="the file")
    cases: int = Field(
        ge=1, description="inputs that get_inputs(case) builds: shapes, ranges of values, memory layouts"
    )
    hackable: str | None = Field(
        description="why a trivial answer would pass, for which the problem has no file; null for one that has"
    )
    requires: tuple[str, ...] = Field(description="PEP 508: what it imports besides the declared runtime")
    block: str = Field(min_length=1, description="id in the extraction, SOURCE::QUALNAME")
    swhid: str = Field(description="swh:1:cnt: of the file that defines it")


class PromptCompletion(ExportedRow):
    """A conversation as a prompt and its completion."""

    prompt: tuple[ChatMessage, ...] = Field(min_length=1, description="system and user")
    completion: tuple[ChatMessage, ...] = Field(min_length=1, description="assistant")
    id: str = Field(min_length=1, description="id of the conversation")
    task: str = Field(description="what is asked for")
    notice: str | None = Field(default=None, description="owners and licenses of the code in the completion")


_USES = ("Training and evaluating models that write PyTorch code or kernels, in the form that the title names.",)
_BIASES = ("Blocks, networks and tasks are as frequent as in the source folder, whose card and report describe it.",)
_ABOUT = ("license", "code_sha256")
#: Sentences for the card of each form: the description, and what follows.
_TEXTS = {
    "kernelbench": (
        "Each block is one problem: a closed file below which `Model` constructs the block with arguments that are"
        " known to work, in eval mode, and `get_inputs()` builds inputs that it accepts; `get_inputs(case)` builds them"
        " in other shapes, ranges of values and memory layouts, `cases` in all. Trivial answers (zeros, the input,"
        " means, the output for other inputs) were compared with the block's in the sandbox, with KernelBench's"
        " tolerance: where one passes whatever the range, `hackable` says which, and the problem has no file.",
        "`level1/` has the files, as KernelBench's `LocalKernelBenchDataset` reads them (`base_path` is this folder);"
        " the table has the columns of its data set. The headers of the files name their origin and license.",
    ),
    "prompt-completion": (
        "A prompt is the system's and the user's message, a completion the assistant's: `trl` reads both as they are.",
        "The conversations are those of the source folder, in its splits; `task` says what is asked for.",
    ),
}


def _card(folder: Path, manifest: Manifest) -> Card:
    form, (parent,) = manifest.parameters["format"], manifest.parents
    description, *more = _TEXTS[form]
    skipped = sorted(manifest.counts["skipped"].items(), key=lambda item: (-item[1], item[0]))
    if skipped:
        more.append("\n".join(table(["left out", "count"], [[code_span(why, 160), count(n)] for why, n in skipped])))
    return Card(
        name=f"{parent.kind.capitalize()} in the form {form}",
        description=description,
        licenses=sorted({row.license for _, row in _rows(folder)}),
        text="\n\n".join(more),
        sources=[(f"{parent.kind} {parent.name}", f"hash://sha256/{parent.sha256}")],
    )


def write_files(folder: Path, rows: Iterable[ExportedRow]) -> None:
    """Write the files of the problems among these rows."""
    for row in rows:
        if isinstance(row, KernelProblem) and row.hackable is None:
            (folder / "level1").mkdir(exist_ok=True)
            write_text(folder / "level1" / row.name, row.code)


def _derive(folder: Folder, made: Path) -> Json:
    """Write the files of the problems again, and count the rows; see `Derive`."""
    rows = list(_rows(folder.path))
    write_files(made, (row for _, row in rows))
    present = dict.fromkeys(folder.manifest.counts["rows"], 0) | Counter(name for name, _ in rows)
    return {"counts": {"rows": present}}


def _rows(folder: Path) -> Iterator[tuple[str, ExportedRow]]:
    for name, (record, _) in EXPORT.tables.items():
        for row in EXPORT.rows(folder, record):
            assert isinstance(row, ExportedRow)
            yield name, row


#: All tables that an export may have; a folder has those of its form.
EXPORT = Kind(
    name="export",
    command="lemur export",
    tables={
        "problems": (KernelProblem, {"test": "data/problems/test-*.parquet"}),
        "prompt_completion": (PromptCompletion, files_by_split("data/prompt_completion")),
    },
    tags=("pytorch", "code"),
    disclosure=replace(
        SNAPSHOT_DISCLOSURE,
        uses=_USES,
        limits=SNAPSHOT_DISCLOSURE.limits[-1:],
        biases=_BIASES,
        collection="A program wrote the contents of the source folder in another form.",
    ),
    source_datasets=("extended",),
    card=_card,
    named={
        "problems": Named("problem", ("name", "block"), ("block", "cases", "hackable", *_ABOUT)),
        "prompt_completion": Named("conversation", ("id",), ("task", *_ABOUT)),
    },
    derive=_derive,
)
KINDS = (EXPORT,)
