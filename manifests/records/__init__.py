"""Record types of all tables and files, with JSON Schemas in `schemas/`; tables of records are Parquet.

What several records state is declared once, with the description that pages and cards print.
"""

import contextlib
import json
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lemur_core.files import Json
from lemur_core.files.markdown import CONTROLS
from manifests.options import Level as Level

_LINE = f"^[^{CONTROLS}]*$"
#: A name, a path or a license, which stays in its line wherever it is written: in a comment of code, or a terminal.
Line = Annotated[str, Field(pattern=_LINE)]
_BLOCK_FILE = r"^blocks/[A-Za-z0-9_@+-][A-Za-z0-9._@+-]*/[A-Za-z0-9_@+-][A-Za-z0-9._@+-]*\.py$"
#: The closed file of a block, in the extraction folder that states it and nowhere else.
BlockFile = Annotated[str, Field(pattern=_BLOCK_FILE)]
#: A file of a source: nothing outside of the source has such a path.
RelativePath = Annotated[Line, AfterValidator(lambda path: _check_relative(path))]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Behavior = Annotated[str, Field(pattern=r"^[0-9a-f]{64}(@[0-9x,]+)?$")]  # a digest, and the sizes that it holds for
Ratio = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
JsonObject = Annotated[str, AfterValidator(lambda text: _check_object(text))]
Split = Literal["train", "validation", "test"]

#: The splits, in the order in which they are listed and filled.
SPLITS: tuple[Split, ...] = typing.get_args(Split)
Stage = Literal["invalid", "filter", "repeat", "exact", "lexical", "structural", "graph", "leak"]
Agreement = Literal["same", "widths", "different"]

#: The levels that a block can reach, each one including those before it.
LEVELS: tuple[Level, ...] = typing.get_args(Level)


def _check_object(text: str) -> str:
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(json.loads(text), dict):
            return text
    raise ValueError("must be a JSON object")


