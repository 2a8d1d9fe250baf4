"""Access to the blocks of an extraction folder: read, find by name, load as classes, trace to source lines."""

import difflib
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.compute as pc
from rich.console import Console
from rich.syntax import Syntax

from extract.specs.make import WorkingCalls, read_arguments, read_observed, read_spec, read_spec_graph
from lemur_core.describe.picture import check_picture, draw
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import make_visible, plural
from manifests.conversations.verify import find_conversation
from manifests.folders.formats import EXTRACTION, FolderLink, RowTrace, lines_text
from manifests.folders.manifest import read_manifest
from manifests.folders.tables import as_records, open_table, read_table
from manifests.provenance import TABLE, get_minimized_path
from manifests.provenance.licenses import is_permissive
from manifests.provenance.parts import read_requirements
from manifests.records import Block, SpecChatRow

_NEAR = 5
_COLUMNS = ("block", "name", "qualname", "source", "level")


def iterate_blocks(folder: Path, columns: Sequence[str] = ()) -> Iterator[Block]:
    """Yield the rows of a folder's table, in order.

    Args: columns: the fields to read; all by default. Reading is fast without `code`.
    Raises: UserError if the table cannot be read.
    """
    with EXTRACTION.reading(folder):
        yield from EXTRACTION.rows(folder, Block, columns)


def read_blocks(folder: Path, columns: Sequence[str] = ()) -> list[Block]:
    """Return the blocks that `iterate_blocks` yields."""
    return list(iterate_blocks(folder, columns))


def read_block(folder: Path, index: int) -> Block:
    """Return one row of a folder's table, by index; only its row group is read.

    Raises: UserError if the table cannot be read.
    """
    with EXTRACTION.reading(folder), open_table(folder / TABLE, Block) as (file, present):
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if index < size:
                (row,) = as_records(file.read_row_group(group, present).slice(index, 1), Block)
                return row
            index -= size
    raise IndexError(index)


# --- by name ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedBlock:
    """A block: its row, its entry in `required_repos.json` (None without code), and other blocks of the same name."""

    row: Block
    needs: Mapping[str, Any] | None
    others: tuple[str, ...]  # ids with their levels, in the order of the table


def find_block(folder: Path, wanted: str) -> NamedBlock:
    """Return the block that a name refers to.

    Args:
        wanted: a block id, a qualified name or the end of one, or a bare name; each may be prefixed by `SOURCE::`, with
            or without the version. If several match, the first one wins: that of the source with the highest priority.
    Raises: UserError if the folder is not an extraction, or no block has this name.
    """
    EXTRACTION.open(folder)
    rows = read_blocks(folder, _COLUMNS)
    indices = match(rows, wanted)
    if not indices:
        raise UserError(_unknown(rows, wanted))
    row = read_block(folder, indices[0])
    others = tuple(f"{rows[index].block} ({rows[index].level})" for index in indices[1:])
    needs = read_needs(folder) if row.code is not None else {"blocks": {}}
    return NamedBlock(row, needs["blocks"].get(row.block), others)


def match(rows: Sequence[Block], wanted: str) -> list[int]:
    """Return the indices of the rows that a name refers to, by the first interpretation of the name with a match."""
    # Whole names before parts: a bare name must not match the end of another block's.
    for column in ("block", "qualname", "name"):
        matches = [index for index, row in enumerate(rows) if getattr(row, column) == wanted]
        if matches:
            return matches
    source, separator, name = wanted.rpartition("::")
    if not name:
        return []
    within = [
        index for index, row in enumerate(rows) if not separator or source in (row.source, row.source.partition("@")[0])
    ]
    ways = ("qualname", ""), ("name", ""), ("qualname", ".")
    for column, before in ways:
        values = {index: str(getattr(rows[index], column)) for index in within}
        matches = [p for p, value in values.items() if value == name or (before and value.endswith(before + name))]
        if matches:
            return matches
    return []


