"""Properties of a block that hold in all observed cases, in eval and in train mode; and its summary in one line."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from extract.specs.outline import format_expression
from lemur_core.files.markdown import plural
from manifests.records import Algorithm, Block, Case, Observed

_TENSOR = re.compile(r"\w+ (\d+(?:x\d+)*|scalar)")
_PLACE = re.compile(r"\*(\d{1,4})(?=\.|$)")
#: By the number of dimensions, where the layers define that the second is that of the channels.
_LAYOUTS = {2: "N×C", 3: "N×C×L", 4: "N×C×H×W", 5: "N×C×D×H×W"}
_LEAST_SIZES = 2  # a factor of one size, or of sizes of 1, may be chance
_LAYERS_NAMED = 6
Shape = tuple[int, ...]


def infer_behavior(observed: Observed | None, channels: int | None) -> dict[str, Any]:
    """Return what holds in every case and mode of the first input tensor and the only output tensor.

    Args: channels: the axis of the channels, if layers define it.
    Returns: the fields of a spec by name; None for what some case contradicts, or none decides.
    """
    facts: dict[str, Any] = dict.fromkeys(("layout", "keeps_shape", "downsampling", "changes_channels"))
    if observed is None:
        return facts
    pairs = list(_list_pairs(observed))
    ranks = {len(before) for before, _ in pairs}
    axis = None if channels is None or len(ranks) != 1 else channels % max(ranks)
    facts["layout"] = None if axis is None else "…×C" if channels == -1 else _LAYOUTS.get(max(ranks))
    # Without known calls, only equal outputs in both modes say anything of train mode.
    both = bool(observed.calls) or observed.train_differs is False
    if not pairs or not both or any(after is None for _, after in pairs):
        return facts
    known = [(before, after) for before, after in pairs if after is not None]
    facts["keeps_shape"] = _agree(before == after for before, after in known)
    if axis is None or any(len(before) != len(after) for before, after in known):
        return facts
    facts["changes_channels"] = _agree(before[axis] != after[axis] for before, after in known)
    if all(before[0] == after[0] for before, after in known):  # else the first dimension may be a length
        inner = {(before[n], after[n]) for before, after in known for n in range(1, len(before)) if n != axis}
        facts["downsampling"] = _find_factor(inner)
    return facts


def _agree(values: Iterator[bool]) -> bool | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _list_pairs(observed: Observed) -> Iterator[tuple[Shape, Shape | None]]:
    """Yield the shapes of the first input and of the only output in each case and mode; None for other outputs."""
    modes: list[tuple[Mapping[str, str], Sequence[str] | None]] = [(c.inputs, c.outputs) for c in observed.cases]
    modes += [(call.inputs, outputs) for call in observed.calls for outputs in (call.eval, call.train)]
    for inputs, outputs in modes:
        before = next((shape for value in inputs.values() if (shape := read_shape(value)) is not None), None)
        if before is not None:
            yield before, read_shape(outputs[0]) if outputs is not None and len(outputs) == 1 else None


def _find_factor(sizes: set[tuple[int, int]]) -> float | None:
    """Return by which number sizes are divided; below 1 if they are multiplied; None if one size contradicts it.

    What no size divides exactly, or only one, is no factor; other sizes may be rounded up or down.
    """
    exact = {
        (max(pair) / min(pair) if pair[0] >= pair[1] else min(pair) / max(pair), pair[0])
        for pair in sizes
        if min(pair) > 1 and max(pair) % min(pair) == 0
    }
    factors = {factor for factor, _ in exact}
    if len(factors) != 1 or len(exact) < _LEAST_SIZES:
        return None
    factor = factors.pop()
    return factor if all(after in (int(before / factor), -int(-before // factor)) for before, after in sizes) else None


def neutralize_case(case: Case, names: Sequence[str]) -> Case:
    """Return the case with shapes written as `2×16×8×8`, and positional inputs named by their parameters."""
    inputs = {name_input(name, names): _neutralize(value) for name, value in case.inputs.items()}
    return Case(inputs=inputs, outputs=tuple(_neutralize(value) for value in case.outputs))


def _neutralize(value: str) -> str:
    return re.sub(r"(?<=\d)x(?=\d)", "×", value) if _TENSOR.fullmatch(value) else format_expression(value)


def name_input(name: str, names: Sequence[str]) -> str:
    """Rewrite `*0` and `*0.key` as `x` and `x.key`."""
    match = _PLACE.match(name)
    return names[int(match[1])] + name[match.end() :] if match and int(match[1]) < len(names) else name


def read_shape(value: str) -> Shape | None:
    """Return the shape of a tensor of a case; None for anything else."""
    match = _TENSOR.fullmatch(value.replace("×", "x"))
    if match is None:
        return None
    return () if match[1] == "scalar" else tuple(int(size) for size in match[1].split("x"))


def summarize(name: str, observed: Observed | None, algorithm: Algorithm | None) -> str:
    """Return a line of facts: shapes of the first call, parameters, layers, motifs with their numbers."""
    if observed is None:
        return f"{name}: not run"
    parts = []
    if observed.cases:
        case = neutralize_case(observed.cases[0], ())
        parts.append(f"{', '.join(case.inputs.values()) or 'nothing'} -> {', '.join(case.outputs) or 'no tensor'}")
    else:
        parts.append("constructed, not run")
    parts.append(plural(observed.parameters, "parameter"))
    layers = sorted(observed.layers.items(), key=lambda item: (-item[1], item[0]))
    more = [plural(len(layers) - _LAYERS_NAMED, "further kind")] if len(layers) > _LAYERS_NAMED else []
    parts.append(", ".join([*(f"{layer} {count}" for layer, count in layers[:_LAYERS_NAMED]), *more]))
    motifs = Counter(motif.kind for motif in algorithm.motifs) if algorithm else {}
    parts.append(", ".join(f"{kind} {count}" for kind, count in sorted(motifs.items())))
    return f"{name}: {'; '.join(filter(None, parts))}"


# --- what a run did not show ----------------------------------------------------------------------------------------


def list_kinds(row: Block) -> tuple[str, ...]:
    """Return the kinds of what the run of a block did not show, each once."""
    return tuple(dict.fromkeys(line.partition(":")[0] for line in (row.not_shown or "").splitlines()))


def list_not_shown(observed: str | None) -> tuple[str, ...]:
    """Return what the run of a block did not show, one line each: a kind and, after a colon, what it is about.

    Args: observed: an Observed record as JSON.
    """
    if observed is None:
        return ()
    seen = Observed.model_validate_json(observed)
    lines = [f"no code initializes these parameters: {', '.join(seen.uninitialized)}"] if seen.uninitialized else []
    if seen.identity_in_eval and seen.train_differs is not True:
        lines.append(f"its output is its input{' in eval mode' if seen.train_differs is None else ''}")
    lines += ["its output is the same for other inputs"] if seen.constant else []
    lines += ["all gradients are zero"] if seen.zero_gradients else []
    if seen.other_ranks:
        ranks = " or ".join(map(str, seen.other_ranks))
        lines.append(f"no call shows how many dimensions are meant: with {ranks} it runs, too, and computes otherwise")
    if seen.open_numbers:
        lines.append(f"no call shows which number is meant: {', '.join(seen.open_numbers)}")
    lines += ["its output grows without bound where its input nears zero"] if seen.has_pole else []
    lines += ["the output of a sample depends on the other samples"] if seen.mixes_samples else []
    if seen.own_lines is not None and 2 * seen.own_lines[0] < seen.own_lines[1]:
        ran, whole = seen.own_lines
        lines.append(f"most of its own code did not run: {ran} of {plural(whole, 'statement')}")
    lines += [f"train mode fails: {seen.train_error}"] if seen.train_error is not None else []
    lines += [f"a value does not fit its annotation: {text}" for text in seen.misfits]
    return tuple(lines)
