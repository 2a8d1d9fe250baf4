"""The complete extraction: open, index, discover, select, emit, validate, write.

`BlockExtractor` is the Python interface; its methods have the same names as in NN-RAG.
"""

import contextlib
import gc
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

from extract.arguments.hints import HintFinder, Hints
from extract.emit.emit import CachedEmitter, Emitted, Unresolved
from extract.folder.write import write_extraction
from extract.minimize.header import LeanFile, lean_columns, lean_file
from extract.minimize.stage import Running, lean_all
from extract.model.categories import category_of
from extract.model.results import Options, Result, RunFacts, at_least, by_size, code_columns
from extract.proofs.name_resolution import Bound, compare_bindings
from extract.proofs.rebuild import Original, count_rewritten, rebuild_all
from extract.proofs.runtime import Runtime, original_folders, runtime_for
from extract.proofs.trace import Traced, trace_all
from extract.proofs.validate import Candidate, Comparison, Pair, Verdict, check_text, compare_all, validate_all
from extract.resolve.discover import Found, Selected, Selection, discover, select
from extract.resolve.index import RUNTIME_NAMES, Index
from extract.resolve.modules import Library, Module
from extract.resolve.requirements import add_versions, distributions_of
from extract.resolve.standins import SOURCE_NAME, replacement_source
from extract.sources import Source, SourceFile, open_available, open_source
from extract.specs.algorithm import judged, stored_of
from extract.specs.make import positional_names
from extract.specs.outline import outline_of
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note, progress
from lemur_core.files.workers import available_cores
from manifests.folders.manifest import Manifest, Stopwatch
from manifests.records import Block
from manifests.records.corpus import load_corpus

DISCOVERY_VERSION = 2
_MAX_LISTED = 3  # files that are not Python, listed by name
_FEW = 5  # maximum number of ambiguous names to list
_REASON = 120  # maximum length of the reason why a block was not compared


