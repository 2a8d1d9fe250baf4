"""Write a finished folder in another form: a folder of its own, with a card and a manifest that names its source."""

from collections import Counter
from pathlib import Path

from lemur.export import ExportForm
from lemur.export.kernelbench import build_problems
from lemur.export.records import EXPORT, write_files
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder, check_free
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article
from manifests.conversations import chat_rows, list_chat_drops
from manifests.folders.kinds import EXTRACTION, SNAPSHOT
from manifests.folders.manifest import Stopwatch, describe_parent, read_manifest
from manifests.folders.tables import CHAT_DROPS, reading, write_tables
from manifests.provenance import TABLE
from manifests.publishing.staged import stage_files
from manifests.records import SPLITS, Block, ChatMessage, ExportedRow, PromptCompletion

_SOURCES = {"kernelbench": (EXTRACTION.name,), "prompt-completion": (SNAPSHOT.name, EXTRACTION.name)}


def export_folder(
    folder: Path,
    form: ExportForm,
    out: Path,
    *,
    force: bool = False,
    jobs: int | None = None,
    unsafe: bool = False,
) -> Json:
    """Write a finished folder in another form, without code whose license forbids redistribution.

    Args:
        out: the folder to write; it is written completely or not at all.
        jobs, unsafe: worker processes that run problems, and whether without the sandbox.
    Returns: rows by table, blocks or conversations that were left out by reason, and blocks withheld for their license.
    Raises: UserError if the folder is of another kind or damaged, has nothing to export, or may not be redistributed.
    """
    watch, kind = Stopwatch(), read_manifest(folder).kind
    if kind not in _SOURCES[form]:
        wanted = " or ".join(map(article, _SOURCES[form]))
        raise UserError(f"{folder}: holds {article(kind)}; --format {form} needs {wanted}")
    check_free(out, force=force)
    skipped: Counter[str] = Counter()
    try:
        with reading(folder, kind), stage_files(folder) as staged:
            name, tables, left = "prompt_completion", dict[str, list[ExportedRow]](), list[Json]()
            if form == "kernelbench":
                name, left = "problems", list(staged.withheld)
                tables["test"] = list(build_problems(folder, staged.files[TABLE], skipped, jobs=jobs, unsafe=unsafe))
            else:
                for split, row in _read_completions(folder, kind):
                    tables.setdefault(split, []).append(row)
    except UserError as error:
        raise UserError(str(error).replace("nothing was published", "nothing was exported")) from error
    number = sum(map(len, tables.values()))
    if not number:
        reasons = "; ".join(f"{reason} ({times:,})" for reason, times in skipped.most_common(3))
        raise UserError(f"{folder}: has nothing for --format {form}{f': {reasons}' if reasons else ''}")
    counts = {"rows": {name: number}, "skipped": dict(sorted(skipped.items()))}
    with atomic_folder(out, force=force) as part:
        for split in filter(tables.get, SPLITS):
            rows = tables[split]
            values = (row.model_dump() for row in rows)
            write_tables(part / "data" / name, split, type(rows[0]), values, len(rows))
            write_files(part, rows)
        about: Json = {"parameters": {"format": form}, "parents": [describe_parent(folder)], "counts": counts}
        EXPORT.finish(part, watch, details={"withheld": left}, **about)
    return {"folder": str(out), **counts, "withheld": sum(item["blocks"] for item in left)}


def _read_completions(folder: Path, kind: str) -> list[tuple[str, PromptCompletion]]:
    """Return every conversation of a snapshot or an extraction, with its split. Raises: UserError if it has none."""
    codes: dict[str, str | None] = {}
    if kind == EXTRACTION.name:
        codes = {row.block: row.code_sha256 for row in EXTRACTION.rows(folder, Block, ("block", "code_sha256"))}
    found = []
    for split, row in chat_rows(folder):
        *prompt, answer = map(ChatMessage.model_validate, row["messages"])
        facts: Json = {name: row.get(name) for name in ("id", "task", "license", "notice")}
        facts["code_sha256"] = codes[row["block"]] if codes else row["record"]
        found.append((split, PromptCompletion(prompt=tuple(prompt), completion=(answer,), **facts)))
    if not found:
        if why := list_chat_drops(read_manifest(folder).counts):
            raise UserError(f"{folder}: has no conversations, none could be made: {why}; see {CHAT_DROPS} there")
        again = "extract" if kind == EXTRACTION.name else "curate"
        raise UserError(f"{folder}: has no conversations; create it again with `lemur {again} ... --chat`")
    return found
