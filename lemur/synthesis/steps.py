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

Code is executed only in the sandbox.
"""

import ast
import builtins
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from curate.compute.graphs import NetworkTracer, build_payload
from curate.compute.runs import PRM
from curate.folder.novelty import NoveltyIndex, Query
from curate.model.corpus import code_features
from curate.model.pretrained import find_pretrained
from curate.sources.rows import TASK_DATASETS
from extract.arguments.messages import BlockRun, CallsToRun, SpecRebuild
from extract.proofs.rebuild import REBUILD
from extract.proofs.visit import TRACE, BlockGraphs
from extract.specs.make import build_algorithm, graphs_in_spec
from lemur.synthesis.confirm import CONFIRM, confirm
from lemur.synthesis.endpoint import Answer, Message
from lemur.synthesis.folder import TASK
from lemur_core.describe.facts import MOVES
from lemur_core.files import Json
from lemur_core.files.foreign import decode_python
from lemur_core.files.workers import available_cores
from lemur_core.graphs.graph import LEAVES, Graph
from lemur_core.graphs.identity import similarity
from lemur_core.graphs.sizes import Sized
from lemur_core.sandbox.cached import workers_within_memory
from lemur_core.sandbox.stage import open_sandbox
from lemur_core.source.quality import drop_unevaluated, find_undefined_names
from manifests.records import Spec
from train.model.contract import check_contract

_PARAMETERS = 0.10  # maximum relative difference
_MOTIFS = 0.5  # required share of the spec's motifs
_OPERATIONS = 0.5  # the share of common operations, of all in both, that has to be exceeded
_ROUNDING = 1e-4  # of the largest value: the same computation, written otherwise
_LAYOUT = MOVES - {"slice", "flip", "roll"}
_ANOTHER = "; make another architecture"
_CUT = "; the answer was cut off at its limit of tokens"  # whatever the fault is: a part of a file is often valid
_REBUILD = replace(REBUILD, label="")
_NEAREST = ("name", "id", "lexical", "structural", "graph", "agreement", "known")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One network to ask for: the spec of its block, the calls that the block ran with, and the seed of the answer."""

    number: int
    spec: Spec
    calls: CallsToRun
    seed: int = 0


class Fault(NamedTuple):
    """The step that code fails, and why. `line`: of the code, where one decided it."""

    step: str
    error: str
    line: int | None = None


@dataclass(slots=True)
class Proposal:
    """One answer on its way through the steps: what was asked, the code in it, what was seen, and its fault, if any.

    `graph` and `widths` are the identities of the network (G0, G1).
    """

    attempt: Attempt
    code: str = ""
    messages: Sequence[Message] = ()
    round: int = 0
    answer: Answer = Answer()  # noqa: RUF009 (frozen)
    fault: Fault | None = None
    facts: Json = field(default_factory=dict)
    graph: str = ""
    widths: str = ""

    def fail(self, step: str, error: str, line: int | None = None) -> None:
        """Record the failed step; the code takes no further steps."""
        self.fault = Fault(step, error + (_CUT if self.answer.finish == "length" else ""), line)


