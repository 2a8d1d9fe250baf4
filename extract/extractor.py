"""The complete extraction: open, index, discover, select, emit, validate, write.

`BlockExtractor` is the Python interface; its methods have the same names as in NN-RAG.
"""

import contextlib
import gc
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from extract.arguments.hints import HintFinder
from extract.emit.emit import Emitted, Emitter, Unresolved
from extract.folder.write import write_extraction
from extract.model.results import Options, Result, RunFacts, at_least
from extract.proofs.validate import BlockVerdict
from extract.resolve.dependencies import Reason
from extract.resolve.discover import Hierarchy, Selected, Selection, TargetClass, discover, select
from extract.resolve.distributions import read_confirmed
from extract.resolve.index import NEEDS, FactsIndex
from extract.resolve.modules import CorpusIndex, Module
from extract.resolve.runtime_names import RUNTIME_NAMES
from extract.sources import PackageSource, SourceFile, name_apart, open_available, open_source
from extract.stages import (
    PendingBlock,
    StageContext,
    choose_form,
    count_outcomes,
    emit_with_extras,
    find_lacking_extras,
    run_stages,
)
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note, progress
from lemur_core.sandbox.cached import run_versions
from manifests.folders.manifest import Manifest, Stopwatch
from manifests.provenance import is_guess
from manifests.records.corpus import load_corpus

DISCOVERY_VERSION = 5
_CLASS = re.compile(rb"\bclass\s+(?=([^\s(:\[]+))")  # the name is not consumed: a comment may end with `class`
_MAX_LISTED = 3  # files that are not Python, listed by name
_FEW = 5  # maximum number of ambiguous names to list


