"""Record types shared by folders and packages, with JSON Schemas in `schemas/`; tables of records are Parquet."""

from manifests.records.blocks import (
    SPEC_CHAT_KINDS,
    Algorithm,
    Block,
    Case,
    Observed,
    Spec,
    SpecArgument,
    SpecArguments,
    SpecChatDrop,
    SpecChatKind,
    SpecChatRow,
    SpecRow,
)
from manifests.records.common import (
    CHAT_ROLES,
    LEVELS,
    SPLITS,
    Agreement,
    ChatMessage,
    Level,
    Line,
    Ratio,
    Record,
    Seconds,
    Sha256,
    Split,
    Stage,
    arrow_schema,
    describe_fault,
    first_fault,
)
from manifests.records.networks import (
    CHAT_KINDS,
    ChatDrop,
    ChatKind,
    ChatRow,
    Decision,
    GraphRow,
    LemurRecord,
    NetworkRow,
    Stat,
    drop_outcomes,
    split_outcomes,
)
from manifests.records.runs import ExpertAnswer, ExpertFact, Ingredient, SynthesisAttempt, Synthesized, TrainingRecord

RECORD_TYPES: tuple[type[Record], ...] = (
    *(LemurRecord, NetworkRow, Decision, GraphRow, Stat),
    *(ChatRow, ChatDrop, Block, Observed, Algorithm, Spec, SpecRow, SpecChatRow, SpecChatDrop),
    *(Ingredient, TrainingRecord, SynthesisAttempt, Synthesized, ExpertFact, ExpertAnswer),
)

__all__ = [
    "CHAT_KINDS", "CHAT_ROLES", "LEVELS", "RECORD_TYPES", "SPEC_CHAT_KINDS", "SPLITS", "Agreement",
    "Algorithm", "Block", "Case", "ChatDrop", "ChatKind", "ChatMessage", "ChatRow", "Decision",
    "ExpertAnswer", "ExpertFact", "GraphRow", "Ingredient", "LemurRecord", "Level", "Line",
    "NetworkRow", "Observed", "Ratio", "Record", "Seconds", "Sha256", "Spec",
    "SpecArgument", "SpecArguments", "SpecChatDrop", "SpecChatKind", "SpecChatRow", "SpecRow", "Split", "Stage",
    "Stat", "SynthesisAttempt", "Synthesized", "TrainingRecord", "arrow_schema", "describe_fault", "drop_outcomes",
    "first_fault", "split_outcomes",
]  # fmt: skip
