"""Neutral specs: facts about the design and behavior of a block, without passages of its source.

No spec repeats eight consecutive tokens of its block's source. A token is a word, a number or one punctuation
character, regardless of whitespace; code, comments, docstrings and the JSON line of a spec are tokenized the same way.
The header that extraction writes above a block does not count as source: it names the block, as the spec does.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from extract.arguments.messages import MOST_CHARACTERS, CallTexts, join_arguments
from extract.specs.algorithm import build_algorithm, read_graph
from extract.specs.behavior import Behavior, infer_behavior, list_kinds, neutralize_case, summarize
from extract.specs.notation import format_expression
from extract.specs.outline import read_outline
from lemur_core.describe.facts import Facts
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.progress import progress
from lemur_core.graphs.graph import Graph
from lemur_core.graphs.serialization import load_graphs
from lemur_core.similarity.tokens import split_tokens
from lemur_core.source.text import parse_expression
from manifests.folders.kinds import EXTRACTION
from manifests.provenance import SPECS
from manifests.records import Block, Observed, Spec, SpecArgument, SpecArguments

#: Number of consecutive tokens that count as a passage of the source.
LIMIT = 8

#: Fields that identify a block. They are not part of the design, and may occur in the source's comments.
IDENTITY = frozenset(
    {"block", "name", "source", "path", "start_line", "end_line", "swhid", "license", "code_sha256", "file"}
)

_HEADER = re.compile(r"(?:#[^\n]*\n)*")

_OTHERWISE = frozenset({"arguments", "cases", "not_shown"})
#: Fields that a spec has in common with the table, and with the observations, in the same form.
SHARED, _OBSERVED = (
    tuple(name for name in Spec.model_fields if name in record.model_fields and name not in _OTHERWISE)
    for record in (Block, Observed)
)

#: Fields that can be withheld, in the order in which they are tried -> the empty value.
_OPTIONAL: dict[str, Any] = {"algorithm": None, "arguments": None, "cases": (), "dependencies": {}}
_OPTIONAL |= {"layers": None, "summary": "", "bases": ()}


def make_spec(row: Block, answer: Mapping[str, Any] | None = None) -> Spec:
    """Return the spec of a block that has code.

    Static facts are read from the minimized form if there is one: it holds only code that the arguments reach.
    A value that would repeat a passage of the source is left out, and `withheld` names its field.

    Args: answer: its traced graphs, from `extract.proofs.trace_guest.trace_block`.
    """
    assert row.code is not None
    outline = read_outline(row.lean_code or row.code)
    observed = read_observed(row)
    calls = read_arguments(row.arguments)
    constructor, forward = (outline.method(row.name, method) for method in ("__init__", "forward"))
    facts = outline.classes.get(row.name)
    init_values = calls.init.by_parameter(constructor) if calls else {}
    init = {name: format_expression(value) for name, value in init_values.items()}
    names = positional_names(forward)
    cases = tuple(neutralize_case(case, names) for case in observed.cases) if observed else ()
    algorithm = build_algorithm(answer, names, cases) if answer else None
    graphs = load_graphs(dict(algorithm)) if algorithm else {}
    channels = Facts(graphs["eval"]).find_channel_axis() if graphs else None
    behavior = infer_behavior(observed, channels) if observed else Behavior()
    arguments = None
    if calls:
        forward_values = calls.forward.by_parameter(forward) if calls.forward else {}
        formatted = {name: format_expression(value) for name, value in forward_values.items()}
        arguments = SpecArguments(init=init, forward=formatted)
    others = sorted({*outline.functions, *outline.classes} - {row.name, *(answer["dead_classes"] if answer else ())})
    copied: dict[str, Any] = {name: getattr(row, name) for name in SHARED} | asdict(behavior)
    spec = Spec(
        **copied | {name: getattr(observed, name, None) for name in _OBSERVED},
        not_shown=list_kinds(row),
        bases=facts.bases if facts else (),
        constructor=constructor,
        forward=forward,
        arguments=arguments,
        cases=cases,
        dependencies={other: "class" if other in outline.classes else "function" for other in others},
        algorithm=algorithm,
        summary=summarize(row.name, observed, algorithm),
    )
    neutral = neutralize(spec, row.code)
    if "algorithm" in neutral.withheld:  # the summary is made of it, too
        return neutral.model_copy(update={"summary": summarize(row.name, observed, None)})
    return neutral


def to_line(spec: Spec) -> str:
    """Return a spec as one line of JSON with sorted keys."""
    return json.dumps(spec.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)


def read_observed(row: Block) -> Observed | None:
    """Parse the column `observed`; None if it is null or invalid.

    Args: row: a block.
    Returns: what was seen when it ran.
    """
    try:
        return None if row.observed is None else Observed.model_validate_json(row.observed)
    except ValidationError:
        return None


def design_text(facts: dict[str, Any]) -> str:
    """Return the text of `design_facts`."""
    return json.dumps(design_facts(facts), sort_keys=True, ensure_ascii=False)


def neutralize(spec: Spec, code: str) -> Spec:
    """Return the spec without the values that repeat a passage of the code."""
    source = split_tokens(strip_header(code))
    facts = spec.model_dump(mode="json")
    if find_repeat(design_text(facts), source) is None:
        return spec
    facts["withheld"] = withheld = []
    # Defaults and annotations are the smallest loss: they go first.
    for group in ("constructor", "forward"):
        for item in facts[group]:
            for part in ("default", "type"):
                if find_repeat(json.dumps(item, ensure_ascii=False), source) is not None and item[part] is not None:
                    item[part] = None
                    withheld.append(f"{group} {item['name']} {part}")
    for name, empty in _OPTIONAL.items():
        if find_repeat(json.dumps({name: facts[name]}, sort_keys=True, ensure_ascii=False), source) is not None:
            facts[name] = empty
            withheld.append(name)
    for name, empty in {**_OPTIONAL, "constructor": (), "forward": ()}.items():  # rare: a passage across two fields
        if find_repeat(design_text(facts), source) is None:
            break
        if facts[name] != empty:
            facts[name] = empty
            withheld.append(name)
    return Spec.model_validate(facts)


# --- neutrality -------------------------------------------------------------------------------------------------------


def strip_header(code: str) -> str:
    """Return a closed file without its leading comment lines."""
    return code[_HEADER.match(code).end() :]  # type: ignore[union-attr]


def find_repeat(text: str, source: Sequence[str], limit: int = LIMIT) -> list[str] | None:
    """Return the first `limit` consecutive tokens of the source that the text repeats, or None."""
    tokens = split_tokens(text)
    runs = {tuple(tokens[start : start + limit]) for start in range(len(tokens) - limit + 1)}
    windows = (tuple(source[start : start + limit]) for start in range(len(source) - limit + 1))
    return next((list(run) for run in windows if run in runs), None)


def design_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec that must not repeat its source: all but those that identify the block."""
    return {name: value for name, value in facts.items() if name not in IDENTITY}


