"""Conversations about kept records: `design` asks for a file by what was measured of it, `repair` for one that fails.

Each network runs in the sandbox as LEMUR calls it, with the arguments that the request states.
"""

import ast
import hashlib
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate

import pyarrow as pa

from curate.compute.outcome import CurationOutcome
from curate.compute.runs import (
    LIMITS,
    RUN,
    InputCase,
    NetFailure,
    RunRequest,
    build_case,
    complete,
    open_box,
    read_answer,
)
from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions
from lemur_core.files import Json
from lemur_core.files.markdown import plural
from lemur_core.sandbox.cached import CachedSandbox
from lemur_core.sandbox.stage import SandboxStage
from lemur_core.source.text import parse_code
from manifests.conversations import Chat, Draft, Skipped, Subject, chat_card, fence, finish
from manifests.options import MAX_TOKENS
from manifests.records import CHAT_KINDS

_MEANINGS = {
    "design": "task, data set and measures to a file that has them",
    "repair": "a file that fails, with its error, to the file that runs",
}
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
    "curate.folder.probe:measure",
    NetworkFacts | NetFailure,
    replace(LIMITS, wall_seconds=3 * LIMITS.wall_seconds, cpu_seconds=3 * LIMITS.cpu_seconds),
    label="chat facts",
    unit="networks",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: the bytes of the file from `start` to `end` become `wrong`; `right` says what was right."""

    kind: str
    line: int
    start: int
    end: int
    wrong: str
    right: str

    def apply(self, code: str) -> str:
        """Return the file with the fault."""
        raw = code.encode()
        return (raw[: self.start] + self.wrong.encode() + raw[self.end :]).decode()


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
        id_, code, license_ = corpus.ids[code_index], corpus.codes[code_index], outcome.rights.get_license(code_index)
        columns = {"record": id_, "nn": row["nn"] or "", "license": license_}
        subjects[code_index] = Subject(outcome.splits[code_index], columns)
        row["task"], row["dataset"], prm = complete(row, code)
        case = build_case(row["task"], row["dataset"], prm.get("transform"))
        if outcome.rights.is_blocked(code_index):
            skipped[code_index] = Skipped("license", license_)
        elif (note := _NOTES.search(code)) is not None:
            skipped[code_index] = Skipped("residue", f"its file holds the line: {note[0].strip()}")
        elif isinstance(case, str):
            skipped[code_index] = Skipped("does_not_run", f"unknown_input: {case}")
        else:
            row["batch"] = prm.get("batch")
            prm |= {"batch": case.in_shape[0]}  # a network may read LEMUR's batch size from either place
            pretrained = code_index in corpus.features.pretrained
            networks[code_index] = ChatNetwork(id_, strip_residue(code), row, prm, case, pretrained)
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


def snapshot_chat_card(chat: Chat, where: str) -> list[str]:
    """Return the section of a snapshot's card about its conversations. Args: where: the networks were run."""
    promise = f"Numbers in them were measured by running the network {where}; every fault was seen to fail."
    return chat_card(chat, _MEANINGS, promise)


# Comments that the generator of a network left in its file.

_COMMENTS = re.compile(r"(?:^#[^\n]*(?:\n|\Z))+", re.MULTILINE)
_OF_A_GENERATOR = re.compile(r"\bauto-?generated\b|chromosome used to generate", re.IGNORECASE)
#: Lines by which generators mark where the parts of a file come from, and what a template asked for.
_MARKS = re.compile(
    r"^[ \t]*#[ \t]*(?:-{4} (?:\w+(?:\.\w+)+|\w+ \(target\)|original imports from contributing modules) -{4}"
    r"|Standard library and external imports|[^\n]*(?:the provided block|\bProvidedBlock\b)[^\n]*)[ \t]*(?:\n|\Z)",
    re.MULTILINE | re.IGNORECASE,
)
#: A result as an annotation, and dependencies that an extraction did not resolve: such a file is not a network alone.
_NOTES = re.compile(r"^(?:addon_accuracy:|# UNRESOLVED DEPENDENCIES).*$", re.MULTILINE)


def strip_residue(code: str) -> str:
    """Return the file of a record without the comments in which its generator says how it was made."""
    code = _COMMENTS.sub(lambda match: "" if _OF_A_GENERATOR.search(match[0]) else match[0], code)
    return _MARKS.sub("", code)


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
    where = f"{'In' if fault.wrong else 'Before'} line {fault.line}: {fault.right}."
    return Draft(
        _SYSTEM,
        "\n".join([*user, "", fence(traceback, "text")]),
        f"{where}\n\n{fence(network.code)}",
        f"{fault.kind} line {fault.line}",
    )


# Typical faults: at each place of a file where one fits, its text, and a sentence on what was right.