class BlockExtractor:
    """Extractor of a corpus's nn.Module classes as closed, executed blocks. A context manager.

    >>> with BlockExtractor(sources=["timm@1.0.30"]) as extractor:
    ...     block = extractor.extract_single_block("SEModule").row

    Args:
        corpus: name of a shipped corpus or a JSON file; `quick` if neither it nor sources are passed.
        sources: additional sources: NAME[@VERSION], git+URL[@REV] or a folder.
        options: other fields of `Options`, by name.
    Raises: UserError if no source can be opened.
    Source: https://arxiv.org/abs/2512.04329 (NN-RAG)
    """

    def __init__(self, corpus: str | None = None, sources: Sequence[str] = (), **options: Any) -> None:
        self.options = Options(corpus=corpus, sources=tuple(sources), **options)
        self.watch = Stopwatch()
        self._jobs = self.options.jobs or available_cores()
        self.facts = RunFacts(self.options)
        self._open()
        self.watch.lap("open sources")
        self.index = Index(policy=self.options.index)
        self.library = Library(self.facts.sources, self.index.facts)
        self.runtime = Runtime(folder=None, installed=(), unavailable=())
        self._classes: tuple[Found, ...] | None = None
        self._finder: HintFinder | None = None
        self._emitter = CachedEmitter(self.library, self.index, self.facts.sources)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.index.__exit__()

    def _open(self) -> None:
        options, facts = self.options, self.facts
        opened = [open_source(spec) for spec in options.sources]
        if options.corpus is not None or not options.sources:
            available, facts.unopened = open_available(load_corpus(options.corpus or "quick"))
            opened += available
        for name, reason in facts.unopened:
            note(f"left out: {name}: {reason}")
        if not opened:
            raise UserError(f"no source can be opened: {facts.unopened[0][1]}")
        unique: dict[str, Source] = {}
        for source in opened:
            unique.setdefault(source.name, source)
        facts.sources = tuple(sorted(unique.values(), key=lambda source: source.priority))

    # -- index and discovery -------------------------------------------------------------------------------------

    def warm_index_once(self) -> tuple[Found, ...]:
        """Index the files in scope and find their nn.Module classes; cached after the first call.

        Returns: The classes by priority of their source, then path and line.
        """
        if self._classes is None:
            RUNTIME_NAMES.load(self.index.remembered(RUNTIME_NAMES.key()))
            scope = [
                (source, file) for source in self.facts.sources for file in source.files if source.in_scope(file.path)
            ]
            self.index.add(scope)
            for message in _not_python(self.index.faults(scope)):
                note(message)
                self.facts.notes.append(message)
            self.watch.lap("index")
            modules = [self.library.by_path[source.name, file.path] for source, file in scope]
            classes = self._discover(modules)
            self._classes = tuple(item for item in classes if item.module.source.asks_for(item.name, item.qualname))
            self._note_unmatched(classes)
            self._keep_answers()
            self.watch.lap("discover")
        return self._classes

    def _note_unmatched(self, classes: Sequence[Found]) -> None:
        """Note the sources none of whose classes match the symbols in the corpus."""
        assert self._classes is not None
        chosen = {item.module.source.name for item in self._classes}
        for name in sorted({item.module.source.name for item in classes} - chosen):
            symbols = next(source.symbols for source in self.facts.sources if source.name == name)
            message = (
                f"{name}: none of its classes is called {' or '.join(symbols)}, as the corpus asks; see its symbols"
            )
            note(message)
            self.facts.notes.append(message)

    def _discover(self, modules: Sequence[Module]) -> list[Found]:
        """Return the classes in these files; cached, because they depend on the files alone."""
        about = [
            DISCOVERY_VERSION,
            RUNTIME_NAMES.key(),
            [(s.name, s.digest, s.paths, s.exclude) for s in self.facts.sources],
        ]
        key = "discovered:" + hashlib.sha256(json.dumps(about).encode()).hexdigest()
        stored = self.index.remembered(key)
        if stored is not None:
            listed = json.loads(stored)
            by_path = self.library.by_path
            return [Found(by_path[source, path], name, own, tuple(outer)) for source, path, name, own, outer in listed]
        classes = discover(self.library, modules)
        listed = [(f.module.source.name, f.module.file.path, f.name, f.own_forward, f.outer) for f in classes]
        self.index.remember(key, json.dumps(listed).encode())
        return classes

    def _keep_answers(self) -> None:
        if RUNTIME_NAMES.asked:
            self.index.remember(RUNTIME_NAMES.key(), RUNTIME_NAMES.dump())
            RUNTIME_NAMES.asked = False

    # -- extraction ----------------------------------------------------------------------------------------------

    def extract_single_block(self, name: str) -> Result:
        """Extract one class: by bare name (from the source with the highest priority), qualified name or block id.

        Raises: UserError if the class does not exist.
        """
        return self.extract_multiple_blocks([name])[0]

    def extract_multiple_blocks(self, names: Sequence[str]) -> list[Result]:
        """Extract several classes, in the order of the sources; names without a match are skipped."""
        return list(self.extract(select(self.warm_index_once(), Selection(names=tuple(names)))))

    def extract_blocks_from_file(
        self, path: Path | str, *, limit: int | None = None, start_from: str | None = None
    ) -> list[Result]:
        """Extract the classes named in a JSON list.

        Args:
            limit: maximum number of classes.
            start_from: skip all classes before this name.

        Raises: UserError if the file is not a JSON list of names, or `start_from` is not among them.
        """
        wanted = Selection(names=read_names(Path(path)), limit=limit, start_from=start_from)
        return list(self.extract(select(self.warm_index_once(), wanted)))

    def extract(self, selected: Selected, own: Collection[str] | None = None) -> Iterator[Result]:
        """Emit and validate the selected classes; yield results in their order.

        Args: own: names of the sources whose classes are validated, with results as in a full run; default: all.
        """
        wanted = [target for target in selected.found if own is None or target.module.source.name in own]
        if self.options.level == "discovered":
            yield from (_result(target, None, Verdict("discovered"), None, None, None) for target in wanted)
            return
        outcomes = self.emit(selected.found)
        names = {name for item in outcomes.values() if isinstance(item, Emitted) for name in item.requires}
        needed = add_versions(names, self.facts.sources)
        emitted = [item for target in wanted if isinstance(item := outcomes[target.block], Emitted)]
        verdicts = self._validate(emitted, needed)
        self.watch.lap("validate")
        compared = self._compare(emitted, verdicts) if self.options.fidelity else {}
        self.watch.lap("compare")
        bound = self._bindings(emitted, verdicts) if self.options.fidelity else {}
        self.watch.lap("bindings")
        traced = self._trace(emitted, verdicts)
        self.watch.lap("trace")
        answers = self._rebuild(emitted, verdicts, traced)
        self.watch.lap("rebuild")
        minimized = self._minimize(emitted, verdicts, traced)
        self.watch.lap("lean")
        for target in wanted:
            outcome, block = outcomes[target.block], target.block
            verdict = verdicts.get(block)
            result = _result(target, outcome, verdict, compared.get(block), answers.get(block), minimized.get(block))
            yield replace(result, row=result.row.model_copy(update=bound.get(block, {})))

    def emit(self, found: Sequence[Found]) -> dict[str, Emitted | Unresolved]:
        """Return the closed files of these classes, by block id."""
        outcomes: dict[str, Emitted | Unresolved] = {}
        with progress("emit", len(found), "blocks") as advance, _without_full_collections():
            for target in found:
                outcomes[target.block] = self._emitter.emit(target)
                gc.collect(1)
                advance(1)
        self._keep_answers()
        self.watch.lap("emit")
        return outcomes

    def _distributions(self, source: Source) -> set[str]:
        """Return the distribution names of a source; these are never installed, since the source is an origin."""
        packages = self.library.packages(source)
        return {source.name.partition("@")[0], *(name for package in packages for name in distributions_of(package))}

    def _validate(self, emitted: Sequence[Emitted], needed: Sequence[str]) -> dict[str, Verdict]:
        verdicts: dict[str, Verdict] = {}
        ready: list[Emitted] = []
        for item in emitted:
            verdict = verdicts[item.found.block] = check_text(item, self.options.level)
            if verdict.level == "compiled" and at_least(self.options.level, "executed"):
                ready.append(item)
        if ready:
            self._run(ready, needed, verdicts)
        return verdicts

    def _run(self, ready: Sequence[Emitted], needed: Sequence[str], verdicts: dict[str, Verdict]) -> None:
        own = sorted({name for source in self.facts.sources for name in self._distributions(source)})
        self.runtime = runtime_for(needed, known=own)
        with progress("validate", len(ready), "blocks") as advance:
            for candidate, verdict in validate_all(
                (self._candidate(item) for item in ready),
                self.index,
                self.options.level,
                jobs=self._jobs,
                folders=self.runtime.folders,
                retry_failed=self.options.retry_failed,
                unsafe=self.options.unsafe,
            ):
                verdicts[candidate.key] = verdict
                self.facts.validations_reused += verdict.reused
                self.facts.validations_run += not verdict.reused
                advance(1)

    def _candidate(self, item: Emitted) -> Candidate:
        """Return a file to run, with the corpus's hints about its arguments if these are searched."""
        hints = self._hints(item.found).to_json() if at_least(self.options.level, "constructed") else None
        origin = self.library.packages(item.found.module.source)
        return Candidate(item.found.block, item.found.name, item.code, origin, hints)

    def _hints(self, target: Found) -> Hints:
        if self._finder is None:
            self._finder = HintFinder(self.library, self.index, self._emitter)
        return self._finder.hints_for(target)

    def _compare(self, emitted: Sequence[Emitted], verdicts: dict[str, Verdict]) -> dict[str, Comparison]:
        """Compare blocks that reach `forward` with the originals of each source that can be imported here."""
        running = [item for item in emitted if at_least(verdicts[item.found.block].level, "forward")]
        sources = {item.found.module.source.name: item.found.module.source for item in running}
        folders = {name: original_folders(source) for name, source in sources.items()}
        pairs = [self._pair(item, verdicts[item.found.block], folders) for item in running]
        comparisons: dict[str, Comparison] = {}
        with progress("compare", len(pairs), "blocks") as advance:
            for comparison in compare_all(
                pairs,
                self.index,
                jobs=self._jobs,
                runtime=self.runtime.folders,
                unsafe=self.options.unsafe,
            ):
                comparisons[comparison.block] = comparison
                advance(1)
        wrong = [
            f"{c.block}: not as the original: {c.detail}" for c in comparisons.values() if c.fidelity == "mismatch"
        ]
        self.facts.notes += sorted(wrong)
        reasons = Counter(c.detail[:_REASON] for c in comparisons.values() if c.fidelity is None)
        self.facts.details["not_compared"] = by_size(reasons)
        return comparisons

    def _bindings(self, emitted: Sequence[Emitted], verdicts: dict[str, Verdict]) -> dict[str, dict[str, Any]]:
        """Compare the names of executed blocks with those of the originals that can be imported here."""
        executed = [item for item in emitted if at_least(verdicts[item.found.block].level, "executed")]
        sources = {item.found.module.source.name: item.found.module.source for item in executed}
        folders = {name: original_folders(source) for name, source in sources.items()}
        files = [
            Bound(
                block=item.found.block,
                name=item.found.name,
                code=item.code,
                module=item.found.stem,
                folders=folders[item.found.module.source.name],
                digest=item.found.module.source.digest,
                standins=tuple(sorted(name for name, (source, _) in item.places.items() if source == SOURCE_NAME)),
            )
            for item in executed
        ]
        bindings: dict[str, dict[str, Any]] = {}
        with progress("names", len(files), "blocks") as advance:
            for block, columns in compare_bindings(
                files, self.index, jobs=self._jobs, runtime=self.runtime.folders, unsafe=self.options.unsafe
            ):
                bindings[block] = columns
                advance(1)
        return bindings

    def _trace(self, emitted: Sequence[Emitted], verdicts: dict[str, Verdict]) -> dict[str, Traced]:
        """Trace the graphs of the blocks that reach `forward`."""
        running = [item for item in emitted if at_least(verdicts[item.found.block].level, "forward")]
        pairs = [self._pair(item, verdicts[item.found.block], {}) for item in running]
        traces: dict[str, Traced] = {}
        for trace in trace_all(
            pairs, self.index, jobs=self._jobs, runtime=self.runtime.folders, unsafe=self.options.unsafe
        ):
            traces[trace.block] = trace
        reasons = Counter(trace.error for trace in traces.values() if trace.error is not None)
        self.facts.details["no_graph"] = by_size(reasons)
        return traces

    def _minimize(
        self, emitted: Sequence[Emitted], verdicts: dict[str, Verdict], traced: Mapping[str, Traced]
    ) -> dict[str, LeanFile | str]:
        """Minimize the blocks that reach `forward` to the code they execute; return the reason where that fails."""
        running = {item.found.block: item for item in emitted if at_least(verdicts[item.found.block].level, "forward")}
        licenses = {source.name: source.license for source in (replacement_source(), *self.facts.sources)}
        work = []
        for block, item in running.items():
            observed = json.loads(verdicts[block].observed or "{}")
            pair, hints = self._pair(item, verdicts[block], {}), self._hints(item.found).to_json()
            work.append(Running(pair, observed, hints, traced[block].answer if block in traced else None))
        forms: dict[str, LeanFile | str] = {}
        for cut in lean_all(
            work, self.index, jobs=self._jobs, runtime=self.runtime.folders, unsafe=self.options.unsafe
        ):
            item = running[cut.block]
            arguments = json.loads(verdicts[cut.block].arguments or "{}")
            module = item.found.module
            root = module.source.name, module.file.path
            forms[cut.block] = (
                cut.error or ""
                if cut.lean is None
                else lean_file(cut, item.code, arguments, root, item.places, licenses)
            )
        return forms

    def _rebuild(
        self, emitted: Sequence[Emitted], verdicts: dict[str, Verdict], traced: Mapping[str, Traced]
    ) -> dict[str, Mapping[str, Any]]:
        """Return the traces, with whether each block can be rebuilt from its spec; checked against the originals."""
        answers = {block: rebuilt.answer for block, rebuilt in traced.items() if rebuilt.answer is not None}
        items = [item for item in emitted if item.found.block in answers]
        specs = [self._original(item, verdicts[item.found.block], answers[item.found.block]) for item in items]
        rewritten = list(
            rebuild_all(specs, self.index, jobs=self._jobs, runtime=self.runtime.folders, unsafe=self.options.unsafe)
        )
        self.facts.details["rebuilt"] = count_rewritten(rewritten)
        self.facts.details["not_rebuilt"] = by_size(
            Counter(rebuilt.kind for rebuilt in rewritten if rebuilt.rebuilds is not True)
        )
        return {
            rebuilt.block: judged(answers[rebuilt.block], rebuilt.rebuilds, rebuilt.answer.sizes_fail)
            for rebuilt in rewritten
        }

    def _original(self, item: Emitted, verdict: Verdict, answer: Mapping[str, Any]) -> Original:
        target = item.found
        first, last = target.lines
        about = {
            "name": target.name,
            "path": target.module.file.path,
            "start_line": first,
            "end_line": last,
            "license": target.module.source.license,
        }
        names = positional_names(outline_of(item.code).method(target.name, "forward"))
        pair = self._pair(item, verdict, {})
        return Original(target.block, stored_of(answer, names), answer["graph"], about, pair)

    def _pair(self, item: Emitted, verdict: Verdict, folders: Mapping[str, tuple[Path, ...]]) -> Pair:
        assert verdict.arguments is not None
        module = item.found.module
        companions = self._hints(item.found).to_json()["companions"]
        return Pair(
            block=item.found.block,
            name=item.found.name,
            code=item.code,
            module=item.found.stem,
            original=item.found.root.name + (item.found.nested.made if item.found.nested is not None else ""),
            origin=self.library.packages(module.source),
            folders=folders.get(module.source.name, ()),
            arguments=json.loads(verdict.arguments),
            digest=module.source.digest,
            companions=tuple(each for each in companions if each["name"] in verdict.arguments),
        )


