"""The Python interface of extraction: one function that writes a library of blocks, and the library as objects.

Everything here calls the modules below; the command line and programs therefore do the same.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.extractor import extract_to
from extract.folder.verify import verify
from extract.model.blocks import find, find_block, iterate_blocks, load_block, read_block, read_blocks
from extract.model.options import ExtractOptions
from extract.model.results import Options
from extract.proofs.rebuild import list_shapes, rebuild_block
from extract.search import open_index
from extract.specs.make import read_spec, read_spec_graph
from lemur_core.files.atomic import PathLike, check_free
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import hide_progress
from lemur_core.files.workers import on_cluster
from lemur_core.graphs.graph import Graph
from manifests.folders.kinds import EXTRACTION, Check, FolderLink, manifest_link
from manifests.folders.manifest import Manifest
from manifests.folders.tables import read_frame
from manifests.records import Block, Level, Spec

if TYPE_CHECKING:
    import pandas


def extract(
    source: PathLike | Sequence[PathLike] = (),
    *,
    out: PathLike,
    corpus: str | None = None,
    names: Sequence[str] = (),
    options: ExtractOptions | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    force: bool = False,
    progress: bool = False,
) -> "BlockLibrary":
    """Extract the `nn.Module` classes of repositories as closed, validated blocks, and write a folder of them.

    Args:
        source: `NAME[@VERSION]` of a released package, `git+URL[@REV]` or a folder; or several of these.
        out: the folder to write; it is written completely or not at all.
        corpus: the name of a shipped corpus or a JSON file; `quick` if there is no source either.
        names: bare names, qualified names or block ids; all classes in scope by default.
        options: which classes, and how far they are validated; all of them, up to `backward`, by default.
        jobs: worker processes; all cores by default.
        ray: the address of a Ray cluster that does their work, or `auto`; this process by default.
        force: replace a folder that exists.
        progress: show progress on stderr.

    Returns:
        The library in `out`.

    Raises:
        UserError: if a source, a name or `out` cannot be used, or there is no sandbox.
        RetryableError: if a package index or repository cannot be reached.

    Example:
        ```python
        from extract import extract

        library = extract("./mylib", names=["SqueezeExcitation", "ConvNormAct"], out="blocks")
        print(library.manifest.counts["reached"]["backward"])
        ```
    """
    sources = [source] if isinstance(source, str | os.PathLike) else source
    folder = Path(out)
    options = options or ExtractOptions()
    stated = {field.name: getattr(options, field.name) for field in fields(options)}
    named = tuple(os.fspath(item) for item in sources)
    run = Options(**stated, corpus=corpus, sources=named, names=tuple(names), jobs=jobs)
    with hide_progress(unless=progress):
        check_free(folder, force=force)
        with on_cluster(ray):
            extract_to(folder, run, force=force)
    return BlockLibrary(folder)


@dataclass(frozen=True, slots=True)
class RebuiltBlock:
    """The module that was written from a spec alone, and how it compares with the original.

    Attributes:
        code: the text of the module.
        proved: outputs, gradients and buffers equal those of the original in every bit; False if the original cannot
            be run.
        sizes: the input sizes at which they were compared, and no others; empty if not proved.
        varied: the dimensions of inputs that differed between these, as `x[0]`.
    """

    code: str
    proved: bool
    sizes: str
    varied: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class LibraryBlock:
    """One block of a library: its code, its spec, its graph and its provenance.

    Nothing is executed by reading the attributes. Only `load` runs the block in your process.

    Attributes:
        folder: the folder of the library.
        row: the row of the block in the table of blocks.

    Example:
        ```python
        block = library["SqueezeExcitation"]
        print(block.id, block.level, block.license)
        module = block.load(trusted=True)(16)
        ```
    """

    folder: Path
    row: Block

    def __repr__(self) -> str:
        source, row = self.row.source.partition("@")[0], self.row
        lines = plural(row.n_lines or 0, "line")
        return f"<LibraryBlock {source}::{row.name} {row.level} {lines} {row.license}>"

    @property
    def id(self) -> str:
        """Return the id of the block, `SOURCE::QUALNAME`."""
        return self.row.block

    @property
    def name(self) -> str:
        """Return the bare name of the class."""
        return self.row.name

    @property
    def level(self) -> Level:
        """Return the highest level of validation that the block reached."""
        return self.row.level

    @property
    def license(self) -> str:
        """Return the SPDX expression of the block's license, or `NOASSERTION`."""
        return self.row.license

    @property
    def code(self) -> str | None:
        """Return the closed file of the block; None if it was not emitted or not published."""
        return self.row.code

    @property
    def minimized(self) -> str | None:
        """Return the file cut down to the functions that the known arguments enter; None if there is none."""
        return self.row.lean_code

    @cached_property
    def spec(self) -> Spec | None:
        """Return the neutral spec of the block, without source text; None if it has none."""
        return read_spec(self.folder, self.id)

    @cached_property
    def graph(self) -> Graph | None:
        """Return the graph of the block in eval mode, at the sizes of its arguments; None if it is not known."""
        return None if self.spec is None else read_spec_graph(self.spec)

    def load(self, *, trusted: bool, minimized: bool = False) -> type[Any]:
        """Execute the file of the block in this process, outside the sandbox, and return the class.

        Args:
            trusted: say that you trust the code; it must be True.
            minimized: load the minimized form, if there is one.

        Returns:
            The class, a subclass of `torch.nn.Module` for blocks that reached level `executed`.

        Raises:
            UsageError: if `trusted` is not True.
            UserError: if the block has no code, its file was changed, or a package is missing.
        """
        # Not by truth: a value such as "no" must not load foreign code.
        if trusted is not True:
            raise UsageError(f"{self.id}: loading it executes its code here; pass trusted=True if you trust it")
        return load_block(self.folder, self.id, lean=minimized)

    def rebuild(self, *, unsafe_no_sandbox: bool = False) -> RebuiltBlock:
        """Write the block again from its spec alone, and compare it with the original in the sandbox.

        Args:
            unsafe_no_sandbox: run the code without the sandbox; only for code that you trust.

        Returns:
            The module and how it compares.

        Raises:
            UserError: if the spec has no algorithm, or the rebuilt module is not equal to the original.
        """
        spec = self.spec
        if spec is None or spec.algorithm is None:
            raise UserError(f"{self.id}: its spec does not state what it computes; choose another block")
        with hide_progress():
            answer = rebuild_block(self.folder, spec, unsafe=unsafe_no_sandbox)
        return RebuiltBlock(answer.source or "", answer.proven, list_shapes(answer), tuple(answer.varied))

    def trace(self) -> tuple[FolderLink, ...]:
        """Return the steps from the block back to the lines of the release that its code is from."""
        return (*find(self.folder, self.id).links, manifest_link(self.folder, EXTRACTION.open(self.folder)))


