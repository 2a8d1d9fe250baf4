"""Fillers for slots: what a recipe writes there, and the blocks of an extraction folder that can be there.

Which blocks can is told by running them in the sandbox, not by their names. The arguments to construct them with are
told from the names of parameters and from recorded values.
"""

import ast
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lemur_core.files.errors import UserError
from lemur_core.files.progress import progress
from lemur_core.sandbox import Job, Limits, Outcome, Status
from lemur_core.sandbox.cached import PASSING, CachedSandbox, reason_of
from manifests.records import Block, Spec, SpecArgument
from train.compose.library import Library, open_library
from train.compose.network_text import Filled, support_text
from train.model.recipe import Recipe, Slot
from train.model.slots import BUILT_IN, NONE, SLOTS, Filler, built_in_names, sizes_of, suits

WIDTHS = (32, 128, 256)
LIMITS = Limits(wall_seconds=120, cpu_seconds=45, memory_bytes=3 * 2**30)

#: In the sandbox: a filler in its slot, an assembled network.
PROBE, NETWORK = "train.compose.probe_guest:probe_filler", "train.compose.probe_guest:probe_network"
_ERROR_CHARACTERS = 200
_NUMPY = ("import numpy", "from numpy")


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
#: What an argument that names the channels going out may get; elsewhere the channels that come in.
_OUT_CHOICES = {"head": ["classes"], "stem": ["out_channels"], "downsample": ["channels", "out_channels"]}


def choose(slot: str, recipe: Recipe, library: Library | None) -> Filler | None:
    """The filler of a slot; None for an empty one.

    Raises: UserError if nothing has that name, several have, or what has it cannot be part of a file that imports only
        torch and torchvision.
    """
    wanted: Slot = getattr(recipe.slots, slot)
    where = f"slots.{slot}"
    if wanted.use == NONE and NONE in built_in_names(slot):
        return None
    part = BUILT_IN[slot].get(wanted.use)
    if part is not None:
        if wanted.arguments:
            raise UserError(f"{where}: {wanted.use!r} is built in and takes no arguments; leave them out")
        return part
    try:
        block = library.find(wanted.use) if library is not None else None
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    if block is None or library is None:
        raise UserError(_unknown(where, slot, wanted.use, library))
    if block.code is None or block.block not in library.facts:
        raise UserError(
            f"{where}: {block.block} was not extracted: {block.error or 'it has no code'}; use another block"
        )
    if foreign := foreign_imports(block):
        raise UserError(
            f"{where}: {block.block} needs {foreign}; the network's file imports only torch: use another block"
        )
    if wanted.arguments:
        builds: tuple[str, ...] = (build_from_recipe(slot, wanted.arguments, f"{where}.arguments"),)
    else:
        builds = builds_of(slot, block, library.spec(block.block))
    return _filler(library, block, builds)


def _filler(library: Library, block: Block, builds: tuple[str, ...]) -> Filler:
    """A block with the arguments to try, lean where it can be, and with its full form then."""
    assert block.code is not None
    uncut = library.full_block(block.block)
    full = None
    if uncut is not None and uncut.code is not None and not foreign_imports(uncut):
        full = Filler(block.block, block.name, builds, uncut.code, block=uncut)
    return Filler(block.block, block.name, builds, block.code, block=block, full=full)


def foreign_imports(block: Block) -> str:
    """What a block needs beside the standard library, torch and torchvision; empty where it needs nothing."""
    found = list(block.requires)
    if block.code is not None and any(line.startswith(_NUMPY) for line in block.code.splitlines()):
        found.append("numpy")
    return ", ".join(found)


def _unknown(where: str, slot: str, use: str, library: Library | None) -> str:
    known = f"built in: {', '.join(map(repr, built_in_names(slot)))}"
    if library is None:
        return f"{where}: no part {use!r}; {known}; for blocks, give --in DIR, a folder that `lemur extract` wrote"
    near = library.near(use)
    meant = f"did you mean {' or '.join(near)}?" if near else f"nothing in {library.folder.name} is called nearly so"
    return f"{where}: no block {use!r}; {meant} ({known})"


Answer = dict[str, Any]