def _unknown(rows: Sequence[Block], wanted: str) -> str:
    bare = wanted.rpartition("::")[2].rpartition(".")[2]
    names = sorted({row.name for row in rows})
    # Other capitals first, then misspellings, then parts of names.
    folded = bare.casefold()
    near = [name for name in names if name.casefold() == folded]
    near += [name for name in difflib.get_close_matches(bare, names, _NEAR) if name not in near]
    near += [name for name in names if folded and folded in name.casefold() and name not in near]
    hint = f"near names: {', '.join(near[:_NEAR])}" if near else "blocks.parquet lists all names"
    return f"{wanted}: no block of this folder has this name; {hint}"


def read_needs(folder: Path) -> dict[str, Any]:
    """Return `required_repos.json`, with its entries by block.

    Raises: UserError if the file cannot be read.
    """
    with EXTRACTION.reading(folder):
        needs = read_requirements(folder).model_dump(by_alias=True, exclude_unset=True)
    return {**needs, "blocks": {entry["block"]: entry for entry in needs.get("blocks", ())}}


# --- as a class -------------------------------------------------------------------------------------------------------


def load_block(folder: Path | str, block: str, *, lean: bool = False) -> type[Any]:
    """Return the class of a block. This EXECUTES the block's file in your process without a sandbox: load trusted code.

    The file is the one recorded in the folder's table, byte for byte; nothing is written. Calling it again returns the
    same class.

    Args:
        folder: an extraction folder.
        block: a block id, or any name that `lemur show` accepts.
        lean: load the lean form, if there is one; also loaded if only that was published.

    Returns: The class, a subclass of `torch.nn.Module` if the block's level is at least `executed`.
    Raises: UserError if the block does not exist, has no code, its file was changed, or a package is missing;
        any exception that the file itself raises.

    Example:
        ```python
        import torch

        from extract import load_block

        layer = load_block("blocks", "SqueezeExcitation")(64)
        print(layer(torch.rand(1, 64, 8, 8)).shape)
        ```
    """
    row = find_block(Path(folder), block).row
    lean = row.lean_code is not None and (lean or row.code is None)
    sha256 = row.lean_sha256 if lean else row.code_sha256
    if row.file is None or sha256 is None or (row.lean_code if lean else row.code) is None:
        why = f"{row.error_kind}: {row.error}" if row.error_kind is not None else "it was not published"
        raise UserError(f"{row.block}: has no code ({why}); choose another block")
    path = Path(folder) / (get_minimized_path(row.file) if lean else row.file)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; run `lemur verify {folder}`") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise UserError(f"{path}: is not the code of {row.block}; run `lemur verify {folder}`")
    name = f"lemur_block_{sha256[:16]}"
    module = sys.modules.get(name)
    if module is None:
        module = _execute(name, path, data, row.block)
    kind = getattr(module, row.name, None)
    if not isinstance(kind, type):
        raise UserError(f"{row.block}: its file defines no class {row.name}; it is at level {row.level}")
    return kind


def _execute(name: str, path: Path, data: bytes, block: str) -> ModuleType:
    """Execute the file as a module under its own name, without writing bytecode to the folder as an import would."""
    module = ModuleType(name)
    module.__file__ = str(path.resolve())
    sys.modules[name] = module  # dataclasses, pickle and inspect look it up there
    try:
        exec(compile(data, module.__file__, "exec"), module.__dict__)  # noqa: S102 - the caller wants this
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError):
            raise UserError(f"{block}: {error}; install it: `lemur show` lists what a block requires") from error
        raise
    return module


# --- back to source lines ---------------------------------------------------------------------------------------------


def find(folder: Path, wanted: str) -> RowTrace:
    """Return the conversation of an id, or the block of an id, qualified or bare name, as in `lemur show`.

    Raises: UserError if nothing has this name (suggests similar ones), or several conversations do.
    """
    with EXTRACTION.reading(folder):
        chat = find_conversation(folder, wanted, SpecChatRow, ("id", "task", "block", "others"))
    if chat is None:
        return _block(folder, wanted)
    details = {"task": chat["task"], "about": [chat["block"], *chat["others"]]}
    return RowTrace((FolderLink("chat row", chat["id"], details), *_block(folder, chat["block"]).links), ())


