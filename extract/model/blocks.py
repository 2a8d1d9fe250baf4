"""Access to the blocks of an extraction folder: read, find by name, load as classes, show with their source lines."""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.compute as pc

from extract.specs.make import print_call, read_observed, read_spec, read_spec_graph
from lemur_core.describe.picture import check_picture, draw
from lemur_core.files.errors import MissingNameError, UserError, near_names
from lemur_core.files.foreign import decode_python
from lemur_core.files.markdown import make_visible, plural
from manifests.conversations import find_conversation
from manifests.folders.kinds import EXTRACTION, FolderLink, FoundItem, lines_text
from manifests.folders.manifest import read_manifest
from manifests.folders.tables import as_records, open_table, read_table
from manifests.provenance import TABLE, get_minimized_path
from manifests.provenance.licenses import NOASSERTION, combine_licenses, is_permissive
from manifests.provenance.parts import BlockNeeds, Requirements, read_requirements
from manifests.records import Block, SpecChatRow

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
    with EXTRACTION.reading(folder), open_table(folder / TABLE, Block) as file:
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if index < size:
                (row,) = as_records(file.read_row_group(group, list(Block.model_fields)).slice(index, 1), Block)
                return row
            index -= size
    raise IndexError(index)


# --- by name ----------------------------------------------------------------------------------------------------------


def find_block(folder: Path, wanted: str) -> Block:
    """Return the row of the block that a name refers to.

    Args:
        wanted: a block id, a qualified name or the end of one, or a bare name; each may be prefixed by `SOURCE::`, with
            or without the version. If several match, the first one wins: that of the source with the highest priority.
    Raises: UserError if the folder is not an extraction, or no block has this name.
    """
    return _look_up(folder, wanted)[0]


def _look_up(folder: Path, wanted: str) -> tuple[Block, list[str]]:
    """Return the row of a block, and the ids of others of the same name with their levels, in the table's order."""
    EXTRACTION.open(folder)
    rows = read_blocks(folder, _COLUMNS)
    indices = match(rows, wanted)
    if not indices:
        bare = wanted.rpartition("::")[2].rpartition(".")[2]
        near = near_names(bare, (row.name for row in rows))
        hint = f"near names: {', '.join(near)}" if near else "`lemur list DIR` lists all names"
        raise MissingNameError(f"{wanted}: no block of this folder has this name; {hint}")
    others = [f"{rows[index].block} ({rows[index].level})" for index in indices[1:]]
    return read_block(folder, indices[0]), others


def match(rows: Sequence[Block], wanted: str) -> list[int]:
    """Return the indices of the rows that a name refers to, by the first interpretation of the name with a match."""
    source, separator, name = wanted.rpartition("::")
    within = [
        (index, row)
        for index, row in enumerate(rows)
        if name and (not separator or source in (row.source, row.source.partition("@")[0]))
    ]
    # Whole names before parts: a bare name must not match the end of another block's.
    return (
        [index for index, row in within if row.block == wanted]
        or [index for index, row in within if row.qualname == name]
        or [index for index, row in within if row.name == name]
        or [index for index, row in within if row.qualname.endswith(f".{name}")]
    )


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
    row = find_block(Path(folder), block)
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
        exec(compile(decode_python(data), module.__file__, "exec"), module.__dict__)  # noqa: S102 - the caller wants this
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError):
            raise UserError(f"{block}: {error}; install it: `lemur show` lists what a block requires") from error
        raise
    return module


# --- what is shown ----------------------------------------------------------------------------------------------------


def find(folder: Path, wanted: str) -> FoundItem:
    """Return the conversation of an id, or the block of an id, qualified or bare name, as in `lemur show`.

    Raises: UserError if nothing has this name (suggests similar ones), or several conversations do.
    """
    with EXTRACTION.reading(folder):
        chat = find_conversation(folder, wanted, SpecChatRow, ("id", "task", "block"))
    if chat is None:
        return _describe(folder, wanted)
    link = FolderLink("chat row", chat["id"], {"task": chat["task"], "about": chat["block"]})
    return _describe(folder, chat["block"]).behind(link)


def find_code(folder: Path, sha256: str) -> FoundItem | None:
    """Return the block whose file or lean form has this digest."""
    with EXTRACTION.reading(folder):
        table = read_table([folder / TABLE], Block, ["block", "code_sha256", "lean_sha256"])
    indices = (pc.index(table[name], sha256).as_py() for name in ("code_sha256", "lean_sha256"))
    row_index = next((index for index in indices if index >= 0), -1)
    return find(folder, table["block"][row_index].as_py()) if row_index >= 0 else None