class BlockExtractor:
    """Extractor of a corpus's nn.Module classes as closed, executed blocks. A context manager.

    Args:
        corpus: name of a shipped corpus or a JSON file; `quick` if neither it nor sources are passed.
        sources: additional sources: NAME[@VERSION], git+URL[@REV] or a folder.
        options: other fields of `Options`, by name.
    Raises: UserError if no source can be opened.
    Source: https://arxiv.org/abs/2512.04329 (NN-RAG)

    Example:
        ```python
        from extract import BlockExtractor

        with BlockExtractor(sources=["./mylib"]) as extractor:  # or ["timm@1.0.30"]
            print(extractor.extract_single_block("SqueezeExcitation").row.level)
        ```
    """

    def __init__(self, corpus: str | None = None, sources: Sequence[str] = (), **options: Any) -> None:
        self.options = Options(corpus=corpus, sources=tuple(sources), **options)
        self.watch = Stopwatch()
        self.facts = RunFacts(self.options)
        self._open()
        self.watch.lap("open sources")
        self.index = FactsIndex(policy=self.options.index)
        confirmed = read_confirmed(self.options.distributions)
        self.library = CorpusIndex(self.facts.sources, self.index.facts, distributions=confirmed)
        self._classes: tuple[TargetClass, ...] | None = None
        self._emitter = Emitter(self.library, self.index, self.facts.sources)
        finder = HintFinder(self.library, self.index, self._emitter)
        self.context = StageContext(self.facts, self.library, self.index, finder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.index.__exit__()

    def _open(self) -> None:
        options, facts = self.options, self.facts
        opened = name_apart(open_source(spec) for spec in options.sources)
        if options.corpus is not None or not options.sources:
            available, facts.unopened = open_available(load_corpus(options.corpus or "quick"))
            opened += available
        for name, reason in facts.unopened:
            note(f"left out: {name}: {reason}")
        if not opened:
            raise UserError(f"no source can be opened: {facts.unopened[0][1]}")
        unique: dict[str, PackageSource] = {}
        for source in opened:
            # A source on the command line replaces that of the corpus.
            unique.setdefault(source.name, source)
        facts.sources = tuple(sorted(unique.values(), key=lambda source: source.priority))
        facts.notes += [text for source in facts.sources for text in source.left_out]

    # -- index and discovery -------------------------------------------------------------------------------------

    def warm_index_once(self) -> tuple[TargetClass, ...]:
        """Index the files in scope and find their nn.Module classes; cached after the first call.

        Returns: The classes by priority of their source, then path and line.
        """
        if self._classes is None:
            modules = self._read(self._list_scope())
            classes = self._discover(modules)
            self._classes = self._choose(classes)
            self._note_faults(modules)
            self._note(_describe_unmatched(self.facts.sources, classes, self._classes))
        return self._classes

    def _list_scope(self) -> list[Module]:
        by_path = self.library.by_path
        return [by_path[s.name, file.path] for s in self.facts.sources for file in s.files if s.in_scope(file.path)]

    def select(self, wanted: Selection) -> Selected:
        """Select classes. Where only names are wanted, the files that define such a class are read, and no others.

        Raises: UserError as `select`, or if there are no classes.
        """
        names = wanted.names
        if self._classes is None and names and wanted == Selection(names, limit=wanted.limit):
            modules = self._list_defining(names)
            classes = self._choose(discover(self.library, self._read(modules)))
            if {name for item in classes for name in (item.name, item.qualname, item.block)} >= set(names):
                self._note_faults(modules)
                return select(classes, wanted, self._explain)
        classes = self.warm_index_once()
        if not classes and not names:
            sources = ", ".join(source.name for source in self.facts.sources)
            raise UserError(f"{sources}: no subclass of torch.nn.Module in scope; use another --source or --path")
        return select(classes, wanted, self._explain)

    def _list_defining(self, names: Iterable[str]) -> list[Module]:
        """Return the files whose text has classes of these names, bare or qualified."""
        wanted = {name.rpartition(".")[2].encode() for name in names}
        return [module for module, classes in self._named.items() if not wanted.isdisjoint(classes)]

    @cached_property
    def _named(self) -> dict[Module, set[bytes]]:
        """The words behind `class` in the text of each file in scope."""
        return {module: set(_CLASS.findall(module.text)) for module in self._list_scope()}

    def _explain(self, name: str) -> str:
        return Hierarchy(self.library).explain_absence(self._list_defining([name]), name)

    def _read(self, modules: list[Module]) -> list[Module]:
        """Index files, and return them."""
        RUNTIME_NAMES.load(self.index.recall(RUNTIME_NAMES.key()))
        self.index.add([(module.source, module.file) for module in modules])
        self.watch.lap("index")
        return modules

    def _choose(self, classes: Sequence[TargetClass]) -> tuple[TargetClass, ...]:
        """Return the classes that the corpus asks for."""
        chosen = tuple(item for item in classes if item.module.source.asks_for(item.name, item.qualname))
        self._keep_answers()
        self.watch.lap("discover")
        return chosen

    def _note_faults(self, modules: Iterable[Module]) -> None:
        self._note(_describe_faults(self.index.faults([(module.source, module.file) for module in modules])))

    def _note(self, messages: Iterable[str]) -> None:
        for message in messages:
            note(message)
            self.facts.notes.append(message)

    def _discover(self, modules: Sequence[Module]) -> list[TargetClass]:
        """Return the classes in these files; cached, because they depend on the files alone."""
        scopes = [(source.name, source.digest, source.paths, source.exclude) for source in self.facts.sources]
        about = [DISCOVERY_VERSION, RUNTIME_NAMES.key(), scopes]
        key = "discovered:" + hashlib.sha256(json.dumps(about).encode()).hexdigest()
        stored = self.index.recall(key)
        if stored is not None:
            by_path = self.library.by_path
            return [TargetClass(by_path[source, path], name) for source, path, name in json.loads(stored)]
        classes = discover(self.library, modules)
        listed = [(f.module.source.name, f.module.file.path, f.name) for f in classes]
        self.index.remember(key, json.dumps(listed).encode())
        return classes

    def _keep_answers(self) -> None:
        if RUNTIME_NAMES.has_new_answers:
            self.index.remember(RUNTIME_NAMES.key(), RUNTIME_NAMES.dump())
            RUNTIME_NAMES.has_new_answers = False

    # -- extraction ----------------------------------------------------------------------------------------------

    def extract_single_block(self, name: str) -> Result:
        """Extract one class: by bare name (from the source with the highest priority), qualified name or block id.

        Raises: UserError if the class does not exist.
        """
        return self.extract_multiple_blocks([name])[0]

    def extract_multiple_blocks(self, names: Sequence[str]) -> list[Result]:
        """Extract several classes, in the order of the sources; names without a match are skipped."""
        return list(self.extract(self.select(Selection(names=tuple(names)))))

    def extract(self, selected: Selected) -> Iterator[Result]:
        """Emit the selected classes, and pass them through all stages; yield results in their order."""
        if self.options.level == "discovered":
            yield from (PendingBlock(target, None, BlockVerdict("discovered")).result() for target in selected.classes)
            return
        outcomes = self._emit(selected.classes)
        packages = [pair for item in outcomes.values() if isinstance(item, Emitted) for pair in item.packages.items()]
        self._note(
            f"{package}: imported, but no metadata of its source names the distribution, so none is fetched; state it"
            f" there, or with --distribution {package}=NAME"
            for package in sorted({package for package, requirement in packages if is_guess(requirement)})
        )
        files = [item for item in outcomes.values() if isinstance(item, Emitted)]
        self.context.require(files)
        pending = []
        for target in selected.classes:
            outcome = outcomes[target.block]
            if isinstance(outcome, Emitted):
                pending.append(PendingBlock(target, outcome, BlockVerdict("emitted")))
            else:
                verdict = BlockVerdict("discovered", str(outcome.reason), outcome.detail)
                pending.append(PendingBlock(target, None, verdict))
        emitted = [block for block in pending if block.emitted is not None]
        run_stages(emitted, self.context, self.watch)
        lacking = {block.target.block: extras for block in emitted if (extras := find_lacking_extras(block))}
        if lacking:
            wanting = [block for block in emitted if block.target.block in lacking]
            others = emit_with_extras(wanting, lacking, self.library, self.index)
            self.context.require([*files, *(block.emitted for block in others.values() if block.emitted is not None)])
            run_stages(list(others.values()), self.context, self.watch)
            for index, block in enumerate(pending):
                if (key := block.target.block) in lacking:
                    pending[index] = choose_form(block, lacking[key], others.get(key))
        self.facts.details |= count_outcomes(pending)
        self.facts.notes += sorted(
            f"{item.block}: not as the original: {item.detail}; see Limits in docs/extraction.md, or use the package"
            for block in pending
            if (item := block.comparison) is not None and item.fidelity == "mismatch"
        )
        for reason, number in self.facts.details["not_compared"].items():
            self.facts.notes.append(f"{plural(number, 'block')} not compared with the original: {reason}")
        yield from (block.result() for block in pending)

    def _emit(self, targets: Sequence[TargetClass]) -> dict[str, Emitted | Unresolved]:
        """Return the closed files of these classes, by block id."""
        outcomes: dict[str, Emitted | Unresolved] = {}
        with progress("closed files", len(targets), "blocks") as advance, contextlib.ExitStack() as stack:
            # Each file leaves a syntax tree, for which full collections would traverse all caches: young objects only.
            if gc.isenabled():
                gc.disable()
                stack.callback(gc.enable)
            for target in targets:
                try:
                    outcomes[target.block] = self._emitter.emit(target)
                except (RecursionError, MemoryError):
                    why = "cannot be copied within the stack and memory of Python"
                    outcomes[target.block] = Unresolved(Reason.TOO_LARGE, why)
                gc.collect(1)
                advance(1)
        self._keep_answers()
        self.watch.lap("emit")
        return outcomes


def read_names(path: Path) -> tuple[str, ...]:
    """Return the names in a JSON list.

    Raises: UserError if the file cannot be read or is not such a list.
    """
    check_plain(path)
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; give a JSON list of class names") from error
    except ValueError as error:
        raise UserError(f"{path}: not a JSON list of class names: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        example = '["SEModule", "timm.layers.drop.DropPath"]'
        raise UserError(f"{path}: not a JSON list of class names; for example {example}")
    return tuple(names)


def extract_to(out: Path, options: Options, *, force: bool = False) -> Manifest:
    """Extract as `options` specify and write the folder `out` atomically.

    Args: force: replace an existing folder.
    Returns: The manifest of the folder: counts by level, source, category and failure; inputs and outputs with digests.
    Raises: UserError if a source, a name or `out` is invalid; RetryableError if an index or repository
        cannot be reached.
    """
    with BlockExtractor(**{field.name: getattr(options, field.name) for field in fields(options)}) as extractor:
        results = _extract_all(extractor)
        return write_extraction(out, results, extractor.facts, extractor.watch, force=force)


def _extract_all(extractor: BlockExtractor) -> list[Result]:
    """Return the results of the classes that the options select, and add notes and details to the facts of the run."""
    facts, options = extractor.facts, extractor.options
    if at_least(options.level, "executed"):
        run_versions()  # names what is not installed, before anything is copied
    selected = extractor.select(options.selection)
    results = list(extractor.extract(selected))
    runtime = extractor.context.runtime
    facts.notes = [
        *(f"{name}: {why}" for name, why in selected.missing.items()),
        *(f"{name}, for execution: {reason}" for name, reason in runtime.unavailable),
        *dict.fromkeys(facts.notes),  # the blocks with extras passed through the stages again
    ]
    # With many names most are ambiguous, and the notes would hide all others.
    if len(selected.others) <= _FEW:
        facts.notes += [f"{name}: chosen by priority; also {', '.join(ids)}" for name, ids in selected.others.items()]
    nothing: dict[str, Any] = {"not_compared": {}, "no_graph": {}}
    installed = {"installed_for_execution": list(runtime.installed), "days": dict(runtime.days)}
    facts.details = {**installed, **nothing, **facts.details}
    return results


def _describe_unmatched(
    sources: Iterable[PackageSource], classes: Iterable[TargetClass], chosen: Iterable[TargetClass]
) -> Iterator[str]:
    """Yield a note for each source none of whose classes match the symbols in the corpus."""
    symbols = {source.name: source.symbols for source in sources}
    unmatched = {item.module.source.name for item in classes} - {item.module.source.name for item in chosen}
    for name in sorted(unmatched):
        yield f"{name}: none of its classes is called {' or '.join(symbols[name])}, as the corpus asks; see its symbols"


def _describe_faults(faults: Sequence[tuple[PackageSource, SourceFile, str]]) -> Iterator[str]:
    """Describe by source how many files could not be parsed, and the first of them with the reason."""
    by_source: dict[tuple[str, bool], list[str]] = {}
    for source, file, why in faults:
        by_source.setdefault((source.name, why.startswith(NEEDS)), []).append(f"{file.path}: {why}")
    running = ".".join(map(str, sys.version_info[:2]))
    for (name, is_newer), files in by_source.items():
        shown = "; ".join([*files[:_MAX_LISTED], *(["…"] if len(files) > _MAX_LISTED else [])])
        count = plural(len(files), "file is", "files are")
        what = f"for a newer Python than {running}" if is_newer else "not Python, and left out"
        yield f"{name}: {count} {what}: {shown}"