_EXECUTED = ("__init__", "forward")  # by a trial
_WITH_SIZES = frozenset({"Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "Linear", "BatchNorm2d", "BatchNorm1d"})
_WITH_DIMENSION = frozenset({"flatten", "cat", "mean", "softmax", "sum", "unsqueeze", "squeeze", "chunk", "stack"})


def plan_faults(code: str, seed: int, record: str) -> list[Fault]:
    """Return one fault of each kind that has a place in the file, in random order.

    Raises: SyntaxError if the file does not parse.
    """

    def draw(purpose: str) -> bytes:
        return hashlib.sha256(f"{seed}:{record}:{purpose}".encode()).digest()

    by_kind: dict[str, Fault] = {}
    for fault in sorted(find_faults(code), key=lambda fault: draw(f"{fault.kind}:{fault.start}:{fault.end}")):
        by_kind.setdefault(fault.kind, fault)
    return sorted(by_kind.values(), key=lambda fault: draw(fault.kind))


def find_faults(code: str) -> Iterator[Fault]:
    """Yield the faults in the order of the file: wrong sizes everywhere, the others where a trial executes them.

    Raises: SyntaxError if the file does not parse.
    """
    file = _File(code)
    stack: list[tuple[ast.AST, bool]] = [(parse_code(code, max_depth=None), False)]
    while stack:
        node, runs = stack.pop()
        if isinstance(node, ast.JoinedStr):
            continue  # rarely formatted in a trial
        runs |= isinstance(node, ast.FunctionDef) and node.name in _EXECUTED
        yield from _faults_at(file, node, runs)
        stack += [(child, runs) for child in reversed(list(ast.iter_child_nodes(node)))]


class _File:
    def __init__(self, code: str) -> None:
        self.code, self.raw = code, code.encode()
        self.starts = [0, *accumulate(map(len, self.raw.splitlines(keepends=True)))]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the bytes of a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> str:
        """Return the source text of a node."""
        start, end = self.span(node)
        return self.raw[start:end].decode()

    def line(self, statement: ast.stmt) -> tuple[int, int] | None:
        """Return the bytes of the line of a statement; None if it is not alone on one line."""
        start, end = self.starts[statement.lineno - 1], self.starts[statement.lineno]
        return (start, end) if self.raw[start:end].strip() == self.text(statement).encode() else None


def _faults_at(file: _File, node: ast.AST, runs: bool) -> Iterator[Fault]:
    match node:
        case ast.Module(body=[_, _, *_] as body):
            for statement in body:
                alone = isinstance(statement, ast.Import | ast.ImportFrom) and len(statement.names) == 1
                if alone and (line := file.line(statement)) is not None:
                    right = f"the import is missing: `{file.text(statement)}`"
                    yield Fault("missing_import", statement.lineno, *line, "", right)
        case ast.Call(func=ast.Attribute(attr=name) as callee, args=args, keywords=keywords):
            if name in _WITH_SIZES:
                yield from _size_faults(file, callee, args[: 1 if "Norm" in name else 2])
            if runs and name in _WITH_DIMENSION:
                named = [item.value for item in keywords if item.arg in ("dim", "start_dim")]
                for value in named or args[-1:]:
                    if isinstance(value, ast.Constant) and type(value.value) is int:
                        right = f"`{file.text(callee)}` must work on dimension {value.value}, not {value.value + 1}"
                        yield Fault("wrong_dimension", value.lineno, *file.span(value), str(value.value + 1), right)
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Load()) if runs:
            wrong = _misspell(name)
            if wrong.isidentifier() and not keyword.iskeyword(wrong) and f"self.{wrong}" not in file.code:
                right = f"there is no `self.{wrong}`; the attribute is `self.{name}`"
                yield Fault("wrong_attribute", node.lineno, *file.span(node), f"self.{wrong}", right)


def _size_faults(file: _File, callee: ast.Attribute, sizes: Sequence[ast.expr]) -> Iterator[Fault]:
    for order, size in zip(("first", "second"), sizes, strict=False):
        if isinstance(size, ast.Constant) and type(size.value) is int and size.value > 1:
            wrong = size.value + 1
            right = f"the {order} argument of this `{file.text(callee)}` must be {size.value}, not {wrong}"
            yield Fault("off_by_one", size.lineno, *file.span(size), str(wrong), right)
    if len(sizes) == 2 and not any(isinstance(size, ast.Starred) for size in sizes):
        texts = [file.text(size) for size in sizes]
        (start, before), (after, end) = map(file.span, sizes)
        if texts[0] != texts[1]:
            right = f"the sizes of this `{file.text(callee)}` are swapped: `{texts[0]}` comes in, `{texts[1]}` goes out"
            swapped = texts[1] + file.raw[before:after].decode() + texts[0]
            yield Fault("swapped_sizes", callee.lineno, start, end, swapped, right)


def _misspell(name: str) -> str:
    """Return an attribute as people get it wrong: without its number, or with two letters in the wrong order."""
    if name[-1].isdigit():
        return name.rstrip("0123456789")
    middle = len(name) // 2
    swapped = f"{name[: middle - 1]}{name[middle]}{name[middle - 1]}{name[middle + 1 :]}" if middle else name
    return swapped if swapped != name else f"{name}s"
