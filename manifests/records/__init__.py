"""Record types shared by folders and packages, with JSON Schemas in `schemas/`; tables of records are Parquet."""

import json
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from manifests.options import Level as Level

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
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
    try:
        if isinstance(json.loads(text), dict):
            return text
    except (ValueError, RecursionError):
        pass
    raise ValueError("must be a JSON object")


class Record(BaseModel):
    """Base of all records: immutable, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


#: Plain messages by Pydantic's error type.
_MESSAGES = {
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
    plain = _MESSAGES.get(fault["type"])
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


_LICENSE = "SPDX expression of the code: as stated by itself, its source, its origin; NOASSERTION where one is unknown"
_ORIGIN = "block of an extracted repository whose source a class of the code matches; null if there is none"
_ORIGIN_SIMILARITY = "Jaccard similarity of the two classes"
_ORIGIN_LICENSE = "SPDX expression of the repository, or NOASSERTION"


class LemurRecord(Record):
    """One distinct network code, represented by its best row; the first nine columns are those of the LEMUR API."""

    nn: str = Field(description="name of the network")
    nn_code: str = Field(description="Python source of the network")
    task: str | None = Field(description="for example img-classification")
    dataset: str | None = Field(description="for example cifar-10")
    metric: str | None = Field(description="for example acc")
    epoch: int | None = Field(description="epochs trained")
    accuracy: float | None = Field(
        description="value of the metric; comparable within one task, dataset, metric, epoch"
    )
    duration: float | None = Field(description="duration of an epoch, nanoseconds")
    prm: str | None = Field(description="hyperparameters, a JSON object")
    id: Sha256 = Field(description="SHA-256 of nn_code, UTF-8")
    prefix: str = Field(description="text of nn before the first '-'")
    family: str = Field(description="architecture family, inferred from the code's identifiers")
    split: Split
    weight: float = Field(ge=0, description="sampling weight")
    cluster: str = Field(description="group that must be in one split: the smallest id of its members, 16 digits")
    score: Ratio | None = Field(description="percentile of accuracy among the networks of the same benchmark")
    pretrained: bool = Field(description="the code loads trained weights")
    runs: bool | None = Field(
        default=None, description="runs forward when constructed by LEMUR's contract; null if not tried"
    )
    runs_error: str | None = Field(
        default=None, description="why it does not run or was not checked: category and one line"
    )
    graph: Sha256 | None = Field(default=None, description="identity of the computation (G0); null if unknown")
    graph_widths: Sha256 | None = Field(default=None, description="identity of the computation, ignoring widths (G1)")
    dead_classes: tuple[str, ...] | None = Field(
        default=None, description="classes of the code that contribute to no output"
    )
    unused_parameters: tuple[str, ...] | None = Field(
        default=None, description="parameters that no output depends on, by name"
    )
    arch_uid: str | None = Field(
        default=None, description="LEMUR's own certificate of the architecture; null if the source states none"
    )
    license: str | None = Field(default=None, description=_LICENSE)
    origin: str | None = Field(default=None, description=_ORIGIN)
    origin_similarity: Ratio | None = Field(default=None, description=_ORIGIN_SIMILARITY)
    origin_license: str | None = Field(default=None, description=_ORIGIN_LICENSE)


class Decision(Record):
    """The outcome of one input row, and the reason."""

    row: int = Field(ge=0, description="number of the input row, from 0")
    id: Sha256 | None = Field(description="SHA-256 of the row's code; null when it has none")
    nn: str
    kept: bool = Field(description="true for one row of each kept record")
    stage: Stage | None = Field(description="stage that removed the row; null when kept")
    rescued: Literal["prefix", "topup"] | None = Field(description="kept to support its prefix or family")
    canonical: Sha256 | None = Field(description="id of the kept record that represents it, here or published before")
    similarity: Ratio | None = Field(
        description="Jaccard similarity to the canonical at that stage; 1.0 for equal code"
    )
    reason: str
    agreement: Agreement | None = Field(
        default=None, description="of the graphs of the row's code and its canonical; null if one is unknown"
    )


class GraphRow(Record):
    """The computation of one code, or why it is unknown; see docs/graphs.md."""

    id: Sha256
    graph: Sha256 | None = Field(description="the computation in eval and train mode (G0)")
    graph_widths: Sha256 | None = Field(description="the same, ignoring widths (G1)")
    graph_repeats: Sha256 | None = Field(description="the same, ignoring widths and repeats (G2)")
    error: str | None = Field(description="why there is no graph: category and one line")
    train_error: str | None = Field(description="why there is no graph of train mode")
    route: Literal["meta", "cpu"] | None = Field(description="recorded without values (meta) or with values (cpu)")
    in_shape: tuple[int, ...] | None = Field(description="of the input")
    reads_values: bool | None = Field(description="Python read tensor values: the graph may show one branch of several")
    prm_read: tuple[str, ...] | None = Field(description="hyperparameters that the network read")
    initial: Sha256 | None = Field(description="digest of the parameters' initialization")
    glue: Sha256 | None = Field(description="digest of train_setup and learn")
    dead_classes: tuple[str, ...] | None
    unused_parameters: tuple[str, ...] | None
    torch: str | None = Field(description="the torch release that recorded it")
    form: int | None = Field(description="version of the stored form")
    eval: str | None = Field(description="the graph in eval mode, JSON")
    train: str | None = Field(description="the graph in train mode, JSON")


class Stat(Record):
    """One evaluation of a kept network: an input row without its code."""

    id: Sha256
    nn: str
    task: str | None
    dataset: str | None
    metric: str | None
    epoch: int | None
    accuracy: float | None
    duration: float | None
    prm: str | None


class Removed(Record):
    """The code of a removed record, so that the snapshot can explain and prove every removal by itself."""

    id: Sha256
    nn: str
    nn_code: str
    score: Ratio | None = Field(description="as for kept records, to compare with the canonical's")
    license: str | None = Field(default=None, description=_LICENSE)
    origin: str | None = Field(default=None, description=_ORIGIN)
    origin_similarity: Ratio | None = Field(default=None, description=_ORIGIN_SIMILARITY)
    origin_license: str | None = Field(default=None, description=_ORIGIN_LICENSE)


class JoinedCluster(Record):
    """A group of records published earlier that later records have made one with another."""

    cluster: str = Field(description="the key in the tables of the folder that the delta extends")
    joined: str = Field(description="the key of the group now: the smallest of all that were joined")


ChatRole = Literal["system", "user", "assistant"]

#: Who speaks in a conversation, in this order.
CHAT_ROLES: tuple[ChatRole, ...] = typing.get_args(ChatRole)


class ChatMessage(Record):
    """One turn of a conversation."""

    role: ChatRole
    content: str = Field(min_length=1)


ChatKind = Literal["design", "complete", "repair", "explain", "change"]

#: The kinds of requests in conversations.
CHAT_KINDS: tuple[ChatKind, ...] = typing.get_args(ChatKind)


class ChatRow(Record):
    """One fine-tuning conversation about a kept record, in the split of that record."""

    messages: tuple[ChatMessage, ...] = Field(min_length=3, max_length=3, description="system, user, assistant")
    id: Sha256 = Field(description="SHA-256 of the record's id, the task and the variant, joined by ':'")
    task: ChatKind = Field(description="what is asked for")
    variant: str = Field(min_length=1, description="what was cut out, broken or changed; file for the whole file")
    nn: str = Field(description="name of the record's network")
    record: Sha256 = Field(description="id of the record")
    license: str = Field(description="SPDX expression of the record's code, or NOASSERTION")
    n_tokens: int = Field(
        ge=1, description="words, numbers and punctuation marks of all contents; white space not counted"
    )


class ChatDrop(Record):
    """A kind of conversation that was not generated for a kept record, and why."""

    record: Sha256 = Field(description="id of the record")
    nn: str
    task: ChatKind
    reason: str = Field(min_length=1, description="one short word, as counted in report.md")
    detail: str = Field(description="what decided it")


class Block(Record):
    """One nn.Module class of one source: its location there, the level it reached, and its closed file."""

    block: str = Field(min_length=1, description="unique: SOURCE::QUALNAME")
    name: str = Field(min_length=1, description="bare name of the class")
    qualname: str = Field(min_length=1, description="dotted name under which its own source imports it")
    source: str = Field(min_length=1, description="for example timm@1.0.20, detr@29901c51d7fe, or a folder's name")
    path: str = Field(description="of the file that defines it, relative to the root of the source")
    start_line: int = Field(ge=1, description="first line of the class in that file")
    end_line: int = Field(ge=1)
    category: str = Field(description="its purpose, inferred from its names")
    level: Level = Field(description="highest level reached, each one including those before it")
    error_kind: str | None = Field(description="why it stopped there; null if it reached the requested level")
    error: str | None = Field(description="this reason in one line")
    fidelity: Literal["match", "mismatch"] | None = Field(
        description="compared with the class as imported from its own package; null if not compared"
    )
    code: str | None = Field(description="the closed file; null if none could be written")
    code_sha256: Sha256 | None = Field(description="SHA-256 of code, UTF-8")
    n_lines: int | None = Field(ge=0, description="lines of code")
    requires: tuple[str, ...] = Field(
        description="PEP 508, in addition to the standard library and the declared runtime"
    )
    swhid: str = Field(description="swh:1:cnt: of the file that defines it")
    license: str = Field(description="SPDX expression of the source, or as the head of its file states; or NOASSERTION")
    seconds: Seconds | None = Field(description="wall time of this block; null unless timings were requested")
    digest: Sha256 = Field(description="SHA-256 of the source's Python files")
    resolutions: tuple[str, ...] = Field(
        default=(), description="definitions from other files: location, kind of resolution, confidence in 0..1"
    )
    file: str | None = Field(default=None, description="where code lies in the extraction folder")
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
    lean_license: str | None = Field(default=None, description="SPDX expression of all sources with code in lean_code")
    dynamic: str | None = Field(
        default=None, description="what it looks up by strings, and what its registries lack: one item per line"
    )
    graph: Sha256 | None = Field(default=None, description="identity of the computation (G0); null if unknown")
    graph_widths: Sha256 | None = Field(default=None, description="identity of the computation, ignoring widths (G1)")
    lean_error: str | None = Field(default=None, description="why a block that runs forward has no lean_code")
    quality: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="LEMUR's code score by Pyflakes and Radon; null if it does not parse",
    )
    names_compared: int | None = Field(
        default=None, ge=0, description="global names that it reads and that can be compared with the original's"
    )
    names_same: int | None = Field(default=None, ge=0, description="of these, bound to the same as in the original")
    names_standin: int | None = Field(default=None, ge=0, description="of these, bound to a replacement by this tool")
    names_other: tuple[str, ...] = Field(
        default=(), description="of these, bound to something else: module, name and reason, truncated"
    )


class Case(Record):
    """One call of forward: its inputs and outputs, tensors as `float32 2x16x8x8`."""

    inputs: dict[str, str] = Field(description="by argument, in order; nested values have dotted names")
    outputs: tuple[str, ...] = Field(description="the tensors of the output, flattened in order")


class Observed(Record):
    """Observations of a block that was constructed and run on the CPU with working arguments."""

    parameters: int = Field(ge=0, description="elements of all parameters")
    trainable: int = Field(ge=0, description="elements of those with requires_grad")
    buffers: int = Field(ge=0, description="elements of all buffers")
    layers: dict[str, int] = Field(description="number of submodules by class name, by count, then name")
    cases: tuple[Case, ...] = Field(default=(), description="calls in eval mode; the first with the recorded arguments")
    train_differs: bool | None = Field(default=None, description="train and eval mode give different outputs")
    identity_in_eval: bool | None = Field(default=None, description="eval mode returns its first input unchanged")
    gradients: int | None = Field(default=None, ge=0, description="parameters that finite gradients reached")
    tensors: int | None = Field(default=None, ge=0, description="parameters that require gradients")


class SpecArgument(Record):
    """One argument of a constructor or of forward, in words."""

    name: str
    kind: Literal["positional", "keyword", "more positional", "more keyword"]
    type: str | None = Field(default=None, description="of the annotation, else of the default value")
    default: str | None = Field(default=None, description="null if there is none")


class SpecArguments(Record):
    """The arguments with which a block ran."""

    init: dict[str, str] = Field(description="of the constructor, by name")
    forward: dict[str, str] = Field(description="of the call, by name")
    method: str = Field(default="forward", description="the method that was called")


class Algorithm(Record):
    """The computation of a block; see docs/graphs.md. Published only for permissively licensed sources."""

    sentences: tuple[str, ...] = Field(description="the operations of eval mode in order, derived from the graph alone")
    motifs: tuple[str, ...] = Field(description="patterns that they form, most frequent first")
    told: str = Field(description="the part of these at the end of the summary")
    returns: Any = Field(
        description="what forward returns: tensor, null for anything else, lists of these, items of objects"
    )
    route: Literal["meta", "cpu"] = Field(description="device of the recorded runs")
    reads_values: bool = Field(description="Python read tensor values: other inputs may take another branch")
    unused_parameters: tuple[str, ...] = Field(description="parameters that no result depends on")
    train_error: str | None = Field(description="why there is no graph of train mode")
    sizes: dict[str, tuple[int | float, ...]] = Field(
        description="free input sizes by letter: the values it was traced at, its own first; and numbers"
        " U1, U2, ... without a formula"
    )
    fixed: str | None = Field(description="why no size is free, if none is")
    rebuilds: Literal[True] | str | None = Field(
        description="true if the block rebuilt from this alone is proved equal; else why not; null if not tried"
    )
    eval: dict[str, Any] = Field(description="the graph of eval mode: form, torch, operations, nodes, outputs, writes")
    train: dict[str, Any] | None = Field(
        description="the difference of train mode; null if there is none, or no graph of it"
    )


class Spec(Record):
    """Facts about the design and behavior of a block, without any passage of its source.

    Tuples of numbers are written `3×4×6×3`, shapes `float32 2×16×8×8`, layouts `N×C×H×W`, mappings
    `type BN; eps 0.001`.
    """

    block: str = Field(min_length=1, description="as in the table of blocks, like all fields of the same name")
    name: str = Field(min_length=1)
    category: str
    level: Level
    fidelity: Literal["match", "mismatch"] | None
    bases: tuple[str, ...] = Field(description="bare names of the base classes")
    constructor: tuple[SpecArgument, ...] = Field(
        description="its own, or that of the first base class in the file that has one"
    )
    forward: tuple[SpecArgument, ...]
    arguments: SpecArguments | None = Field(description="working arguments; null if the block was not constructed")
    cases: tuple[Case, ...] = Field(description="calls in eval mode, the first with these arguments")
    layout: str | None = Field(description="of the first input tensor, for example N×C×H×W")
    keeps_shape: bool | None = Field(description="the output is one tensor with the shape of the first input")
    downsampling: float | None = Field(
        description="factor by which height, width or length shrink; below 1 if they grow"
    )
    changes_channels: bool | None = Field(description="null if input and output have no channels to compare")
    parameters: int | None = Field(ge=0, description="elements of all parameters, with these arguments")
    train_differs: bool | None
    identity_in_eval: bool | None
    gradients: int | None = Field(ge=0, description="parameters that finite gradients reached")
    tensors: int | None = Field(ge=0, description="parameters that require gradients")
    layers: dict[str, int] | None = Field(description="number of submodules by class name; null if not constructed")
    graph: Sha256 | None = Field(
        default=None, description="identity of the computation (G0), as in the table of blocks"
    )
    algorithm: Algorithm | None = Field(default=None, description="null if unknown or not published")
    builds: dict[str, int] = Field(description="names of the classes that its own methods call, with counts")
    dependencies: dict[str, Literal["class", "function"]] = Field(
        description="other definitions in its file, except modules known not to run"
    )
    summary: str = Field(description="the facts above in a sentence or two")
    withheld: tuple[str, ...] = Field(default=(), description="fields left out because they repeat source text")
    source: str
    path: str
    start_line: int = Field(ge=1)
    end_line: int = Field(ge=1)
    swhid: str
    license: str
    code_sha256: Sha256
    file: str | None = Field(description="where the code lies in the extraction folder")


class SpecValue(Record):
    """One named value of a spec: an argument with its value, an input with its shape, a name with its kind."""

    name: str
    value: str


class SpecCount(Record):
    """One class of layers with its count."""

    name: str
    count: int = Field(ge=0)


class SpecCase(Record):
    """One call of forward; tensors as `float32 2×16×8×8`."""

    inputs: tuple[SpecValue, ...]
    outputs: tuple[str, ...]


class SpecRow(Record):
    """A spec as a row of a table: the facts of its line, mappings as lists by name, with its group and split."""

    block: str = Field(min_length=1, description="as in the line, like all fields of the same name")
    name: str = Field(min_length=1)
    category: str
    level: Level
    fidelity: Literal["match", "mismatch"] | None
    bases: tuple[str, ...]
    constructor: tuple[SpecArgument, ...]
    forward: tuple[SpecArgument, ...]
    init: tuple[SpecValue, ...] | None = Field(description="arguments of the constructor that worked")
    call: tuple[SpecValue, ...] | None = Field(description="arguments of the call that worked")
    method: str | None = Field(description="the method that was called; null if the block was not constructed")
    cases: tuple[SpecCase, ...]
    layout: str | None
    keeps_shape: bool | None
    downsampling: float | None
    changes_channels: bool | None
    parameters: int | None = Field(ge=0)
    train_differs: bool | None
    identity_in_eval: bool | None
    gradients: int | None = Field(ge=0)
    tensors: int | None = Field(ge=0)
    layers: tuple[SpecCount, ...] | None
    graph: Sha256 | None = None
    algorithm: str | None = Field(default=None, description="as in the line, JSON")
    builds: tuple[SpecCount, ...]
    dependencies: tuple[SpecValue, ...]
    summary: str
    withheld: tuple[str, ...]
    source: str
    path: str
    start_line: int = Field(ge=1)
    end_line: int = Field(ge=1)
    swhid: str
    license: str
    code_sha256: Sha256
    file: str | None
    split: Split
    cluster: str = Field(description="group that must be in one split: 16 digits of its first member's digest")


SpecChatKind = Literal["describe", "specify", "choose", "shapes", "write"]

#: The kinds of conversations from specs; the last one only if code was requested.
SPEC_CHAT_KINDS: tuple[SpecChatKind, ...] = typing.get_args(SpecChatKind)


class SpecChatRow(Record):
    """One fine-tuning conversation from a block's spec, in the split of that spec."""

    messages: tuple[ChatMessage, ...] = Field(min_length=3, max_length=3, description="system, user, assistant")
    id: Sha256 = Field(description="SHA-256 of the block's id and the task, joined by ':'")
    task: SpecChatKind = Field(description="what is asked for")
    block: str = Field(min_length=1, description="as in the table of blocks, like all fields of the same name")
    others: tuple[str, ...] = Field(description="other blocks that it mentions, all of the same split")
    source: str
    path: str
    start_line: int = Field(ge=1)
    end_line: int = Field(ge=1)
    swhid: str
    license: str
    notice: str | None = Field(description="owners and licenses of the code in the answer; null without code")
    n_tokens: int = Field(
        ge=1, description="words, numbers and punctuation marks of all contents; white space not counted"
    )