def _block(folder: Path, wanted: str) -> RowTrace:
    named = find_block(folder, wanted)
    row, entry, needs = named.row, named.needs or {}, read_needs(folder)
    stated = {source["name"]: source for source in read_manifest(folder).details.get("sources", [])}
    sources = {**needs.get("sources", {}), **stated}
    block = {
        "level": row.level,
        "fidelity": row.fidelity,
        "code": row.code_sha256,
        "file": row.file,
        "licence": row.license,
        "others": list(named.others),
    }
    lines = {"lines": lines_text(row.start_line, row.end_line), "swhid": entry.get("swhid") or row.swhid}
    paths_by_source: dict[str, list[str]] = entry.get("made_from", {})
    parts = [(source, path) for source, paths in paths_by_source.items() for path in paths]
    links = [
        FolderLink("block", row.block, block),
        _release(row.source, sources),
        FolderLink("source", f"{row.source} {row.path}", lines),
        *(_release(source, sources) for source in paths_by_source if source != row.source),
        *(
            FolderLink("with", f"{source} {path}", {"swhid": needs.get("files", {}).get(source, {}).get(path)})
            for source, path in parts
            if (source, path) != (row.source, row.path)
        ),
    ]
    return RowTrace(tuple(links), ())


def find_code(folder: Path, sha256: str) -> RowTrace | None:
    """Return the block whose file or lean form has this digest."""
    with EXTRACTION.reading(folder):
        table = read_table([folder / TABLE], Block, ["block", "code_sha256", "lean_sha256"])
    indices = (pc.index(table[name], sha256).as_py() for name in ("code_sha256", "lean_sha256"))
    row_index = next((index for index in indices if index >= 0), -1)
    return find(folder, table["block"][row_index].as_py()) if row_index >= 0 else None


def _release(name: str, sources: dict[str, dict[str, Any]]) -> FolderLink:
    """Return a source as it was fetched; the digest is that of its Python files."""
    known = sources.get(name, {})
    facts = {"version": known.get("version"), "origin": known.get("origin"), "sha256": known.get("digest")}
    return FolderLink("release", name, {**facts, "swhid": known.get("swhid"), "licence": known.get("license")})


_MAX_ITEMS = 8
_SURE = ", 1.00]"  # end of a resolution without doubt


def show_block(folder: Path, wanted: str, *, as_json: bool = False) -> None:
    """Print one block: as JSON, or as lines and its code, in color on a terminal.

    Raises: The same as `find_block`.
    """
    named = find_block(folder, wanted)
    if as_json:
        facts = {**named.row.model_dump(mode="json"), "needs": named.needs, "others": list(named.others)}
        print(json.dumps(facts, indent=2))
        return
    print("\n".join(describe_block(named)))
    code = named.row.code or named.row.lean_code  # the lean form if only that was published
    if code is None:
        return
    print()
    if sys.stdout.isatty():
        _print_coloured(code)
    else:
        print(code, end="")


def describe_block(block: NamedBlock) -> list[str]:
    """Return everything except the code, as lines to print."""
    row, needs = block.row, block.needs or {}
    lines = f"{row.start_line}" if row.start_line == row.end_line else f"{row.start_line}-{row.end_line}"
    items = [("block", row.block), ("from", f"{row.path}, lines {lines}")]
    if needs.get("origin"):
        items.append(("origin", needs["origin"]))
    items.append(("swhid", needs.get("swhid") or row.swhid))
    items.append(("category", row.category))
    items.append(("level", row.level))
    if row.error_kind is not None:
        items.append(("stopped", f"{row.error_kind}: {row.error}"))
    if row.fidelity is not None:
        items.append(("fidelity", f"{row.fidelity} with the class of the installed package"))
    use = "" if is_permissive(row.license) else " (not known to be permissive: for local use)"
    items.append(("licence", f"{row.license}{use}"))
    if row.code is not None:
        items.append(("requires", ", ".join(needs.get("requires", row.requires)) or "nothing"))
        items += _list_items("with", _list_files(row, needs))
        items += _list_items("inferred", [way for way in row.resolutions if not way.endswith(_SURE)])
        items += _list_items("dynamic", row.dynamic.splitlines() if row.dynamic else ())
        items.append(("file", f"{row.file} ({plural(row.n_lines or 0, 'line')})"))
    if row.lean_code is not None:
        wanted = ", ".join(row.lean_requires) or "nothing"
        under = f", {row.lean_license}" if row.lean_license != row.license else ""
        size = plural(row.lean_lines or 0, "line")
        items.append(("lean", f"{get_minimized_path(row.file or '')} ({size}{under}), requires {wanted}"))
    elif row.lean_error is not None:
        items.append(("lean", f"none: {row.lean_error}"))
    if row.code is not None or row.lean_code is not None:
        items += _describe_run(row, read_arguments(row.arguments))
    items += _list_items("also", block.others)
    return [make_visible(f"{label:<10}{text}") for label, text in items]


