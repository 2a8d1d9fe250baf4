"""The commands of training: they parse, call and print. Heavy imports wait for the command that needs them."""

import json
import math
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import plural
from manifests.options import RuntimeOption

if TYPE_CHECKING:
    from train.model.recipe import Recipe

app = typer.Typer()
_train = typer.Typer(
    no_args_is_help=True, help="Assemble networks from blocks, train them on CIFAR-10, compare, record."
)
app.add_typer(_train, name="train", rich_help_panel="Train: blocks in, trained models and LEMUR records out")

_HUB = "hf://datasets/uoft-cs/cifar10"
_DATA = (
    "CIFAR-10: Parquet folder, hf://datasets/OWNER/NAME, the original archive or folder, torchvision:ROOT, synthetic."
)
_SHIPPED = ", ".join(sorted(path.stem for path in Path(__file__).with_name("recipes").glob("*.toml")))
_RECIPE = f"A TOML file, or the name of a shipped recipe: {_SHIPPED}."

In = Annotated[Path | None, typer.Option("--in", metavar="DIR", help="The extraction folder of the blocks.")]
Data = Annotated[str, typer.Option("--data", metavar="SOURCE", help=_DATA)]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
GoOn = Annotated[bool, typer.Option("--force", help="Go on with another plan, and train again what failed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change the recipe: training.learning_rate=0.2 (TOML values, repeatable)."
    ),
]
Epochs = Annotated[int | None, typer.Option(metavar="N", min=1, help="In place of the recipe's.")]
HeldOut = Annotated[
    int, typer.Option(metavar="N", min=0, help="Training images held out to choose on; 0 trains on all.")
]
Images = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="How many of the others to train on; default: all. Fewer are among more."),
]
OutDir = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder to write, or to go on in.", show_default=False)
]
Library = Annotated[Path, typer.Option("--in", metavar="DIR", help="An extraction folder.", show_default=False)]


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no amount")
    return value


def _resource(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Resources and walls", callback=_finite, **settings)


Jobs = Annotated[int, _resource(metavar="N", min=1, help="Runs at the same time.")]
Threads = Annotated[
    int | None, _resource(metavar="N", min=1, help="Threads a run; default: the cores, shared by the jobs.")
]
TimeLimit = Annotated[float | None, _resource(metavar="SECONDS", min=1, help="Stop a run after so long; it can go on.")]
StepLimit = Annotated[float, _resource(metavar="SECONDS", min=1, help="End a run when no step is done in so long.")]
Memory = Annotated[float, _resource("--memory", metavar="GIB", min=0.5, help="A run may use so much.")]
_WALLS = "Run foreign code without walls: only code that you trust. A GPU needs it."
Unsafe = Annotated[bool, _resource("--unsafe-no-sandbox", help=_WALLS)]


#: What a search varies unless told: `train.studies.search.SLOTS`, which takes PyTorch to import.
_VARIED = ("residual", "attention", "downsample", "stochastic_depth", "activation")

SlotName = StrEnum(
    "SlotName", ["stem", "residual", "attention", "downsample", "norm", "activation", "stochastic_depth", "head"]
)
Device = StrEnum("Device", ["auto", "cpu", "cuda", "mps"])


@_train.command("assemble")
def assemble_(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help=_RECIPE)],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.py", help="The file to write.", show_default=False)],
    folder: In = None,
    set_: Set = None,
    unsafe_no_sandbox: Unsafe = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compose a network out of blocks: one closed Python file by LEMUR's contract, each block with its provenance."""
    from train.compose.assemble import assemble_to

    assembled = assemble_to(out, _recipe(recipe, set_), folder, unsafe=unsafe_no_sandbox, force=force)
    if as_json:
        _print_json(
            {
                "name": assembled.name,
                "file": str(out),
                "prm": assembled.prm,
                "ingredients": [part.model_dump(mode="json") for part in assembled.ingredients],
            }
        )
        return
    for part in assembled.ingredients:
        print(f"{part.slot:<17} {part.block}  ({part.license})")
    print(f"{assembled.name} -> {out}")