class SpecChatDrop(Record):
    """A kind of conversation that was not generated for a block with a spec, and why."""

    block: str = Field(min_length=1)
    source: str
    task: SpecChatKind
    reason: str = Field(min_length=1, description="one short word, as counted in the manifest")
    detail: str = Field(description="what decided it; never text of the source")


class Ingredient(Record):
    """One block in an assembled network."""

    slot: str = Field(min_length=1)
    block: str = Field(min_length=1, description="as in the table of blocks, like all fields of the same name")
    source: str
    path: str
    swhid: str
    license: str
    code_sha256: Sha256


class TrainingRecord(Record):
    """One training run, whatever its outcome: network, data, recipe and results."""

    name: str = Field(min_length=1, description="of the network, as LEMUR would register it")
    status: Literal["ok", "diverged", "out_of_memory", "timeout", "error"]
    error: str | None = Field(description="why the status is not ok, in one line")
    code_sha256: Sha256 = Field(description="SHA-256 of the network's file, UTF-8")
    ingredients: tuple[Ingredient, ...] = Field(description="blocks of an assembled network; empty for other networks")
    recipe: JsonObject = Field(
        description="the whole recipe, JSON with sorted keys; model and slots null for other networks"
    )
    recipe_sha256: Sha256 = Field(description="SHA-256 of that JSON")
    prm: JsonObject = Field(description="hyperparameters of the network's constructor, a JSON object")
    seed: int = Field(ge=0)
    data: str = Field(description="which images: cifar-10, cifar-10 (JPEG copy, harder), synthetic (smoke test only)")
    data_sha256: Sha256 = Field(description="digest of the decoded images and labels")
    train_images: int = Field(ge=0, description="number of training images")
    epochs: int = Field(ge=0, description="whole epochs trained")
    steps: int = Field(ge=0)
    parameters: int | None = Field(ge=0)
    train_loss: float | None = Field(description="mean over the last epoch, augmented images", allow_inf_nan=False)
    val_accuracy: Ratio | None = Field(description="on held-out training images; null if none were held out")
    test_accuracy: Ratio | None = Field(description="on the test images, read once after the last epoch")
    train_seconds: Seconds = Field(description="of the steps, including data loading; without warm-up and evaluation")
    data_seconds: Seconds = Field(description="part of train_seconds spent waiting for data")
    peak_bytes: int | None = Field(ge=0, description="peak resident set size of the training process")
    device: str = Field(description="kind, model, threads")
    precision: Literal["float32", "bfloat16"]
    torch: str
    torchvision: str