def question(
    slot: str, filler: Filler, sizes: Sequence[dict[str, int]], support: str, *, strict: bool = True
) -> dict[str, object]:
    """Does this filler do what the slot asks for at these sizes, when its builds may name these factories?"""
    return {
        "slot": slot,
        "strict": strict,
        "code": filler.code,
        "target": filler.target,
        "builds": list(filler.builds),
        "support": "\n".join([support, *filler.imports]),
        "sizes": list(sizes),
    }


def settle(
    fillers: Sequence[Filler],
    ask: Callable[[Filler], dict[str, object]],
    prober: "Prober",
    advance: Callable[[int], None] = lambda _count: None,
) -> list[tuple[Filler, Answer]]:
    """The fillers with their answers; where a lean form met what was cut from it, the full one with its own if it fits.

    Args: ask: the question of a filler.
    Raises: UserError if no sandbox can be had.
    """
    found = list(zip(fillers, prober.ask([ask(one) for one in fillers], advance), strict=True))
    again = {
        place: filler.full
        for place, (filler, answer) in enumerate(found)
        if filler.full is not None and not answer["fits"] and met_a_cut(answer["reason"])
    }
    for (place, filler), answer in zip(again.items(), prober.ask([ask(one) for one in again.values()]), strict=True):
        if answer["fits"]:
            found[place] = filler, answer
    return found


def met_a_cut(reason: str) -> bool:
    """Whether an error may come of what was cut from a lean form: a branch, an entry of a table, a method."""
    return any(word in reason for word in ("left out of the lean form", "KeyError", "AttributeError"))


class Prober(CachedSandbox):
    """Tries fillers in their slots; its sandbox starts with the first one whose answer is not known."""

    def __init__(self, *, unsafe: bool = False, jobs: int = 1) -> None:
        super().__init__(
            entries=[PROBE, NETWORK],
            workers=jobs,
            limits=LIMITS,
            unsafe=unsafe,
            attempts=1,
            usable=lambda _job, outcome: outcome.status not in PASSING,
        )

    def ask(
        self,
        payloads: Sequence[dict[str, object]],
        advance: Callable[[int], None] = lambda _count: None,
        *,
        entry: str = PROBE,
    ) -> list[Answer]:
        """The answers of `train.compose.probe_guest`, in order; `advance` is called with the count done.

        Raises: UserError if no sandbox can be had.
        """
        keys = [self.key_of(Job("", entry, payload)) for payload in payloads]
        jobs = {key: Job(key, entry, payload) for key, payload in zip(keys, payloads, strict=True)}
        answers: dict[str, Answer] = {}
        advance(len(keys) - len(jobs))
        for outcome in self.run(jobs.values()):
            answers[outcome.key] = _answer(outcome)
            advance(1)
        return [answers[key] for key in keys]


def _answer(outcome: Outcome) -> Answer:
    if outcome.status is Status.OK and isinstance(outcome.value, dict):
        return outcome.value
    return {"fits": False, "reason": f"{outcome.status.value}: {reason_of(outcome, _ERROR_CHARACTERS)}", "build": ""}


