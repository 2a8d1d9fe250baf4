"""The stages that an emitted block passes through: `STAGES` lists them, in order.

Each stage selects its blocks by what is known about them so far, runs them in the sandbox, where outcomes are cached by
content, and records the outcome with the block. `PendingBlock.result` makes the row of all of them.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from extract.arguments.hints import HintFinder
from extract.arguments.messages import NAME, BlockUses, CompanionCode, make_uses
from extract.emit.emit import Emitted, Emitter
from extract.model.categories import find_category
from extract.model.results import Result, RunFacts, at_least, code_columns, sort_by_size
from extract.proofs.equivalence import BlockWithOriginal, EquivalenceResult, compare_all
from extract.proofs.minimize import LeanColumns, minimize_all
from extract.proofs.rebuild import REBUILD, RebuildAnswer, count_rebuilt, is_sampled, make_request, rebuild_all
from extract.proofs.runtime import PROVIDED, BlockRuntime, extra_folders, original_folders, releases_of, runtime_for
from extract.proofs.sdists import fetch_tests
from extract.proofs.validate import (
    EXECUTE,
    SEARCH_AND_VISIT,
    BlockVerdict,
    SearchRequest,
    check_text,
    validate_all,
)
from extract.proofs.visit import SIGN, VISIT, Visit, visit_all
from extract.recording.source import (
    RECORD_SOURCE,
    ArgumentsFrom,
    RecordedClass,
    find_origin,
    is_recorded,
    list_pytest,
    record_sources,
)
from extract.resolve.discover import TargetClass
from extract.resolve.distributions import add_versions, list_distributions, make_guess, parse_requirements
from extract.resolve.index import FactsIndex
from extract.resolve.modules import CorpusIndex
from extract.sources import PackageSource
from extract.specs.behavior import list_not_shown
from extract.specs.make import add_rebuild_outcome, positional_names, store_graphs
from extract.specs.outline import read_outline
from lemur_core.files.progress import progress
from lemur_core.files.workers import available_cores
from lemur_core.sandbox import META_PRELOAD, Failure
from lemur_core.sandbox.cached import SharedSandbox
from lemur_core.sandbox.stage import SandboxOptions, SandboxStage
from manifests.folders.manifest import Stopwatch
from manifests.records import LEVELS, Block, Level

_MAX_REASON = 120  # characters of the reason why a block was not compared
T = TypeVar("T")


@dataclass(slots=True)
class PendingBlock:
    """A class and its outcomes so far."""

    target: TargetClass
    emitted: Emitted | None  # None if no file could be written
    verdict: BlockVerdict
    pair: BlockWithOriginal | None = None
    comparison: EquivalenceResult | None = None
    visit: tuple[BlockUses, Visit] | None = None  # the request, and its answer
    graphs: Mapping[str, Any] | None = None  # of the visit, with whether the block can be rebuilt from them
    rebuilt: RebuildAnswer | None = None  # if it is in the sample that is rebuilt
    minimized: LeanColumns = field(default_factory=dict)
    arguments_from: ArgumentsFrom | None = None

    @property
    def closed(self) -> Emitted:
        """The closed file of an emitted block."""
        assert self.emitted is not None
        return self.emitted

    def result(self) -> Result:
        """Return the row of the block, with what its spec is made from."""
        target, emitted, verdict = self.target, self.emitted, self.verdict
        source, (first, last) = target.module.source, target.lines
        row = Block(
            block=target.block,
            name=target.name,
            qualname=target.qualname,
            source=source.name,
            path=target.module.file.path,
            start_line=first,
            end_line=last,
            category=find_category(
                target.name, target.qualname, [".".join(base) for base in target.facts.bases if base]
            ),
            level=verdict.level,
            error_kind=verdict.kind,
            error=verdict.error,
            fidelity=self.comparison.fidelity if self.comparison is not None else None,
            **code_columns(emitted.code if emitted else None),
            requires=emitted.requires if emitted else (),
            swhid=f"swh:1:cnt:{target.module.file.blob}",
            license=emitted.license if emitted else target.module.license,
            digest=source.digest,
            dynamic="\n".join(emitted.dynamic) or None if emitted else None,
            arguments=verdict.arguments_text,
            observed=verdict.observed_text,
            **self.minimized,
            graph=self.graphs["graph"] if self.graphs else None,
            graph_widths=self.graphs["graph_widths"] if self.graphs else None,
            arguments_from=self.arguments_from,
            not_shown="\n".join(list_not_shown(verdict.observed_text)) or None,
        )
        return Result(row, emitted.files if emitted else (), self.graphs)


@dataclass(slots=True)
class StageContext:
    """The state that the stages share.

    Attributes:
        facts: the options and sources; the stages add notes and counts.
        requires: what the emitted files need, PEP 508.
        packages: the packages that they import from each distribution, by normalized name.
        runtime: the folders with these requirements, once blocks were executed.
        shared: the sandbox of all stages. A job that runs a block alone can read nothing but its requirements.
        originals: by source, the folders from which its classes can be imported, once they were opened.
        tests: by released package, the folder of its tests and documents, which its sdist has.
    """

    facts: RunFacts
    library: CorpusIndex
    index: FactsIndex
    finder: HintFinder
    requires: Sequence[str] = ()
    packages: Mapping[str, frozenset[str]] = field(default_factory=dict)
    runtime: BlockRuntime = field(default_factory=lambda: BlockRuntime(folder=None, installed=(), unavailable=()))
    shared: SharedSandbox | None = None
    originals: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    tests: dict[str, Path] = field(default_factory=dict)
    _open: ExitStack = field(default_factory=ExitStack)
    _hints: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def require(self, blocks: Iterable[Emitted]) -> None:
        """Set what blocks need: the packages that they import, each in the versions that its own sources state."""
        by_name: dict[str, frozenset[str]] = {}
        by_sources: dict[tuple[str, ...], set[str]] = {}
        for block in blocks:
            by_sources.setdefault(tuple(dict.fromkeys(name for name, _ in block.files)), set()).update(block.requires)
            for package, requirement in block.packages.items():
                name = canonicalize_name(Requirement(requirement).name)
                by_name[name] = by_name.get(name, frozenset()) | {package}
        opened = {source.name: source for source in self.facts.sources}
        self.packages = by_name
        self.requires = sorted(
            {
                text
                for names, requires in by_sources.items()
                for text in add_versions(requires, [opened[name] for name in names if name in opened])
            }
        )

    @property
    def sandbox(self) -> SandboxOptions:
        """The options of the sandbox for blocks with their requirements."""
        jobs = self.facts.options.jobs or available_cores()
        unsafe = self.facts.options.unsafe_no_sandbox
        runtime = self.runtime.folders
        originals = {folder for folders in self.originals.values() for folder in folders}
        more = list_pytest() if originals else ()
        hidden = sorted({*originals, *self.tests.values(), *more}.difference(runtime))
        return {"jobs": jobs, "runtime": runtime, "unsafe": unsafe, "shared": self.shared, "hidden": hidden}

    @property
    def comparison(self) -> SandboxOptions:
        """The options of the sandbox in which blocks run with their originals, which it can read."""
        return {**self.sandbox, "hidden": ()}

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """End the sandbox of the stages with this context."""
        with self._open:
            yield
        self.shared = None

    def share_sandbox(self, stages: Iterable[SandboxStage[Any]]) -> SharedSandbox:
        """Return a sandbox for several stages, which can read the runtime and the originals."""
        options = self.sandbox
        shared = SharedSandbox(
            workers=options["jobs"],
            readable=sorted({*options["runtime"], *options["hidden"]}),
            unsafe=options["unsafe"],
            preload=META_PRELOAD,
            entries=[stage.guest for stage in stages],
        )
        return self._open.enter_context(shared)

    def open_originals(self, blocks: Mapping[str, PendingBlock]) -> None:
        """Provide the folders from which the originals of these blocks can be imported."""
        sources = {block.target.module.source.name: block.target.module.source for block in blocks.values()}
        self.originals = {name: original_folders(source) for name, source in sources.items()}
        recorded = {block.target.module.source.name for block in blocks.values() if is_recorded(block.target)}
        fetched = {
            name: fetch_tests(sources[name], self.originals[name], self.facts.notes.append) for name in sorted(recorded)
        }
        self.tests = {name: folder for name, folder in fetched.items() if folder is not None}

    def provide(self, source: PackageSource, package: str) -> Sequence[Path]:
        """Return folders with a package that a source turns out to need: another source, or what an extra has."""
        top = package.partition(".")[0]
        named = {item.name.partition("@")[0].replace("-", "_"): item for item in self.facts.sources}
        other = named.get(top, source)
        return extra_folders(source, package) if other is source else original_folders(other)

    def hints(self, target: TargetClass) -> Mapping[str, Any]:
        """Return how the corpus constructs and calls a class, as JSON values."""
        if target.block not in self._hints:
            self._hints[target.block] = self.finder.hints_for(target)
        return self._hints[target.block]

    def add_calls(self, recorded: RecordedClass) -> None:
        """Add recorded calls to the hints of a class."""
        target = recorded.target

        def find_companions(words: Sequence[str]) -> Sequence[CompanionCode]:
            modules = ((self.library.by_path.get(recorded.places[word]), word) for word in words)
            return list(self.finder.list_defined([(item, word) for item, word in modules if item is not None], target))

        self._hints[target.block] = recorded.add_to(self.hints(target), find_companions)

    def companions(self, block: PendingBlock) -> tuple[CompanionCode, ...]:
        """Return the companions that the arguments of a block name."""
        if block.verdict.arguments is None:
            return ()  # its hints were perhaps never searched for, which reads every file
        words = set(NAME.findall(str(block.verdict.arguments_text)))
        return tuple(item for item in self.hints(block.target)["companions"] if item["name"] in words)

    def named(self, block: PendingBlock) -> tuple[CompanionCode, ...]:
        """Return the companions that the recorded arguments of a block that does not run name, in strings, too.

        A registry finds the latter, and `isinstance` knows the classes of one file alone.
        """
        hints = self.hints(block.target)
        if not hints["companions"] or at_least(block.verdict.level, "forward"):
            return ()
        recorded = [call for call in (*hints["init"], *hints["forward"]) if call["way"] != "call"]
        texts = [text for call in recorded for text in (*call["args"], *dict(call["kwargs"]).values())]
        words = {word for text in texts for word in NAME.findall(text)}
        return tuple(item for item in hints["companions"] if item["name"] in words)

    def pair(self, block: PendingBlock) -> BlockWithOriginal:
        """Return how to run a block that reaches `forward`, and its original, without the folders of the latter."""
        if block.pair is None:
            target, arguments = block.target, block.verdict.arguments_text
            assert arguments is not None
            block.pair = BlockWithOriginal(
                block=target.block,
                name=target.name,
                code=block.closed.code,
                module=target.stem,
                original=target.name,
                origin=self.library.list_packages(target.module.source),
                folders=(),
                arguments=json.loads(arguments),
                digest=target.module.source.digest,
                companions=self.companions(block),
            )
        return block.pair


def validate(blocks: Sequence[PendingBlock], context: StageContext) -> None:
    """Find the level that each block reaches; those that compile are executed with all requirements installed."""
    facts, options = context.facts, context.facts.options
    for block in blocks:
        block.verdict = check_text(block.closed, options.level)
    ready = _by_id(block for block in blocks if block.verdict.level == "compiled")
    if not ready or not at_least(options.level, "executed"):
        return
    # A source is never installed as a requirement: it would be the origin that the blocks must do without.
    names = {source.name.partition("@")[0] for source in facts.sources}
    packages = {package for source in facts.sources for package in context.library.list_packages(source)}
    own = names.union(*map(list_distributions, packages))
    context.runtime = runtime_for(context.requires, sorted(own), context.packages)
    running = at_least(options.level, "forward")
    if running:
        context.open_originals(ready)
    context.shared = context.share_sandbox((EXECUTE, *(_PROOFS if running else ())))
    for block in blocks:
        block.emitted = _drop_others(block.emitted, context.runtime.without_package)
    unshown = _add_calls_of_sources(ready, context) if running else {}
    # Hints are searched for while other blocks run.
    requests = ((key, _request(block, context)) for key, block in ready.items())
    again = options.retry_failed
    verdicts = validate_all(requests, context.index, options.level, retry_failed=again, **context.sandbox)
    for key, verdict in _track("levels", len(ready), verdicts):
        ready[key].verdict = verdict
    if running:
        _define(ready, context, context.named)
        ended = _reaching(ready.values(), "forward")
        stopped = {block.target.module.source.name for key, block in ready.items() if key not in ended}
        facts.notes += [f"{name}: its own models were not run: {unshown[name]}" for name in unshown if name in stopped]
    _define(ready, context, context.companions)
    for block in ready.values():
        if arguments := block.verdict.arguments_text:
            block.arguments_from = find_origin(arguments, context.hints(block.target))


_PROOFS = (RECORD_SOURCE, SEARCH_AND_VISIT, VISIT, REBUILD, SIGN)


def _add_calls_of_sources(blocks: Mapping[str, PendingBlock], context: StageContext) -> dict[str, str]:
    """Add the calls of blocks in the models of their sources to their hints: these are tried before any guess.

    Returns: by source, why one shows no calls.
    """
    missing: dict[str, str] = {}
    targets = [block.target for block in blocks.values()]
    named = context.finder.list_naming
    # Imports inside functions are the blocks' imports, too.
    originals = {name: (*folders, *context.runtime.folders) for name, folders in context.originals.items()}
    places = originals, context.tests
    for item in record_sources(targets, *places, named, context.index, missing, context.provide, **context.comparison):
        context.add_calls(item)
    return missing


def _define(
    blocks: Mapping[str, PendingBlock],
    context: StageContext,
    choose: Callable[[PendingBlock], Sequence[CompanionCode]],
) -> None:
    """Add the classes that the arguments of a block name to its file, so that the call runs as it is printed.

    A block keeps its file where the larger one reaches a lower level.
    """
    larger: dict[str, Emitted] = {}
    available = frozenset().union(*context.packages.values())
    for key, block in blocks.items():
        companions = [item for item in choose(block) if item["name"] not in block.closed.places]
        emitted = context.finder.emit_with(block.target, companions) if companions else None
        emitted = _drop_others(emitted, context.runtime.without_package)
        if emitted is not None and emitted.packages.keys() <= available:
            larger[key] = emitted
    requests = [(key, _request(replace(blocks[key], emitted=emitted), context)) for key, emitted in larger.items()]
    for key, verdict in validate_all(requests, context.index, context.facts.options.level, **context.sandbox):
        block = blocks[key]
        if at_least(verdict.level, block.verdict.level):
            block.emitted, block.verdict, block.pair = larger[key], verdict, None


def _drop_others(emitted: Emitted | None, others: Collection[str]) -> Emitted | None:
    """Return a block whose requirements are guesses again where the distribution turned out to be another package's."""
    if emitted is None or not others:
        return emitted
    packages = {
        package: make_guess(package) if canonicalize_name(Requirement(text).name) in others else text
        for package, text in emitted.packages.items()
    }
    return replace(emitted, packages=packages)


