"""From a row of the table to its spec, checked to be neutral before anyone sees it."""

import json
from typing import Any, Literal

from pydantic import ValidationError

from extract.spec.behaviour import Behaviour, behaviour_of, neutral_case
from extract.spec.neutral import design_of, repeated, source_of
from extract.spec.notation import value_of_text
from extract.spec.outline import Outline, outline_of
from extract.spec.summary import summary_of
from extract.spec.worked import positional_names, worked_of
from lemur_core.similarity.text import tokens_of
from manifests.records import Block, Observed, Spec, SpecArguments

#: What can be left out of a spec, in the order in which it is tried, and what then stands for it.
_OPTIONAL: dict[str, Any] = {
    "arguments": None,
    "cases": (),
    "dependencies": {},
    "builds": {},
    "layers": None,
    "summary": "",
    "bases": (),
}


def make_spec(row: Block) -> Spec:
    """The spec of a block that has code.

    A value that would repeat a passage of the source is left out, and `withheld` names its field.
    """
    assert row.code is not None
    assert row.code_sha256 is not None
    outline = outline_of(row.code)
    observed = observed_of(row)
    worked = worked_of(row.arguments)
    constructor, forward = (outline.method(row.name, method) for method in ("__init__", "forward"))
    facts = outline.classes.get(row.name)
    builds = dict(facts.builds) if facts else {}
    given = worked.init.named(constructor) if worked else {}
    init = {name: value_of_text(value) for name, value in given.items()}
    called = worked.forward.named(forward) if worked and worked.forward else {}
    behaviour = behaviour_of(observed, given.values()) if observed else Behaviour()
    names = positional_names(forward)
    spec = Spec(
        block=row.block,
        name=row.name,
        category=row.category,
        level=row.level,
        fidelity=row.fidelity,
        bases=facts.bases if facts else (),
        constructor=constructor,
        forward=forward,
        arguments=SpecArguments(
            init=init,
            forward={name: value_of_text(value) for name, value in called.items()},
            method=worked.method,
        )
        if worked
        else None,
        cases=tuple(neutral_case(case, names) for case in observed.cases) if observed else (),
        layout=behaviour.layout,
        keeps_shape=behaviour.keeps_shape,
        downsampling=behaviour.downsampling,
        changes_channels=behaviour.changes_channels,
        parameters=observed.parameters if observed else None,
        train_differs=observed.train_differs if observed else None,
        identity_in_eval=observed.identity_in_eval if observed else None,
        gradients=observed.gradients if observed else None,
        tensors=observed.tensors if observed else None,
        layers=observed.layers if observed else None,
        builds=builds,
        dependencies=_dependencies(row.name, outline),
        summary=summary_of(row.name, row.category, constructor, forward, builds, observed, behaviour, init),
        source=row.source,
        path=row.path,
        start_line=row.start_line,
        end_line=row.end_line,
        swhid=row.swhid,
        license=row.license,
        code_sha256=row.code_sha256,
        file=row.file,
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
            facts[name] = empty
            withheld.append(name)
    for name, empty in {**_OPTIONAL, "constructor": (), "forward": ()}.items():  # runs across two fields, most unlikely
        if repeated(design_text(facts), source) is None:
            break
        if facts[name] != empty:
            facts[name] = empty
            withheld.append(name)
    return Spec.model_validate(facts)


def _dependencies(name: str, outline: Outline) -> dict[str, Literal["class", "function"]]:
    found: dict[str, Literal["class", "function"]] = {}
    for other in sorted({*outline.functions, *outline.classes} - {name}):
        found[other] = "class" if other in outline.classes else "function"
    return found
