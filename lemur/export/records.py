"""The kind of folder that an export is: its card, and the files of its problems."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from lemur_core.files import Json
from lemur_core.files.atomic import write_text
from lemur_core.files.markdown import code_span, count, table
from manifests.folders import kinds
from manifests.folders.cards import CODE_RISK, Card, Disclosure
from manifests.folders.manifest import Manifest
from manifests.records import ExportedRow, KernelProblem

_DISCLOSURE = Disclosure(
    uses=("Training and evaluating models that write PyTorch code or kernels, in the form that the title names.",),
    limits=(CODE_RISK,),
    biases=("Blocks, networks and tasks are as frequent as in the source folder, whose card and report describe it.",),
    collection="A program wrote the contents of the source folder in another form.",
)
#: Sentences for the card of each form: the description, and what follows.
_TEXTS = {
    "kernelbench": (
        "Each block is one problem: a closed file below which a class constructs the block with arguments that are"
        " known to work, in eval mode, and a function builds inputs that it accepts. Trivial answers (zeros, the input,"
        " means, the output for other inputs) were compared with the block's in the sandbox.",
        "The class is `Model`, the function `get_inputs()`; `get_inputs(case)` builds inputs in other shapes, ranges of"
        " values and memory layouts, `cases` in all. Where a trivial answer is within KernelBench's tolerance whatever"
        " the range, `hackable` says which, and the problem has no file.",
        "`level1/` has the files, as KernelBench's `LocalKernelBenchDataset` reads them (`base_path` is this folder);"
        " the table has the columns of its data set. The headers of the files name their origin and license.",
    ),
    "prompt-completion": (
        "A prompt is the system's and the user's message, a completion the assistant's: trl reads both as they are.",
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
        disclosure=_DISCLOSURE,
        sources=[(f"{parent.kind} {parent.name}", f"hash://sha256/{parent.sha256}")],
    )


def write_files(folder: Path, rows: Iterable[ExportedRow]) -> None:
    """Write the files of the problems among these rows."""
    for row in rows:
        if isinstance(row, KernelProblem) and row.hackable is None:
            (folder / "level1").mkdir(exist_ok=True)
            write_text(folder / "level1" / row.name, row.code)


def _derive(folder: kinds.Folder, made: Path) -> Json:
    """Write the files of the problems again, and count the rows; see `Derive`."""
    rows = list(_rows(folder.path))
    write_files(made, (row for _, row in rows))
    present = dict.fromkeys(folder.manifest.counts["rows"], 0) | Counter(name for name, _ in rows)
    return {"counts": {"rows": present}}


def _rows(folder: Path) -> Iterator[tuple[str, ExportedRow]]:
    for item in EXPORT.tables:
        for row in EXPORT.rows(folder, item.record):
            assert isinstance(row, ExportedRow)
            yield item.name, row


#: All tables that an export may have; a folder has those of its form.
EXPORT = replace(kinds.EXPORT, card=_card, derive=_derive)
KINDS = (EXPORT,)
