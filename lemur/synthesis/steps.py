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
| novel | by curation's thresholds it equals nothing in snapshots, the library or this run, nor a network by graph |

Code is executed only in the sandbox. Code that exceeds a limit there is not retried with wider limits.
"""

import ast
import builtins
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any, cast

from curate.compute.graphs import NetworkTracer, build_payload
from curate.compute.runs import BATCH, PRM, TASK_DATASETS
from curate.folder.novelty import NoveltyIndex, Query
from curate.model.corpus import code_features
from curate.model.pretrained import find_pretrained
from extract.arguments.messages import BlockRun, CallsToRun, SpecRebuild
from extract.proofs.rebuild import REBUILD
from extract.proofs.visit import TRACE
from extract.specs.make import build_algorithm, graphs_in_spec
from lemur.synthesis.confirm import CONFIRM, confirm
from lemur.synthesis.folder import STEPS, TASK
from lemur_core.describe.facts import MOVES
from lemur_core.files import Json
from lemur_core.files.foreign import decode_python
from lemur_core.files.workers import available_cores
from lemur_core.graphs.graph import LEAVES, Graph
from lemur_core.graphs.identity import similarity
from lemur_core.graphs.sizes import Sized
from lemur_core.sandbox import Failure
from lemur_core.sandbox.cached import workers_within_memory
from lemur_core.sandbox.stage import Retries, open_sandbox
from lemur_core.source.quality import drop_unevaluated, find_undefined_names
from manifests.records import Spec
from train.model.contract import check_contract

_PARAMETERS = 0.10  # maximum relative difference
_MOTIFS = 0.5  # required share of the spec's motifs
_OPERATIONS = 0.5  # the share of common operations, of all in both, that has to be exceeded
_ROUNDING = 1e-4  # of the largest value: the same computation, written otherwise
_LAYOUT = MOVES - {"slice", "flip", "roll"}
_ANOTHER = "; make another architecture"
_NEAREST = ("name", "id", "lexical", "structural", "graph", "agreement", "known")

_TRACE = replace(TRACE, retries=Retries.NONE, label="")
_REBUILD = replace(REBUILD, label="")
_PRM = PRM | {"transform": "norm_32", "batch": BATCH}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request: the spec of the block, the arguments that it ran with, and the seed that is passed to the model."""

    number: int
    spec: Spec
    arguments: Mapping[str, Any]
    goal: str = ""
    seed: int = 0


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
        """Record the failed step; the network takes no further steps."""
        self.step, self.fault = step, {"step": step, "error": error, **more}

    @property
    def steps_passed(self) -> tuple[str, ...]:
        """The steps that it passed."""
        return STEPS if self.step is None else STEPS[: STEPS.index(self.step)]