def _request(block: PendingBlock, context: StageContext) -> SearchRequest:
    """Return the request for a file to run, with the corpus's hints about its arguments if these are searched."""
    target = block.target
    hints = context.hints(target) if at_least(context.facts.options.level, "constructed") else None
    return SearchRequest(
        block.closed.code, target.name, context.library.list_packages(target.module.source), hints=hints
    )


def compare(blocks: Sequence[PendingBlock], context: StageContext) -> None:
    """Compare blocks that reach `forward` with the originals of each source that can be imported here."""
    if not context.facts.options.fidelity:
        return
    running = _reaching(blocks, "forward")
    pairs = [
        replace(context.pair(block), folders=context.originals[block.target.module.source.name])
        for block in running.values()
    ]
    for comparison in _track("compare", len(pairs), compare_all(pairs, context.index, **context.comparison)):
        running[comparison.block].comparison = comparison


def visit(blocks: Sequence[PendingBlock], context: StageContext) -> None:
    """Visit the blocks that reach `forward`: their graphs, and what every known call of them executes and returns.

    Below the level `backward` nothing is visited: that would cost as much as all levels.
    """
    running = _reaching(blocks, "forward")
    if context.facts.options.level != "backward":
        for block in running.values():
            block.minimized = {"lean_error": "only `--level backward` minimizes"}
        return
    runtime = context.sandbox.get("runtime", ())
    requests = {
        key: make_uses(context.pair(block).run(runtime), block.verdict.observed or {}, context.hints(block.target))
        for key, block in running.items()
    }
    # Most were visited in the process of their search.
    known = {key: block.verdict.visit for key, block in running.items() if block.verdict.visit is not None}
    others = {key: request for key, request in requests.items() if key not in known}
    for key, answer in (*known.items(), *visit_all(others, context.index, **context.sandbox)):
        block, request, uses = running[key], requests[key], answer.uses
        block.visit = request, answer
        more: dict[str, Any] = {"calls": [], "own_lines": None}
        if not isinstance(uses, Failure):
            more = {"calls": uses.describe_calls(), "own_lines": uses.count_statements(request.code, request.name)}
        block.verdict = replace(block.verdict, observed={**(block.verdict.observed or {}), **more})
        if not isinstance(answer.graphs, Failure):
            block.graphs = answer.graphs.to_json()