def _check_relative(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError("must be a path in its source")
    return path


class Record(BaseModel):
    """Base of all records: immutable, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


#: Plain messages by Pydantic's error type, or by the pattern that a text does not match.
_MESSAGES = {
    _LINE: "must be one line, without control characters",
    _BLOCK_FILE: "must be a file in blocks/",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "string_type": "must be a text in quotes",
    "literal_error": "must be one of {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "must be a table of keys"),
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
}


def describe_fault(fault: Mapping[str, Any]) -> str:
    """Return a plain message for one of Pydantic's errors.

    Args: fault: an element of `ValidationError.errors()`.
    Returns: our own words for frequent types of errors; else Pydantic's message, without its prefix for a ValueError.
    """
    plain = _MESSAGES.get(fault.get("ctx", {}).get("pattern", fault["type"]))
    if plain is not None:
        return plain.format(**fault.get("ctx", {}))
    return str(fault["msg"]).removeprefix("Value error, ")


def first_fault(error: ValidationError) -> str:
    """Return the location and message of the first fault in a record.

    Args: error: from the validation of one record.
    Returns: one line, `FIELD.INDEX: MESSAGE`, or the message alone if the fault is in the record as a whole.
    """
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where + ': ' if where else ''}{describe_fault(first)}"


ChatRole = Literal["system", "user", "assistant"]

#: Who speaks in a conversation, in this order.
CHAT_ROLES: tuple[ChatRole, ...] = typing.get_args(ChatRole)


class ChatMessage(Record):
    """One turn of a conversation."""

    role: ChatRole
    content: str = Field(min_length=1)


def arrow_schema(record: type[Record]) -> pa.Schema:
    """Return the Parquet columns of a record type, in the order of its fields.

    Args: record: the type; a field that may be None becomes a nullable column.
    Returns: a schema without metadata.
    """
    kinds = {name: _arrow_type(info.annotation) for name, info in record.model_fields.items()}
    return pa.schema([pa.field(name, kind, nullable=nullable) for name, (kind, nullable) in kinds.items()])


_ARROW: dict[object, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


def _arrow_type(annotation: Any) -> tuple[pa.DataType, bool]:
    """Return the type of a column, and whether it may be null; records within a row are structs."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _arrow_type(next(item for item in arguments if item is not type(None)))[0], True
    if origin is Annotated:
        return _arrow_type(arguments[0])
    if origin is Literal:
        return _ARROW[type(arguments[0])], False
    if origin is tuple:  # tuple[Something, ...]; messages may be null in the schema as it was first published
        element = pa.field("element", _arrow_type(arguments[0])[0], nullable=arguments[0] is ChatMessage)
        return pa.list_(element), False
    if annotation in _ARROW:
        return _ARROW[annotation], False
    return pa.struct(list(arrow_schema(annotation))), False


# --- facts that several records state: each is declared once, with the description that pages and cards print ---------

License = Annotated[Line, Field(description="SPDX expression, or NOASSERTION")]
RowSplit = Annotated[Split, Field(description="train, validation or test; a group is never divided")]

# Of networks.
NetworkName = Annotated[Line, Field(description="name of the network")]
NetworkCode = Annotated[str, Field(description="Python source of the network")]
CodeId = Annotated[Sha256, Field(description="SHA-256 of nn_code, UTF-8")]
Task = Annotated[str | None, Field(description="for example img-classification")]
Dataset = Annotated[str | None, Field(description="for example cifar-10")]
Metric = Annotated[str | None, Field(description="for example acc")]
Epoch = Annotated[int | None, Field(description="epochs trained")]
Duration = Annotated[float | None, Field(description="from the start of training to the end of the epoch, ns")]
Hyperparameters = Annotated[str | None, Field(description="hyperparameters, a JSON object")]
Prefix = Annotated[Line, Field(description="text of nn before the first '-'")]
Family = Annotated[str, Field(description="architecture family, inferred from the code's identifiers")]
Pretrained = Annotated[bool, Field(description="the code loads trained weights")]
BestEpoch = Annotated[int | None, Field(description="epochs after which best_accuracy was first reached")]
CodeLicense = Annotated[
    Line | None,
    Field(
        description="SPDX expression of the code: as stated by itself, its source, its origin; NOASSERTION where one"
        " is unknown"
    ),
]
Origin = Annotated[
    Line | None,
    Field(
        description="block of an extracted repository whose source a class of the code matches; null if there is none"
    ),
]
OriginSimilarity = Annotated[Ratio | None, Field(description="Jaccard similarity of the two classes")]
OriginLicense = Annotated[Line | None, Field(description="SPDX expression of the repository, or NOASSERTION")]
Graph = Annotated[Sha256 | None, Field(description="identity of the computation (G0); null if unknown")]
GraphWidths = Annotated[Sha256 | None, Field(description="identity of the computation, ignoring widths (G1)")]

# Of blocks.
BlockId = Annotated[
    Line, Field(min_length=1, description="as in the table of blocks, like all fields of the same name")
]
BlockName = Annotated[Line, Field(min_length=1, description="bare name of the class")]
Category = Annotated[str, Field(description="its purpose by name, not proven: of the class, its bases and its module")]
BlockLevel = Annotated[Level, Field(description="highest level reached, each one including those before it")]
Fidelity = Annotated[
    Literal["match", "mismatch"] | None,
    Field(description="compared with the class as imported from its own package; null if not compared"),
]
Source = Annotated[Line, Field(description="for example timm@1.0.30, detr@29901c51d7fe, or a folder's name")]
SourcePath = Annotated[
    RelativePath, Field(description="of the file that defines it, relative to the root of the source")
]
StartLine = Annotated[int, Field(ge=1, description="first line of the class in that file")]
EndLine = Annotated[int, Field(ge=1, description="last line of the class in that file")]
Swhid = Annotated[Line, Field(description="swh:1:cnt: of the file that defines it")]
TrainDiffers = Annotated[
    bool | None, Field(description="train and eval mode give different outputs, with drawn weights")
]
IdentityInEval = Annotated[
    bool | None, Field(description="eval mode returns its first input alone, unchanged, with drawn weights")
]
Gradients = Annotated[
    int | None, Field(ge=0, description="parameters that finite gradients reached; inputs, if there are none")
]
Tensors = Annotated[int | None, Field(ge=0, description="parameters that require gradients; inputs, if there are none")]

# Of conversations.
Messages = Annotated[tuple[ChatMessage, ...], Field(min_length=3, max_length=3, description="system, user, assistant")]
RecordId = Annotated[Sha256, Field(description="id of the record")]
Tokens = Annotated[
    int, Field(ge=1, description="words, numbers and punctuation marks of all contents; white space not counted")
]


# --- networks and their curation --------------------------------------------------------------------------------------


class LemurRecord(Record):
    """One distinct network code, represented by its best row; the first nine columns are those of the LEMUR API."""

    nn: NetworkName
    nn_code: NetworkCode
    task: Task
    dataset: Dataset
    metric: Metric
    epoch: Epoch
    accuracy: float | None = Field(
        description="value of the metric in the row of best percentile, which need not be the highest value of the"
        " network: see best_accuracy; comparable within one task, dataset, metric, epoch"
    )
    duration: Duration
    prm: Hyperparameters
    id: CodeId
    prefix: Prefix
    family: Family
    split: RowSplit
    weight: float = Field(ge=0, description="sampling weight")
    cluster: str = Field(description="group that must be in one split: the smallest id of its members, 16 digits")
    score: Ratio | None = Field(
        description="mean percentile over all results, by data set and size of field, drawn to 0.5 where there are few"
    )
    pretrained: Pretrained
    runs: bool | None = Field(
        default=None, description="runs forward when constructed by LEMUR's contract; null if not tried"
    )
    runs_error: str | None = Field(
        default=None, description="why it does not run or was not checked: category and one line"
    )
    graph: Graph = None
    graph_widths: GraphWidths = None
    behavior: Behavior | None = Field(
        default=None, description="what it computes, in numbers; null if no other network could compute the same"
    )
    dead_classes: tuple[str, ...] | None = Field(
        default=None, description="classes of the code that contribute to no output"
    )
    unused_parameters: tuple[str, ...] | None = Field(
        default=None, description="parameters that no output depends on, by name"
    )
    arch_uid: str | None = Field(
        default=None, description="LEMUR's own certificate of the architecture; null if the source states none"
    )
    best_accuracy: float | None = Field(
        default=None, description="highest value of the metric over all rows of the network with this task, dataset"
    )
    best_epoch: BestEpoch = None
    best_dataset: str | None = Field(default=None, description="dataset of best_accuracy, that of the row shown")
    license: CodeLicense = None
    origin: Origin = None
    origin_similarity: OriginSimilarity = None
    origin_license: OriginLicense = None


class NetworkRow(Record):
    """One distinct code of the corpus, kept or not, with its best result, its split and what it computes."""

    id: CodeId
    nn: Line = Field(description="name of the code's best network")
    names: tuple[Line, ...] = Field(description="all names under which rows have this code, sorted")
    nn_code: NetworkCode
    prefix: Prefix
    family: Family
    kept: bool = Field(description="true for a code that is a record of this snapshot")
    canonical: Sha256 | None = Field(
        description="id of the kept record that represents it, here or published before; its own id when kept"
    )
    stage: Stage | None = Field(description="stage that removed it; null when kept")
    similarity: Ratio | None = Field(description="Jaccard similarity to the canonical at that stage")
    split_group: str | None = Field(
        description="group of all codes that must be in one split: the smallest id of its members, 16 digits; null for"
        " a code that is near to codes of two splits"
    )
    split: Split | None = Field(
        description="split of the group, for kept codes that of the record; null for a code that belongs to none"
    )
    graph: Graph
    graph_widths: GraphWidths
    behavior: Behavior | None = Field(description="what it computes, in numbers; null if that was not measured")
    parameters: int | None = Field(
        ge=0, description="numbers in the parameters that its outputs depend on, in eval mode; null without a graph"
    )
    multiply_adds: int | None = Field(
        ge=0,
        description="multiplications of convolutions, linear, attention and recurrent layers and of products of"
        " matrices for one input of the traced size, in eval mode; null without a graph",
    )
    score: Ratio | None = Field(description="as for records; null if an option left out all its results")
    best_accuracy: float | None = Field(description="highest value of the metric over all rows of the code")
    best_epoch: BestEpoch
    best_dataset: str | None = Field(description="dataset of best_accuracy")
    task: str | None = Field(description="task of the code's best network")
    dataset: str | None = Field(description="dataset of the row of best percentile, which is that of best_accuracy")
    metric: str | None = Field(description="metric of best_accuracy")
    pretrained: Pretrained
    license: CodeLicense = None
    origin: Origin = None
    origin_similarity: OriginSimilarity = None
    origin_license: OriginLicense = None


class Decision(Record):
    """The outcome of one input row, and the reason."""

    row: int = Field(ge=0, description="number of the input row, from 0")
    id: Sha256 | None = Field(description="SHA-256 of the row's code; null when it has none")
    nn: Line = Field(description="name of the network in the row")
    kept: bool = Field(description="true for one row of each kept record")
    stage: Stage | None = Field(description="stage that removed the row; null when kept")
    rescued: Literal["prefix", "topup"] | None = Field(description="kept to support its prefix")
    canonical: Sha256 | None = Field(description="id of the kept record that represents it, here or published before")
    similarity: Ratio | None = Field(
        description="Jaccard similarity to the canonical at that stage; 1.0 for equal code"
    )
    reason: str = Field(description="why it was kept or removed, in one line")
    agreement: Agreement | None = Field(
        default=None, description="of the graphs of the row's code and its canonical; null if one is unknown"
    )


class GraphRow(Record):
    """The computation of one code, or why it is unknown; see docs/graphs.md."""

    id: Sha256 = Field(description="SHA-256 of the code, UTF-8")
    graph: Sha256 | None = Field(description="the computation in eval and train mode (G0)")
    graph_widths: Sha256 | None = Field(description="the same, ignoring widths (G1)")
    graph_repeats: Sha256 | None = Field(description="the same, ignoring widths and repeats (G2)")
    graph_eval: Sha256 | None = Field(description="the computation in eval mode alone")
    behavior: Behavior | None = Field(
        default=None, description="the same in numbers; null if no other traced code could compute the same"
    )
    behavior_eval: Behavior | None = Field(default=None, description="the numbers of eval mode alone")
    error: str | None = Field(description="why there is no graph: category and one line")
    train_error: str | None = Field(description="why there is no graph of train mode")
    route: Literal["meta", "cpu"] | None = Field(description="recorded without values (meta) or with values (cpu)")
    in_shape: tuple[int, ...] | None = Field(description="of the input")
    reads_values: bool | None = Field(description="Python read tensor values: the graph may show one branch of several")
    prm_read: tuple[str, ...] | None = Field(description="hyperparameters that the network read")
    initial: Sha256 | None = Field(description="digest of the parameters' initialization")
    glue: Sha256 | None = Field(description="digest of train_setup and learn")
    dead_classes: tuple[str, ...] | None = Field(
        description="classes and functions of the code that contribute to no output"
    )
    unused_parameters: tuple[str, ...] | None = Field(description="parameters that no output depends on, by name")
    torch: str | None = Field(description="the torch release that recorded it")
    form: int | None = Field(description="version of the stored form")
    eval: str | None = Field(description="the graph in eval mode, JSON")
    train: str | None = Field(description="the graph in train mode, JSON")


class Stat(Record):
    """One evaluation of a network, kept or not: an input row without its code."""

    id: Sha256 = Field(description="SHA-256 of the network's code")
    nn: NetworkName
    task: Task
    dataset: Dataset
    metric: Metric
    epoch: Epoch
    accuracy: float | None = Field(description="value of the metric")
    duration: Duration
    prm: Hyperparameters
    outcomes: str | None = Field(
        default=None, description="what LEMUR's later releases store in prm besides hyperparameters, a JSON object"
    )


ChatKind = Literal["design", "repair"]

#: The kinds of requests in conversations.
CHAT_KINDS: tuple[ChatKind, ...] = typing.get_args(ChatKind)


class ChatRow(Record):
    """One fine-tuning conversation about a kept record, in the split of that record."""

    messages: Messages
    id: Sha256 = Field(description="SHA-256 of the record's id, the task and the variant, joined by ':'")
    task: ChatKind = Field(description="what is asked for")
    variant: str = Field(min_length=1, description="the fault and its line; file for the whole file")
    nn: Line = Field(description="name of the record's network")
    record: RecordId
    license: Line = Field(description="SPDX expression of the record's code, or NOASSERTION")
    n_tokens: Tokens


class ChatDrop(Record):
    """A kind of conversation that was not generated for a kept record, and why."""

    record: RecordId
    nn: Line = Field(description="name of the record's network")
    task: ChatKind = Field(description="the kind of conversation")
    reason: str = Field(min_length=1, description="one short word, as counted in report.md")
    detail: str = Field(description="what decided it")


#: What later releases of LEMUR write among the hyperparameters of a run, besides `metric_*`: results, and the load of
#: the machine. Source: `train_n_eval` in `ab/nn/util/Train.py` of nn-dataset 2.2.6, 2.2.8 and 2.2.11
OUTCOMES = frozenset(
    {
        *("duration_seconds", "train_loss", "test_loss", "train_accuracy", "best_accuracy", "best_epoch", "train_stat"),
        *("gradient_norm", "samples_per_second", "lr_now", "cpu_count", "cpu_type", "cpu_usage_percent", "gpu_type"),
        *("total_ram_kb", "occupied_ram_kb", "ram_usage_percent", "gpu_memory_kb", "gpu_total_memory_kb"),
        *("occupied_gpu_memory_kb", "gpu_memory_usage_percent"),
    }
)


def drop_outcomes(prm: Mapping[str, object]) -> dict[str, object]:
    """Return hyperparameters without the outcomes that LEMUR stores among them.

    Args: prm: by name, as a network's constructor takes them.
    Returns: a new dict, in the same order.
    """
    return {name: value for name, value in prm.items() if name not in OUTCOMES and not name.startswith("metric_")}


def split_outcomes(prm: str | None) -> tuple[str | None, str | None]:
    """Split the hyperparameters of a row from the outcomes among them.

    Args: prm: a JSON object; any other text is returned as it is.
    Returns: the hyperparameters, with the same text if no outcome is among them; the outcomes, a JSON object or None.
    """
    if prm is None or not ("metric_" in prm or any(name in prm for name in OUTCOMES)):
        return prm, None
    try:
        values = json.loads(prm)
    except (ValueError, RecursionError):
        return prm, None
    if not isinstance(values, dict):
        return prm, None
    own = drop_outcomes(values)
    outcomes = {name: value for name, value in values.items() if name not in own}
    return (json.dumps(own, sort_keys=True), json.dumps(outcomes, sort_keys=True)) if outcomes else (prm, None)


# --- blocks, their specs, and conversations about them ----------------------------------------------------------------


class Block(Record):
    """One nn.Module class of one source: its location there, the level it reached, and its closed file."""

    block: Line = Field(min_length=1, description="unique: SOURCE::QUALNAME")
    name: BlockName
    qualname: Line = Field(min_length=1, description="dotted name under which its own source imports it")
    source: Source
    path: SourcePath
    start_line: StartLine
    end_line: EndLine
    category: Category
    level: BlockLevel
    error_kind: str | None = Field(description="why it stopped there; null if it reached the requested level")
    error: str | None = Field(description="this reason in one line")
    fidelity: Fidelity
    code: str | None = Field(description="the closed file; null if none could be written")
    code_sha256: Sha256 | None = Field(description="SHA-256 of code, UTF-8")
    n_lines: int | None = Field(ge=0, description="lines of code")
    requires: tuple[str, ...] = Field(
        description="PEP 508, in addition to the standard library and the declared runtime"
    )
    swhid: Swhid
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
    graph: Graph = None
    graph_widths: GraphWidths = None
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
    train_differs: TrainDiffers = None
    identity_in_eval: IdentityInEval = None
    gradients: Gradients = None
    tensors: Tensors = None
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
    eval: Json = Field(
        description="the graph of eval mode: form, torch, nodes (operation, arguments, types, module), outputs, writes"
    )
    train: Json | None = Field(description="that of train mode; null if it is the same, or there is none")


class SpecFacts(Record):
    """Facts of a block that a spec has as a line and as a row of a table."""

    block: BlockId
    name: BlockName
    category: Category
    level: BlockLevel
    fidelity: Fidelity
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
    train_differs: TrainDiffers
    identity_in_eval: IdentityInEval
    gradients: Gradients
    tensors: Tensors
    uninitialized: tuple[str, ...] | None = Field(default=None, description="parameters that no code initializes")
    not_shown: tuple[str, ...] = Field(default=(), description="what its run did not show, by kind")
    graph: Graph = None
    source: Source
    path: SourcePath
    start_line: StartLine
    end_line: EndLine
    swhid: Swhid
    license: License
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
    split: RowSplit
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

    messages: Messages
    id: Sha256 = Field(description="SHA-256 of the block's id and the task, joined by ':'")
    task: SpecChatKind = Field(description="what is asked for")
    block: BlockId
    source: Source
    path: SourcePath
    start_line: StartLine
    end_line: EndLine
    swhid: Swhid
    license: License
    notice: str = Field(description="owners and licenses of the code")
    n_tokens: Tokens


class SpecChatDrop(Record):
    """A kind of conversation that was not generated for a block with a spec, and why."""

    block: BlockId
    source: Source
    task: SpecChatKind = Field(description="the kind of conversation")
    reason: str = Field(min_length=1, description="one short word, as counted in the manifest")
    detail: str = Field(description="what decided it; never text of the source")


# --- training, synthesis, domain experts, exports ---------------------------------------------------------------------


class Ingredient(Record):
    """One block in an assembled network."""

    slot: str = Field(min_length=1, description="place in the recipe, for example attention")
    block: BlockId
    source: Source
    path: SourcePath
    swhid: Swhid
    license: Line = Field(description="SPDX expression of all its parts")
    code_sha256: Sha256 = Field(description="SHA-256 of the file that was used, UTF-8")


class TrainingRecord(Record):
    """One training run, whatever its outcome: network, data, recipe and results."""

    name: Line = Field(min_length=1, description="of the network, as LEMUR would register it")
    status: Literal["ok", "diverged", "out_of_memory", "timeout", "error"] = Field(
        description="ok, or how the run ended"
    )
    error: str | None = Field(description="why the status is not ok, in one line")
    code_sha256: Sha256 = Field(description="SHA-256 of the network's file, UTF-8")
    ingredients: tuple[Ingredient, ...] = Field(description="blocks of an assembled network; empty for other networks")
    recipe: JsonObject = Field(
        description="the whole recipe, JSON with sorted keys; model and slots null for other networks"
    )
    recipe_sha256: Sha256 = Field(description="SHA-256 of that JSON")
    prm: JsonObject = Field(description="hyperparameters of the network's constructor, a JSON object")
    seed: int = Field(ge=0, description="of initialization and all random draws")
    data: str = Field(description="which images: cifar-10, cifar-10 (JPEG copy, harder), synthetic (smoke test only)")
    data_sha256: Sha256 = Field(description="digest of the decoded images and labels")
    train_images: int = Field(ge=0, description="number of training images")
    epochs: int = Field(ge=0, description="whole epochs trained")
    steps: int = Field(ge=0, description="optimizer steps taken")
    parameters: int | None = Field(ge=0, description="elements of all parameters; null if it was not constructed")
    images_seen: int | None = Field(default=None, ge=0, description="by the network in training, each time it sees one")
    flop: int | None = Field(
        default=None, ge=0, description="of all forward and backward passes of training, by torch.utils.flop_counter"
    )
    train_loss: float | None = Field(description="mean over the last epoch, augmented images", allow_inf_nan=False)
    val_accuracy: Ratio | None = Field(description="on held-out training images; null if none were held out")
    test_accuracy: Ratio | None = Field(description="on the test images, read once after the last epoch")
    train_seconds: Seconds = Field(description="of the steps, including data loading; without warm-up and evaluation")
    data_seconds: Seconds = Field(description="part of train_seconds spent waiting for data")
    peak_bytes: int | None = Field(ge=0, description="peak resident set size of the training process")
    device: str = Field(description="kind, model, threads")
    precision: Literal["float32", "bfloat16"] = Field(description="of the forward pass")
    torch: str = Field(description="release of torch")
    torchvision: str = Field(description="release of torchvision")


class SynthesisAttempt(Record):
    """One answer of a language model, or why there is none, and the checks that its code passed."""

    model: str = Field(min_length=1, description="name of the language model")
    attempt: int = Field(ge=0, description="its number in the run")
    round: int = Field(ge=0, description="0, plus one for each answer to an error")
    block: Line = Field(description="the requested block, as in the table of blocks")
    prompt: str = Field(description="the messages, JSON")
    answer: str | None = Field(description="the model's answer; null if there is none")
    finish: str | None = Field(description="why the answer ended, as the model reports: stop, length")
    prompt_tokens: int | None = Field(ge=0, description="as counted by the model")
    answer_tokens: int | None = Field(ge=0, description="as counted by the model")
    sampling: str = Field(description="sampling parameters, JSON")
    seed: int = Field(description="of sampling")
    passed: tuple[str, ...] = Field(description="checks that the code passed, in order")
    failed: str | None = Field(description="the check that it failed; null for an accepted network")
    error: str | None = Field(description="the complete error")
    facts: JsonObject = Field(description="whether its block is the same, and the nearest known network, JSON")
    code: str | None = Field(description="the file in the answer; null if there is none")
    code_sha256: Sha256 | None = Field(description="SHA-256 of code, UTF-8")
    nn: Line | None = Field(description="name of the accepted network")


class Synthesized(Record):
    """One accepted network; the first nine columns are those of the LEMUR API, without results: it was not trained."""

    nn: Line = Field(min_length=1, description="name of the network")
    nn_code: NetworkCode
    task: str = Field(description="for example img-classification")
    dataset: str = Field(description="for example cifar-10")
    metric: str = Field(description="for example acc")
    epoch: int | None = Field(description="null: it was not trained")
    accuracy: Ratio | None = Field(description="null")
    duration: float | None = Field(description="null")
    prm: str = Field(description="hyperparameters of its proof, a JSON object")
    id: CodeId
    model: str = Field(description="name of the language model that wrote it")
    attempt: int = Field(ge=0, description="its attempt in the table of attempts")
    round: int = Field(ge=0, description="its round there")
    block: Line = Field(description="the block whose spec it was written from")
    block_code: Sha256 = Field(description="SHA-256 of the file of this block, which the model did not see")
    graph: Sha256 = Field(description="what it computes (G0)")
    graph_widths: Sha256 = Field(description="identity of the computation, ignoring widths (G1)")
    license: Line = Field(description="SPDX expression stated by the user, else NOASSERTION")


class ExpertFact(Record):
    """One fact about a block that a domain expert should know."""

    id: str = Field(min_length=1, description="BLOCK#RELATION")
    domain: str = Field(description="domain of the block, or general")
    block: BlockId
    name: Line = Field(description="of the class, as used in questions")
    package: Line = Field(description="package name used in questions")
    relation: str = Field(description="what is stated: lines, parameters, operations or submodules")
    answer: str = Field(description="the nearest mark on the relation's scale")
    value: int = Field(ge=0, description="the exact value")
    asked: bool = Field(
        description="false if its answer is too frequent in the domain: used for training, never as a question"
    )
    held: bool = Field(description="of a held-out block, which no prototype sees")
    code_sha256: Sha256 = Field(description="SHA-256 of the block's file, UTF-8")


class ExpertAnswer(Record):
    """The answer of one arm to one question."""

    id: str = Field(min_length=1, description="of the fact")
    arm: str = Field(description="the method, as in the report")
    domain: str = Field(description="domain of the question, or general")
    block: BlockId
    relation: str = Field(description="as in the table of facts")
    question: str = Field(description="the text of the question")
    routed: str | None = Field(description="the domain whose token was injected; null if none was")
    expected: str = Field(description="the right answer")
    answer: str = Field(description="the answer that was given")
    correct: bool = Field(description="answer and expected are equal")
    tokens: int = Field(ge=0, description="input tokens of the base model: the prompt with injected content")
    code_sha256: Sha256 = Field(description="SHA-256 of the block's file, UTF-8")


class ExportedRow(Record):
    """A row of any form: license and code of its source."""

    license: str = Field(description="SPDX expression of the code in the row, or of the source of its facts")
    code_sha256: Sha256 = Field(description="SHA-256 of the code in the source folder that the row is about")


class KernelProblem(ExportedRow):
    """One block as a problem of KernelBench: a file with `Model`, `get_inputs()` and `get_init_inputs()`."""

    problem_id: int = Field(ge=1, description="the number before the name of the file")
    name: str = Field(min_length=1, description="name of the file in level1")
    level: int = Field(ge=1, description="always 1: blocks are not sorted into KernelBench's levels")
    code: str = Field(min_length=1, description="the file")
    cases: int = Field(
        ge=1, description="inputs that get_inputs(case) builds: shapes, ranges of values, memory layouts"
    )
    hackable: str | None = Field(
        description="why a trivial answer would pass, for which the problem has no file; null for one that has"
    )
    requires: tuple[str, ...] = Field(description="PEP 508: what it imports besides the declared runtime")
    block: str = Field(min_length=1, description="id in the extraction, SOURCE::QUALNAME")
    swhid: str = Field(description="swh:1:cnt: of the file that defines it")


class PromptCompletion(ExportedRow):
    """A conversation as a prompt and its completion."""

    prompt: tuple[ChatMessage, ...] = Field(min_length=1, description="system and user")
    completion: tuple[ChatMessage, ...] = Field(min_length=1, description="assistant")
    id: str = Field(min_length=1, description="id of the conversation")
    task: str = Field(description="what is asked for")
    notice: str | None = Field(default=None, description="owners and licenses of the code in the completion")


RECORD_TYPES: tuple[type[Record], ...] = (
    *(LemurRecord, NetworkRow, Decision, GraphRow, Stat),
    *(ChatRow, ChatDrop, Block, Observed, Algorithm, Spec, SpecRow, SpecChatRow, SpecChatDrop),
    *(Ingredient, TrainingRecord, SynthesisAttempt, Synthesized, ExpertFact, ExpertAnswer, KernelProblem),
    PromptCompletion,
)