class Prover:
    """Runs many networks at a time through the steps. A context manager; sandboxes start when needed.

    Args: folders: snapshots and extractions that a network must differ from.
    """

    def __init__(self, folders: Sequence[Path], *, jobs: int | None = None, unsafe: bool = False) -> None:
        workers = workers_within_memory(jobs or available_cores(), CONFIRM.limits)
        self._tracer = NetworkTracer(jobs=jobs, unsafe=unsafe)
        self._box = open_sandbox(None, [TRACE, REBUILD, CONFIRM], {"jobs": workers, "unsafe": unsafe})
        self._folders, self._jobs = tuple(folders), jobs
        self._accepted: list[Query] = []

    def __enter__(self) -> "Prover":
        return self

    def __exit__(self, *error: object) -> None:
        self._tracer.__exit__(*error)
        self._box.__exit__(*error)

    @cached_property
    def _index(self) -> NoveltyIndex:
        return NoveltyIndex(self._folders, jobs=self._jobs)

    def prove(self, networks: Sequence[NetworkProposal]) -> None:
        """Run all steps for networks that passed `answer`; accepted ones count as known for later ones.

        Raises: UserError if no sandbox is available, or a folder is not comparable.
        """
        for network in networks:
            if network.step is None:
                check_text(network)
        for step in (self._check_runs, self._check_learns, self.check_conformance, self._check_novelty):
            step([network for network in networks if network.step is None])

    def _check_runs(self, networks: Sequence[NetworkProposal]) -> None:
        inputs = build_payload(TASK, TASK_DATASETS[TASK], PRM)
        assert not isinstance(inputs, str)
        payloads = {number: inputs | {"code": network.code} for number, network in enumerate(networks)}
        for number, traced in self._tracer.run(payloads, wider=False):
            network = networks[number]
            if traced.graph is None:
                network.fail("runs", traced.error or "does not run")
                continue
            network.graph, network.widths = traced.graph, traced.widths
            if (name := network.attempt.spec.name) in traced.answer["dead_classes"]:
                network.fail("used", f"nothing that {name} computes reaches the scores")

    def _check_learns(self, networks: Sequence[NetworkProposal]) -> None:
        codes = {number: (network.code or "", network.attempt.spec.name) for number, network in enumerate(networks)}
        for number, (step, why) in confirm(self._box, codes, _PRM).items():
            networks[number].fail(step, why)

    def check_conformance(self, networks: Sequence[NetworkProposal]) -> None:
        """Run the step `conforms` alone. Raises: UserError if no sandbox is available."""
        runs = {
            str(number): BlockRun(
                network.code or "",
                network.attempt.spec.name,
                (),
                (),
                cast(CallsToRun, network.attempt.arguments),
                (),
            )
            for number, network in enumerate(networks)
        }
        rebuilds: dict[str, SpecRebuild] = {}
        found: dict[str, Json] = {}
        for reply in _TRACE.run(self._box, runs):
            traced, error = (None, reply.ending()) if reply.answer is None else (reply.outcome.value, "")
            if isinstance(reply.answer, Failure):
                traced, error = None, reply.answer.error
            assert isinstance(traced, dict | None)
            spec = networks[int(reply.key)].attempt.spec
            found[reply.key] = facts = conformance(spec, traced, error)
            # Blocks without parameters: the outputs of a module that is written from the spec decide.
            if spec.algorithm is not None and not spec.parameters and facts["parameters"] == 0 and not facts["same"]:
                graphs, call = graphs_in_spec(spec.algorithm), asdict(runs[reply.key])
                rebuilds[reply.key] = SpecRebuild(spec.name, "", graphs, call, _ROUNDING)
        for rebuilt in _REBUILD.run(self._box, rebuilds):
            faults = found[rebuilt.key]["faults"]
            if rebuilt.answer is not None and rebuilt.answer.proven:
                faults.clear()
            elif rebuilt.answer is not None and rebuilt.answer.error.startswith("in eval mode") and not faults:
                faults.append(f"computes something else: {rebuilt.answer.error}")
        for number, network in enumerate(networks):
            facts = found[str(number)]
            network.facts["same"] = facts["same"]
            if facts["faults"]:
                network.fail("conforms", f"{network.attempt.spec.name}: {'; '.join(facts['faults'])}")

    def _check_novelty(self, networks: Sequence[NetworkProposal]) -> None:
        if not networks:
            return
        queries = [
            self._index.read(f"attempt {network.attempt.number} of this run", network.code or "")
            for network in networks
        ]
        compared = self._index.compare(queries, self._tracer)
        for network, novelty in zip(networks, compared, strict=True):
            near = next(map(asdict, novelty.nearest), None)
            network.facts["nearest"] = near and {name: near[name] for name in _NEAREST}
            if novelty.known:
                network.fail("novel", f"known: {novelty.reason}{_ANOTHER}")
        new = [pair for pair in zip(networks, queries, strict=True) if pair[0].step is None]
        repeats = self._index.find_repeats([*self._accepted, *(query for _, query in new)], self._tracer)
        for number, (network, query) in enumerate(new, start=len(self._accepted)):
            if number in repeats:
                network.fail("novel", f"known: {repeats[number].how}{_ANOTHER}")
            else:
                self._accepted.append(query)


