"""Neutral specs: facts about the design and behavior of a block, without passages of its source.

No spec repeats eight consecutive tokens of its block's source. A token is a word, a number or one punctuation
character, regardless of whitespace; code, comments, docstrings and the JSON line of a spec are tokenized the same way.
The header that extraction writes above a block does not count as source: it names the block, as the spec does.
"""

import ast
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from extract.arguments.messages import MOST_CHARACTERS, CallTexts, join_arguments
from extract.specs.behavior import (
    infer_behavior,
    list_kinds,
    name_input,
    neutralize_case,
    read_shape,
    summarize,
)
from extract.specs.outline import format_expression, read_outline
from lemur_core.describe.facts import Facts, list_draws
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import check_plain
from lemur_core.files.progress import progress
from lemur_core.graphs.formulas import Size
from lemur_core.graphs.graph import DRAWS, Graph
from lemur_core.graphs.sizes import Sized
from lemur_core.similarity.tokens import split_tokens
from lemur_core.source.scopes import BUILTINS
from lemur_core.source.text import list_nodes, parse_code, parse_expression
from manifests.folders.kinds import EXTRACTION
from manifests.provenance import SPECS
from manifests.records import Algorithm, Block, Case, Observed, Spec, SpecArgument, SpecArguments

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
    names = positional_names(forward)
    cases = tuple(neutralize_case(case, names) for case in observed.cases) if observed else ()
    algorithm = build_algorithm(answer, names, cases) if answer else None
    graphs = Sized.from_json(dict(algorithm)).evaluate() if algorithm else {}
    channels = Facts(graphs["eval"]).find_channel_axis() if graphs else None
    arguments = None
    if calls:
        arguments = SpecArguments(
            init=_format_arguments(calls.init, constructor), forward=_format_arguments(calls.forward, forward)
        )
    others = sorted({*outline.functions, *outline.classes} - {row.name, *(answer["dead_classes"] if answer else ())})
    copied: dict[str, Any] = {name: getattr(row, name) for name in SHARED}
    copied |= {name: getattr(observed, name, None) for name in _OBSERVED}
    spec = Spec(
        **copied,
        **infer_behavior(observed, channels),
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
    firsts = {run[0] for run in runs}  # a source has thousands of tokens
    starts = (start for start, token in enumerate(source[: len(source) - limit + 1]) if token in firsts)
    windows = (tuple(source[start : start + limit]) for start in starts)
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


def _format_arguments(call: WorkingCall | None, parameters: Sequence[SpecArgument]) -> dict[str, str]:
    """Return the arguments of a call in neutral notation, by the names of their parameters."""
    if call is None:
        return {}
    names = positional_names(parameters)
    values = {names[n] if n < len(names) else f"*{n}": value for n, value in enumerate(call.args)}
    return {name: format_expression(value) for name, value in {**values, **call.kwargs}.items()}


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
        return Sized.from_json(dict(spec.algorithm)).evaluate()["eval"]
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{spec.block}: its graph cannot be read: {error}; extract it again") from error


# --- the algorithm ----------------------------------------------------------------------------------------------------

#: What was seen of the recorded runs beside their graphs.
_SEEN = ("returns", "route", "draws", "reads_values", "unused_parameters")
#: Fields that hold a graph, both in trace results and in specs.
_STORED = ("sizes", "fixed", "train_error", "hidden", "eval", "train")


def store_graphs(answer: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the traced graphs in the form that a spec states them.

    Args:
        answer: from `extract.proofs.trace_guest.trace_block`.
        names: names of the parameters that take positional arguments.
    """
    stored = {name: answer[name] for name in _STORED}
    for mode in ("eval", "train"):
        if (graph := stored[mode]) is not None:
            nodes = [
                [op, *rest, name_input(scope, names) if op == "input" else scope] for op, *rest, scope in graph["nodes"]
            ]
            stored[mode] = graph | {"nodes": nodes}
    return stored


def add_rebuild_outcome(
    answer: Mapping[str, Any], outcome: Mapping[str, Any], sizes_fail: str | None
) -> dict[str, Any]:
    """Return the trace result with the outcome of rebuilding it.

    Args:
        outcome: the fields of `Algorithm` about it.
        sizes_fail: the case in which the size formulas are wrong; if set, they are left out.
    """
    # The graph at the traced sizes is right; only the formulas for other sizes are dropped.
    if sizes_fail is not None:
        answer = {**answer, **Sized.from_json(answer).fix(f"the formulas do not hold: {sizes_fail}").to_json()}
    return {**answer, **outcome}


def build_algorithm(answer: Mapping[str, Any], names: Sequence[str], cases: Sequence[Case] = ()) -> Algorithm:
    """Return the trace result in the form that a spec states it.

    Args:
        answer, names: as for `store_graphs`.
        cases: the recorded cases; if one refutes the formulas of sizes, they are left out. If one has other sizes
            where the graph has numbers, the operations say that sizes are of this run alone.
    Returns: the graphs with what follows from them alone: operations and motifs.
    """
    copied = {name: answer[name] for name in _SEEN}
    stored = store_graphs(answer, names)
    sized = Sized.from_json(stored)
    refuting = next((number for number, sizes in _pair_sizes(sized.evaluated, cases) if _is_refuted(sizes)), None)
    if refuting is not None:
        sized = sized.fix(f"sizes that were varied together differ in case {refuting}")
        stored |= sized.to_json()
    about = {name: answer[name] for name in ("rebuilds", "rebuild_error", "varied") if name in answer}
    facts = _read_facts(sized, stored | copied, cases)
    return Algorithm(**copied, **facts, **({"rebuilds": None} | about), **stored)


def _pair_sizes(graph: Graph, cases: Sequence[Case]) -> Iterator[tuple[int, list[tuple[object, int]]]]:
    """Yield, of each case whose inputs have the graph's dimensions, its number from 1, and stated with found sizes."""
    inputs = {node.scope: node.outputs[0].shape for node in graph.nodes if node.op == "input"}
    outputs = [graph.type_of(ref).shape for ref in graph.outputs]
    for number, case in enumerate(cases, 1):
        found = [read_shape(case.inputs.get(name, "")) or () for name in inputs]
        if list(map(len, found)) != list(map(len, inputs.values())):
            continue
        pairs = [*zip(inputs.values(), found, strict=True)]
        if len(case.outputs) == len(outputs):
            returned = zip(outputs, (read_shape(text) or () for text in case.outputs), strict=True)
            pairs += [(stated, sizes) for stated, sizes in returned if len(stated) == len(sizes)]
        yield number, [pair for stated, sizes in pairs for pair in zip(stated, sizes, strict=True)]


def _is_refuted(sizes: Sequence[tuple[object, int]]) -> bool:
    """Return whether sizes with one formula differ."""
    values = {(stated.text, found) for stated, found in sizes if isinstance(stated, Size)}
    return len(values) > len({text for text, _ in values})


def _read_facts(sized: Sized, seen: Mapping[str, Any], cases: Sequence[Case]) -> dict[str, Any]:
    """Return the facts that graphs give. Args: seen: the fields of `_SEEN` and `hidden`."""
    pairs = [pair for _, sizes in _pair_sizes(sized.evaluated, cases) for pair in sizes]
    # A size that no formula varies may still be another one in a recorded case.
    numbers = sized.fixed is not None or any(stated != found for stated, found in pairs if isinstance(stated, int))
    branches = seen["reads_values"] or DRAWS in seen["hidden"]
    alone = [*(["sizes"] if numbers else []), *(["branches"] if branches else [])]
    facts = Facts(sized.evaluated, seen["returns"], tuple(alone))
    motifs = [{"kind": m.kind, "operations": m.operations, **m.facts} for m in facts.find_motifs()]
    return {"operations": facts.list_operations(), "motifs": motifs}


def graphs_in_spec(algorithm: Algorithm) -> dict[str, Any]:
    """Return the graphs of a spec in the format of `store_graphs`.

    Args: algorithm: the algorithm of a traced block.
    Returns: what `lemur_core.graphs.sizes.Sized.from_json` reads.
    """
    return algorithm.model_dump(mode="json", include=set(_STORED))


def algorithm_faults(algorithm: Algorithm) -> Iterator[str]:
    """Yield what graphs contradict of the facts that are not read from them.

    Raises: ValueError, LookupError, TypeError or AttributeError if they cannot be read.
    """
    sized = Sized.from_json(graphs_in_spec(algorithm))
    drawn = {(mode, name) for mode, graph in sized.evaluate().items() for name in list_draws(graph)}
    if not drawn <= {(mode, name) for mode, names in algorithm.draws.items() for name in names}:
        yield "its graph draws what it does not name"
    if algorithm.rebuilds is True:
        from lemur_core.rebuild.operators import RebuildError  # here, because they load torch
        from lemur_core.rebuild.rebuild import rebuild

        try:
            rebuild(sized.evaluated, sized.trained)
        except RebuildError as error:
            yield f"states that it rebuilds, but cannot be written: {error}"


# --- calls as lines to paste: what `show` and `migrate` print, and `verify` executes ----------------------------------

#: All names that the search uses in arguments.
_IMPORTS = {
    "torch": "import torch",
    "nn": "from torch import nn",
    "F": "import torch.nn.functional as F",
    "np": "import numpy as np",
    "numpy": "import numpy",
    "math": "import math",
    "functools": "import functools",
    "partial": "from functools import partial",
    "types": "import types",
    "OrderedDict": "from collections import OrderedDict",
    "attrgetter": "from operator import attrgetter",
}


def print_call(row: Block, code: str | None, module: str = "") -> tuple[str, ...]:
    """Return the lines that construct a block and call it.

    Args:
        code: its file, the lean form if there is one; None if it is not known here.
        module: the dotted name to import the file by; "" for lines to paste below the file.
    Returns: no lines if it was not seen to run, or if the arguments name what neither these lines nor its file define.
    """
    calls = read_arguments(row.arguments)
    if calls is None:
        return ()
    observed = read_observed(row)
    # A new module is in train mode; blocks are known to run in eval mode, and most of them in train mode, too.
    trains = calls.forward is None or observed is None or observed.train_differs is not None
    mode = "" if trains else "block.eval()"
    unset = list(observed.uninitialized) if observed is not None else []
    filled = f"for name in {unset}: nn.init.normal_(attrgetter(name)(block), std=0.02)" if unset else ""
    lines = [f"block = {row.name}({calls.init.text()})", *filter(None, [filled, mode])]
    lines += [f"block({calls.forward.text()})"] if calls.forward else []
    try:
        names = set(_list_names(lines)) - {row.name, "block"} - BUILTINS
    except SyntaxError:  # not what extraction wrote
        return ()
    defined = read_outline(code).names if names and code is not None else frozenset[str]()
    if not names <= defined | _IMPORTS.keys():
        return ()
    imported = names & _IMPORTS.keys() - (set() if module else defined)
    head = [_IMPORTS[name] for name in sorted(imported)]
    if module:
        head.append(f"from {module} import {', '.join(sorted({row.name} | names - _IMPORTS.keys()))}")
    return (*head, *lines)


def _list_names(lines: list[str]) -> Iterator[str]:
    """Yield the names that lines read from outside."""
    for line in lines:
        nodes = list_nodes(parse_code(line))
        own = {node.arg for node in nodes if isinstance(node, ast.arg)}
        own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        yield from (node.id for node in nodes if isinstance(node, ast.Name) and node.id not in own)
