"""Fillers for slots: built-in parts and the blocks of an extraction folder, and the arguments to try them with.

Whether a block fits is decided by running it in the sandbox, not by its name. Its constructor arguments are derived
from the names of its parameters and from recorded values.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from lemur_core.files import Json
from lemur_core.files.errors import UserError, missing_name
from lemur_core.sandbox import PRELOAD, Job, Limits, Outcome
from lemur_core.sandbox.cached import CachedSandbox, is_transient
from lemur_core.sandbox.stage import SandboxOptions, SandboxStage, open_sandbox
from lemur_core.source.text import parse_expression
from manifests.folders.kinds import EXTRACTION
from manifests.folders.tables import CHECK_ERRORS, describe, read_table, read_text
from manifests.provenance import REQUIREMENTS, TABLE
from manifests.provenance.licenses import combine_licenses
from manifests.provenance.parts import read_parts
from manifests.records import Block, Spec, SpecArgument
from train.model.recipe import Recipe, Slot
from train.model.slots import BUILT_IN, NONE, SLOTS, Filler, list_built_ins, list_sizes

LIMITS = Limits(wall_seconds=120, cpu_seconds=45, memory_bytes=3 * 2**30)

_ERROR_CHARACTERS = 200
_NUMPY = ("import numpy", "from numpy")

_SPECS = "specs.jsonl"
#: Of the minimized form, which holds for the calls that were recorded alone: a network may make others.
_UNREAD = frozenset({"observed", "lean_code", "lean_sha256", "lean_lines", "lean_requires", "lean_license"})
_SHOWN = 8


# --- the blocks of an extraction folder -------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlotLibrary:
    """The blocks of one extraction folder by id, as plain rows; records are built on request.

    The license of a block covers all code in it, which may come from several sources.
    """

    folder: Path
    rows: dict[str, Json]
    facts: dict[str, Json]

    def block(self, block: str) -> Block:
        """Return the record of an id, without the columns that are not read."""
        return Block.model_validate(self.rows[block])

    def spec(self, block: str) -> Spec:
        """Return the source-free spec of an id in `facts`."""
        return Spec.model_validate(self.facts[block])

    def find(self, use: str) -> Block:
        """Return the block with this id, or the only one whose id ends with it: a bare or dotted name, without version.

        Raises: UserError if none or several match.
        """
        if use in self.rows:
            return self.block(use)
        source, _, name = use.rpartition("::")
        ids = sorted(
            block
            for block, row in self.rows.items()
            if f".{row['qualname']}".endswith(f".{name}")
            and source in ("", row["source"], row["source"].partition("@")[0])
        )
        if len(ids) > 1:
            shown = ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")
            raise UserError(f"{self.folder.name}: {len(ids)} blocks are named {use!r}: {shown}; use one of these ids")
        if not ids:
            known = sorted({row["name"] for row in self.rows.values()})
            raise missing_name(f"{self.folder.name}: no block {use!r}", name.rpartition(".")[2], known)
        return self.block(ids[0])


def open_library(folder: Path) -> SlotLibrary:
    """Open the blocks of an extraction folder; they are read again only if its files change.

    Raises: UserError if it is not an extraction folder, or its records cannot be read.
    """
    times = []
    for name in (TABLE, _SPECS, REQUIREMENTS):
        path = folder / name
        if not path.is_file():
            what = f"no {name}" if folder.exists() else "no such folder"
            raise UserError(f"{folder}: {what}; pass a folder written by `lemur extract --out DIR`")
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
        facts = {spec["block"]: spec for spec in map(json.loads, read_text(folder / _SPECS).splitlines())}
        library = SlotLibrary(folder, rows, facts)
        for read, ids in ((library.block, rows), (library.spec, facts)):
            for first in list(ids)[:1]:
                read(first)
    except CHECK_ERRORS as error:
        raise UserError(f"{folder.name}: its records cannot be read: {describe(error)}; extract it again") from error
    return library


def choose(slot: str, recipe: Recipe, library: SlotLibrary | None) -> Filler | None:
    """Return the filler that a recipe chooses for a slot; None for an empty slot.

    Raises: UserError if the name is unknown or ambiguous, or if the block cannot be part of a file that imports only
        torch and torchvision.
    """
    wanted: Slot = getattr(recipe.slots, slot)
    where = f"slots.{slot}"
    if wanted.use == NONE and NONE in list_built_ins(slot):
        return None
    part = BUILT_IN[slot].get(wanted.use)
    if part is not None:
        if wanted.arguments:
            raise UserError(f"{where}: {wanted.use!r} is built in and takes no arguments; leave them out")
        return part
    known = f"built in: {', '.join(map(repr, list_built_ins(slot)))}"
    if slot not in SLOTS:
        raise UserError(f"{where}: no part {wanted.use!r}; {known}; blocks fill {', '.join(SLOTS)}")
    if library is None:
        blocks = "for blocks, pass --in DIR, a folder written by `lemur extract`"
        raise UserError(f"{where}: no part {wanted.use!r}; {known}; {blocks}")
    try:
        block = library.find(wanted.use)
    except UserError as error:
        raise UserError(f"{where}: {error} ({known})") from error
    if block.code is None or block.block not in library.facts:
        fault = block.error or "it has no code"
        raise UserError(f"{where}: {block.block} was not extracted: {fault}; use another block")
    if foreign := foreign_imports(block):
        only = "the network's file imports only torch: use another block"
        raise UserError(f"{where}: {block.block} needs {foreign}; {only}")
    if not wanted.arguments:
        builds = list_builds(slot, block, library.spec(block.block))
    else:
        builds = (build_from_recipe(slot, wanted.arguments, f"{where}.arguments"),)
    return Filler(block.block, block.name, builds, block=block)


def foreign_imports(block: Block) -> str:
    """Return the packages that a block needs besides the standard library, torch and torchvision; empty if none."""
    numpy = any(line.startswith(_NUMPY) for line in (block.code or "").splitlines())
    return ", ".join([*block.requires, *(["numpy"] if numpy else [])])


# --- do they fit ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FillerToProbe:
    """Does a filler meet its slot's contract at these sizes? `support`: the text of the factories that builds name."""

    slot: str
    code: str
    target: str
    builds: Sequence[str]
    support: str
    sizes: Sequence[Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class NetworkToProbe:
    """Does an assembled network run and learn?"""

    code: str
    prm: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether it fits: then the build that does, and what was observed; else why the best build does not."""

    fits: bool
    reason: str = ""
    build: str = ""
    parameters: int = 0
    facts: Mapping[str, bool | int | float | str] = field(default_factory=dict)


#: Probe a filler in its slot; probe an assembled network.
PROBE = SandboxStage[Answer]("train.compose.probe_guest:probe_filler", Answer, LIMITS, retries=False)
NETWORK = SandboxStage[Answer]("train.compose.probe_guest:probe_network", Answer, LIMITS, retries=False)


def open_prober(*, unsafe: bool = False, jobs: int = 1) -> CachedSandbox:
    """Return the sandbox of both stages; it starts with the first filler whose answer is not cached."""

    def usable(_job: Job, outcome: Outcome) -> bool:
        return not is_transient(outcome)

    options: SandboxOptions = {"unsafe": unsafe, "jobs": jobs}
    return open_sandbox(None, [PROBE, NETWORK], options, limits=LIMITS, usable=usable, preload=PRELOAD)


def probe(
    box: CachedSandbox, stage: SandboxStage[Answer], payloads: Sequence[FillerToProbe | NetworkToProbe]
) -> list[Answer]:
    """Return the answers of `train.compose.probe_guest`, in order. Raises: UserError if no sandbox is available."""
    replies = stage.run(box, {str(number): payload for number, payload in enumerate(payloads)})
    answers = {int(reply.key): reply.answer or Answer(False, reply.ending(_ERROR_CHARACTERS)) for reply in replies}
    return [answers[number] for number in range(len(payloads))]


def try_in_slots(
    box: CachedSandbox, fillers: Sequence[tuple[str, Filler, Sequence[int]]], support: str, label: str = ""
) -> list[tuple[Filler, Answer]]:
    """Try fillers in their slots, and return each, settled on the arguments that fit, with its answer.

    Args: fillers: slot, filler, and the widths at which it must fit. support: the text of the factories. label: of the
        progress; none is shown if it is empty.
    """
    payloads = [
        FillerToProbe(
            slot,
            filler.code,
            filler.target,
            filler.builds,
            "\n".join([support, *filler.imports]),
            list_sizes(slot, widths),
        )
        for slot, filler, widths in fillers
    ]
    settled = []
    for (_, filler, _), answer in zip(fillers, probe(box, replace(PROBE, label=label), payloads), strict=True):
        if answer.fits:
            filler = replace(filler, builds=(answer.build,), facts=dict(answer.facts))
        settled.append((filler, answer))
    return settled


# --- constructor arguments of blocks in slots -------------------------------------------------------------------------


def _split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Common parameter names for input channels, output channels, and a rate.
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

#: Arguments that select a mode: the value that the slot requires.
_MODES = {("stochastic_depth", "mode"): "'row'", ("downsample", "stride"): "2"}

#: Names that recorded expressions may use, because they mean the same in every file.
_ALLOWED_NAMES = frozenset({"nn", "torch", "dict", "list", "tuple", "channels"})
#: Values to try for an output-channels argument; in other slots it gets the input channels.
_OUT_CHOICES = {"downsample": ["channels", "out_channels"]}


def list_builds(slot: str, block: Block, spec: Spec) -> tuple[str, ...]:
    """Return the argument lists to try, as Python text with the slot's names: the fewest arguments first."""
    init = json.loads(block.arguments or "{}").get("init", {})
    positional = list(init.get("args", ()))
    order = [parameter.name for parameter in spec.constructor if parameter.kind == "positional"]
    recorded = dict(zip(order, positional, strict=False)) | dict(init.get("kwargs", {}))
    unnamed = positional[len(order) :]
    if not all(map(_is_portable, unnamed)):
        return ()
    parameters = [parameter for parameter in spec.constructor if parameter.kind in ("positional", "keyword")]
    required = {parameter.name for parameter in parameters if parameter.default is None}
    names = {parameter.name for parameter in parameters}
    if spec.cases and "channels" in SLOTS[slot] and not any(_find_role(slot, name, names) == "in" for name in names):
        # No name identifies the channels: an equal value does.
        sizes = next(iter(spec.cases[0].inputs.values())).rpartition(" ")[2].split("×")
        recorded = {name: "channels" if value in sizes[1:2] else value for name, value in recorded.items()}
    needed = {name: value for name, value in recorded.items() if name in required}
    choices = [
        _choose(slot, parameters, values, out)
        for values in (needed, recorded)
        for out in _OUT_CHOICES.get(slot, ["channels"])
    ]
    texts = [[*unnamed, *(f"{key}={text}" for key, text in named.items())] for named in choices if named is not None]
    return tuple(dict.fromkeys(map(", ".join, texts)))


def _choose(slot: str, parameters: list[SpecArgument], recorded: Mapping[str, str], out: str) -> dict[str, str] | None:
    """Return one set of arguments; None if a required argument has no value."""
    names = {parameter.name for parameter in parameters}
    values = {"in": "channels", "out": out, "rate": "rate"}
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
    """Return the role of a parameter (`in`, `out`, `rate` or empty), judged by all parameter names."""
    lower = name.lower()
    if slot == "stochastic_depth":
        return "rate" if lower in _RATE else ""
    others = {other.lower() for other in names} - {lower}
    if lower in _OUT and (lower not in _IN or others & (_IN - _OUT)):
        return "out"
    return "in" if lower in _IN else ""


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