def check_text(network: NetworkProposal) -> None:
    """Run the steps that need no execution, from `syntax` to `contract`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if fault := _find_fault(network.code or "", network.attempt.spec.name):
                network.fail(*fault[:2], **fault[2])
    except SyntaxError as error:
        network.fail("syntax", error.msg, line=error.lineno or 1)
    except (ValueError, RecursionError, MemoryError) as error:  # what is nested too deeply, and null bytes
        network.fail("syntax", f"cannot be read: {str(error) or type(error).__name__}")


def _find_fault(code: str, name: str) -> tuple[str, str, Json] | None:
    """Return the step that a text fails, and why. Args: name: of the requested block. Raises: as the parser does."""
    text = decode_python(code)
    tree = ast.parse(text)
    # The parser alone accepts more: `return` outside of a function, for example.
    compile(text, "net.py", "exec", dont_inherit=True)
    if isinstance(features := code_features(code), str):
        raise ValueError(features)
    if (refused := next(find_forbidden(tree, code), None)) is not None:
        return "policy", refused[1], {"line": refused[0]}
    drop_unevaluated(tree)
    if undefined := find_undefined_names(tree):
        return "closed", "; ".join(undefined.values()), {}
    if fault := check_contract(code):
        return "contract", fault, {}
    if not any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
        return "contract", f"the file defines no class {name}", {}
    return None


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
    own, theirs = (Sized.from_json(graphs_in_spec(one)).evaluate()["eval"] for one in (algorithm, spec.algorithm))
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


# -- the policy: what the text of a network may import, name and reach; it is read, not run ----------------------------

# A model that is optimized against the steps would learn to write networks that only claim to pass them: their code
# would walk the frames of its process up to ours, and answer in our place. So of everything outside the file, only what
# is listed here may be named, by whatever name it was imported, and no module is a value: there is no other way to what
# it holds. What a value is, a text does not tell; of its attributes, those of Python and some others are refused. This
# is a filter, not a security boundary: that is the sandbox, and `confirm` trusts no claim.

#: Modules, and the names or patterns of what may be used of each. The first line is for all that compute with arrays.
_TABLE = Path(__file__).with_name("allowed_names.txt").read_text(encoding="utf-8")
_MODULES: dict[str, list[str]] = {}
for _modules, _names in (_line.split(":") for _line in _TABLE.strip().replace("\n    ", " ").splitlines()):
    for _module in _modules.split():
        _MODULES.setdefault(_module, []).extend(_names.split())
#: Of Python's functions and own names, those that a network may use; it may use all classes.
_BUILTINS = re.compile(
    "abs|all|any|ascii|bin|callable|chr|divmod|format|hash|hex|id|input|isinstance|issubclass|iter|len|max|min|next"
    "|oct|ord|pow|print|repr|round|sorted|sum|Ellipsis|NotImplemented"
)
_DUNDERS = re.compile(
    "__(add|all|author|bool|call|class|constants|contains|delattr|delitem|doc|enter|eq|exit|float|floordiv|format|ge"
    "|getitem|gt|hash|iadd|imul|init|int|isub|iter|le|len|lt|main|matmul|mod|module|mul|name|ne|neg|new|next|post_init"
    "|pow|qualname|radd|repr|reversed|rmul|rsub|rtruediv|setattr|setitem|setstate|slots|str|sub|truediv|version)__"
)
#: Attributes of values that lead to frames, code, modules, files or raw memory, or compile.
_NEVER_REACHED = re.compile(
    r"(ag|cr|gi)_(await|code|frame|origin|yieldfrom)|tb_(frame|next)|obj|_module|_evaluate|_python_dispatch|ctypes|dump"
    r"|(f|func)_(back|builtins|closure|code|dict|globals|locals|trace)|_(get|new|set|share|write)_\w*(cuda|fd|file)\w*"
    r"|_new_shared|_make_\w*subclass|_reduce_ex_internal|_?data_ptr|share_memory_?|from_file|tofile|save|export_\w+"
    r"|compile|multiprocessing_context|show|_ctx|_workers|_\w+_queues?|loads?|os|sys"
)
#: Methods of `nn.Module` by which the proofs read a network.
_NEVER_CHANGED = frozenset(
    f"{prefix}{name}" for name in ("parameters", "buffers", "modules", "children") for prefix in ("", "named_")
) | {"state_dict", "load_state_dict", "get_submodule", "register_forward_hook"}


def find_forbidden(tree: ast.Module, code: str) -> Iterator[tuple[int, str]]:
    """Yield the uses that are forbidden in a network: the line, and the reason as it is sent back to the model.

    Args: tree: the file. code: its text.
    """
    for pretrained in find_pretrained(code):
        yield pretrained.line, f"loads trained weights: {pretrained.text}"
    nodes = list(ast.walk(tree))
    reader = _Reader(pair for node in nodes for pair in _list_imports(node))
    yield from sorted({(getattr(node, "lineno", 1), reason) for node in nodes for reason in reader.check(node)})


class _Reader:
    """Checks the nodes of one file, each by itself, after the nodes around it. Args: imports: names and meanings."""

    def __init__(self, imports: Iterable[tuple[str, str]]) -> None:
        self._meanings = dict(sorted(imports, key=lambda pair: pair[1] in _MODULES))  # the last one stays, a module
        self._owners: set[ast.AST] = set()  # of attributes

    def check(self, node: ast.AST) -> Iterator[str]:
        """Yield the reasons against a node, without those against its parts."""
        for name, meaning in (*_list_imports(node), (_find_bound(node), "")):
            yield from _check_dunder(name)
            known = self._meanings.get(name)
            if known in _MODULES and meaning != known:
                yield f"gives the name {name} to something else; rename it"
        if isinstance(node, ast.Attribute):
            self._owners.add(node.value)
            yield from self._check_attribute(node)
        if (module := self._find_module(node)) and node not in self._owners:
            yield f"uses the module {module} as a value; write out what is needed of it"
        match node:
            case ast.Import(names=names):
                yield from (fault for each in names for fault in _check_import(each.name))
            case ast.ImportFrom(names=names):
                module = "." * node.level + (node.module or "")
                yield from (fault for each in names for fault in _check_import(module, each.name))
            case ast.Name(id=name, ctx=ast.Load()):
                yield from _check_dunder(name)
                if not isinstance(getattr(builtins, name, ""), type | str) and not _BUILTINS.fullmatch(name):
                    yield f"calls {name}"
            case ast.keyword(arg=str(name)):
                yield from _check_dunder(name)
            case ast.MatchClass():
                yield "matches a class pattern, which reads attributes; use isinstance and write them out"
            case ast.Call(func=ast.Name(id="input")):
                yield "calls input"
            case ast.Call(func=ast.Name(id="type")) if len(node.args) != 1 or node.keywords:
                yield "makes a class by calling type; write a class statement"
            case ast.ClassDef():
                inside = list(_walk_class(node))
                if any(map(_list_imports, inside)):
                    yield "imports in the body of a class; import at the top of the file"
                for name in {_find_bound(each) for each in inside} & _NEVER_CHANGED:
                    yield f"defines {name}, by which the network is checked"

    def _check_attribute(self, node: ast.Attribute) -> Iterator[str]:
        name, module = node.attr, self._find_module(node.value)
        yield from _check_dunder(name)
        if module and name != "__name__" and not _is_listed(module, name):
            yield f"reaches {module}.{name}; of {module.partition('.')[0]}, only what networks are made of"
        elif _NEVER_REACHED.fullmatch(name):
            yield f"reaches {name}; frames, code, files, memory, and what compiles or evaluates are not for networks"
        if name in ("format", "format_map"):
            text = getattr(node.value, "value", None)
            if not isinstance(text, str) or re.search(r"[.\[]\w*_", text):
                yield "formats a text that is not written out, or hidden attributes; use an f-string"
        if not isinstance(node.ctx, ast.Load):
            text = ast.unparse(node)
            if name in _NEVER_CHANGED:
                yield f"changes {text}, by which the network is checked"
            elif text.partition(".")[0] in self._meanings and not (module or "").startswith("torch.backends."):
                yield f"changes {text}; leave libraries as they are"

    def _find_module(self, node: ast.AST) -> str:
        """Return the module that an expression means, if any."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        meaning = ".".join([self._meanings.get(node.id, ""), *names]) if isinstance(node, ast.Name) else ""
        return meaning if meaning in _MODULES else ""