@_train.command("candidates")
def candidates_(
    slot: Annotated[
        SlotName, typer.Option(metavar="SLOT", help=f"What to fill: {', '.join(SlotName)}.", show_default=False)
    ],
    folder: Library,
    widths: Annotated[str, typer.Option(metavar="N,N", help="The channels to try.")] = "32,128,256",
    all_: Annotated[bool, typer.Option("--all", help="Also those that do not fit, with the reason.")] = False,
    jobs: Jobs = 2,
    unsafe_no_sandbox: Unsafe = False,
    as_json: AsJson = False,
) -> None:
    """List the blocks that can fill a slot, by what they do when they run at these widths."""
    from train.compose.candidates import candidates

    found = candidates(
        slot.value, folder, widths=read_numbers(widths, "--widths", 1), unsafe=unsafe_no_sandbox, jobs=jobs
    )
    if as_json:
        _print_json({"slot": slot.value, "candidates": [asdict(candidate) for candidate in found]})
        return
    for candidate in found:
        if candidate.fits or all_:
            print(candidate.line())
    fitting = sum(candidate.fits for candidate in found)
    more = "" if all_ or fitting == len(found) else "; --all shows why not"
    print(f"{fitting} of {len(found)} fit{more}")


@_train.command("search")
def search_(
    folder: Library,
    out: OutDir,
    budget: Annotated[int, typer.Option(metavar="N", min=1, help="Compositions to start with.")] = 9,
    recipe: Annotated[
        str, typer.Option(metavar="RECIPE", help=f"What the compositions vary: a TOML file, {_SHIPPED}.")
    ] = "plain",
    data: Data = _HUB,
    slot: Annotated[
        list[SlotName] | None,
        typer.Option(metavar="SLOT", help=f"Vary this slot (repeatable); default: {', '.join(_VARIED)}."),
    ] = None,
    images: Annotated[int, typer.Option(metavar="N", min=100, help="Images of the first rung.")] = 5000,
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Epochs of each rung.")] = 3,
    eta: Annotated[int, typer.Option(metavar="N", min=2, help="One in N goes on, with N times the images.")] = 3,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the draws, and of each run.")] = 0,
    set_: Set = None,
    jobs: Jobs = 1,
    threads: Threads = None,
    memory: Memory = 8.0,
    time_limit: TimeLimit = None,
    unsafe_no_sandbox: Unsafe = False,
    force: GoOn = False,
) -> None:
    """Sample combinations of blocks, screen them by successive halving, and rank them. Run again, it goes on."""
    from train.data import load_cifar10
    from train.runs.run import Resources
    from train.studies.search import SLOTS, Plan, search

    slots = tuple(name.value for name in slot) if slot else SLOTS
    plan = Plan(budget=budget, seed=seed, slots=slots, images=images, epochs=epochs, eta=eta)
    resources = Resources(threads, memory_gib=memory, time_limit=time_limit, unsafe=unsafe_no_sandbox, jobs=jobs)
    trials = search(
        _recipe(recipe, set_), folder, plan, data=load_cifar10(data), out=out, resources=resources, force=force
    )
    best = trials[0]
    if not best.passed:
        why = f"{best.records[-1].status}: {best.records[-1].error}" if best.records else best.error
        raise UserError(f"{out}: no composition could be trained: {best.name}: {why}; see {out / 'search.md'}")
    print(f"{len(trials)} compositions ranked -> {out / 'search.md'}; the best: {out / 'best.toml'}")


