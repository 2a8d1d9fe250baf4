"""The steps that code must pass, in order: checks of the text, runs in the sandbox, comparisons of the graph.

| step | |
|---|---|
| answer | the answer contains code |
| syntax | it is Python |
| policy | it uses only what a network needs, and loads no trained weights |
| closed | every name is defined |
| contract | it meets LEMUR's contract, checked without running; the requested block is a class in the file |
| runs | constructed and called as LEMUR's trainer does, it returns finite scores of the right shape |
| used | in the graph, the requested block contributes to the scores |
| learns | in fresh processes, finite gradients reach each parameter of the block, its own training changes them and
    moves the scores of images that it has not seen toward their labels |
| conforms | the requested block, called as its spec states, has the spec's shapes, parameters and half of its motifs;
    without motifs, most of its operations; without parameters, its outputs |
| novel | by curation's thresholds and by the graph it equals nothing in snapshots, the library or this run |

Code is executed only in the sandbox. Code that exceeds a limit there is not retried with wider limits.
"""

import ast
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, cast

from curate.compute.graphs import NetworkTracer, build_payload
from curate.compute.runs import BATCH, PRM, TASK_DATASETS
from curate.folder.novelty import novel
from curate.model.features import code_features
from curate.model.options import CurateOptions
from extract.arguments.messages import BlockRun, CallsToRun, SpecRebuild
from extract.proofs.rebuild import REBUILD
from extract.proofs.visit import TRACE
from extract.specs.algorithm import build_algorithm, graphs_in_spec
from lemur.synthesis.confirm import CONFIRM, confirm
from lemur.synthesis.policy import find_forbidden
from lemur.synthesis.request import Attempt
from lemur_core.describe.facts import MOVES
from lemur_core.files import Json
from lemur_core.files.python import decode_python
from lemur_core.files.workers import available_cores
from lemur_core.graphs.graph import LEAVES, Graph
from lemur_core.graphs.identity import similarity
from lemur_core.graphs.serialization import load_graphs
from lemur_core.sandbox import Failure
from lemur_core.sandbox.cached import workers_within_memory
from lemur_core.sandbox.stage import Retries, open_sandbox
from lemur_core.similarity.minhash import jaccard
from lemur_core.source.quality import drop_unevaluated, find_undefined_names
from manifests.records import Spec
from train.model.contract import check_contract

STEPS = ("answer", "syntax", "policy", "closed", "contract", "runs", "used", "learns", "conforms", "novel")

TASK = "img-classification"

_PARAMETERS = 0.10  # maximum relative difference
_MOTIFS = 0.5  # required share of the spec's motifs
_ROUNDING = 1e-4  # of the largest value: the same computation, written otherwise
_LAYOUT = MOVES - {"slice", "flip", "roll"}
_ANOTHER = "; make another architecture"
_OPERATIONS = 0.5  # the share of common operations, of all in both, that has to be exceeded

_TRACE = replace(TRACE, retries=Retries.NONE, label="")
_REBUILD = replace(REBUILD, label="")
_PRM = PRM | {"transform": "norm_32", "batch": BATCH}


@dataclass(slots=True)
class NetworkProposal:
    """The code of one attempt on its way through the steps. `fault` describes the failed step."""

    attempt: Attempt
    code: str | None
    step: str | None = None
    fault: Json | None = None
    facts: Json = field(default_factory=dict)
    graph: str | None = None
    widths: str | None = None

    def fail(self, step: str, error: str, **more: Any) -> None:
        """Record the failed step; the candidate takes no further steps."""
        self.step, self.fault = step, {"step": step, "error": error, **more}

    @property
    def steps_passed(self) -> tuple[str, ...]:
        """The steps that it passed."""
        return STEPS if self.step is None else STEPS[: STEPS.index(self.step)]


