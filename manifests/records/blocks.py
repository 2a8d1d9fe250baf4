"""Records of extraction: blocks, their specs, and conversations about specs."""

import json
import typing
from typing import Any, Literal

from pydantic import Field

from lemur_core.files import Json
from manifests.records import common
from manifests.records.common import BlockFile, Line, Record, Sha256


class Block(Record):
    """One nn.Module class of one source: its location there, the level it reached, and its closed file."""

    block: Line = Field(min_length=1, description="unique: SOURCE::QUALNAME")
    name: common.BlockName
    qualname: Line = Field(min_length=1, description="dotted name under which its own source imports it")
    source: common.Source
    path: common.SourcePath
    start_line: common.StartLine
    end_line: common.EndLine
    category: common.Category
    level: common.BlockLevel
    error_kind: str | None = Field(description="why it stopped there; null if it reached the requested level")
    error: str | None = Field(description="this reason in one line")
    fidelity: common.Fidelity
    code: str | None = Field(description="the closed file; null if none could be written")
    code_sha256: Sha256 | None = Field(description="SHA-256 of code, UTF-8")
    n_lines: int | None = Field(ge=0, description="lines of code")
    requires: tuple[str, ...] = Field(
        description="PEP 508, in addition to the standard library and the declared runtime"
    )
    swhid: common.Swhid
    license: Line = Field(
        description="SPDX expression of the source, or as the head of its file states; or NOASSERTION"
    )
    digest: Sha256 = Field(description="SHA-256 of the source's Python files")
    file: BlockFile | None = Field(default=None, description="where code lies in the extraction folder")
    arguments: str | None = Field(
        default=None, description="working arguments as JSON: init, forward and method, values as Python expressions"
    )
    observed: str | None = Field(default=None, description="observations of its run: an Observed record as JSON")
    lean_code: str | None = Field(
        default=None,
        description="the closed file reduced to the code that its arguments reach; null if there is no such form",
    )
    lean_sha256: Sha256 | None = Field(default=None, description="SHA-256 of lean_code, UTF-8")
    lean_lines: int | None = Field(default=None, ge=0, description="lines of lean_code")
    lean_requires: tuple[str, ...] = Field(
        default=(), description="PEP 508: imports of lean_code outside of the standard library and the declared runtime"
    )
    lean_license: Line | None = Field(default=None, description="SPDX expression of all sources with code in lean_code")
    dynamic: str | None = Field(
        default=None, description="what it looks up by strings, and what its registries lack: one item per line"
    )
    graph: common.Graph = None
    graph_widths: common.GraphWidths = None
    lean_error: str | None = Field(default=None, description="why a block that runs forward has no lean_code")
    arguments_from: Literal["default", "recorded", "guessed above", "call site", "search"] | None = Field(
        default=None,
        description="how the constructor's arguments were found: none are needed, a running model of the source"
        " passes them (guessed above: its own arguments were guessed), code or documentation states them, or by search",
    )
    not_shown: str | None = Field(
        default=None,
        description="what its run did not show, one item per line; null if nothing, or if it did not run",
    )


class Case(Record):
    """One call of forward: its inputs and outputs, tensors as `float32 2x16x8x8`."""

    inputs: dict[str, str] = Field(description="by argument, in order; nested values have dotted names")
    outputs: tuple[str, ...] = Field(description="the first 32 tensors of the output, flattened in order")


class KnownCall(Record):
    """One known call of a block that works, in both modes: recorded, of the source, or the required arguments alone."""

    init: str = Field(description="the arguments of the constructor")
    forward: str = Field(description="the arguments of forward")
    inputs: dict[str, str] = Field(description="by argument, in order; tensors as `float32 2x16x8x8`")
    eval: tuple[str, ...] | None = Field(description="the first 32 tensors of the output; null if eval mode fails")
    train: tuple[str, ...] | None = Field(description="the first 32 tensors of the output; null if train mode fails")