def _check_import(module: str, name: str = "") -> Iterator[str]:
    """Yield why a module, or a name of one, may not be imported."""
    whole = f"{module}.{name}".rstrip(".")
    if module.partition(".")[0] not in _MODULES:
        yield f"imports {module}; only the standard library without files, torch, torchvision, numpy"
    elif name == "*":
        yield "imports everything of a module; name what is used"
    elif whole not in _MODULES and not _is_listed(*whole.rpartition(".")[::2]):
        yield f"imports {whole}; of {whole.partition('.')[0]}, only what networks are made of"


@cache
def _is_listed(module: str, name: str) -> bool:
    return f"{module}.{name}" in _MODULES or any(fnmatchcase(name, each) for each in _MODULES.get(module, ()))


def _check_dunder(name: str | None) -> Iterator[str]:
    if name and name.startswith("__") and name.endswith("__") and not _DUNDERS.fullmatch(name):
        yield f"uses {name}; of Python's own names only common ones may be used, such as __init__ and __name__"


def _list_imports(node: ast.AST) -> list[tuple[str, str]]:
    """Return the names that an import binds, each with its meaning."""
    if isinstance(node, ast.Import):
        names = [(each.asname, each.name) for each in node.names]
        return [(asname, name) if asname else (name.partition(".")[0],) * 2 for asname, name in names]
    if isinstance(node, ast.ImportFrom):
        return [(each.asname or each.name, f"{node.module}.{each.name}") for each in node.names]
    return []


def _find_bound(node: ast.AST) -> str:
    """Return the name that a node binds, if it is no import."""
    if isinstance(node, ast.Name):
        return "" if isinstance(node.ctx, ast.Load) else node.id
    found = [getattr(node, field, None) for field in ("name", "arg", "rest") if not isinstance(node, ast.keyword)]
    return next((name for name in found if isinstance(name, str) and not isinstance(node, ast.alias)), "")


def _walk_class(node: ast.ClassDef) -> Iterator[ast.AST]:
    """Yield what stands in the body of a class, not in its functions."""
    waiting: list[ast.AST] = [*node.body]
    while waiting:
        yield (part := waiting.pop())
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            waiting += ast.iter_child_nodes(part)