class Prover(ExitStack):
    """Runs many networks at a time through the steps. A context manager; sandboxes start when needed.

    Args: folders: snapshots and extractions that a network must differ from.
    """

    def __init__(self, folders: Sequence[Path], *, jobs: int | None = None, unsafe: bool = False) -> None:
        super().__init__()
        workers = workers_within_memory(jobs or available_cores(), CONFIRM.limits)
        self._tracer = self.enter_context(NetworkTracer(jobs=jobs, unsafe=unsafe))
        box = open_sandbox(None, [TRACE, REBUILD, CONFIRM], {"jobs": workers, "unsafe": unsafe})
        self._box = self.enter_context(box)
        self._folders, self._jobs = tuple(folders), jobs
        self._accepted: list[Query] = []

    @cached_property
    def _index(self) -> NoveltyIndex:
        return NoveltyIndex(self._folders, jobs=self._jobs)

    def prove(self, proposals: Sequence[Proposal]) -> None:
        """Run all steps for proposals that passed `answer`; accepted ones count as known for later ones.

        Raises: UserError if no sandbox is available, or a folder is not comparable.
        """
        for proposal in proposals:
            if proposal.fault is None and (fault := check_text(proposal.code, proposal.attempt.spec.name)):
                proposal.fail(*fault)
        for check in (self._check_runs, self._check_learns, self.check_conformance, self._check_novelty):
            if passing := [proposal for proposal in proposals if proposal.fault is None]:
                check(passing)

    def _check_runs(self, proposals: Sequence[Proposal]) -> None:
        inputs = build_payload(TASK, TASK_DATASETS[TASK], PRM)
        assert not isinstance(inputs, str)
        payloads = {number: inputs | {"code": proposal.code} for number, proposal in enumerate(proposals)}
        for number, traced in self._tracer.run(payloads):
            proposal, name = proposals[number], proposals[number].attempt.spec.name
            if traced.graph is None or traced.widths is None:
                proposal.fail("runs", traced.error or "does not run")
                continue
            proposal.graph, proposal.widths = traced.graph, traced.widths
            if name in traced.answer["dead_classes"]:
                proposal.fail("used", f"nothing that {name} computes reaches the scores")

    def _check_learns(self, proposals: Sequence[Proposal]) -> None:
        codes = {number: (proposal.code, proposal.attempt.spec.name) for number, proposal in enumerate(proposals)}
        for number, (step, why) in confirm(self._box, codes).items():
            proposals[number].fail(step, why)

    def check_conformance(self, proposals: Sequence[Proposal]) -> None:
        """Run the step `conforms` alone. Raises: UserError if no sandbox is available."""
        runs = {
            str(number): BlockRun(proposal.code, proposal.attempt.spec.name, (), (), proposal.attempt.calls, ())
            for number, proposal in enumerate(proposals)
        }
        rebuilds: dict[str, SpecRebuild] = {}
        faults: dict[str, list[str]] = {}
        for reply in TRACE.run(self._box, runs):
            proposal, traced = proposals[int(reply.key)], reply.answer
            spec = proposal.attempt.spec
            proposal.facts["same"] = isinstance(traced, BlockGraphs) and traced.graph == spec.graph
            if not isinstance(traced, BlockGraphs):
                error = reply.ending() if traced is None else traced.error
                faults[reply.key] = [f"does not run as its facts state: {error}"]
            elif not proposal.facts["same"]:
                faults[reply.key], parameters = compare_with_spec(traced.to_json(), spec)
                # Blocks without parameters: the outputs of a module that is written from the spec decide.
                if spec.algorithm is not None and not spec.parameters and not parameters:
                    graphs, original = graphs_in_spec(spec.algorithm), asdict(runs[reply.key])
                    rebuilds[reply.key] = SpecRebuild(spec.name, "", graphs, original, _ROUNDING)
        for rebuilt in _REBUILD.run(self._box, rebuilds):
            if rebuilt.answer is not None and rebuilt.answer.proven:
                faults[rebuilt.key] = []
            elif rebuilt.answer is not None and rebuilt.answer.error.startswith("in eval mode"):
                faults[rebuilt.key] = faults[rebuilt.key] or [f"computes something else: {rebuilt.answer.error}"]
        for key, found in faults.items():
            if found:
                proposals[int(key)].fail("conforms", f"{runs[key].name}: {'; '.join(found)}")

    def _check_novelty(self, proposals: Sequence[Proposal]) -> None:
        names = [f"attempt {proposal.attempt.number} of this run" for proposal in proposals]
        queries = [self._index.read(name, proposal.code) for name, proposal in zip(names, proposals, strict=True)]
        for proposal, novelty in zip(proposals, self._index.compare(queries, self._tracer), strict=True):
            near = next(map(asdict, novelty.nearest), None)
            proposal.facts["nearest"] = near and {name: near[name] for name in _NEAREST}
            if novelty.known:
                proposal.fail("novel", f"known: {novelty.reason}{_ANOTHER}")
        new = [pair for pair in zip(proposals, queries, strict=True) if pair[0].fault is None]
        repeats = self._index.find_repeats([*self._accepted, *(query for _, query in new)], self._tracer)
        for number, (proposal, query) in enumerate(new, start=len(self._accepted)):
            if number in repeats:
                proposal.fail("novel", f"known: {repeats[number].how}{_ANOTHER}")
            else:
                self._accepted.append(query)


