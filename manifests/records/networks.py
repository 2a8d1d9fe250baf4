"""Records of curation: networks, decisions, graphs, evaluations, and conversations about networks."""

import json
import typing
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from manifests.records import common
from manifests.records.common import Agreement, Behavior, Line, Ratio, Record, Sha256, Split, Stage


class LemurRecord(Record):
    """One distinct network code, represented by its best row; the first nine columns are those of the LEMUR API."""

    nn: common.NetworkName
    nn_code: common.NetworkCode
    task: common.Task
    dataset: common.Dataset
    metric: common.Metric
    epoch: common.Epoch
    accuracy: float | None = Field(
        description="value of the metric in the row of best percentile, which need not be the highest value of the"
        " network: see best_accuracy; comparable within one task, dataset, metric, epoch"
    )
    duration: common.Duration
    prm: common.Hyperparameters
    id: common.CodeId
    prefix: common.Prefix
    family: common.Family
    split: common.RowSplit
    weight: float = Field(ge=0, description="sampling weight")
    cluster: str = Field(description="group that must be in one split: the smallest id of its members, 16 digits")
    score: Ratio | None = Field(
        description="mean percentile over all results, by data set and size of field, drawn to 0.5 where there are few"
    )
    pretrained: common.Pretrained
    runs: bool | None = Field(
        default=None, description="runs forward when constructed by LEMUR's contract; null if not tried"
    )
    runs_error: str | None = Field(
        default=None, description="why it does not run or was not checked: category and one line"
    )
    graph: common.Graph = None
    graph_widths: common.GraphWidths = None
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
    best_epoch: common.BestEpoch = None
    best_dataset: str | None = Field(default=None, description="dataset of best_accuracy, that of the row shown")
    license: common.CodeLicense = None
    origin: common.Origin = None
    origin_similarity: common.OriginSimilarity = None
    origin_license: common.OriginLicense = None


class NetworkRow(Record):
    """One distinct code of the corpus, kept or not, with its best result, its split and what it computes."""

    id: common.CodeId
    nn: Line = Field(description="name of the code's best network")
    names: tuple[Line, ...] = Field(description="all names under which rows have this code, sorted")
    nn_code: common.NetworkCode
    prefix: common.Prefix
    family: common.Family
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
    graph: common.Graph
    graph_widths: common.GraphWidths
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
    best_epoch: common.BestEpoch
    best_dataset: str | None = Field(description="dataset of best_accuracy")
    task: str | None = Field(description="task of the code's best network")
    dataset: str | None = Field(description="dataset of the row of best percentile, which is that of best_accuracy")
    metric: str | None = Field(description="metric of best_accuracy")
    pretrained: common.Pretrained
    license: common.CodeLicense = None
    origin: common.Origin = None
    origin_similarity: common.OriginSimilarity = None
    origin_license: common.OriginLicense = None


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
    nn: common.NetworkName
    task: common.Task
    dataset: common.Dataset
    metric: common.Metric
    epoch: common.Epoch
    accuracy: float | None = Field(description="value of the metric")
    duration: common.Duration
    prm: common.Hyperparameters
    outcomes: str | None = Field(
        default=None, description="what LEMUR's later releases store in prm besides hyperparameters, a JSON object"
    )


ChatKind = Literal["design", "repair"]

#: The kinds of requests in conversations.
CHAT_KINDS: tuple[ChatKind, ...] = typing.get_args(ChatKind)


class ChatRow(Record):
    """One fine-tuning conversation about a kept record, in the split of that record."""

    messages: common.Messages
    id: Sha256 = Field(description="SHA-256 of the record's id, the task and the variant, joined by ':'")
    task: ChatKind = Field(description="what is asked for")
    variant: str = Field(min_length=1, description="the fault and its line; file for the whole file")
    nn: Line = Field(description="name of the record's network")
    record: common.RecordId
    license: Line = Field(description="SPDX expression of the record's code, or NOASSERTION")
    n_tokens: common.Tokens


class ChatDrop(Record):
    """A kind of conversation that was not generated for a kept record, and why."""

    record: common.RecordId
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