@dataclass(frozen=True, init=False, repr=False)
class BlockLibrary:
    """Open a folder that `extract` wrote. A library is a path, too: pass it wherever a folder is expected.

    Attributes:
        folder: the folder of the library.
        manifest: how it was created, with counts and digests.

    Args:
        folder: a finished extraction.

    Raises:
        UserError: if the folder is not an extraction.

    Example:
        ```python
        from extract import BlockLibrary

        library = BlockLibrary("blocks")
        block = library["SqueezeExcitation"]
        nearest = library.search("channel attention", limit=5)
        assert all(check.ok for check in library.verify())
        ```
    """

    folder: Path
    manifest: Manifest = field(compare=False)

    def __init__(self, folder: PathLike) -> None:
        object.__setattr__(self, "folder", Path(folder))
        object.__setattr__(self, "manifest", EXTRACTION.open(self.folder))

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        reached = ", ".join(f"{number:,} {level}" for level, number in self.manifest.counts["levels"].items() if number)
        return f"<BlockLibrary {self.folder} {plural(len(self), 'block')}: {reached}>"

    @cached_property
    def blocks(self) -> "pandas.DataFrame":
        """Return the table of all blocks, with their codes."""
        with EXTRACTION.reading(self.folder):
            return read_frame(EXTRACTION.files(self.folder, "blocks"))

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Return the ids of all blocks, in the order of the table."""
        return tuple(row.block for row in read_blocks(self.folder, ["block"]))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[LibraryBlock]:
        return (LibraryBlock(self.folder, row) for row in iterate_blocks(self.folder))

    def __contains__(self, block: object) -> bool:
        return block in self.ids

    def __getitem__(self, name: str) -> LibraryBlock:
        """Return the block of an id, a qualified name or a bare name; of several, that of the first source.

        Raises:
            UserError: which is a KeyError, too, if no block has this name; it lists near names.
        """
        return LibraryBlock(self.folder, find_block(self.folder, name))

    def search(self, query: str, *, limit: int = 10) -> tuple[LibraryBlock, ...]:
        """Return the blocks that match a query in words, best first.

        Args:
            query: names, layers, or what a block does.
            limit: blocks at most.

        Raises:
            UserError: if no block matches.
        """
        with hide_progress():
            hits, _ = open_index(self.folder).search(query, limit)
        indices = {block: index for index, block in enumerate(self.ids)}
        rows = (read_block(self.folder, indices[hit["block"]]) for hit in hits)
        return tuple(LibraryBlock(self.folder, row) for row in rows)

    def verify(self, *, jobs: int | None = None) -> tuple[Check, ...]:
        """Return all checks of the folder: digests, schemas, counts and guarantees; code runs in the sandbox alone.

        Args:
            jobs: worker processes; all cores by default.
        """
        with hide_progress():
            return tuple(verify(self.folder, jobs=jobs))