def rebuild(blocks: Sequence[PendingBlock], context: StageContext) -> None:
    """Rebuild a sample of the traced blocks from their specs, and check them against the originals."""
    traced: dict[str, tuple[PendingBlock, Mapping[str, Any]]] = {}
    for block in blocks:
        if block.graphs is not None and is_sampled(block.target.block):
            traced[block.target.block] = block, block.graphs
    requests = {}
    runtime = context.sandbox.get("runtime", ())
    for key, (block, graphs) in traced.items():
        start, end = block.target.lines
        about: dict[str, Any] = {"name": block.target.name, "path": block.target.module.file.path}
        about |= {"start_line": start, "end_line": end, "license": block.closed.license}
        names = positional_names(read_outline(block.closed.code).method(block.target.name, "forward"))
        requests[key] = make_request(key, about, store_graphs(graphs, names), context.pair(block).run(runtime))
    for key, answer in rebuild_all(requests, context.index, **context.sandbox):
        block, graphs = traced[key]
        block.rebuilt, block.graphs = answer, add_rebuild_outcome(graphs, answer.facts, answer.sizes_fail)


def minimize(blocks: Sequence[PendingBlock], context: StageContext) -> None:
    """Minimize the visited blocks to the code they execute."""
    by_id = _by_id(blocks)
    work = {key: (*block.visit, block.emitted) for key, block in by_id.items() if block.visit and block.emitted}
    for key, columns in minimize_all(work, context.index, **context.sandbox):
        by_id[key].minimized = columns


