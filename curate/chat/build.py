"""Conversations about kept records: `design` asks for a file by what was measured of it, `repair` for one that fails.

Each network runs in the sandbox as LEMUR calls it, with the arguments that the request states.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import pyarrow as pa

from curate.chat.repair import Fault, plan_faults
from curate.compute.outcome import CurationOutcome
from curate.compute.runs import (
    LIMITS,
    RUN,
    InputCase,
    NetFailure,
    RunRequest,
    build_case,
    open_box,
    read_answer,
    read_parameters,
)
from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions
from curate.model.residue import find_note, strip_residue
from lemur_core.files import Json
from lemur_core.files.markdown import plural
from lemur_core.sandbox.cached import CachedSandbox
from lemur_core.sandbox.stage import SandboxStage
from manifests.conversations import Chat, Draft, Skipped, Subject, chat_card, fence, finish
from manifests.options import MAX_TOKENS
from manifests.records import CHAT_KINDS

_MEANINGS = {
    "design": "task, data set and measures to a file that has them",
    "repair": "a file that fails, with its error, to the file that runs",
}
_PROMISE = "Numbers in them were measured by running the network in a sandbox; every fault was seen to fail."
_SYSTEM = (
    "You write PyTorch networks in the form of the LEMUR dataset: one file whose class `Net` is built as"
    " `Net(in_shape, out_shape, prm, device)`, where `in_shape` is the shape of a batch."
)
_SHOWN = frozenset({"import_failed", "construct_failed", "forward_failed", "wrong_output"})


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """The sandbox's measurements of a network that runs, equal with two seeds.

    Parameters are elements, each tensor counted once. Multiply-adds are half of the operations that FlopCounterMode
    counts in one forward pass of the batch; 0 if the seeds disagree. `layers` counts modules of torch.nn by class,
    composite ones as one, without losses; `methods` are those of LEMUR's trainer that it has.
    """

    parameters: int
    trainable: int
    multiply_adds: int
    layers: dict[str, int]
    methods: tuple[str, ...]


#: Three times the limits of one run: a network is run, then measured with two seeds.
MEASURE = SandboxStage[NetworkFacts | NetFailure](
    "curate.chat.probe:measure",
    NetworkFacts | NetFailure,
    replace(LIMITS, wall_seconds=3 * LIMITS.wall_seconds, cpu_seconds=3 * LIMITS.cpu_seconds),
    label="chat facts",
    unit="networks",
)


@dataclass(frozen=True, slots=True)
class ChatNetwork:
    """A kept record that can be run. Args: row: of its best result; prm: as passed to the network."""

    id: str
    code: str
    row: Json
    prm: Json
    case: InputCase
    pretrained: bool

    def request(self, code: str) -> RunRequest:
        """Return the request to run a code as this network is run."""
        return RunRequest(code, asdict(self.case), self.prm)

    @property
    def call(self) -> str:
        """The call that builds the network, numbers as people would write them."""
        rounded = {name: float(f"{value:.3g}") for name, value in self.prm.items() if isinstance(value, float)}
        prm = dict(sorted((self.prm | rounded).items()))
        shapes = f"in_shape={self.case.in_shape!r}, out_shape={self.case.out_shape!r}"
        return f"`Net({shapes}, prm={prm!r}, device=torch.device('cpu'))`"


def build_chat(
    corpus: LoadedRecords, outcome: CurationOutcome, options: CurateOptions, *, jobs: int | None = None
) -> Chat:
    """Build the conversations of all kept records, in their order, without code that is withheld from publishing.

    Raises: UserError if no sandbox is available.
    """
    subjects: dict[int, Subject] = {}
    networks: dict[int, ChatNetwork] = {}
    skipped: dict[int, Skipped] = {}
    shown = pa.array([outcome.representatives[code_index] for code_index in outcome.kept], pa.int64())
    for code_index, row in zip(outcome.kept, corpus.rows.take(shown).to_pylist(), strict=True):
        columns = {
            "record": corpus.ids[code_index],
            "nn": row["nn"] or "",
            "license": outcome.rights.get_license(code_index),
        }
        subjects[code_index] = Subject(outcome.splits[code_index], columns)
        if outcome.rights.is_blocked(code_index):
            skipped[code_index] = Skipped("license", columns["license"])
        elif (note := find_note(corpus.codes[code_index])) is not None:
            skipped[code_index] = Skipped("residue", f"its file holds the line: {note}")
        elif isinstance(network := _make_network(corpus, code_index, row), str):
            skipped[code_index] = Skipped("does_not_run", f"unknown_input: {network}")
        else:
            networks[code_index] = network
    outcome.details["chat_residue"] = sum(
        network.code != corpus.codes[code_index] for code_index, network in networks.items()
    )
    drafts: dict[tuple[int, str], Draft | Skipped] = {}
    with open_box([MEASURE, RUN], jobs=jobs, unsafe=options.unsafe_no_sandbox, runtime=options.runtime) as box:
        requests = {str(code_index): network.request(network.code) for code_index, network in networks.items()}
        for reply in MEASURE.run(box, requests):
            code_index, facts = int(reply.key), read_answer(reply)
            if isinstance(facts, NetFailure):
                skipped[code_index] = Skipped("does_not_run", facts.fault)
                del networks[code_index]
            else:
                drafts[code_index, "design"] = _design(networks[code_index], facts)
        drafts |= {(code_index, "repair"): draft for code_index, draft in _repairs(networks, box, options.seed).items()}
    drafts |= {(code_index, kind): reason for code_index, reason in skipped.items() for kind in CHAT_KINDS}
    ordered = [
        (subjects[code_index], kind, drafts[code_index, kind]) for code_index in outcome.kept for kind in CHAT_KINDS
    ]
    return finish(ordered, "record", CHAT_KINDS, MAX_TOKENS)


def _make_network(corpus: LoadedRecords, code_index: int, row: Json) -> ChatNetwork | str:
    """Return the network of a record, or why its inputs are unknown."""
    prm = read_parameters(row["prm"])
    case = build_case(row["task"], row["dataset"], prm.get("transform"))
    if isinstance(case, str):
        return case
    text, pretrained = strip_residue(corpus.codes[code_index]), code_index in corpus.features.pretrained
    row["batch"] = prm.get("batch")
    # a network may read LEMUR's batch size from either place
    return ChatNetwork(corpus.ids[code_index], text, row, prm | {"batch": case.in_shape[0]}, case, pretrained)


def snapshot_chat_card(chat: Chat) -> list[str]:
    """Return the section of a snapshot's card about its conversations."""
    return chat_card(chat, _MEANINGS, _PROMISE)


