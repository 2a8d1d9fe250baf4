"""Neutral specs: what a block is and does, as facts of its design, and never in the words of its source.

No spec repeats eight consecutive tokens of its block's source. A token is a word, a number or one character of
punctuation, whatever stands between; a text is tokenised the same way whether it is code, comment, docstring or the
JSON line of a spec. The header that extraction itself writes above a block is not source: it names the block, as the
spec does.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from extract.specs.algorithm import algorithm_of, layout_of
from extract.specs.behaviour import Behaviour, behaviour_of, neutral_case, summary_of
from extract.specs.notation import value_of_text
from extract.specs.outline import Outline, outline_of
from lemur_core.files.progress import progress
from lemur_core.similarity.features.text import tokens_of
from manifests.provenance import SPECS
from manifests.records import Block, Observed, Spec, SpecArgument, SpecArguments, first_fault

#: Tokens in a row that would be a passage of the source.
LIMIT = 8

#: What identifies a block: said elsewhere too, also in the source's own comments, and no design.
IDENTITY = frozenset(
    {"block", "name", "source", "path", "start_line", "end_line", "swhid", "license", "code_sha256", "file"}
)

_HEADER = re.compile(r"(?:#[^\n]*\n)*")

#: What a spec states as the table does.
SHARED: tuple[str, ...] = ("block", "name", "category", "level", "fidelity", "source", "path", "start_line", "end_line")
SHARED += ("swhid", "license", "code_sha256", "file", "graph")
#: What it states as it was observed.
_OBSERVED = ("parameters", "train_differs", "identity_in_eval", "gradients", "tensors", "layers")

#: What can be left out of a spec, in the order in which it is tried, and what then stands for it.
_OPTIONAL: dict[str, Any] = {
    "algorithm": None,
    "arguments": None,
    "cases": (),
    "dependencies": {},
    "builds": {},
    "layers": None,
    "summary": "",
    "bases": (),
}


def make_spec(row: Block, answer: Mapping[str, Any] | None = None) -> Spec:
    """The spec of a block that has code.

    What its text tells is read from the lean form where there is one: what its arguments reach.
    A value that would repeat a passage of the source is left out, and `withheld` names its field.

    Args: answer: what was traced of it, by `extract.proofs.trace_guest.trace_block`.
    """
    assert row.code is not None
    outline = outline_of(row.lean_code or row.code)
    observed = observed_of(row)
    worked = worked_of(row.arguments)
    constructor, forward = (outline.method(row.name, method) for method in ("__init__", "forward"))
    facts = outline.classes.get(row.name)
    builds = dict(facts.builds) if facts else {}
    given = worked.init.named(constructor) if worked else {}
    init = {name: value_of_text(value) for name, value in given.items()}
    called = worked.forward.named(forward) if worked and worked.forward else {}
    names = positional_names(forward)
    algorithm = algorithm_of(answer, names) if answer else None
    told = layout_of(algorithm) if algorithm else None
    behaviour = behaviour_of(observed, given.values(), told) if observed else Behaviour()
    summary = summary_of(row.name, row.category, constructor, forward, builds, observed, behaviour, init)
    arguments = None
    if worked:
        calls = {name: value_of_text(value) for name, value in called.items()}
        arguments = SpecArguments(init=init, forward=calls, method=worked.method)
    seen: dict[str, Any] = {name: getattr(observed, name, None) for name in _OBSERVED}
    spec = Spec(
        **{name: getattr(row, name) for name in SHARED},
        **seen,
        **asdict(behaviour),
        bases=facts.bases if facts else (),
        constructor=constructor,
        forward=forward,
        arguments=arguments,
        cases=tuple(neutral_case(case, names) for case in observed.cases) if observed else (),
        builds=builds,
        dependencies=_dependencies(row.name, outline, answer["dead_classes"] if answer else ()),
        algorithm=algorithm,
        summary=f"{summary} {algorithm.told}".rstrip() if algorithm else summary,
    )
    return neutralised(spec, row.code)


def line_of(spec: Spec) -> str:
    """A spec as one line of JSON, its keys sorted."""
    return json.dumps(spec.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)


def observed_of(row: Block) -> Observed | None:
    """The column `observed` read; None when it is null or holds something else."""
    try:
        return None if row.observed is None else Observed.model_validate_json(row.observed)
    except ValidationError:
        return None


def design_text(facts: dict[str, Any]) -> str:
    """The text of a spec that must not repeat its source: its line without what identifies the block."""
    return json.dumps(design_of(facts), sort_keys=True, ensure_ascii=False)


def neutralised(spec: Spec, code: str) -> Spec:
    """The spec without the values that repeat a passage of the code."""
    source = tokens_of(source_of(code))
    facts = spec.model_dump(mode="json")
    if repeated(design_text(facts), source) is None:
        return spec
    facts["withheld"] = withheld = []
    for group in ("constructor", "forward"):
        for item in facts[group]:
            for part in ("default", "type"):
                if repeated(json.dumps(item, ensure_ascii=False), source) is not None and item[part] is not None:
                    item[part] = None
                    withheld.append(f"{group} {item['name']} {part}")
    for name, empty in _OPTIONAL.items():
        if repeated(json.dumps({name: facts[name]}, sort_keys=True, ensure_ascii=False), source) is not None:
            _leave_out(facts, name, empty)
    for name, empty in {**_OPTIONAL, "constructor": (), "forward": ()}.items():  # runs across two fields, most unlikely
        if repeated(design_text(facts), source) is None:
            break
        if facts[name] != empty:
            _leave_out(facts, name, empty)
    return Spec.model_validate(facts)


def _leave_out(facts: dict[str, Any], name: str, empty: object) -> None:
    if name == "algorithm" and facts[name] is not None:
        facts["summary"] = facts["summary"].removesuffix(facts[name]["told"]).rstrip()
    facts[name] = empty
    facts["withheld"].append(name)


def _dependencies(name: str, outline: Outline, dead: Sequence[str]) -> dict[str, Literal["class", "function"]]:
    others = sorted({*outline.functions, *outline.classes} - {name, *dead})
    return {other: "class" if other in outline.classes else "function" for other in others}


# --- neutrality -------------------------------------------------------------------------------------------------------


def source_of(code: str) -> str:
    """A closed file without the comment lines that it begins with."""
    return code[_HEADER.match(code).end() :]  # type: ignore[union-attr]


def repeated(text: str, source: Sequence[str], limit: int = LIMIT) -> list[str] | None:
    """The first `limit` tokens in a row of a source that a text repeats; None when there are none."""
    tokens = tokens_of(text)
    runs = {tuple(tokens[start : start + limit]) for start in range(len(tokens) - limit + 1)}
    found = (tuple(source[start : start + limit]) for start in range(len(source) - limit + 1))
    return next((list(run) for run in found if run in runs), None)


def design_of(facts: dict[str, Any]) -> dict[str, Any]:
    """The fields of a spec that must not repeat its source."""
    return {name: value for name, value in facts.items() if name not in IDENTITY}


# --- the calls that worked --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments as Python expressions."""

    args: tuple[str, ...] = ()
    kwargs: Mapping[str, str] | None = None

    def named(self, parameters: Sequence[SpecArgument]) -> dict[str, str]:
        """All of them by name; positional ones by the parameter that takes them."""
        names = positional_names(parameters)
        given = {names[n] if n < len(names) else f"*{n}": value for n, value in enumerate(self.args)}
        return given | dict(self.kwargs or {})

    def text(self) -> str:
        """As Python has them between parentheses."""
        return ", ".join([*self.args, *(f"{name}={value}" for name, value in (self.kwargs or {}).items())])