#: The stages by the name of their lap in the report.
STAGES: Mapping[str, Callable[[Sequence[PendingBlock], StageContext], None]] = {
    "validate": validate,
    "compare": compare,
    "visit": visit,
    "rebuild": rebuild,
    "lean": minimize,
}


def run_stages(blocks: Sequence[PendingBlock], context: StageContext, watch: Stopwatch) -> None:
    """Pass blocks through all stages, which share a sandbox and take the releases of the day that was asked for."""
    with context.sharing(), releases_of(context.facts.options.as_of):
        for lap, stage in STAGES.items():
            stage(blocks, context)
            watch.lap(lap)


def count_outcomes(blocks: Sequence[PendingBlock]) -> dict[str, Any]:
    """Return what the manifest says of the stages of these blocks, beside their rows."""
    compared = [block.comparison for block in blocks if block.comparison is not None]
    graphs = [block.visit[1].graphs for block in blocks if block.visit is not None]
    rebuilt = [block.rebuilt for block in blocks if block.rebuilt is not None]
    reasons = {
        "not_compared": [item.detail[:_MAX_REASON] for item in compared if item.fidelity is None],
        "no_graph": [item.error for item in graphs if isinstance(item, Failure)],
        "not_rebuilt": [item.kind for item in rebuilt if not item.proven],
    }
    counts = {name: sort_by_size(Counter(texts)) for name, texts in reasons.items()}
    return {**counts, "rebuilt": count_rebuilt(rebuilt)}


