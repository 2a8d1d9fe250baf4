"""The parameters, counts and details that the manifest of each kind of folder states, as far as a reader uses them.

Every one of them may be missing, because an older release did not state it; one that is there has its type, and is
null only where its type says so.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lemur_core.files import Json
from manifests.records import Ratio, Sha256

#: The value of a heading that a manifest does not state; null is not allowed there.
_ABSENT: Any = None

Count = Annotated[int, Field(ge=0, lt=2**63)]
Counts = dict[str, Count]
Figure = Annotated[float, Field(allow_inf_nan=False)]


class Stated(BaseModel):
    """Base of what a manifest states: exact types, further keys allowed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")


class Banded(Stated):
    """How near texts were proposed, and how many of the true pairs were."""

    bands: Annotated[int, Field(ge=1, le=4096)]
    rows: Annotated[int, Field(ge=1, le=4096)]


class Recalled(Banded):
    """The same, with the measured share."""

    recall: Ratio


class Group(Stated):
    """Codes of one prefix or family."""

    before: Count
    kept: Count


class StatedRows(Stated):
    """Rows of the source by stage, of which `input` is the sum."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: Counts
    input: Count


class TracedRecords(Stated):
    """Kept records with a graph."""

    kept: Count


class ChatCounts(Stated):
    """Conversations."""

    rows: Count
    tokens: Count
    kinds: Counts
    dropped: Count


class Shared(Stated):
    """The licence of all conversations."""

    license: str = "NOASSERTION"


class OriginRules(Stated):
    """How classes were compared with those of repositories."""

    threshold: Ratio = 0.0


class SnapshotParameters(Stated):
    """The options of a snapshot."""

    source: str | None = None
    profile: str | None = None
    lexical_threshold: Annotated[float, Field(gt=0, le=1)] = 0.9
    structural_threshold: Annotated[float, Field(gt=0, le=1)] = 0.95
    tokens: Literal["abstract", "literal"] = "abstract"
    graph: str | None = None
    seed: int = 0
    check_runs: bool = False
    require_runs: bool = False
    namespace: Literal["torch"] | None = None
    chat: bool = False
    license: str | None = None
    against: list[Sha256] = []


class SnapshotCounts(Stated):
    """The counts of a snapshot."""

    rows: StatedRows = _ABSENT
    networks: Count = 0
    names: Count = 0
    codes: Count = 0
    splits: Counts = {}
    prefixes: dict[str, Group] = {}
    families: dict[str, Group] = {}
    graphs: TracedRecords = _ABSENT
    chat: ChatCounts = _ABSENT
    runs: Json = {}
    licenses: Json = {}


class SnapshotDetails(Stated):
    """The details of a snapshot."""

    license: str = "NOASSERTION"
    lsh: Recalled = _ABSENT
    against: Banded = _ABSENT
    origins: OriginRules = _ABSENT
    chat: Shared = _ABSENT
    licensed_by_row: Count = 0
    withheld: list[Json] = []
    notes: list[str] = []


class SourceFacts(Stated):
    """A source of blocks as it was fetched."""

    name: str
    version: str | None = None
    origin: str | None = None
    digest: str | None = None
    swhid: str | None = None
    license: str | None = None


class WithheldBlocks(Stated):
    """Blocks of one source whose code was not published."""

    blocks: Count = 0


class ExtractionParameters(Stated):
    """The options of an extraction."""

    corpus: str | None = None
    seed: int = 0
    chat: Json | None = None


class GraphCounts(Stated):
    """Blocks with a graph."""

    blocks: Count = 0


class ExtractionCounts(Stated):
    """The counts of an extraction."""

    reached: Counts = {}
    graphs: GraphCounts = _ABSENT
    chat: ChatCounts = _ABSENT


class ExtractionDetails(Stated):
    """The details of an extraction."""

    sources: list[SourceFacts] = []
    withheld: list[WithheldBlocks] = []
    notes: list[str] = []
    unopened: dict[str, str] = {}


class ThresholdCounts(Stated):
    """Codes kept at one pair of thresholds."""

    lexical_threshold: Figure
    structural_threshold: Figure | None
    kept: Count
    exact: Count
    lexical: Count
    structural: Count


class GridCounts(Stated):
    """The counts of a grid of thresholds."""

    codes: Count = 0
    grid: list[ThresholdCounts] = []


class SourceName(Stated):
    """The source of a grid."""

    source: str = ""


class AblationParameters(Stated):
    """The plan of an ablation."""

    data: str = ""
    variants: Json = {}
    seeds: list[int] = []


class SearchParameters(Stated):
    """The plan of a search."""

    data: str = ""


class RunCounts(Stated):
    """The number of runs of a study."""

    runs: Count = 0


class Attempts(Stated):
    """The answers of one model."""

    attempts: Count
    accepted: Count


class EvaluationFindings(Stated):
    """The findings of an evaluation apart from its scores."""

    general_exact: bool


class EvaluationCounts(Stated):
    """The results of an evaluation of domain experts."""

    scores: dict[str, dict[str, dict[str, Figure]]] = {}
    majority: Ratio = 0.0
    findings: EvaluationFindings = Field(default=_ABSENT, alias="found")


#: By kind, the types of parameters, counts and details. Of another kind, nothing is read but what every manifest has.
STATED: dict[str, dict[str, Any]] = {
    "snapshot": {"parameters": SnapshotParameters, "counts": SnapshotCounts, "details": SnapshotDetails},
    "extraction": {"parameters": ExtractionParameters, "counts": ExtractionCounts, "details": ExtractionDetails},
    "sensitivity": {"parameters": SourceName, "counts": GridCounts},
    "ablation": {"parameters": AblationParameters, "counts": RunCounts},
    "search": {"parameters": SearchParameters, "counts": RunCounts},
    "synthesis": {"counts": dict[str, Attempts], "details": Shared},
    "experts-evaluation": {"counts": EvaluationCounts},
}