@contextlib.contextmanager
def _without_full_collections() -> Iterator[None]:
    """Collect only young objects during the block: full collections would traverse all caches for each syntax tree."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _result(
    target: Found,
    outcome: Emitted | Unresolved | None,
    verdict: Verdict | None,
    compared: Comparison | None,
    answer: Mapping[str, Any] | None,
    minimized: LeanFile | str | None,
) -> Result:
    module = target.module
    first, last = target.lines
    bases = [".".join(base) for base in target.facts.bases if base]
    emitted = outcome if isinstance(outcome, Emitted) else None
    code = emitted.code if emitted else None
    if isinstance(outcome, Unresolved):
        verdict = Verdict("discovered", str(outcome.reason), outcome.detail)
    assert verdict is not None
    row = Block(
        block=target.block,
        name=target.name,
        qualname=target.qualname,
        source=module.source.name,
        path=module.file.path,
        start_line=first,
        end_line=last,
        category=category_of(target.name, target.qualname, bases),
        level=verdict.level,
        error_kind=verdict.kind,
        error=verdict.error,
        fidelity=compared.fidelity if compared is not None else None,
        **code_columns(code),
        requires=emitted.requires if emitted else (),
        swhid=f"swh:1:cnt:{module.file.blob}",
        license=module.source.license,
        seconds=verdict.seconds if not verdict.reused else None,
        digest=module.source.digest,
        resolutions=emitted.resolutions if emitted else (),
        dynamic="\n".join(emitted.dynamic) or None if emitted else None,
        arguments=verdict.arguments,
        observed=verdict.observed,
        **lean_columns(minimized),
        graph=answer["graph"] if answer else None,
        graph_widths=answer["graph_widths"] if answer else None,
    )
    return Result(row, emitted.files if emitted else (), answer)


def read_names(path: Path) -> tuple[str, ...]:
    """Return the names in a JSON list.

    Raises: UserError if the file cannot be read or is not such a list.
    """
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; give a JSON list of class names") from error
    except ValueError as error:
        raise UserError(f"{path}: not a JSON list of class names: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise UserError(
            f'{path}: not a JSON list of class names; for example ["SEModule", "timm.layers.drop.DropPath"]'
        )
    return tuple(names)


def extract_to(out: Path, options: Options, *, force: bool = False) -> Manifest:
    """Extract as `options` specify and write the folder `out` atomically.

    Args: force: replace an existing folder.
    Returns: The manifest of the folder: counts by level, source, category and failure; inputs and outputs with digests.
    Raises: UserError if a source, a name or `out` is invalid; RetryableError if an index or repository
        cannot be reached.
    """
    with BlockExtractor(**{field.name: getattr(options, field.name) for field in fields(options)}) as extractor:
        facts = extractor.facts
        classes = extractor.warm_index_once()
        if not classes:
            names = ", ".join(source.name for source in facts.sources)
            raise UserError(f"{names}: no subclass of torch.nn.Module in scope; use another --source or --path")
        selected = select(classes, options.selection)
        results = list(extractor.extract(selected))
        runtime = extractor.runtime
        facts.notes = [
            *(f"{name}: no class of that name" for name in selected.missing),
            *(f"{name}, for execution: {reason}" for name, reason in runtime.unavailable),
            *facts.notes,
        ]
        if len(selected.others) <= _FEW:
            facts.notes += [
                f"{name}: chosen by priority; also {', '.join(ids)}" for name, ids in selected.others.items()
            ]
        facts.index_hits, facts.index_parsed = extractor.index.hits, extractor.index.parsed
        facts.details = {
            "installed_for_execution": list(runtime.installed),
            "not_compared": {},
            "no_graph": {},
            **facts.details,
        }
        return write_extraction(out, results, facts, extractor.watch, force=force)


def _not_python(faults: Sequence[tuple[Source, SourceFile, str]]) -> list[str]:
    """Describe by source how many files could not be parsed, and the first of them with the reason."""
    by_source: dict[str, list[str]] = {}
    for source, file, why in faults:
        by_source.setdefault(source.name, []).append(f"{file.path}: {why}")
    return [
        f"{name}: {plural(len(files), 'file is', 'files are')} not Python, and left out: "
        + "; ".join(files[:_MAX_LISTED])
        + ("; …" if len(files) > _MAX_LISTED else "")
        for name, files in by_source.items()
    ]