class Observed(Record):
    """Observations of a block that was constructed and run on the CPU with working arguments."""

    parameters: int = Field(ge=0, description="elements of all parameters")
    trainable: int = Field(ge=0, description="elements of those with requires_grad")
    buffers: int = Field(ge=0, description="elements of all buffers")
    layers: dict[str, int] = Field(
        description="number of submodules that it built, by class name (with its module if two classes share it)"
    )
    cases: tuple[Case, ...] = Field(default=(), description="calls in eval mode; the first with the recorded arguments")
    train_differs: common.TrainDiffers = None
    identity_in_eval: common.IdentityInEval = None
    gradients: common.Gradients = None
    tensors: common.Tensors = None
    uninitialized: tuple[str, ...] = Field(
        default=(), description="parameters and buffers that no code initializes; here filled with normal(0, 0.02)"
    )
    zero_gradients: bool | None = Field(default=None, description="every gradient is zero")
    train_error: str | None = Field(default=None, description="why train mode fails")
    misfits: tuple[str, ...] = Field(default=(), description="arguments whose values do not fit their annotations")
    constant: bool | None = Field(default=None, description="other random inputs give the same output")
    other_ranks: tuple[int, ...] = Field(
        default=(), description="with so many dimensions guessed inputs run, too, and something else is computed"
    )
    mixes_samples: bool | None = Field(default=None, description="the output of a sample depends on the other samples")
    open_numbers: tuple[str, ...] = Field(
        default=(), description="guessed numbers among the inputs; with another one something else is computed"
    )
    has_pole: bool | None = Field(
        default=None, description="the output grows without bound near zero, around which inputs are drawn"
    )
    own_lines: tuple[int, int] | None = Field(
        default=None, description="statements of the class's own methods that were entered: those that ran, and all"
    )
    calls: tuple[KnownCall, ...] = Field(default=(), description="all known calls; the first with the arguments above")


class SpecArgument(Record):
    """One argument of a constructor or of forward."""

    name: Line
    kind: Literal["positional", "keyword", "more positional", "more keyword"]
    type: str | None = Field(default=None, description="of the annotation, else of the default value")
    default: str | None = Field(default=None, description="null if there is none")


class SpecArguments(Record):
    """The call with which a block ran."""

    init: dict[str, str] = Field(description="arguments of the constructor that worked, by name")
    forward: dict[str, str] = Field(description="arguments of the call that worked, by name")
    method: str = Field(default="forward", description="the method that was called")


MotifKind = Literal[
    "residual",
    "gate",
    "attention",
    "normalization",
    "pooling",
    "upsampling",
    "window partition",
    "window merge",
    "recurrence",
    "embedding",
]


class BlockMotif(Record):
    """A part of a computation whose structure proves what it is."""

    kind: MotifKind
    operations: tuple[int, ...] = Field(description="the numbers of its operations")
    returns_weights: bool | None = Field(default=None, description="of an attention: its weights are an output")