def _by_id(blocks: Iterable[PendingBlock]) -> dict[str, PendingBlock]:
    return {block.target.block: block for block in blocks}


def _reaching(blocks: Iterable[PendingBlock], level: Level) -> dict[str, PendingBlock]:
    return _by_id(block for block in blocks if at_least(block.verdict.level, level))


def _track(label: str, total: int, items: Iterable[T]) -> Iterator[T]:
    """Yield the items and show progress."""
    with progress(label, total, "blocks") as advance:
        for item in items:
            yield item
            advance(1)


# --- packages of extras, which a class says it lacks: `No module named ...`, `pip install vis[image]` -----------------


_EXTRA = re.compile(r"extra == \"([^\"]+)\"")
Extras = Mapping[str, Sequence[str]]  # requirements by the name of the extra


def find_lacking_extras(block: PendingBlock) -> Extras:
    """Return the extras that the error of a block asks for, each with the requirements that it names."""
    source, error = block.target.module.source, block.verdict.error
    if block.emitted is None or block.verdict.kind is None or error is None:
        return {}
    named = {canonicalize_name(text) for word in re.findall(r"\w+", error) for text in list_distributions(word)}
    named -= {*PROVIDED, *(canonicalize_name(Requirement(text).name) for text in block.emitted.requires)}
    extras: dict[str, list[str]] = {}
    for item in parse_requirements(source.requires):
        for name in _EXTRA.findall(str(item.marker or "")):
            if f"[{name}]" in error or canonicalize_name(item.name) in named:
                extras.setdefault(name, []).append(f"{item.name}{item.specifier}")
    return extras