def prober_for(given: Prober | None, *, unsafe: bool, jobs: int = 1) -> contextlib.AbstractContextManager[Prober]:
    """The given one, which stays open, or a new one."""
    return contextlib.nullcontext(given) if given is not None else Prober(unsafe=unsafe, jobs=jobs)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One block that was tried in a slot, and what was seen.

    `binding`: the arguments that fit, or that came furthest; `facts`: what its slot's check observed; `seconds`: of one
    forward and backward pass on one thread, 8 maps of 16 x 16 at the last width.
    """

    block: str
    fits: bool
    reason: str | None
    binding: str
    parameters: int | None
    facts: dict[str, Any]
    seconds: float | None

    def line(self) -> str:
        """One line to print."""
        if not self.fits:
            return f"no   {self.block}: {self.reason}"
        facts = "".join(f", {_fact(name, value)}" for name, value in self.facts.items() if value not in ("", False))
        return f"fits {self.block}({self.binding}): {self.parameters:,} parameters{facts}"


def _fact(name: str, value: object) -> str:
    return name.replace("_", " ") if value is True else f"{name.replace('_', ' ')} {value}"


def candidates(
    slot: str,
    folder: Path,
    widths: Sequence[int] = WIDTHS,
    *,
    unsafe: bool = False,
    jobs: int = 2,
    prober: Prober | None = None,
) -> list[Candidate]:
    """The blocks worth trying in a slot, those that fit first, then by parameters and id.

    Tried are those whose observed behaviour makes it possible; each does what the slot asks for at all these widths, or
    the reason why not is told. Outcomes are cached. `prober` is what tries them; by default one of its own.

    Raises: UserError for an unknown slot or folder, or if no sandbox can be had.
    """
    if slot not in SLOTS:
        raise UserError(f"slot {slot!r}: there are {', '.join(SLOTS)}")
    if not widths or min(widths) < 1:
        raise UserError(f"widths {list(widths)}: give whole numbers from 1")
    library = open_library(folder)
    specs = [spec for spec in map(library.spec, library.facts) if suits(slot, spec)]
    blocks = [(library.block(spec.block), spec) for spec in specs]
    tried = [
        _filler(library, block, builds_of(slot, block, spec))
        for block, spec in blocks
        if block.code is not None and not foreign_imports(block)
    ]
    sizes, support = sizes_of(slot, widths), default_support()
    with (
        progress(f"{slot} candidates", len(tried), "blocks") as advance,
        prober_for(prober, unsafe=unsafe, jobs=jobs) as checker,
    ):
        answers = settle(tried, lambda filler: question(slot, filler, sizes, support), checker, advance)
    found = [_candidate(filler.use, answer) for filler, answer in answers]
    return sorted(found, key=lambda one: (not one.fits, one.parameters or 0, one.block))


def default_support() -> str:
    """The factories with the first norm and activation that are built in."""
    norm, activation = BUILT_IN["norm"]["batch_norm"], BUILT_IN["activation"]["relu"]
    return support_text(Filled(norm.target, norm.builds[0]), Filled(activation.target, activation.builds[0]))


def _candidate(block: str, answer: Answer) -> Candidate:
    if answer["fits"]:
        seconds = float(answer["seconds"])
        return Candidate(block, True, None, answer["build"], answer["parameters"], answer["facts"], seconds)
    return Candidate(block, False, answer["reason"], answer["build"], None, {}, None)


# -- constructor arguments: which carry channels or a rate --------------------------------------------


def builds_of(slot: str, block: Block, spec: Spec) -> tuple[str, ...]:
    """The arguments to try, as Python text in the names of the slot: as names tell, then with recorded values too."""
    if slot == "activation":
        return ("",)
    init = json.loads(block.arguments or "{}").get("init", {})
    given = list(init.get("args", ()))
    order = [one.name for one in spec.constructor if one.kind == "positional"]
    recorded = dict(zip(order, given, strict=False)) | dict(init.get("kwargs", {}))
    unnamed = given[len(order) :]
    if not all(map(_portable, unnamed)):
        return ()
    parameters = [one for one in spec.constructor if one.kind in ("positional", "keyword")]
    needed = {one.name: recorded[one.name] for one in parameters if one.default is None and one.name in recorded}
    found = [
        _by_name(slot, parameters, _with_channels(slot, parameters, values, _observed_channels(spec)), out)
        for values in (needed, recorded)
        for out in _OUT_CHOICES.get(slot, ["channels"])
    ]
    texts = [[*unnamed, *(f"{key}={value}" for key, value in one.items())] for one in found if one is not None]
    return tuple(dict.fromkeys(map(", ".join, texts)))


def _with_channels(
    slot: str, parameters: list[SpecArgument], values: Mapping[str, str], channels: int | None
) -> Mapping[str, str]:
    """The recorded values; where no name tells which argument carries channels, those that equal them do."""
    names = {one.name for one in parameters}
    if "channels" not in SLOTS[slot].values or any(_role(slot, name, names) == "in" for name in names):
        return values
    return {name: "channels" if value == str(channels) else value for name, value in values.items()}


def _by_name(slot: str, parameters: list[SpecArgument], recorded: Mapping[str, str], out: str) -> dict[str, str] | None:
    """One set of arguments; None where a needed one has no value."""
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