def check_text(code: str, name: str) -> Fault | None:
    """Return the first fault that code has without being executed, from `syntax` to `contract`; None if it has none.

    Args: name: of the requested block.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            text = decode_python(code)
            tree = ast.parse(text)
            # The parser alone accepts more: `return` outside of a function, for example.
            compile(text, "net.py", "exec", dont_inherit=True)
            if isinstance(features := code_features(code), str):
                return Fault("syntax", f"cannot be read: {features}")
            if (refused := next(find_forbidden(tree, code), None)) is not None:
                return Fault("policy", refused[1], refused[0])
            drop_unevaluated(tree)
            if undefined := find_undefined_names(tree):
                return Fault("closed", "; ".join(undefined.values()))
            if broken := check_contract(code):
                return Fault("contract", broken)
    except SyntaxError as error:
        return Fault("syntax", error.msg, error.lineno or 1)
    except (ValueError, RecursionError, MemoryError) as error:  # what is nested too deeply, and null bytes
        return Fault("syntax", f"cannot be read: {str(error) or type(error).__name__}")
    if not any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body):
        return Fault("contract", f"the file defines no class {name}")
    return None


def compare_with_spec(traced: Mapping[str, Any], spec: Spec) -> tuple[list[str], int]:
    """Compare a class with the spec that it was written from.

    Args: traced: the fields of `BlockGraphs`, of the class with the spec's arguments; its graph is another.
    Returns: faults, none if it conforms; the number of its parameters.
    """
    assert spec.algorithm is not None
    own, theirs = (Sized.from_json(one).evaluate()["eval"] for one in (traced, dict(spec.algorithm)))
    outputs, wanted = _list_outputs(own), _list_outputs(theirs)
    faults = [] if outputs == wanted else [f"gives {', '.join(outputs)} where its facts state {', '.join(wanted)}"]
    parameters, stated = count_parameters(own), count_parameters(theirs)
    if abs(parameters - stated) > _PARAMETERS * stated:
        faults.append(f"has {parameters:,} parameters where its facts state {stated:,}")
    algorithm = build_algorithm(traced, [argument.name for argument in spec.forward])
    kinds, motifs = ({motif.kind for motif in item.motifs} for item in (spec.algorithm, algorithm))
    if len(kinds & motifs) < _MOTIFS * len(kinds):
        faults.append(f"lacks {', '.join(sorted(kinds - motifs))}")
    operations, required = _count_operations(own), _count_operations(theirs)
    # Motifs are of several operations: blocks of few have none.
    if not kinds and similarity(operations, required) <= _OPERATIONS:
        lacking = ", ".join(sorted((required - operations).elements())) or "nothing"
        more = ", ".join(sorted((operations - required).elements())) or "nothing"
        faults.append(f"computes something else: lacks {lacking}, has {more}")
    return faults, parameters


def _count_operations(graph: Graph) -> Counter[str]:
    """Count the operations by name, without those that only change a layout."""
    return Counter(node.op for node in graph.nodes if node.op not in LEAVES | _LAYOUT)


def _list_outputs(graph: Graph) -> list[str]:
    return [f"{kind.dtype} {'×'.join(map(str, kind.shape))}" for kind in map(graph.type_of, graph.outputs)]


def count_parameters(graph: Graph) -> int:
    """Count the elements of the parameters that are used in the computation."""
    return sum(prod(map(int, node.outputs[0].shape)) for node in graph.nodes if node.op == "parameter")


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
_IMPORT = (ast.Import, ast.ImportFrom)


def find_forbidden(tree: ast.Module, code: str) -> Iterator[tuple[int, str]]:
    """Yield the uses that are forbidden in a network: the line, and the reason as it is sent back to the model.

    Args: tree: the file. code: its text.
    """
    for pretrained in find_pretrained(code):
        yield pretrained.line, f"loads trained weights: {pretrained.text}"
    reader = _PolicyReader(tree)
    yield from sorted(
        {(getattr(node, "lineno", 1), reason) for node in ast.walk(tree) for reason in reader.check(node)}
    )


class _PolicyReader:
    """Checks the nodes of one file, each by itself."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        imports = [pair for node in nodes if isinstance(node, _IMPORT) for pair in _list_bound(node)]
        self._meanings = dict(sorted(imports, key=lambda pair: pair[1] in _MODULES))  # the last one stays, a module
        self._owners = {node.value for node in nodes if isinstance(node, ast.Attribute)}

    def check(self, node: ast.AST) -> Iterator[str]:
        """Yield the reasons against a node, without those against its parts."""
        for field_ in ("id", "attr", "arg", "name", "asname", "rest"):
            yield from check_own_name(getattr(node, field_, None))
        for name, meaning in _list_bound(node):
            known = self._meanings.get(name)
            if known in _MODULES and meaning != known:
                yield f"gives the name {name} to something else; rename it"
        if (module := self._find_module(node)) and node not in self._owners:
            yield f"uses the module {module} as a value; write out what is needed of it"
        match node:
            case ast.Import(names=names):
                yield from (fault for each in names for fault in _check_import(each.name))
            case ast.ImportFrom(names=names):
                module = "." * node.level + (node.module or "")
                yield from (fault for each in names for fault in _check_import(module, each.name))
            case ast.Attribute():
                yield from self._check_attribute(node)
            case ast.Name(id=name, ctx=ast.Load()):
                if not isinstance(getattr(builtins, name, ""), type | str) and not _BUILTINS.fullmatch(name):
                    yield f"calls {name}"
            case ast.MatchClass():
                yield "matches a class pattern, which reads attributes; use isinstance and write them out"
            case ast.Call(func=ast.Name(id="input")):
                yield "calls input"
            case ast.Call(func=ast.Name(id="type")) if len(node.args) != 1 or node.keywords:
                yield "makes a class by calling type; write a class statement"
            case ast.ClassDef():
                inside = list(_walk_class(node))
                if any(isinstance(each, _IMPORT) for each in inside):
                    yield "imports in the body of a class; import at the top of the file"
                for name in {name for each in inside for name, _ in _list_bound(each)} & _NEVER_CHANGED:
                    yield f"defines {name}, by which the network is checked"

    def _check_attribute(self, node: ast.Attribute) -> Iterator[str]:
        name, module = node.attr, self._find_module(node.value)
        if module and name != "__name__" and not is_listed(module, name):
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