def _describe(folder: Path, wanted: str) -> FoundItem:
    row, others = _look_up(folder, wanted)
    with EXTRACTION.reading(folder):
        requirements = read_requirements(folder) if row.code is not None else Requirements()
    needs = next((entry for entry in requirements.blocks if entry.block == row.block), None)
    files = [(source, path) for source, paths in (needs.files if needs else {}).items() for path in paths]
    further = [file for file in files if file != (row.source, row.path)]
    stated = {name: source.license for name, source in requirements.sources.items()}
    parts = [stated.get(name) or NOASSERTION for name in {row.source, *dict(files)}]
    facts = list_facts(row, parts, needs=needs, further=[" ".join(file) for file in further], folder=folder)
    shown = [("block", row.block), *facts, ("also", others), ("rebuilds", _describe_rebuilding(folder, row))]
    return FoundItem(
        tuple(_list_links(folder, row, needs, requirements, further, others)),
        lines=[make_visible(line) for label, value in shown for line in _list_lines(label, value)],
        facts={
            **row.model_dump(mode="json"),
            "needs": needs and needs.model_dump(by_alias=True, exclude_unset=True),
            "others": others,
        },
        # The lean form if only that was published, or if the closed file is for reading in an editor.
        code=row.lean_code if _is_long(row) else row.code or row.lean_code,
        draw=partial(draw_block, folder, row.block),
    )


def _list_links(
    folder: Path,
    row: Block,
    needs: BlockNeeds | None,
    requirements: Requirements,
    further: Sequence[tuple[str, str]],
    others: Sequence[str],
) -> Iterator[FolderLink]:
    """Yield the links from a block to its release, its lines, and the further files of which it has definitions."""
    sources = {name: source.model_dump() for name, source in requirements.sources.items()}
    sources |= {source["name"]: source for source in read_manifest(folder).details.get("sources", [])}

    def link_release(name: str) -> FolderLink:
        """Return a source as it was fetched; the digest is that of its Python files."""
        known = sources.get(name, {})
        facts = {"version": known.get("version"), "origin": known.get("origin"), "sha256": known.get("digest")}
        return FolderLink("release", name, {**facts, "swhid": known.get("swhid"), "license": known.get("license")})

    facts = {"level": row.level, "fidelity": row.fidelity, "code": row.code_sha256, "file": row.file}
    yield FolderLink("block", row.block, {**facts, "license": row.license, "others": others})
    yield link_release(row.source)
    lines = lines_text(row.start_line, row.end_line)
    swhid = (needs and needs.swhid) or row.swhid
    yield FolderLink("source", f"{row.source} {row.path}", {"lines": lines, "swhid": swhid})
    yield from (link_release(source) for source in (needs.files if needs else ()) if source != row.source)
    for source, path in further:
        yield FolderLink("with", f"{source} {path}", {"swhid": requirements.files.get(source, {}).get(path)})


_MAX_ITEMS = 8
_LONG = 2_000  # lines
_ORIGINS: Mapping[str, str] = {
    "default": "none are needed",
    "recorded": "recorded in a running model",
    "guessed above": "recorded in a running model whose own arguments were guessed",
    "call site": "as code or documentation of the sources states them",
    "search": "found by search",
}
#: A label, and a text or one for each line; without a text, nothing is shown.
Fact = tuple[str, str | Sequence[str] | None]


def _is_long(row: Block) -> bool:
    """Return True if the closed file is for reading in an editor, as where a base of a framework is in it."""
    return row.lean_code is not None and (row.n_lines or 0) > _LONG


def _list_lines(label: str, value: str | Sequence[str] | None) -> Iterator[str]:
    """Yield a fact as lines, the label before the first, and at last the number of items that are left out."""
    items = [value] if isinstance(value, str) else list(value or ())
    if len(items) > _MAX_ITEMS and label != "runs as":
        items[_MAX_ITEMS:] = [f"and {len(items) - _MAX_ITEMS:,} more"]
    yield from (f"{'' if number else label:<10}{item}" for number, item in enumerate(items) if item)


