"""What record types share: their base, plain messages for faults, Parquet columns, and facts that several state."""

import json
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

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
    try:
        if isinstance(json.loads(text), dict):
            return text
    except (ValueError, RecursionError):
        pass
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
Duration = Annotated[float | None, Field(description="duration of an epoch, nanoseconds")]
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
