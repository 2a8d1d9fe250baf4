"""The blocks of an extraction folder, by the name that a recipe uses; and their constructor arguments in a slot."""

import ast
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from lemur_core.files import Json
from lemur_core.files.errors import UserError
from lemur_core.source.text import parse_expression
from manifests.folders.kinds import EXTRACTION
from manifests.folders.tables import CHECK_ERRORS, describe, read_table, read_text
from manifests.provenance import REQUIREMENTS, TABLE
from manifests.provenance.licenses import combine_licenses
from manifests.provenance.parts import read_parts
from manifests.records import Block, Spec, SpecArgument
from train.model.slots import SLOTS

_SPECS = "specs.jsonl"
_UNREAD = frozenset({"observed", "resolutions"})
#: Columns of a block's row: of the full form, and the matching one of the minimized form.
_FORMS = {
    "code": "lean_code",
    "code_sha256": "lean_sha256",
    "n_lines": "lean_lines",
    "requires": "lean_requires",
    "license": "lean_license",
}
_NEAR = 5
_SHOWN = 8


@dataclass(frozen=True)
class SlotLibrary:
    """The blocks of one extraction folder by id, as plain rows; records are built on request.

    If a block has a minimized form, its row has code, requirements, license and digest of that form, and `full_facts`
    those of the full one. The license covers all code in it, which may come from several sources.
    """

    folder: Path
    rows: dict[str, Json]
    facts: dict[str, Json]
    full_facts: dict[str, Json]

    def block(self, block: str) -> Block:
        """Return the record of an id, without the columns that are not read."""
        return Block.model_validate(self.rows[block])

    def full_block(self, block: str) -> Block | None:
        """Return the full form of a block that has a minimized one; None for other blocks and for unpublished forms."""
        full = self.full_facts.get(block)
        if full is None or full["code"] is None:  # absent if its license forbids publication
            return None
        return Block.model_validate(self.rows[block] | full)

    def spec(self, block: str) -> Spec:
        """Return the source-free spec of an id in `facts`."""
        return Spec.model_validate(self.facts[block])

    def find(self, use: str) -> Block | None:
        """Return the block with this id, or the only one whose id ends with it: a bare or dotted name, without version.

        Raises: UserError if several blocks match.
        """
        if use in self.rows:
            return self.block(use)
        ids = sorted(self._ends.get(use, ()))
        if len(ids) > 1:
            shown = ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")
            raise UserError(f"{self.folder.name}: {len(ids)} blocks are named {use!r}: {shown}; use one of these ids")
        return self.block(ids[0]) if ids else None

    def near(self, use: str) -> list[str]:
        """Return the ids of blocks with similar names."""
        bare = use.rpartition("::")[2].rpartition(".")[2]
        by_name: dict[str, list[str]] = {}
        for block, row in self.rows.items():
            by_name.setdefault(row["name"], []).append(block)
        names = difflib.get_close_matches(bare, sorted(by_name), _NEAR, 0.6)
        return [block for name in names for block in sorted(by_name[name])][:_NEAR]

    @cached_property
    def _ends(self) -> dict[str, list[str]]:
        """The blocks by each name with which a recipe can choose them."""
        ends: dict[str, list[str]] = {}
        for block, row in self.rows.items():
            parts, source = row["qualname"].split("."), row["source"]
            for end in (".".join(parts[start:]) for start in range(len(parts))):
                for name in {end, f"{source.partition('@')[0]}::{end}", f"{source}::{end}"}:
                    ends.setdefault(name, []).append(block)
        return ends


def open_library(folder: Path) -> SlotLibrary:
    """Open the blocks of an extraction folder; they are read again only if its files change.

    Raises: UserError if it is not an extraction folder, or its records cannot be read.
    """
    times = []
    for name in (TABLE, _SPECS, REQUIREMENTS):
        path = folder / name
        if not path.is_file():
            raise UserError(f"{folder}: no {name}; pass a folder written by `lemur extract --out DIR`")
        times.append(path.stat().st_mtime_ns)
    return _read(folder.resolve(), tuple(times))


@lru_cache(maxsize=2)
def _read(folder: Path, _times: tuple[int, ...]) -> SlotLibrary:
    columns = [name for name in Block.model_fields if name not in _UNREAD]
    parts = read_parts(folder)
    try:
        with EXTRACTION.reading(folder):
            rows = {row["block"]: row for row in read_table([folder / TABLE], Block, columns).to_pylist()}
        for block in parts.block_sources.keys() & rows.keys():
            rows[block]["license"] = combine_licenses(parts.licenses(block, rows[block]["license"]))
        full = {}
        for block, row in rows.items():
            minimized = {name: row.pop(lean) for name, lean in _FORMS.items()}
            if minimized["code"] is not None:
                full[block] = {name: row[name] for name in _FORMS}
                row |= minimized
        facts = {spec["block"]: spec for spec in map(json.loads, read_text(folder / _SPECS).splitlines())}
        library = SlotLibrary(folder, rows, facts, full)
        for first in list(rows)[:1]:
            library.block(first)
        for first in list(facts)[:1]:
            library.spec(first)
    except CHECK_ERRORS as error:
        raise UserError(f"{folder.name}: its records cannot be read: {describe(error)}; extract it again") from error
    return library