def emit_with_extras(
    blocks: Sequence[PendingBlock], lacking: Mapping[str, Extras], library: CorpusIndex, index: FactsIndex
) -> dict[str, PendingBlock]:
    """Return blocks, by id, as if their sources required the extras that they lack."""
    needs: dict[str, list[str]] = {}
    for block in blocks:
        texts = [text for texts in lacking[block.target.block].values() for text in texts]
        needs.setdefault(block.target.module.source.name, []).extend(texts)
    sources = [
        replace(source, requires=tuple(dict.fromkeys([*source.requires, *needs.get(source.name, ())])))
        for source in library.sources
    ]
    extended = CorpusIndex(
        sources,
        library.load,
        distributions=library.distributions,
        extras=tuple(sorted({text for texts in needs.values() for text in texts})),
    )
    emitter = Emitter(extended, index)
    emitted = {}
    for block in blocks:
        module = extended.by_path[block.target.module.source.name, block.target.module.file.path]
        target = replace(block.target, module=module)
        outcome = emitter.emit(target)
        if isinstance(outcome, Emitted):
            emitted[block.target.block] = PendingBlock(target, outcome, BlockVerdict("emitted"))
    return emitted


def choose_form(block: PendingBlock, extras: Extras, other: PendingBlock | None) -> PendingBlock:
    """Return the form with the extras if it gets as far with them, else the block, with the extra as what it lacks."""
    if other is not None and LEVELS.index(other.verdict.level) >= LEVELS.index(block.verdict.level):
        return other
    block.verdict = replace(block.verdict, kind=f"missing_extra: {', '.join(extras)}")
    return block