# --- working calls ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkingCall:
    """The arguments of one call, as Python expressions."""

    args: Sequence[str]
    kwargs: Mapping[str, str]

    def __post_init__(self) -> None:
        """Raise ValueError unless each argument is an expression, and each keyword an identifier."""
        for text in (*self.args, *self.kwargs.values()):
            if len(text) > MOST_CHARACTERS:
                raise ValueError(f"an argument has more than {MOST_CHARACTERS:,} characters")
            try:
                parse_expression(text)
            except SyntaxError:
                raise ValueError("an argument is not an expression") from None
        if not all(map(str.isidentifier, self.kwargs)):
            raise ValueError("an argument has no name")

    def by_parameter(self, parameters: Sequence[SpecArgument]) -> dict[str, str]:
        """Return all arguments by the names of their parameters."""
        names = positional_names(parameters)
        values = {names[n] if n < len(names) else f"*{n}": value for n, value in enumerate(self.args)}
        return values | dict(self.kwargs)

    def as_texts(self) -> CallTexts:
        """Return the call as payloads state it."""
        return CallTexts(args=self.args, kwargs=self.kwargs)

    def text(self) -> str:
        """Return the arguments as written between the parentheses of a call."""
        return join_arguments(self.args, self.kwargs)


@dataclass(frozen=True, slots=True)
class WorkingCalls:
    """The call that constructs a block and, if it runs, the call that runs it: the column `arguments`."""

    init: WorkingCall
    forward: WorkingCall | None = None

    def constructor_call(self, name: str) -> str:
        """Return the Python expression that constructs the block."""
        return f"{name}({self.init.text()})"

    def forward_call(self) -> str:
        """Return the Python expression that calls the block; empty if it was not called."""
        return f"block({self.forward.text()})" if self.forward is not None else ""


_CALLS = TypeAdapter(WorkingCalls)


def read_arguments(arguments: str | None) -> WorkingCalls | None:
    """Parse the column `arguments`; None if it is null or invalid.

    Args: arguments: JSON, as in `blocks.parquet`.
    Returns: the calls of the constructor and of forward.
    """
    try:
        return None if arguments is None else _CALLS.validate_json(arguments)
    except ValidationError:
        return None


def positional_names(parameters: Sequence[SpecArgument]) -> list[str]:
    """Return the names of the parameters that take positional arguments, in order.

    Args: parameters: of a constructor or of forward, as a spec states them.
    Returns: the names, without those of further positional arguments.
    """
    return [item.name for item in parameters if item.kind == "positional"]


# --- lines of specs.jsonl ---------------------------------------------------------------------------------------------


def write_specs(path: Path, rows: Sequence[Block], traced: Mapping[str, Mapping[str, Any]]) -> list[Spec]:
    """Write the specs of the blocks that have code, and return them.

    Args: traced: block -> its traced graphs.
    """
    with_code = [row for row in rows if row.code is not None]
    specs = []
    with path.open("w", encoding="utf-8", newline="\n") as file, progress("specs", len(with_code), "blocks") as advance:
        for row in with_code:
            specs.append(make_spec(row, traced.get(row.block)))
            file.write(to_line(specs[-1]) + "\n")
            advance(1)
    return specs


def read_specs(folder: Path, blocks: Collection[str] | None = None) -> Iterator[Spec]:
    """Yield the specs of a folder, in order.

    Args: blocks: ids of the blocks; all by default.
    Raises: UserError if the file is missing or damaged.
    """
    # Lines are long, and parsing one costs more than searching it: only those that mention a block are parsed.
    markers = [json.dumps(block, ensure_ascii=False) for block in blocks or ()]
    with EXTRACTION.reading(folder):
        check_plain(folder / SPECS)
        with (folder / SPECS).open(encoding="utf-8") as lines:
            for line in lines:
                if blocks is None or any(marker in line for marker in markers):
                    spec = Spec.model_validate_json(line)
                    if blocks is None or spec.block in blocks:
                        yield spec


def read_spec(folder: Path, block: str) -> Spec | None:
    """Return the spec of a block; None if it has none.

    Raises: UserError if the file is missing or damaged.
    """
    return next(read_specs(folder, (block,)), None)


def read_spec_graph(spec: Spec) -> Graph | None:
    """Return the graph of a block in eval mode, at the sizes of its arguments; None if its spec states none.

    Raises: UserError if the graph cannot be read.
    """
    if spec.algorithm is None:
        return None
    try:
        return read_graph(dict(spec.algorithm))
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{spec.block}: its graph cannot be read: {error}; extract it again") from error