@_train.command("run")
def run_(
    network: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE_OR_NET", help=f"A recipe (a TOML file, {_SHIPPED}) or a LEMUR network (NET.py)."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.", show_default=False)],
    data: Data = _HUB,
    folder: In = None,
    epochs: Epochs = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of weights, order, augmentation.")] = 0,
    held_out: HeldOut = 5000,
    images: Images = None,
    set_: Set = None,
    prm: Annotated[
        str | None, typer.Option(metavar="JSON", help="Hyperparameters of NET.py: JSON, or a file of it.")
    ] = None,
    device: Annotated[Device, typer.Option(help="auto: a GPU when there is one and it may be used.")] = Device.auto,
    threads: Threads = None,
    memory: Memory = 8.0,
    time_limit: TimeLimit = None,
    step_limit: StepLimit = 600.0,
    runtime: RuntimeOption = None,
    unsafe_no_sandbox: Unsafe = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace another run, or train this one again if it failed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train and evaluate one network on CIFAR-10; interrupted, the same command goes on after the last whole epoch."""
    from lemur_core.files.atomic import check_writable

    if not out.exists():  # else it may hold this run already
        check_writable(out)
    is_file = network.endswith(".py")
    if prm is not None and not is_file:
        raise UsageError("--prm: is for a NET.py; a recipe's hyperparameters are changed by --set")
    recipe = _recipe("plain" if is_file else network, set_, epochs, of_file=is_file)
    from train.compose.assemble import assemble  # torch comes with these: a typo in the recipe need not wait for it
    from train.data import load_cifar10
    from train.model.recipe import network_in
    from train.runs.run import Resources, TrainingRun, count_images, train_once
    from train.runs.run_folder import run_text

    limits = (memory, time_limit, step_limit)
    resources = Resources(threads, device.value, *limits, unsafe=unsafe_no_sandbox, runtime=tuple(runtime or ()))
    read = network_in(Path(network), prm) if is_file else None
    cifar10 = load_cifar10(data)
    count_images(cifar10, held_out, images)  # before the seconds that assembling takes
    net = read or assemble(recipe, folder, unsafe=unsafe_no_sandbox)
    run = TrainingRun(net, recipe, seed, cifar10, held_out, images)
    record = train_once(run, out, resources=resources, force=force, library=None if is_file else folder)
    if as_json:
        _print_json(record.model_dump(mode="json"))
    else:
        print(run_text(record, out), file=sys.stdout if record.status == "ok" else sys.stderr)
    if record.status != "ok":
        raise typer.Exit(1)


@_train.command("ablate")
def ablate_(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help=_RECIPE)],
    out: OutDir,
    data: Data = _HUB,
    folder: In = None,
    seeds: Annotated[str, typer.Option(metavar="N,N", help="Every variant is trained with each.")] = "0,1,2",
    epochs: Epochs = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(metavar="'NAME: KEY=VALUE'", help="In place of the standard variants (repeatable)."),
    ] = None,
    held_out: HeldOut = 5000,
    images: Images = None,
    set_: Set = None,
    jobs: Jobs = 1,
    threads: Threads = None,
    memory: Memory = 8.0,
    time_limit: TimeLimit = None,
    unsafe_no_sandbox: Unsafe = False,
    force: GoOn = False,
) -> None:
    """Train a recipe with one ingredient left out at a time, same seeds: table, paired differences, figure."""
    from train.data import load_cifar10
    from train.runs.run import Resources
    from train.studies.ablation import ablate, row_text

    rows = ablate(
        _recipe(recipe, set_, epochs),
        folder,
        data=load_cifar10(data),
        out=out,
        seeds=read_numbers(seeds, "--seeds", 0),
        written=tuple(variant or ()),
        held_out=held_out,
        images=images,
        resources=Resources(threads, memory_gib=memory, time_limit=time_limit, unsafe=unsafe_no_sandbox, jobs=jobs),
        force=force,
    )
    for row in rows:
        print(row_text(row))
    print(f"-> {out / 'ablation.md'}")
    if not any(row.n for row in rows):
        if any(row.paused for row in rows):
            raise UserError(f"{out}: no run came to its end within --time-limit; the same command goes on with them")
        raise UserError(f"{out}: every run failed; the records in {out / 'runs'} say why")


@_train.command("check")
def check_(
    net: Annotated[Path, typer.Argument(metavar="NET.py", help="A network by LEMUR's contract.")],
    prm: Annotated[
        str, typer.Option(metavar="JSON", help="Its hyperparameters: JSON, or a file of it.", show_default=False)
    ],
    data: Data = _HUB,
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="To train with its own learn().")] = 1,
    task: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="Another task: a smoke test by LEMUR's own trainer, on generated data."),
    ] = None,
    metric: Annotated[str | None, typer.Option(metavar="NAME", help="Of the task; by default its usual one.")] = None,
    archive: Annotated[
        Path | None,
        typer.Option("--archive", metavar="FILE", help="Add it to this LEMUR database, as LEMUR's own check does."),
    ] = None,
    memory: Memory = 8.0,
    time_limit: Annotated[float, _resource(metavar="SECONDS", min=1, help="End the check after so long.")] = 1800.0,
    runtime: RuntimeOption = None,
    unsafe_no_sandbox: Unsafe = False,
    as_json: AsJson = False,
) -> None:
    """Check a network as LEMUR does: name, accuracy, accuracy to time, code quality; refused when off the contract."""
    from train.lemur.check import CheckSettings
    from train.lemur.tasks import check_file

    if metric is not None and task is None:
        raise UsageError("--metric: is for a --task; img-classification is measured by acc")
    settings = CheckSettings(
        epochs, wall_seconds=time_limit, memory_bytes=int(memory * 2**30), runtime=tuple(runtime or ())
    )
    asked: dict[str, Any] = {"data": data, "task": task, "metric": metric, "db": archive}
    figures = check_file(net, prm, settings=settings, unsafe=unsafe_no_sandbox, **asked)
    if as_json:
        _print_json(figures)
    else:
        for key, value in figures.items():
            shown = f"{value:.6g}" if isinstance(value, float) else value
            print(f"{key.replace('_', ' '):<17} {shown}")


@_train.command("register")
def register_(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders that `lemur train run` wrote.")],
    db: Annotated[
        Path, typer.Option(metavar="FILE", help="A LEMUR SQLite database; made when missing.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Add runs to a LEMUR database (nn-dataset 2.1.0); those that it holds already are left alone."""
    from train.runs.register import register

    result = register(db, folders)
    if as_json:
        _print_json({"added": result.added, "present": result.present, "failed": list(result.failed)})
    elif result.added or result.present:
        print(f"{db}: {plural(result.added, 'trial')} added, {result.present} there already")
    for line in result.failed:
        print(f"lemur: {line}", file=sys.stderr)
    if result.failed:
        raise typer.Exit(1)


def read_numbers(text: str, option: str, least: int) -> tuple[int, ...]:
    """Whole numbers from `1,2,3`.

    Raises: UsageError if one is no number, or below `least`.
    """
    found = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < least:
            raise UsageError(f"{option} {text!r}: {part.strip()!r} is no whole number from {least}; write 1,2,3")
        found.append(int(part))
    return tuple(found)


def _recipe(name: str, changes: list[str] | None, epochs: int | None = None, *, of_file: bool = False) -> "Recipe":
    from train.model.recipe import find_recipe, read_changes

    wanted: dict[str, object] = {}
    for text in changes or ():
        wanted.update(read_changes(text))
    if epochs is not None:
        wanted["training__epochs"] = epochs
    idle = [key for key in wanted if of_file and key.startswith(("model__", "slots__"))]
    if idle:
        raise UsageError(f"--set {idle[0].replace('__', '.')}: changes nothing, NET.py is the network")
    recipe = find_recipe(name)
    return recipe.changed(**wanted) if wanted else recipe


def _print_json(value: object) -> None:
    json.dump(value, sys.stdout, sort_keys=True)
    print()