@dataclass(frozen=True, slots=True)
class Worked:
    """The call that constructed a block, and the one that ran it; None when it was not run."""

    init: Call
    forward: Call | None
    method: str = "forward"

    def constructor_call(self, name: str) -> str:
        """Python that makes the block."""
        return f"{name}({self.init.text()})"

    def forward_call(self, name: str = "block") -> str:
        """Python that calls it; empty when it was not called."""
        called = "" if self.method in ("forward", "__call__") else f".{self.method}"
        return f"{name}{called}({self.forward.text()})" if self.forward is not None else ""


def worked_of(arguments: str | None) -> Worked | None:
    """The column `arguments` read; None when it is null or holds something else."""
    if arguments is None:
        return None
    try:
        found = json.loads(arguments)
        forward = found.get("forward")
        return Worked(
            _call(found["init"]), None if forward is None else _call(forward), found.get("method") or "forward"
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def positional_names(parameters: Sequence[SpecArgument]) -> list[str]:
    """The names of the parameters that positional arguments go to, in order."""
    return [item.name for item in parameters if item.kind == "positional"]


def _call(found: dict[str, object]) -> Call:
    """Of `{"args": […], "kwargs": {…}}`, or of expressions by name."""
    args, kwargs = found.get("args", []), found.get("kwargs", {})
    if found.keys() <= {"args", "kwargs"} and isinstance(args, list) and isinstance(kwargs, dict):
        return Call(tuple(str(value) for value in args), {str(name): str(value) for name, value in kwargs.items()})
    return Call((), {str(name): str(value) for name, value in found.items()})


# --- lines of specs.jsonl ---------------------------------------------------------------------------------------------


def write_specs(path: Path, rows: Sequence[Block], traced: Mapping[str, Mapping[str, Any]]) -> list[Spec]:
    """Write the specs of the blocks that have code, and return them.

    Args: traced: what was traced, by block.
    """
    with_code = [row for row in rows if row.code is not None]
    specs = []
    with path.open("w", encoding="utf-8", newline="\n") as file, progress("specs", len(with_code), "blocks") as advance:
        for row in with_code:
            specs.append(make_spec(row, traced.get(row.block)))
            file.write(line_of(specs[-1]) + "\n")
            advance(1)
    return specs


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file of specs, without their ends. Broken UTF-8 is replaced, and no longer JSON of a spec."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            yield line.removesuffix("\n")


def line_faults(line: str | None, row: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the line of a block. Args: row: of the table, with its code."""
    if line is None:
        yield f"has no line in {SPECS}"
        return
    try:
        facts = json.loads(line)
        spec = Spec.model_validate(facts)
    except ValidationError as error:
        yield f"{SPECS}: {first_fault(error)}"
        return
    except (ValueError, RecursionError) as error:
        yield f"{SPECS}: not JSON: {error}"
        return
    if spec.block != row["block"]:
        yield f"{SPECS}: the line in its place is of {spec.block}"
        return
    wrong = [name for name in SHARED if name in row and getattr(spec, name) != row[name]]
    if wrong:
        yield f"{SPECS}: {', '.join(wrong)} not as in the table"
    if line_of(spec) != line:
        yield f"{SPECS}: its line is not written with sorted keys and all fields"
    run = repeated(design_text(facts), tokens_of(source_of(row["code"])))
    if run is not None:
        yield f"{SPECS}: repeats its source: {' '.join(run)}"