def list_facts(
    row: Block,
    parts: Iterable[str],
    *,
    needs: BlockNeeds | None = None,
    further: Sequence[str] = (),
    folder: Path = Path(),
    redact: Callable[[str], str] = str,
) -> Iterator[Fact]:
    """Yield everything that `lemur show` and the page say of a block, except its code.

    Args:
        parts: the licenses of all sources with code in its closed file.
        needs: the requirements of its file, if they are known.
        further: the files with definitions in it, besides its own.
        folder: of the library, as it is to be printed before its files.
        redact: removes what must not be shown from messages.
    """
    known = [row.license, *(parts if row.code is not None else ())]
    license_ = combine_licenses(known if row.license == NOASSERTION else set(known) - {NOASSERTION})
    use = "" if is_permissive(combine_licenses(known)) else " (not all known to be permissive: for local use)"
    yield "from", f"{row.path}, lines {lines_text(row.start_line, row.end_line)}"
    yield "origin", needs.origin if needs else None
    yield "swhid", (needs and needs.swhid) or row.swhid
    yield "category", row.category
    yield "level", row.level
    yield "not shown", [redact(line) for line in (row.not_shown or "").splitlines()]
    yield "stopped", row.error_kind and f"{row.error_kind}: {redact(row.error or '')}"
    yield "fidelity", row.fidelity and f"{row.fidelity} with the class of the installed package"
    yield "license", f"{license_}{use}"
    if row.code is not None:
        requires = needs.requires if needs and "requires" in needs.model_fields_set else row.requires
        yield "requires", ", ".join(requires) or "nothing"
        yield "with", further
        yield "dynamic", row.dynamic.splitlines() if row.dynamic else None
        hint = "; printed below is its lean form" if _is_long(row) else ""
        yield "file", f"{folder / (row.file or '')} ({plural(row.n_lines or 0, 'line')}){hint}"
    if row.lean_code is not None:
        under = f", {row.lean_license}" if row.lean_license != license_ else ""
        size = f"{plural(row.lean_lines or 0, 'line')}{under}"
        needed = ", ".join(row.lean_requires) or "nothing"
        yield "lean", f"{folder / get_minimized_path(row.file or '')} ({size}), requires {needed}"
    elif row.lean_error is not None:
        yield "lean", f"none: {redact(row.lean_error)}"
    if row.code is not None or row.lean_code is not None:
        yield from _describe_run(row)


def _describe_run(row: Block) -> Iterator[Fact]:
    """Yield how it runs, and what was observed."""
    yield "runs as", print_call(row, row.lean_code or row.code)
    yield "arguments", row.arguments_from and _ORIGINS[row.arguments_from]
    observed = read_observed(row)
    if observed is None:
        yield "observed", None if row.observed is None else "not readable; run `lemur verify`"
        return
    cases = []
    for case in observed.cases:
        inputs = ", ".join(f"{key} {value}" for key, value in case.inputs.items())
        cases.append(f"{inputs or 'nothing'} -> {', '.join(case.outputs) or 'no tensor'}")
    yield "shapes", cases
    yield "also", [f"{row.name}({call.init})({call.forward})" for call in observed.calls[1:]]
    facts = [plural(observed.parameters, "parameter")]
    facts += [f"{observed.trainable:,} trainable"] if observed.trainable != observed.parameters else []
    facts += [f"{observed.buffers:,} in buffers"] if observed.buffers else []
    if observed.gradients is not None:
        facts.append(f"gradients reach {observed.gradients:,} of {plural(observed.tensors or 0, 'tensor')}")
    facts += ["train and eval differ"] if observed.train_differs else []
    facts += ["returns its input in eval mode"] if observed.identity_in_eval else []
    yield "observed", "; ".join(facts)
    yield "layers", ", ".join(f"{layer} {number:,}" for layer, number in observed.layers.items())


def _describe_rebuilding(folder: Path, row: Block) -> str | None:
    """Return whether a module that is written from the spec alone equals the block, if that was tried."""
    spec = read_spec(folder, row.block)
    algorithm = spec and spec.algorithm
    if not algorithm or algorithm.rebuilds is None:
        return None
    varied = f"varied: {', '.join(algorithm.varied)}" if algorithm.varied else "no size varied"
    return f"in every bit; {varied}" if algorithm.rebuilds else f"no: {algorithm.rebuild_error}"


def draw_block(folder: Path, wanted: str, path: Path) -> str:
    """Draw the computation graph of a block in eval mode with its recorded arguments into an SVG file.

    Returns: a message for the user.
    Raises: The same as `find_block`; UserError if the folder does not contain the graph of the block; UsageError if the
        file is not an `.svg`.
    """
    check_picture(path)
    block = find_block(folder, wanted).block
    spec = read_spec(folder, block)
    graph = None if spec is None else read_spec_graph(spec)
    if graph is None:
        raise UserError(f"{block}: what it computes is not known here, or was not published; choose another block")
    return f"{path}: {plural(draw(graph, path, block), 'box', 'boxes')}, what it computes in eval mode"
