"""`lemur show`: one block of a finished extraction folder, told from the folder alone."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from extract.blocks import NamedBlock, find_block
from extract.specs.make import Worked, worked_of
from lemur_core.files.markdown import plural, shown
from manifests.licenses import is_permissive
from manifests.records import Block, Observed

_LISTED = 8
_SURE = ", 1.00]"  # the end of a resolution that leaves no doubt


def show_block(folder: Path, wanted: str, *, as_json: bool = False) -> None:
    """Print one block: as JSON, or as lines and its code, coloured on a terminal.

    Raises: UserError as `find_block` does.
    """
    found = find_block(folder, wanted)
    if as_json:
        facts = {**found.row.model_dump(mode="json"), "needs": found.needs, "others": list(found.others)}
        print(json.dumps(facts, indent=2))
        return
    print("\n".join(lines_of(found)))
    if found.row.code is None:
        return
    print()
    if sys.stdout.isatty():
        _print_coloured(found.row.code)
    else:
        print(found.row.code, end="")


def lines_of(block: NamedBlock) -> list[str]:
    """Everything but the code, to print as it is."""
    row, needs = block.row, block.needs or {}
    lines = f"{row.start_line}" if row.start_line == row.end_line else f"{row.start_line}-{row.end_line}"
    told = [("block", row.block), ("from", f"{row.path}, lines {lines}")]
    if needs.get("origin"):
        told.append(("origin", needs["origin"]))
    told.append(("swhid", needs.get("swhid") or row.swhid))
    told.append(("category", row.category))
    told.append(("level", row.level))
    if row.error_kind is not None:
        told.append(("stopped", f"{row.error_kind}: {row.error}"))
    if row.fidelity is not None:
        told.append(("fidelity", f"{row.fidelity} with the class of the installed package"))
    use = "" if is_permissive(row.license) else " (not known to be permissive: for local use)"
    told.append(("licence", f"{row.license}{use}"))
    if row.code is not None:
        told.append(("requires", ", ".join(needs.get("requires", row.requires)) or "nothing"))
        told += _listed("with", _made_from(row, needs))
        told += _listed("inferred", [way for way in row.resolutions if not way.endswith(_SURE)])
        told.append(("file", f"{row.file} ({plural(row.n_lines or 0, 'line')})"))
        told += _run(row.name, worked_of(row.arguments), row.observed)
    told += _listed("also", block.others)
    return [shown(f"{label:<10}{text}") for label, text in told]


def _made_from(row: Block, needs: Mapping[str, Any]) -> list[str]:
    """The files that it was made from, other than its own."""
    made = [(source, path) for source, paths in needs.get("made_from", {}).items() for path in paths]
    return [f"{source} {path}" for source, path in made if (source, path) != (row.source, row.path)]


def _listed(label: str, items: Sequence[str]) -> list[tuple[str, str]]:
    """One line an item, the label before the first, and how many are left out."""
    told = [("" if place else label, item) for place, item in enumerate(items[:_LISTED])]
    return told + ([("", f"and {len(items) - _LISTED:,} more")] if len(items) > _LISTED else [])


def _run(name: str, worked: Worked | None, stored: str | None) -> list[tuple[str, str]]:
    """How it runs, and what was seen as it ran; nothing where that is not known."""
    told = []
    if worked is not None:
        told.append(("runs as", f"block = {worked.constructor_call(name)}"))
        told += [("", call)] if (call := worked.forward_call()) else []
    try:
        observed = None if stored is None else Observed.model_validate_json(stored)
    except ValidationError:
        return [*told, ("observed", "not readable; run `lemur verify`")]
    if observed is None:
        return told
    cases = []
    for case in observed.cases:
        inputs = ", ".join(f"{key} {value}" for key, value in case.inputs.items())
        cases.append(f"{inputs or 'nothing'} -> {', '.join(case.outputs) or 'no tensor'}")
    told += _listed("shapes", cases)
    facts = [plural(observed.parameters, "parameter")]
    facts += [f"{observed.trainable:,} trainable"] if observed.trainable != observed.parameters else []
    facts += [f"{observed.buffers:,} in buffers"] if observed.buffers else []
    if observed.gradients is not None:
        facts.append(f"gradients reach {observed.gradients:,} of {plural(observed.tensors or 0, 'tensor')}")
    facts += ["train and eval differ"] if observed.train_differs else []
    facts += ["returns its input in eval mode"] if observed.identity_in_eval else []
    told.append(("observed", "; ".join(facts)))
    if observed.layers:
        told.append(("layers", ", ".join(f"{layer} {number:,}" for layer, number in observed.layers.items())))
    return told


def _print_coloured(code: str) -> None:
    """Print code in colours, with what a terminal would obey spelled out: the code is foreign."""
    from rich.console import Console
    from rich.syntax import Syntax

    safe = "\n".join(shown(line) for line in code.rstrip("\n").split("\n"))
    Console().print(Syntax(safe, "python", theme="ansi_dark", background_color="default", word_wrap=True))