class Algorithm(Record):
    """The computation of a block; see docs/graphs.md. Published only for permissively licensed sources."""

    operations: tuple[str, ...] = Field(
        description="of eval mode: the inputs, one line an operation with operands by number, settings and resulting"
        " shapes, and what is returned"
    )
    motifs: tuple[BlockMotif, ...] = Field(description="parts that the structure proves, with their operations")
    draws: dict[Literal["eval", "train"], tuple[str, ...]] = Field(
        default={},
        description="operations that draw random numbers, by mode, whether the output needs them or not; `random` and"
        " `numpy.random` where these were drawn from",
    )
    returns: Any = Field(
        description="what forward returns: tensor, null for anything else, lists of these, items of objects"
    )
    route: Literal["meta", "cpu"] = Field(description="device of the recorded runs")
    reads_values: bool = Field(
        description="as forward ran, Python read values of inputs, state or draws: others may take another branch"
    )
    unused_parameters: tuple[str, ...] = Field(description="parameters that no result depends on")
    hidden: tuple[str, ...] = Field(
        default=(), description="what the graph does not hold, so that it is not rebuilt: draws outside torch, buffers"
    )
    train_error: str | None = Field(description="why there is no graph of train mode")
    sizes: dict[str, tuple[int | float, ...]] = Field(
        description="free input sizes by their names in the formulas of eval and train (operations have letters of"
        " their own): the values it was traced at, its own first; and numbers U1, U2, ... without a formula"
    )
    fixed: str | None = Field(description="why a size is not shown as free that may be")
    rebuilds: bool | None = Field(
        description="the module written from this alone has the block's outputs, gradients and buffers in every bit, on"
        " every recorded case and at one further size that the block takes; null if not tried"
    )
    rebuild_error: str | None = Field(
        default=None, description="if not: the case that refutes it, or why no module could be written and compared"
    )
    varied: tuple[str, ...] = Field(
        default=(), description="the dimensions of inputs that differed between the calls compared, as `x[0]`"
    )
    eval: Json = Field(description="the graph of eval mode: form, torch, operations, nodes, outputs, writes")
    train: Json | None = Field(description="the difference of train mode; null if there is none, or no graph of it")


class SpecFacts(Record):
    """Facts of a block that a spec has as a line and as a row of a table."""

    block: common.BlockId
    name: common.BlockName
    category: common.Category
    level: common.BlockLevel
    fidelity: common.Fidelity
    bases: tuple[str, ...] = Field(description="bare names of the base classes")
    constructor: tuple[SpecArgument, ...] = Field(
        description="its own, or that of the first base class in the file that has one"
    )
    forward: tuple[SpecArgument, ...] = Field(description="arguments of forward")
    layout: str | None = Field(
        description="of the first input tensor, as the layers that read it define it: N×C×H×W, or …×C for the last axis"
    )
    keeps_shape: bool | None = Field(
        description="the output is one tensor with the shape of the first input; null unless train mode surely agrees"
    )
    downsampling: float | None = Field(
        description="factor by which sizes but batch and channels shrink; below 1 if they grow; null if some disagree"
    )
    changes_channels: bool | None = Field(
        description="null if there are none to compare, or inputs of as many dimensions disagree"
    )
    parameters: int | None = Field(ge=0, description="elements of all parameters, with these arguments")
    train_differs: common.TrainDiffers
    identity_in_eval: common.IdentityInEval
    gradients: common.Gradients
    tensors: common.Tensors
    uninitialized: tuple[str, ...] | None = Field(default=None, description="parameters that no code initializes")
    not_shown: tuple[str, ...] = Field(default=(), description="what its run did not show, by kind")
    graph: common.Graph = None
    source: common.Source
    path: common.SourcePath
    start_line: common.StartLine
    end_line: common.EndLine
    swhid: common.Swhid
    license: common.License
    code_sha256: Sha256 = Field(description="SHA-256 of the closed file, UTF-8")
    file: BlockFile | None = Field(description="where the code lies in the extraction folder")
    summary: str = Field(description="shapes, parameters, layers and motifs in one line")
    withheld: tuple[str, ...] = Field(default=(), description="fields left out because they repeat source text")


class Spec(SpecFacts):
    """Facts about the design and behavior of a block, without any passage of its source.

    Tuples of numbers are written `3×4×6×3`, shapes `float32 2×16×8×8`, layouts `N×C×H×W`, mappings
    `type BN; eps 0.001`.
    """

    arguments: SpecArguments | None = Field(description="working arguments; null if the block was not constructed")
    cases: tuple[Case, ...] = Field(description="calls in eval mode, the first with these arguments")
    layers: dict[str, int] | None = Field(
        description="number of submodules that it built, by class name; null if not constructed"
    )
    algorithm: Algorithm | None = Field(
        default=None, description="what it computes, read from its graph; null if unknown or not published"
    )
    dependencies: dict[str, Literal["class", "function"]] = Field(
        description="other definitions in its minimized file (its closed file where there is none), except modules"
        " that compute nothing here"
    )