class Prover:
    """Runs many candidates at a time through the steps. A context manager; sandboxes start when needed.

    Args: folders: snapshots and extractions that a network must differ from.
    """

    def __init__(self, folders: Sequence[Path], *, jobs: int | None = None, unsafe: bool = False) -> None:
        workers = workers_within_memory(jobs or available_cores(), CONFIRM.limits)
        self._tracer = NetworkTracer(jobs=jobs, unsafe=unsafe)
        self._box = open_sandbox(None, [TRACE, REBUILD, CONFIRM], {"jobs": workers, "unsafe": unsafe})
        self._folders, self._jobs, self._unsafe = tuple(folders), jobs, unsafe
        self._kept: list[NetworkProposal] = []

    def __enter__(self) -> "Prover":
        return self

    def __exit__(self, *error: object) -> None:
        self._tracer.__exit__(*error)
        self._box.__exit__(*error)

    def prove(self, candidates: Sequence[NetworkProposal]) -> None:
        """Run all steps for candidates that passed `answer`; accepted ones count as known for later candidates.

        Raises: UserError if no sandbox is available, or a folder is not comparable.
        """
        for candidate in candidates:
            if candidate.code is not None and candidate.step is None:
                _check_statically(candidate)
        for step in (self._check_runs, self._check_learns, self.check_conformance, self._check_novelty):
            step([candidate for candidate in candidates if candidate.step is None])

    def _check_runs(self, candidates: Sequence[NetworkProposal]) -> None:
        inputs = build_payload(TASK, TASK_DATASETS[TASK], PRM)
        assert not isinstance(inputs, str)
        payloads = {number: inputs | {"code": candidate.code} for number, candidate in enumerate(candidates)}
        for number, traced in self._tracer.run(payloads, wider=False):
            candidate = candidates[number]
            if traced.graph is None:
                candidate.fail("runs", traced.error or "does not run")
                continue
            candidate.graph, candidate.widths = traced.graph, traced.widths
            name = candidate.attempt.block.spec.name
            if name in traced.answer["dead_classes"]:
                candidate.fail("used", f"nothing that {name} computes reaches the scores")

    def _check_learns(self, candidates: Sequence[NetworkProposal]) -> None:
        networks = {
            number: (candidate.code or "", candidate.attempt.block.spec.name)
            for number, candidate in enumerate(candidates)
            if candidate.step is None
        }
        for number, (step, why) in confirm(self._box, networks, _PRM).items():
            candidates[number].fail(step, why)

    def check_conformance(self, candidates: Sequence[NetworkProposal]) -> None:
        """Run the step `conforms` alone. Raises: UserError if no sandbox is available."""
        requests = {
            str(number): BlockRun(
                item.code or "",
                item.attempt.block.spec.name,
                (),
                (),
                cast(CallsToRun, item.attempt.block.arguments),
                (),
            )
            for number, item in enumerate(candidates)
        }
        results: dict[str, Json] = {}
        rebuilds: dict[str, SpecRebuild] = {}
        for reply in _TRACE.run(self._box, requests):
            traced, error = (None, reply.ending()) if reply.answer is None else (reply.outcome.value, "")
            if isinstance(reply.answer, Failure):
                traced, error = None, reply.answer.error
            assert isinstance(traced, dict | None)
            spec = candidates[int(reply.key)].attempt.block.spec
            results[reply.key] = found = conformance(spec, traced, error)
            # Blocks without parameters: the outputs of a module that is written from the spec decide.
            if spec.algorithm is not None and not spec.parameters and found["parameters"] == 0 and not found["same"]:
                graphs, call = graphs_in_spec(spec.algorithm), asdict(requests[reply.key])
                rebuilds[reply.key] = SpecRebuild(spec.name, "", graphs, call, _ROUNDING)
        for rebuilt in _REBUILD.run(self._box, rebuilds):
            faults = results[rebuilt.key]["faults"]
            if rebuilt.answer is not None and rebuilt.answer.proven:
                faults.clear()
            elif rebuilt.answer is not None and rebuilt.answer.error.startswith("in eval mode") and not faults:
                faults.append(f"computes something else: {rebuilt.answer.error}")
        for number, item in enumerate(candidates):
            found = results[str(number)]
            item.facts["same"] = found["same"]
            if found["faults"]:
                item.fail("conforms", f"{item.attempt.block.spec.name}: {'; '.join(found['faults'])}")

    def _check_novelty(self, candidates: Sequence[NetworkProposal]) -> None:
        if candidates and self._folders:
            codes = {str(number): candidate.code or "" for number, candidate in enumerate(candidates)}
            report = novel(codes, self._folders, task=TASK, jobs=self._jobs, unsafe=self._unsafe)
            for candidate, facts in zip(candidates, report.facts["files"], strict=True):
                near = facts["nearest"][0] if facts["nearest"] else None
                candidate.facts["nearest"] = near and {
                    name: near[name] for name in ("name", "id", "lexical", "structural", "graph", "agreement", "known")
                }
                if facts["verdict"] == "known" and near is not None:
                    candidate.fail("novel", f"known: {', '.join(near['known'])}: {near['name']}{_ANOTHER}")
        for candidate in candidates:
            for other in self._kept:
                if candidate.step is None and (alike := _find_likeness(candidate, other)):
                    candidate.fail("novel", f"attempt {other.attempt.number} of this run: {alike}{_ANOTHER}")
            if candidate.step is None:
                self._kept.append(candidate)