def _list_bound(node: ast.AST) -> list[tuple[str, str]]:
    """Return the names that a node binds, each with the dotted name of what is imported by it, else nothing."""
    match node:
        case ast.Import(names=names):
            pairs = ((each.asname, each.name) if each.asname else (each.name.partition(".")[0],) * 2 for each in names)
            return list(pairs)
        case ast.ImportFrom(names=names):
            return [(each.asname or each.name, f"{node.module}.{each.name}") for each in names]
        case ast.Name(id=name):
            return [] if isinstance(node.ctx, ast.Load) else [(name, "")]
        case ast.keyword() | ast.alias():
            return []
    found = (getattr(node, field_, None) for field_ in ("name", "arg", "rest"))
    return [(name, "") for name in found if isinstance(name, str)]


def _check_import(module: str, name: str = "") -> Iterator[str]:
    """Yield why a module, or a name of one, may not be imported."""
    whole = f"{module}.{name}".rstrip(".")
    if module.partition(".")[0] not in _MODULES:
        yield f"imports {module}; only the standard library without files, torch, torchvision, numpy"
    elif name == "*":
        yield "imports everything of a module; name what is used"
    elif whole not in _MODULES and not is_listed(*whole.rpartition(".")[::2]):
        yield f"imports {whole}; of {whole.partition('.')[0]}, only what networks are made of"


@cache
def is_listed(module: str, name: str) -> bool:
    """Return whether a network may use this name of a module."""
    return f"{module}.{name}" in _MODULES or any(fnmatchcase(name, each) for each in _MODULES.get(module, ()))


def check_own_name(name: object) -> Iterator[str]:
    """Yield why a name of Python's own may not be used."""
    if isinstance(name, str) and re.fullmatch("__.*__", name) and not _DUNDERS.fullmatch(name):
        yield f"uses {name}; of Python's own names only common ones may be used, such as __init__ and __name__"


def _walk_class(node: ast.ClassDef) -> Iterator[ast.AST]:
    """Yield what stands in the body of a class, not in its functions."""
    waiting: list[ast.AST] = [*node.body]
    while waiting:
        yield (part := waiting.pop())
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            waiting += ast.iter_child_nodes(part)