class SynthesisAttempt(Record):
    """One answer of a language model, or why there is none, and the checks that its code passed."""

    model: str = Field(min_length=1)
    model_digest: str | None = Field(description="of its weights; null behind an endpoint")
    attempt: int = Field(ge=0, description="index in the plan, which all models of a run share")
    round: int = Field(ge=0, description="0, plus one for each answer to an error")
    form: Literal["code", "delta"] = Field(description="a whole file, or changes to the parent")
    blocks: tuple[str, ...] = Field(description="requested blocks, as in the table of blocks")
    parent: Sha256 | None = Field(description="id of the network to change, which the model saw")
    goal: str
    prompt: str = Field(description="the messages, JSON")
    plan: str | None = Field(description="the model's plan before its answer; null if none was requested")
    answer: str | None
    finish: str | None = Field(description="why the answer ended, as the model reports: stop, length")
    prompt_tokens: int | None = Field(ge=0, description="as counted by the model")
    answer_tokens: int | None = Field(ge=0)
    sampling: str = Field(description="sampling parameters, JSON")
    seed: int
    passed: tuple[str, ...] = Field(description="checks that the code passed, in order")
    failed: str | None = Field(description="the check that it failed; null for an accepted network")
    error: str | None = Field(description="the complete error")
    facts: JsonObject = Field(description="conformance with each spec, and the nearest known network, JSON")
    originality: Ratio | None = Field(
        description="smallest share of 10-token shingles of a requested class that do not occur in its hidden source"
    )
    code: str | None
    code_sha256: Sha256 | None
    nn: str | None = Field(description="name of the accepted network")


