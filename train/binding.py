"""Constructor arguments for a block in a slot: which carry channels or a rate, told from names and recorded values."""

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

from lemur_core.files.errors import UserError
from manifests.records import Block, Spec, SpecArgument
from train.slots import SLOTS


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Names by which the field calls the channels that go in and those that go out, a rate, and the number of classes.
_IN = _names(
    """
    in_channels in_chs in_planes inplanes inchannels in_channel in_chans in_ch in_c ch_in c_in c1 inp nin in_dim dim
    dims input_dim input_channels input_size num_input_features in_features num_features n_feats features nf
    channels channel chs ch c num_channels n_channels embed_dim d_model hidden_size hidden_dim width width_in planes
    """
)
_OUT = _names(
    """
    out_channels out_chs out_planes outplanes outchannels out_channel out_chans out_ch out_c ch_out c_out c2 oup
    nout out_dim dim_out output_dim output_channels num_output_features out_features out_filters width_out planes
    """
)
_RATE = _names("drop_prob p drop drop_path_rate drop_rate drop_path rate prob stochastic_depth_prob")
_CLASSES = _names("num_classes n_classes num_class classes nc out_features out_channels")

#: Ways of doing the same that an argument names: the one that its slot asks for.
_MODES = {("stochastic_depth", "mode"): "'row'", ("downsample", "stride"): "2", ("stem", "stride"): "1"}

#: What recorded expressions may name, so that they mean the same in any file.
_ALLOWED_NAMES = frozenset({"nn", "torch", "dict", "list", "tuple", "channels"})

Recorded = tuple[list[str], dict[str, str]]


def builds_of(slot: str, block: Block, spec: Spec) -> tuple[str, ...]:
    """The arguments to try, as Python text in the names of the slot, the most telling ones first."""
    if slot == "activation":
        return ("",)
    positional, keywords = _recorded(block, spec)
    channels = _observed_channels(spec)
    found = [_joined(positional, build) for build in _keyword_sets(slot, spec, keywords, channels)]
    return tuple(dict.fromkeys(text for text in found if text is not None))


def build_from_recipe(slot: str, arguments: Mapping[str, Any], where: str) -> str:
    """The arguments that a recipe gives, as Python text.

    Raises: UserError for a placeholder that the slot has not, or a value that Python text cannot hold.
    """
    texts = []
    for name, value in arguments.items():
        if not name.isidentifier():
            raise UserError(f"{where}.{name}: not the name of an argument")
        texts.append(f"{name}={_expression(slot, value, f'{where}.{name}')}")
    return ", ".join(texts)


def _expression(slot: str, value: Any, where: str) -> str:
    if isinstance(value, str) and value.startswith("$"):
        expression = SLOTS[slot].expression(value[1:])
        if expression is None:
            known = ", ".join(SLOTS[slot].known) or "none"
            raise UserError(f"{where}: no placeholder {value!r} in slot {slot}; there are: {known}")
        return expression
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_expression(slot, item, where) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {_expression(slot, item, where)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool | int | float):
        return repr(value)
    raise UserError(f"{where}: {value!r} is no value for an argument; give a number, a text, a list or a table")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _keyword_sets(
    slot: str, spec: Spec, recorded: Mapping[str, str], channels: int | None
) -> Iterator[dict[str, str] | None]:
    """Keyword arguments to try: by the names of parameters, all or only the needed ones, then by recorded values."""
    parameters = [one for one in spec.constructor if one.kind in ("positional", "keyword")]
    needed = {one.name for one in parameters if one.default is None}
    required = {name: value for name, value in recorded.items() if name in needed}
    for every, values in ((True, required), (False, required), (True, recorded), (False, recorded)):
        for out in _out_choices(slot, parameters):
            yield _by_name(slot, parameters, _with_channels(slot, parameters, values, channels), needed, every, out)
    if channels is not None and "channels" in SLOTS[slot].values:
        yield {
            name: "channels" if value == str(channels) else value
            for name, value in recorded.items()
            if _portable(value)
        }
    yield {name: value for name, value in recorded.items() if _portable(value)}


def _with_channels(
    slot: str, parameters: list[SpecArgument], values: Mapping[str, str], channels: int | None
) -> Mapping[str, str]:
    """The recorded values; where no name tells which argument carries channels, those that equal them do."""
    names = {one.name for one in parameters}
    if "channels" not in SLOTS[slot].values or any(_role(slot, name, names) == "in" for name in names):
        return values
    return {name: "channels" if value == str(channels) else value for name, value in values.items()}


def _out_choices(slot: str, parameters: list[SpecArgument]) -> list[str]:
    """What an argument that names the channels going out may get."""
    if slot == "head":
        return ["classes"]
    if slot == "stem":
        return ["out_channels"]
    if slot == "downsample":
        return ["channels", "out_channels"]
    planes = any(one.name == "planes" for one in parameters)
    return ["channels", "channels // 4"] if slot == "residual" and planes else ["channels"]


def _by_name(
    slot: str,
    parameters: list[SpecArgument],
    recorded: Mapping[str, str],
    needed: set[str],
    every: bool,
    out: str,
) -> dict[str, str] | None:
    """One set of arguments; None where a needed one has no value."""
    names = {one.name for one in parameters}
    incoming = "in_channels" if slot == "stem" else "channels"
    chosen: dict[str, str] = {}
    for name in (one.name for one in parameters):
        role = _role(slot, name, names)
        if (slot, name) in _MODES and (every or name in recorded):
            chosen[name] = _MODES[slot, name]
        elif role and (every or name in needed or name in recorded):
            chosen[name] = {"in": incoming, "out": out, "rate": "rate", "classes": "classes"}[role]
        elif name in recorded and _portable(recorded[name]):
            chosen[name] = recorded[name]
        elif name in needed:
            return None
    return chosen


def _role(slot: str, name: str, names: set[str]) -> str:
    """What a parameter of this name carries, beside its neighbours."""
    lower = name.lower()
    if slot == "stochastic_depth":
        return "rate" if lower in _RATE else ""
    if slot == "head" and lower in _CLASSES:
        return "classes"
    others = {other.lower() for other in names} - {lower}
    if lower in _OUT and (lower not in _IN or others & (_IN - _OUT)):
        return "out"
    return "in" if lower in _IN else ""


def _recorded(block: Block, spec: Spec) -> Recorded:
    """The arguments of the constructor that worked: those without a name, and by name."""
    init = json.loads(block.arguments or "{}").get("init", {})
    given, keywords = list(init.get("args", ())), dict(init.get("kwargs", {}))
    names = [one.name for one in spec.constructor if one.kind == "positional"]
    named = dict(zip(names, given, strict=False))
    return given[len(names) :], named | keywords


def _observed_channels(spec: Spec) -> int | None:
    first = next(iter(spec.cases[0].inputs.values()))
    sizes = first.rpartition(" ")[2].split("×")
    return int(sizes[1]) if len(sizes) > 1 else None


def _portable(expression: str) -> bool:
    """Whether a recorded expression means the same in any file that imports torch and nn."""
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError:
        return False
    return all(node.id in _ALLOWED_NAMES for node in ast.walk(tree) if isinstance(node, ast.Name))


def _joined(positional: list[str], keywords: Mapping[str, str] | None) -> str | None:
    if keywords is None or not all(_portable(value) for value in positional):
        return None
    return ", ".join([*positional, *(f"{name}={value}" for name, value in keywords.items())])
