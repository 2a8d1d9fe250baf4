"""Facts that several records state: each is declared once, with the description that pages and cards print."""

from typing import Annotated, Literal

from pydantic import Field

from manifests.records.base import ChatMessage, Level, Line, Ratio, Sha256

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
SourcePath = Annotated[Line, Field(description="of the file that defines it, relative to the root of the source")]
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