# --- constructor arguments of blocks in slots -------------------------------------------------------------------------


def _split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Common parameter names for input channels, output channels, a rate, and the number of classes.
_IN = _split_names(
    """
    in_channels in_chs in_planes inplanes inchannels in_channel in_chans in_ch in_c ch_in c_in c1 inp nin in_dim dim
    dims input_dim input_channels input_size num_input_features in_features num_features n_feats features nf
    channels channel chs ch c num_channels n_channels embed_dim d_model hidden_size hidden_dim width width_in planes
    """
)
_OUT = _split_names(
    """
    out_channels out_chs out_planes outplanes outchannels out_channel out_chans out_ch out_c ch_out c_out c2 oup
    nout out_dim dim_out output_dim output_channels num_output_features out_features out_filters width_out planes
    """
)
_RATE = _split_names("drop_prob p drop drop_path_rate drop_rate drop_path rate prob stochastic_depth_prob")
_CLASSES = _split_names("num_classes n_classes num_class classes nc out_features out_channels")

#: Arguments that select a mode: the value that the slot requires.
_MODES = {("stochastic_depth", "mode"): "'row'", ("downsample", "stride"): "2", ("stem", "stride"): "1"}

#: Names that recorded expressions may use, because they mean the same in every file.
_ALLOWED_NAMES = frozenset({"nn", "torch", "dict", "list", "tuple", "channels"})
#: Values to try for an output-channels argument; in other slots it gets the input channels.
_OUT_CHOICES = {"head": ["classes"], "stem": ["out_channels"], "downsample": ["channels", "out_channels"]}


def list_builds(slot: str, block: Block, spec: Spec) -> tuple[str, ...]:
    """Return the argument lists to try, as Python text with the slot's names: the fewest arguments first."""
    if slot == "activation":
        return ("",)
    init = json.loads(block.arguments or "{}").get("init", {})
    positional = list(init.get("args", ()))
    order = [parameter.name for parameter in spec.constructor if parameter.kind == "positional"]
    recorded = dict(zip(order, positional, strict=False)) | dict(init.get("kwargs", {}))
    unnamed = positional[len(order) :]
    if not all(map(_is_portable, unnamed)):
        return ()
    parameters = [parameter for parameter in spec.constructor if parameter.kind in ("positional", "keyword")]
    required = {parameter.name for parameter in parameters if parameter.default is None}
    needed = {name: value for name, value in recorded.items() if name in required}
    choices = [
        _choose(slot, parameters, _fill_channels(slot, parameters, values, _read_channels(spec)), out)
        for values in (needed, recorded)
        for out in _OUT_CHOICES.get(slot, ["channels"])
    ]
    texts = [[*unnamed, *(f"{key}={text}" for key, text in named.items())] for named in choices if named is not None]
    return tuple(dict.fromkeys(map(", ".join, texts)))


def _fill_channels(
    slot: str, parameters: list[SpecArgument], values: Mapping[str, str], channels: int | None
) -> Mapping[str, str]:
    """Return the recorded values, with `channels` for equal values if no parameter name identifies the channels."""
    names = {parameter.name for parameter in parameters}
    if SLOTS[slot].get("channels") != "channels" or any(_find_role(slot, name, names) == "in" for name in names):
        return values
    return {name: "channels" if value == str(channels) else value for name, value in values.items()}


def _choose(slot: str, parameters: list[SpecArgument], recorded: Mapping[str, str], out: str) -> dict[str, str] | None:
    """Return one set of arguments; None if a required argument has no value."""
    names = {parameter.name for parameter in parameters}
    values = {"in": "in_channels" if slot == "stem" else "channels", "out": out, "rate": "rate", "classes": "classes"}
    chosen: dict[str, str] = {}
    for parameter in parameters:
        role = _find_role(slot, parameter.name, names)
        if (slot, parameter.name) in _MODES:
            chosen[parameter.name] = _MODES[slot, parameter.name]
        elif role:
            chosen[parameter.name] = values[role]
        elif parameter.name in recorded and _is_portable(recorded[parameter.name]):
            chosen[parameter.name] = recorded[parameter.name]
        elif parameter.default is None:
            return None
    return chosen


def _find_role(slot: str, name: str, names: set[str]) -> str:
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


def _is_portable(expression: str) -> bool:
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
        texts.append(f"{name}={_format(slot, value, f'{where}.{name}')}")
    return ", ".join(texts)


def _format(slot: str, value: Any, where: str) -> str:
    if isinstance(value, str) and value.startswith("$"):
        if value[1:] not in SLOTS[slot]:
            known = ", ".join(f"${name}" for name in SLOTS[slot]) or "none"
            raise UserError(f"{where}: no placeholder {value!r} in slot {slot}; there are: {known}")
        return SLOTS[slot][value[1:]]
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_format(slot, item, where) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quote(key)}: {_format(slot, item, where)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, bool | int | float):
        return repr(value)
    raise UserError(f"{where}: {value!r} is not a valid argument; use a number, a string, a list or a table")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