class SpecValue(Record):
    """One named value of a spec: an argument with its value, an input with its shape, a name with its kind."""

    name: Line
    value: str


class SpecCount(Record):
    """One class of layers with its count."""

    name: Line
    count: int = Field(ge=0)


class SpecCase(Record):
    """One call of forward; tensors as `float32 2×16×8×8`."""

    inputs: tuple[SpecValue, ...]
    outputs: tuple[str, ...]


def _as_in(record: type[Record], name: str, default: Any = ...) -> Any:
    """Return a field that states the same as that of another record, in another form."""
    return Field(default, description=record.model_fields[name].description)


class SpecRow(SpecFacts):
    """A spec as a row of a table: the facts of its line, mappings as lists by name, with its group and split."""

    init: tuple[SpecValue, ...] | None = _as_in(SpecArguments, "init")
    call: tuple[SpecValue, ...] | None = _as_in(SpecArguments, "forward")
    method: str | None = Field(description="the method that was called; null if the block was not constructed")
    cases: tuple[SpecCase, ...] = _as_in(Spec, "cases")
    layers: tuple[SpecCount, ...] | None = _as_in(Spec, "layers")
    algorithm: str | None = Field(description="the algorithm of its line, as JSON; null if unknown or not published")
    dependencies: tuple[SpecValue, ...] = _as_in(Spec, "dependencies")
    split: common.RowSplit
    cluster: str = Field(description="group that must be in one split: 16 digits of its first member's digest")

    @classmethod
    def values(cls, spec: Spec, **more: Any) -> dict[str, Any]:
        """Return the row of a spec as values by column. Args: more: `cluster` and `split`."""
        facts = spec.model_dump(mode="json")
        worked = facts["arguments"] or dict.fromkeys(("init", "forward", "method"))
        facts["cases"] = [{**case, "inputs": _list_items(case["inputs"])} for case in facts["cases"]]
        facts["layers"] = _list_items(facts["layers"], "count")
        facts["dependencies"] = _list_items(facts["dependencies"])
        if facts["algorithm"] is not None:
            facts["algorithm"] = json.dumps(facts["algorithm"], sort_keys=True, ensure_ascii=False)
        facts |= {"init": _list_items(worked["init"]), "call": _list_items(worked["forward"])}
        facts |= {"method": worked["method"], **more}
        return {name: facts[name] for name in cls.model_fields}


def _list_items(items: Json | None, value: str = "value") -> list[Json] | None:
    """Return a mapping as a list of records, sorted by name."""
    return None if items is None else [{"name": name, value: item} for name, item in sorted(items.items())]


SpecChatKind = Literal["describe", "write"]

#: The kinds of conversations from specs.
SPEC_CHAT_KINDS: tuple[SpecChatKind, ...] = typing.get_args(SpecChatKind)


class SpecChatRow(Record):
    """One fine-tuning conversation from a block's spec, in the split of that spec."""

    messages: common.Messages
    id: Sha256 = Field(description="SHA-256 of the block's id and the task, joined by ':'")
    task: SpecChatKind = Field(description="what is asked for")
    block: common.BlockId
    source: common.Source
    path: common.SourcePath
    start_line: common.StartLine
    end_line: common.EndLine
    swhid: common.Swhid
    license: common.License
    notice: str = Field(description="owners and licenses of the code")
    n_tokens: common.Tokens


class SpecChatDrop(Record):
    """A kind of conversation that was not generated for a block with a spec, and why."""

    block: common.BlockId
    source: common.Source
    task: SpecChatKind = Field(description="the kind of conversation")
    reason: str = Field(min_length=1, description="one short word, as counted in the manifest")
    detail: str = Field(description="what decided it; never text of the source")