def _design(network: ChatNetwork, facts: NetworkFacts) -> Draft:
    """Ask for a network with these measurements; the answer is the record's file."""
    row, trained = network.row, facts.trainable
    lines = [
        f"It is built as {network.call}.",
        f"Parameters: {facts.parameters:,}, {'all' if trained == facts.parameters else f'{trained:,}'} trainable.",
    ]
    if facts.multiply_adds:
        lines.append(f"Multiply-adds for this batch, as torch.utils.flop_counter counts them: {facts.multiply_adds:,}.")
    if facts.layers:
        lines.append(f"Layers of torch.nn: {', '.join(f'{name} x {n:,}' for name, n in facts.layers.items())}.")
    if facts.methods:
        lines.append(f"Methods besides `forward`: {', '.join(f'`{name}`' for name in facts.methods)}.")
    if network.pretrained:
        lines.append("It loads trained weights.")
    # Only classification fixes all sizes: of another task, the network that was trained had other ones.
    if network.case.output is not None and row["metric"] is not None and row["accuracy"] is not None:
        after = "" if row["epoch"] is None else f" after {plural(row['epoch'], 'epoch')}"
        batch = "" if row["batch"] is None else f" in batches of {row['batch']}"
        lines.append(f"Recorded result of its training{batch}: {row['metric']} {row['accuracy']:.3g}{after}.")
    asked = f"Write a network for the task {row['task']} on the data set {row['dataset']}."
    user = "\n".join([asked, "", *(f"- {line}" for line in lines)])
    return Draft(_SYSTEM, user, fence(network.code), "file")


def _repairs(networks: Mapping[int, ChatNetwork], box: CachedSandbox, seed: int) -> dict[int, Draft | Skipped]:
    """Ask to repair each network by its first planned fault that fails; the answer is the record's file."""
    plans = {code_index: plan_faults(network.code, seed, network.id) for code_index, network in networks.items()}
    drafts: dict[int, Draft | Skipped] = dict.fromkeys(plans, Skipped("no_fault", "no place for a fault was found"))
    while left := [index for index, plan in plans.items() if plan and isinstance(drafts[index], Skipped)]:
        tried = {str(code_index): plans[code_index].pop(0) for code_index in left}
        broken = {key: fault.apply(networks[int(key)].code) for key, fault in tried.items()}
        requests = {key: networks[int(key)].request(code) for key, code in broken.items()}
        for reply in replace(RUN, label="chat faults").run(box, requests):
            network, fault, answer = networks[int(reply.key)], tried[reply.key], read_answer(reply)
            if isinstance(answer, NetFailure) and answer.category in _SHOWN and answer.traceback:
                drafts[int(reply.key)] = _repair(network, fault, broken[reply.key], answer.traceback)
            else:
                reason = answer.fault if isinstance(answer, NetFailure) else "it runs all the same"
                drafts[int(reply.key)] = Skipped("no_clear_failure", f"last tried: {fault.kind}: {reason}")
    return drafts


def _repair(network: ChatNetwork, fault: Fault, broken: str, traceback: str) -> Draft:
    asked = "This network fails. Say what is wrong, and give the corrected file."
    user = [asked, "", fence(broken), "", f"Built as {network.call} and called with a batch, it ends with:"]
    where = f"{'Before' if fault.missing else 'In'} line {fault.line}: {fault.right}."
    return Draft(
        _SYSTEM,
        "\n".join([*user, "", fence(traceback, "text")]),
        f"{where}\n\n{fence(network.code)}",
        f"{fault.kind} line {fault.line}",
    )
