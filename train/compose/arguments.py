"""Constructor arguments of blocks in slots: which carry channels or a rate, by their names and by recorded values."""

import ast
import json
from collections.abc import Mapping
from typing import Any

from lemur_core.files.errors import UserError
from lemur_core.source.text import parse_expression
from manifests.records import Block, Spec, SpecArgument
from train.model.slots import SLOTS


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Common parameter names for input channels, output channels, a rate, and the number of classes.
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

#: Arguments that select a mode: the value that the slot requires.
_MODES = {("stochastic_depth", "mode"): "'row'", ("downsample", "stride"): "2", ("stem", "stride"): "1"}

#: Names that recorded expressions may use, because they mean the same in any file.
_ALLOWED_NAMES = frozenset({"nn", "torch", "dict", "list", "tuple", "channels"})
#: Values to try for an output-channels argument; in other slots it gets the input channels.
_OUT_CHOICES = {"head": ["classes"], "stem": ["out_channels"], "downsample": ["channels", "out_channels"]}


def list_builds(slot: str, block: Block, spec: Spec) -> tuple[str, ...]:
    """Return the arguments to try as Python text with the slot's names: by parameter name, then by recorded value."""
    if slot == "activation":
        return ("",)
    init = json.loads(block.arguments or "{}").get("init", {})
    positional = list(init.get("args", ()))
    order = [one.name for one in spec.constructor if one.kind == "positional"]
    recorded = dict(zip(order, positional, strict=False)) | dict(init.get("kwargs", {}))
    unnamed = positional[len(order) :]
    if not all(map(_portable, unnamed)):
        return ()
    parameters = [one for one in spec.constructor if one.kind in ("positional", "keyword")]
    needed = {one.name: recorded[one.name] for one in parameters if one.default is None and one.name in recorded}
    choices = [
        _by_name(slot, parameters, _with_channels(slot, parameters, values, _read_channels(spec)), out)
        for values in (needed, recorded)
        for out in _OUT_CHOICES.get(slot, ["channels"])
    ]
    texts = [[*unnamed, *(f"{key}={value}" for key, value in one.items())] for one in choices if one is not None]
    return tuple(dict.fromkeys(map(", ".join, texts)))


def _with_channels(
    slot: str, parameters: list[SpecArgument], values: Mapping[str, str], channels: int | None
) -> Mapping[str, str]:
    """Return the recorded values; if no name identifies the channels argument, replace values equal to the channels."""
    names = {one.name for one in parameters}
    if "channels" not in SLOTS[slot].values or any(_role(slot, name, names) == "in" for name in names):
        return values
    return {name: "channels" if value == str(channels) else value for name, value in values.items()}


def _by_name(slot: str, parameters: list[SpecArgument], recorded: Mapping[str, str], out: str) -> dict[str, str] | None:
    """Return one set of arguments; None if a required one has no value."""
    names = {one.name for one in parameters}
    values = {"in": "in_channels" if slot == "stem" else "channels", "out": out, "rate": "rate", "classes": "classes"}
    chosen: dict[str, str] = {}
    for one in parameters:
        role = _role(slot, one.name, names)
        if (slot, one.name) in _MODES:
            chosen[one.name] = _MODES[slot, one.name]
        elif role:
            chosen[one.name] = values[role]
        elif one.name in recorded and _portable(recorded[one.name]):
            chosen[one.name] = recorded[one.name]
        elif one.default is None:
            return None
    return chosen


def _role(slot: str, name: str, names: set[str]) -> str:
    """Return the role of a parameter (`in`, `out`, `rate`, `classes` or empty), judged by all parameter names."""
    lower = name.lower()
    if slot == "stochastic_depth":
        return "rate" if lower in _RATE else ""
    if slot == "head" and lower in _CLASSES:
        return "classes"
    others = {other.lower() for other in names} - {lower}
    if lower in _OUT and (lower not in _IN or others & (_IN - _OUT)):
        return "out"
    return "in" if lower in _IN else ""


def _read_channels(spec: Spec) -> int | None:
    first = next(iter(spec.cases[0].inputs.values()))
    sizes = first.rpartition(" ")[2].split("×")
    return int(sizes[1]) if len(sizes) > 1 else None


def _portable(expression: str) -> bool:
    """Return whether a recorded expression means the same in any file that imports torch and nn."""
    try:
        tree = parse_expression(expression)
    except SyntaxError:
        return False
    return all(node.id in _ALLOWED_NAMES for node in ast.walk(tree) if isinstance(node, ast.Name))


def build_from_recipe(slot: str, arguments: Mapping[str, object], where: str) -> str:
    """Return a recipe's arguments as Python text.

    Raises: UserError for a placeholder that the slot does not have, or a value that has no Python literal.
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
            known = ", ".join(SLOTS[slot].all_placeholders) or "none"
            raise UserError(f"{where}: no placeholder {value!r} in slot {slot}; there are: {known}")
        return expression
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_expression(slot, item, where) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quote(key)}: {_expression(slot, item, where)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, bool | int | float):
        return repr(value)
    raise UserError(f"{where}: {value!r} is not a valid argument; use a number, a string, a list or a table")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
