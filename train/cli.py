"""The commands of training: they parse, call and print.

What needs PyTorch is imported when a command runs: `--help`, and a typing error in a recipe, must not wait for it.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

import train as package
from lemur_core.files.atomic import check_free, check_new_file, write_text
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import make_visible, plural
from manifests.options import RUNTIME, takes_options
from manifests.options.shared import ForceOption, JsonOption
from train.runs.resources import UNSAFE, Resources

app = typer.Typer()
_train = typer.Typer(
    no_args_is_help=True, help="Assemble networks from blocks, train them on CIFAR-10, compare and record them."
)
app.add_typer(_train, name="train", rich_help_panel="Train: blocks in, trained models and LEMUR records out")

_HUB = "hf://datasets/uoft-cs/cifar10"
_DATA = "CIFAR-10: Parquet folder, hf://datasets/OWNER/NAME, cifar-10-batches-py or torchvision:ROOT, synthetic."
_SHIPPED = ", ".join(sorted(path.stem for path in Path(__file__).with_name("recipes").glob("*.toml")))
_RECIPE = f"A TOML file, or the name of a shipped recipe: {_SHIPPED}."

In = Annotated[Path | None, typer.Option("--in", metavar="DIR", help="Extraction folder with the blocks.")]
Data = Annotated[str, typer.Option("--data", metavar="SOURCE", help=_DATA)]
Resume = Annotated[bool, typer.Option("--force", help="Resume with a different plan; retrain failed runs.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe: training.learning_rate=0.2 (repeatable)."),
]
Epochs = Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of epochs (default: from the recipe).")]
HeldOut = Annotated[int, typer.Option(metavar="N", min=0, help="Training images held out for validation (0: none).")]
Images = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Number of training images (default: all); smaller subsets are nested."),
]
OutDir = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write, or to resume.")]
Unsafe = Annotated[bool, typer.Option("--unsafe-no-sandbox", help=UNSAFE)]

SlotName = Literal["residual", "attention", "downsample", "stochastic_depth"]


@_train.command("assemble")
def assemble_(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help=_RECIPE)],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.py", help="The file to write.")] = None,
    folder: In = None,
    set_: Set = None,
    slot: Annotated[
        SlotName | None,
        typer.Option(
            "--candidates",
            metavar="SLOT",
            help=f"Write nothing; run all blocks in this slot, and list which fit: {', '.join(get_args(SlotName))}.",
        ),
    ] = None,
    unsafe_no_sandbox: Unsafe = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Assemble a network from blocks: one self-contained Python file that meets LEMUR's contract, with provenance.

    Examples:
      lemur train assemble preact_se --in blocks --out net.py
      lemur train assemble preact_se --in blocks --candidates attention
    """
    if slot is not None:
        if folder is None:
            raise UsageError("--candidates needs --in DIR, the blocks to try")
        from train.compose.assemble import list_candidates

        results = list_candidates(slot, folder, unsafe=unsafe_no_sandbox)
        lines = [make_visible(candidate.line()) for candidate in results]
        lines.append(f"{sum(candidate.fits for candidate in results)} of {len(results)} fit")
        _print({"slot": slot, "candidates": [asdict(candidate) for candidate in results]}, lines, as_json=as_json)
        return
    if out is None:
        raise UsageError("--out FILE.py is needed, or --candidates SLOT to list the blocks that fit")
    chosen = package.open_recipe(recipe, set_)
    check_new_file(out, force=force)
    made = package.assemble(chosen, folder, unsafe_no_sandbox=unsafe_no_sandbox)
    try:
        write_text(out, made.code)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from error
    parts = [part.model_dump(mode="json") for part in made.ingredients]
    lines = [make_visible(f"{part.slot:<17} {part.block}  ({part.license})") for part in made.ingredients]
    stated = {"name": made.name, "file": str(out), "prm": made.prm, "ingredients": parts}
    _print(stated, [*lines, f"{made.name} -> {out}"], as_json=as_json)


def _print(stated: object, lines: list[str], *, as_json: bool) -> None:
    """Print the summary of a command: as one JSON object, or in lines."""
    print(json.dumps(stated, sort_keys=True) if as_json else "\n".join(lines))