def _find_likeness(candidate: NetworkProposal, other: NetworkProposal) -> str:
    """Return what makes two networks duplicates of each other by curation's thresholds; empty if nothing does."""
    if candidate.code == other.code:
        return "the same code"
    if candidate.graph == other.graph:
        return "computes the same"
    one, two = (code_features(each.code or "") for each in (candidate, other))
    assert not isinstance(one, str)
    assert not isinstance(two, str)
    options = CurateOptions()
    if jaccard(one.shingles, two.shingles) >= options.lexical_threshold:
        return "near by text"
    return "near by structure" if jaccard(one.elements, two.elements) >= options.structural_threshold else ""


def _check_statically(candidate: NetworkProposal) -> None:
    """Run the steps that need no execution."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _check_text(candidate)
    except SyntaxError as error:
        candidate.fail("syntax", error.msg, line=error.lineno or 1)
    except (ValueError, RecursionError, MemoryError) as error:
        candidate.fail("syntax", f"cannot be read: {str(error) or type(error).__name__}")


def _check_text(candidate: NetworkProposal) -> None:
    """Check the text. Raises: SyntaxError, ValueError; RecursionError or MemoryError if it is nested too deeply."""
    assert candidate.code is not None
    text = decode_python(candidate.code)
    tree = ast.parse(text)
    # The parser alone accepts more: `return` outside of a function, for example.
    compile(text, "net.py", "exec", dont_inherit=True)
    if isinstance(features := code_features(candidate.code), str):
        raise ValueError(features)
    if (refused := next(find_forbidden(tree, candidate.code), None)) is not None:
        candidate.fail("policy", refused[1], line=refused[0])
        return
    drop_unevaluated(tree)
    if undefined := find_undefined_names(tree):
        candidate.fail("closed", "; ".join(undefined.values()))
        return
    if fault := check_contract(candidate.code):
        candidate.fail("contract", fault)
        return
    name = candidate.attempt.block.spec.name
    if not any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
        candidate.fail("contract", f"the file defines no class {name}")


def conformance(spec: Spec, answer: Mapping[str, Any] | None, error: str) -> Json:
    """Compare a class with the spec that it was written from.

    Args: answer: from the trace of the class with the spec's arguments; None if it does not run. error: the reason.
    Returns: `faults`, empty if it conforms; `parameters`, their number, null if it does not run; `same`, whether both
        have the same graph.
    """
    if answer is None:
        return {"faults": [f"does not run as its facts state: {error}"], "parameters": None, "same": False}
    assert spec.algorithm is not None
    algorithm = build_algorithm(answer, [argument.name for argument in spec.forward])
    own, theirs = load_graphs(graphs_in_spec(algorithm))["eval"], load_graphs(graphs_in_spec(spec.algorithm))["eval"]
    outputs, wanted = _outputs(own), _outputs(theirs)
    faults = [] if outputs == wanted else [f"gives {', '.join(outputs)} where its facts state {', '.join(wanted)}"]
    parameters, stated = parameters_used(own), parameters_used(theirs)
    if abs(parameters - stated) > _PARAMETERS * stated:
        faults.append(f"has {parameters:,} parameters where its facts state {stated:,}")
    kinds, motifs = ({motif.kind for motif in item.motifs} for item in (spec.algorithm, algorithm))
    if len(kinds & motifs) < _MOTIFS * len(kinds):
        faults.append(f"lacks {', '.join(sorted(kinds - motifs))}")
    same, operations, required = answer["graph"] == spec.graph, _operations(own), _operations(theirs)
    # Motifs are of several operations: blocks of few have none.
    if not kinds and not same and similarity(operations, required) <= _OPERATIONS:
        lacking = ", ".join(sorted((required - operations).elements())) or "nothing"
        more = ", ".join(sorted((operations - required).elements())) or "nothing"
        faults.append(f"computes something else: lacks {lacking}, has {more}")
    return {"faults": faults, "parameters": parameters, "same": same}


def _operations(form: Graph) -> Counter[str]:
    """Count the operations by name, without those that only change a layout."""
    return Counter(node.op for node in form.nodes if node.op not in LEAVES | _LAYOUT)


def _outputs(form: Graph) -> list[str]:
    return [f"{kind.dtype} {'×'.join(map(str, kind.shape))}" for kind in map(form.type_of, form.outputs)]


def parameters_used(form: Graph) -> int:
    """Count the elements of the parameters that are used in the computation."""
    return sum(prod(map(int, node.outputs[0].shape)) for node in form.nodes if node.op == "parameter")