def draw_block(folder: Path, wanted: str, path: Path) -> str:
    """Draw the computation graph of a block in eval mode with its recorded arguments into an SVG file.

    Returns: a message for the user.
    Raises: The same as `find_block`; UserError if the folder does not contain the graph of the block; UsageError if the
        file is not an `.svg`.
    """
    check_picture(path)
    block = find_block(folder, wanted).row.block
    spec = read_spec(folder, block)
    graph = None if spec is None else read_spec_graph(spec)
    if graph is None:
        raise UserError(f"{block}: what it computes is not known here, or was not published; choose another block")
    return f"{path}: {plural(draw(graph, path, block), 'box', 'boxes')}, what it computes in eval mode"


def _list_files(row: Block, needs: Mapping[str, Any]) -> list[str]:
    """Return the files that it was extracted from, other than its own."""
    files = [(source, path) for source, paths in needs.get("made_from", {}).items() for path in paths]
    return [f"{source} {path}" for source, path in files if (source, path) != (row.source, row.path)]


def _list_items(label: str, items: Sequence[str]) -> list[tuple[str, str]]:
    """Return one line per item, with the label before the first, and the number of omitted items."""
    pairs = [("" if index else label, item) for index, item in enumerate(items[:_MAX_ITEMS])]
    return pairs + ([("", f"and {len(items) - _MAX_ITEMS:,} more")] if len(items) > _MAX_ITEMS else [])


def _describe_run(row: Block, worked: WorkingCalls | None) -> list[tuple[str, str]]:
    """Return how it runs, and what was observed; empty if unknown."""
    items = []
    if worked is not None:
        items.append(("runs as", f"block = {worked.constructor_call(row.name)}"))
        items += [("", call)] if (call := worked.forward_call()) else []
    observed = read_observed(row)
    if observed is None:
        return items if row.observed is None else [*items, ("observed", "not readable; run `lemur verify`")]
    cases = []
    for case in observed.cases:
        inputs = ", ".join(f"{key} {value}" for key, value in case.inputs.items())
        cases.append(f"{inputs or 'nothing'} -> {', '.join(case.outputs) or 'no tensor'}")
    items += _list_items("shapes", cases)
    facts = [plural(observed.parameters, "parameter")]
    facts += [f"{observed.trainable:,} trainable"] if observed.trainable != observed.parameters else []
    facts += [f"{observed.buffers:,} in buffers"] if observed.buffers else []
    if observed.gradients is not None:
        facts.append(f"gradients reach {observed.gradients:,} of {plural(observed.tensors or 0, 'tensor')}")
    facts += ["train and eval differ"] if observed.train_differs else []
    facts += ["returns its input in eval mode"] if observed.identity_in_eval else []
    items.append(("observed", "; ".join(facts)))
    if observed.layers:
        items.append(("layers", ", ".join(f"{layer} {number:,}" for layer, number in observed.layers.items())))
    return items


def _print_coloured(code: str) -> None:
    """Print code in color, with control characters escaped, because the code is foreign."""
    safe = "\n".join(make_visible(line) for line in code.rstrip("\n").split("\n"))
    Console().print(Syntax(safe, "python", theme="ansi_dark", background_color="default", word_wrap=True))