class Synthesized(Record):
    """One accepted network; the first nine columns are those of the LEMUR API, accuracy null without training."""

    nn: str = Field(min_length=1)
    nn_code: str
    task: str
    dataset: str
    metric: str
    epoch: int | None
    accuracy: Ratio | None
    duration: float | None = Field(description="of the training, nanoseconds")
    prm: str = Field(description="hyperparameters of its proof, a JSON object")
    id: Sha256 = Field(description="SHA-256 of nn_code, UTF-8")
    model: str
    attempt: int = Field(ge=0)
    round: int = Field(ge=0)
    blocks: tuple[str, ...] = Field(description="blocks whose specs it was written from")
    block_codes: tuple[Sha256, ...] = Field(
        description="SHA-256 of the files of these blocks, which the model did not see"
    )
    parent: Sha256 | None = Field(description="id of the network that it modifies")
    originality: Ratio | None = Field(description="as in the table of attempts")
    graph: Sha256 = Field(description="what it computes (G0)")
    graph_widths: Sha256 = Field(description="identity of the computation, ignoring widths (G1)")
    license: str = Field(description="SPDX expression stated by the user, else NOASSERTION")


class ExpertFact(Record):
    """One fact about a block that a domain expert should know."""

    id: str = Field(min_length=1, description="BLOCK#RELATION")
    domain: str = Field(description="domain of the block, or general")
    block: str = Field(min_length=1, description="as in the table of blocks")
    name: str = Field(description="of the class, as used in questions")
    package: str = Field(description="package name used in questions")
    relation: str
    answer: str = Field(description="the nearest mark on the relation's scale")
    value: int = Field(ge=0, description="the exact value")
    asked: bool = Field(
        description="false if its answer is too frequent in the domain: used for training, never as a question"
    )
    held: bool = Field(description="of a held-out block, which no projector sees")
    code_sha256: Sha256


class ExpertAnswer(Record):
    """The answer of one arm to one question."""

    id: str = Field(min_length=1, description="of the fact")
    arm: str = Field(description="the method, as in the report")
    domain: str = Field(description="domain of the question, or general")
    block: str
    relation: str
    question: str
    routed: str | None = Field(description="the domain whose token was injected; null if none was")
    expected: str
    answer: str
    correct: bool
    tokens: int = Field(ge=0, description="input tokens of the base model: the prompt with injected content")
    code_sha256: Sha256


RECORD_TYPES: tuple[type[Record], ...] = (
    *(LemurRecord, Decision, GraphRow, Stat, Removed, JoinedCluster, ChatRow, ChatDrop),
    *(Block, Observed, Algorithm, Spec, SpecRow, SpecChatRow, SpecChatDrop),
    *(Ingredient, TrainingRecord, SynthesisAttempt, Synthesized, ExpertFact, ExpertAnswer),
)


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