@_train.command("run")
@takes_options
def run_(
    *,
    network: Annotated[
        str,
        typer.Argument(metavar="RECIPE_OR_NET", help=f"A recipe (TOML file, {_SHIPPED}) or a LEMUR network (NET.py)."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.")],
    data: Data = _HUB,
    folder: In = None,
    epochs: Epochs = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of weights, data order and augmentation.")] = 0,
    held_out: HeldOut = 5000,
    images: Images = None,
    set_: Set = None,
    prm: Annotated[
        str | None, typer.Option(metavar="JSON", help="Hyperparameters of NET.py: JSON, or a JSON file.")
    ] = None,
    resources: Resources,
    force: Annotated[
        bool, typer.Option("--force", help="Replace another run, or retrain this one if it failed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train and evaluate one network on CIFAR-10. Re-running an interrupted run resumes after its last epoch.

    Examples:
      lemur train run preact_se --in blocks --data hf://datasets/uoft-cs/cifar10 --out run
    """
    if not out.exists():  # else it may hold this run already
        check_free(out, force=False)
    is_file = network.endswith(".py")
    if prm is not None and not is_file:
        raise UsageError("--prm: is for a NET.py; change a recipe's hyperparameters with --set")
    recipe = package.open_recipe("plain" if is_file else network, set_, epochs, of_file=is_file)
    from train.compose.assemble import choose_fillers
    from train.data import count_images
    from train.data.sources import load_cifar10
    from train.model.recipe import agree_on_training, network_in
    from train.runs.run import TrainingRun, train_once
    from train.runs.run_folder import run_text

    if is_file:
        recipe, net = agree_on_training(recipe, network_in(Path(network), prm), set_ or ())
    else:
        choose_fillers(recipe, folder)  # before the Hub is asked for images
    cifar10 = load_cifar10(data)
    count_images(cifar10, held_out, images)  # before the seconds that assembling takes
    if not is_file:
        net = package.assemble(recipe, folder, unsafe_no_sandbox=resources.unsafe)
    training = TrainingRun(net, recipe, seed, cifar10, held_out, images)
    record = train_once(training, out, resources=resources, force=force, library=None if is_file else folder)
    text = json.dumps(record.model_dump(mode="json"), sort_keys=True) if as_json else run_text(record, out)
    print(text, file=sys.stdout if as_json or record.status == "ok" else sys.stderr)
    if record.status != "ok":
        raise typer.Exit(1)


@_train.command("ablate")
@takes_options
def ablate_(
    *,
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help=_RECIPE)],
    out: OutDir,
    data: Data = _HUB,
    folder: In = None,
    seeds: Annotated[str, typer.Option(metavar="N,N", help="Seeds; every variant is trained with each.")] = "0,1,2",
    epochs: Epochs = None,
    variant: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: KEY=VALUE'", help="Replaces the standard variants (repeatable).")
    ] = None,
    held_out: HeldOut = 5000,
    images: Images = None,
    set_: Set = None,
    resources: Resources,
    force: Resume = False,
    as_json: JsonOption = False,
) -> None:
    """Train a recipe with one ingredient removed at a time, same seeds: a table of paired differences, and a page.

    Examples:
      lemur train ablate preact_se --in blocks --seeds 0,1,2 --out ablation
    """
    chosen = package.open_recipe(recipe, set_, epochs)
    study = package.ablate(
        chosen,
        folder,
        data=data,
        out=out,
        seeds=read_numbers(seeds, "--seeds", 0),
        variants=variant or (),
        held_out=held_out,
        images=images,
        resources=resources,
        force=force,
        progress=True,
    )
    from train.ablation import row_text

    lines = [*(make_visible(row_text(row)) for row in study.rows), f"-> {out / 'ablation.md'}"]
    _print({"folder": str(out), "rows": [asdict(row) for row in study.rows]}, lines, as_json=as_json)
    if any(row.paused for row in study.rows) and not any(row.n for row in study.rows):
        raise UserError(f"{out}: no run finished within --time-limit; run the same command again to resume")
    if not any(row.n for row in study.rows):
        raise UserError(f"{out}: every run failed; the records in {out / 'runs'} say why")


@_train.command("check")
@takes_options
def check_(
    net: Annotated[Path, typer.Argument(metavar="NET.py", help="A network that meets LEMUR's contract.")],
    prm: Annotated[str, typer.Option(metavar="JSON", help="Its hyperparameters: JSON, or a JSON file.")],
    data: Data = _HUB,
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Epochs to train with its own learn().")] = 1,
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, max=10**9, help="End the check after this time.")
    ] = 1800.0,
    runtime: Annotated[tuple[str, ...], RUNTIME] = (),
    unsafe_no_sandbox: Unsafe = False,
    as_json: JsonOption = False,
) -> None:
    """Check a network as LEMUR does: name, accuracy, accuracy to time, code quality. Refuses one off the contract.

    Examples:
      lemur train check net.py --prm '{"batch": 64, "transform": "norm_32_flip", "lr": 0.01, "momentum": 0.9}'
    """
    from train.data.sources import load_cifar10
    from train.model.recipe import read_code, read_prm

    resources = Resources(time_limit=time_limit, runtime=runtime, unsafe=unsafe_no_sandbox)
    code, hyperparameters = read_code(net), read_prm(prm)
    cifar10 = load_cifar10(data)
    result = package.check_nn(code, hyperparameters, dataset=cifar10, epochs=epochs, resources=resources)
    if result.status != "ok":
        raise UserError(f"{net}: {result.status}: {result.error}")
    names = ("name", "accuracy", "accuracy_to_time", "code_quality", "quality_by")
    figures = {name: getattr(result, name) for name in names} | {"data": cifar10.label}
    texts = {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in figures.items()}
    _print(figures, [f"{key.replace('_', ' '):<17} {value}" for key, value in texts.items()], as_json=as_json)


@_train.command("register")
def register_(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders written by `lemur train run`.")],
    db: Annotated[Path, typer.Option(metavar="FILE", help="A LEMUR SQLite database; created if missing.")],
    checkout: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkout of LEMUR's head: networks are named by its certificates."),
    ] = None,
    unsafe_no_sandbox: Unsafe = False,
    as_json: JsonOption = False,
) -> None:
    """Add runs to a LEMUR database (nn-dataset 2.1.0); runs that it already holds are left unchanged.

    Examples:
      lemur train register run --db ab.nn.db
    """
    result = package.register(folders, db=db, checkout=checkout, unsafe=unsafe_no_sandbox)
    if as_json:
        print(json.dumps(asdict(result), sort_keys=True))
    elif result.added or result.present:
        print(f"{db}: {plural(result.added, 'trial')} added, {result.present} there already")
    for line in result.failed:
        print(f"lemur: {line}", file=sys.stderr)
    if result.failed:
        raise typer.Exit(1)


def read_numbers(text: str, option: str, least: int) -> tuple[int, ...]:
    """Parse whole numbers from `1,2,3`. Raises: UsageError if an entry is not a whole number, or is below `least`."""
    numbers = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < least:
            raise UsageError(f"{option} {text!r}: {part.strip()!r} is not a whole number >= {least}; write 1,2,3")
        numbers.append(int(part))
    return tuple(numbers)
