"""Write a finished folder in another form: a folder of its own, with a card and a manifest that names its source."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lemur.export import ExportForm
from lemur.export.kernelbench import export_kernelbench
from lemur.export.records import EXPORT, ExportContents, PromptCompletion
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder, check_free, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from manifests.conversations import chat_rows
from manifests.folders.kinds import EXTRACTION
from manifests.folders.manifest import (
    Stopwatch,
    describe_parent,
    read_manifest,
)
from manifests.folders.tables import reading, write_tables
from manifests.provenance import TABLE
from manifests.publish.staged import stage_files
from manifests.records import SPLITS, Block, ChatMessage


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of an export.

    Attributes:
        folder: the folder that was written.
        rows: rows by table.
        skipped: blocks or conversations that were left out, by reason.
        withheld: codes that were left out for their license.
    """

    folder: Path
    rows: Mapping[str, int]
    skipped: Mapping[str, int]
    withheld: int

    def to_json(self) -> Json:
        """Return the report as a JSON object."""
        facts = {"rows": dict(self.rows), "skipped": dict(self.skipped), "withheld": self.withheld}
        return {"folder": str(self.folder), **facts}


def _list_conversations(folder: Path, kind: str) -> list[tuple[str, Json]]:
    """Return split and row of each conversation of a folder, with `code_sha256`, the code that it is about.

    Raises: UserError if it has none.
    """
    rows = list(chat_rows(folder))
    codes = {}
    if kind == EXTRACTION.name:
        codes = {row.block: row.code_sha256 for row in EXTRACTION.rows(folder, Block, ("block", "code_sha256"))}
    for _, row in rows:
        row["code_sha256"] = codes[row["block"]] if codes else row["record"]
    if not rows:
        again = {"snapshot": "curate", "extraction": "extract"}[kind]
        raise UserError(f"{folder}: has no conversations; create it again with `lemur {again} ... --chat`")
    return rows


def export_completions(folder: Path, kind: str) -> ExportContents:
    """Return every conversation of a snapshot or an extraction as a prompt and a completion."""
    tables: dict[str, list[PromptCompletion]] = {split: [] for split in SPLITS}
    for split, row in _list_conversations(folder, kind):
        *prompt, answer = map(ChatMessage.model_validate, row["messages"])
        facts: Json = {name: row.get(name) for name in ("id", "task", "license", "notice", "code_sha256")}
        tables[split].append(PromptCompletion(prompt=tuple(prompt), completion=(answer,), **facts))
    return ExportContents({"prompt_completion": tables}, Counter())


#: How each form is made from each kind of folder that has it.
_EXPORTERS: Mapping[ExportForm, Mapping[str, Callable[..., ExportContents]]] = {
    "kernelbench": {"extraction": lambda folder, staged, **run: export_kernelbench(folder, staged.files[TABLE], **run)},
    "prompt-completion": {
        "snapshot": lambda folder, _staged, **_: export_completions(folder, "snapshot"),
        "extraction": lambda folder, _staged, **_: export_completions(folder, "extraction"),
    },
}


def export_folder(
    folder: Path,
    form: ExportForm,
    out: Path,
    *,
    force: bool = False,
    jobs: int | None = None,
    unsafe: bool = False,
) -> ExportReport:
    """Write a finished folder in another form, without code whose license forbids redistribution.

    Args:
        folder: a finished folder.
        form: the form.
        out: the folder to write; it is written completely or not at all.
        force: replace a folder that exists.
        jobs, unsafe: worker processes that run problems, and whether without the sandbox.
    Raises: UserError if the folder is of another kind or damaged, has nothing to export, or may not be redistributed.
    """
    watch = Stopwatch()
    manifest = read_manifest(folder)
    exporters = _EXPORTERS[form]
    if manifest.kind not in exporters:
        wanted = " or ".join(map(article, exporters))
        raise UserError(f"{folder}: holds {article(manifest.kind)}; --format {form} needs {wanted}")
    check_free(out, force=force)
    try:
        with reading(folder, manifest.kind), stage_files(folder) as staged:
            contents = exporters[manifest.kind](folder, staged, jobs=jobs, unsafe=unsafe)
            withheld = sum(item.get("blocks") or item["codes"] for item in staged.withheld)
    except UserError as error:
        raise UserError(str(error).replace("nothing was published", "nothing was exported")) from error
    if not contents.rows:
        reasons = "; ".join(f"{reason} ({number:,})" for reason, number in contents.skipped.most_common(3))
        raise UserError(f"{folder}: has nothing for --format {form}{f': {reasons}' if reasons else ''}")
    with atomic_folder(out, force=force) as part:
        rows = _write_tables(part, contents)
        for name, text in contents.files.items():
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(part / name, text)
        counts = {name: sum(map(len, splits.values())) for name, splits in contents.tables.items()}
        done = EXPORT.finish(
            part,
            rows,
            watch,
            parameters={"format": form},
            parents=[describe_parent(folder)],
            counts={"rows": counts, "skipped": dict(sorted(contents.skipped.items()))},
            details={"withheld": list(staged.withheld)},
        )
    return ExportReport(out, counts, done.counts["skipped"], withheld)


def _write_tables(folder: Path, contents: ExportContents) -> dict[str, int]:
    """Write the tables, and return the rows by path."""
    written: dict[str, int] = {}
    for name, splits in contents.tables.items():
        record, _ = EXPORT.tables[name]
        for split, rows in splits.items():
            if rows:
                files = write_tables(
                    folder / "data" / name, split, record, (row.model_dump() for row in rows), len(rows)
                )
                written |= {f"data/{name}/{file}": number for file, number in files.items()}
    return written
