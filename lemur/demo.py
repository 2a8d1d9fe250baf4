"""`lemur demo`: the whole way on small, but real input: extract, curate, assemble, train, verify.

Each stage is one call of the same function that its command calls. A stage is done if its output is there: outputs are
complete or absent, and a killed training resumes, so the same command goes on where it was stopped. `demo.json` has the
settings; other settings need `--force`, or another folder.
"""

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_sources
from extract.extractor import extract_to
from extract.model.results import Options
from lemur.folders import DEMO, verify_folder
from lemur_core.files import Json
from lemur_core.files.atomic import check_ours, hold_lock, remove_dead, write_text
from lemur_core.files.cache import cache_folder, remove_path
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note
from manifests.folders.manifest import read_manifest
from manifests.records import Ingredient
from manifests.records.corpus import load_corpus
from train.compose.assemble import assemble
from train.data.sources import SYNTHETIC, load_cifar10, open_source
from train.model.recipe import Network, Recipe, find_recipe
from train.runs.job import read_record
from train.runs.run import Resources, TrainingRun, train_once
from train.runs.run_folder import run_text

BLOCKS, SNAPSHOT, RUN = "blocks", "snapshot", "run"
NETWORK, NETWORK_FACTS, CHECKS = "network.py", "network.json", "checks.json"

CORPUS = "quick"
RECIPE = "preact_se"
#: The module with the recipe's residual block, which the corpus leaves out.
_RECIPE_PATHS = ("timm/models/resnetv2.py",)
_RECIPE_SOURCE = "timm"

#: Name prefixes of a few dozen LEMUR networks that build and run fast, and of the blocks.
_INCLUDE = ("rl", "ResNet", "AlexNet", "block")
_RECORDS = ("lemur@2.1.0",)

HUB = "hf://datasets/uoft-cs/cifar10"
EPOCHS, IMAGES, HELD_OUT = 2, 5_000, 1_000
WIDTHS = (16, 64, 128, 128)  # half of the recipe's: 0.52 instead of 1.99 GFLOP per training image
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Plan:
    """All settings of one run of the pipeline."""

    corpus: str | None
    sources: tuple[str, ...]  # sources in addition to the corpus; one with the name of a corpus source replaces it
    paths: tuple[str, ...]  # paths in the sources whose classes become blocks; all if empty
    records: tuple[str, ...] = _RECORDS  # sources of LEMUR records, curated together with the blocks
    include: tuple[str, ...] = _INCLUDE  # name prefixes of the records to use
    chat: bool = True
    recipe: str = RECIPE
    # Changes to the recipe, `part__key` to value.
    changes: Mapping[str, object] = field(default_factory=lambda: {"training__epochs": EPOCHS})
    data: str = HUB
    images: int | None = None  # number of training images; None for all, at most IMAGES
    held_out: int = HELD_OUT  # maximum number of training images to validate on
    seed: int = 0
    jobs: int | None = None
    unsafe: bool = False

    def make_recipe(self) -> Recipe:
        """Return the recipe with its changes. Raises: UserError if it is invalid."""
        return find_recipe(self.recipe).changed(**self.changes)


def quick_plan(*, data: str | None = None, epochs: int = EPOCHS, **choices: Any) -> Plan:
    """Return the plan of `lemur demo`: corpus `quick`, the recipe's blocks, a few LEMUR networks, a short training."""
    corpus = load_corpus(CORPUS)
    whole = next(source.source for source in corpus.sources if source.name == _RECIPE_SOURCE)
    paths = tuple(path for source in corpus.sources for path in source.paths)
    return Plan(
        corpus=CORPUS,
        sources=(whole,),  # as a separate source it has no path filter of its own, so that all paths below are in scope
        paths=(*paths, *_RECIPE_PATHS),
        changes={"training__epochs": epochs, "model__widths": WIDTHS},
        data=data or HUB,
        **choices,
    )


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """A finished stage: its first output, and what came out in a line; `made` is false if it was there."""

    stage: str
    output: str
    made: bool
    seconds: float
    text: str


def run_demo(plan: Plan, out: Path, *, force: bool = False) -> list[StageOutcome]:
    """Make what is missing of a demo.

    Args: force: make all of it again.
    Raises: UserError if the folder has other content or other settings, another run works there, the images or the
        recipe do not exist, or a stage fails, which is named.
    """
    try:
        data = open_source(plan.data).sha256
    except UserError as error:
        more = "" if plan.data.startswith("synthetic") else "; --data synthetic uses generated images"
        raise type(error)(f"stage run: {error}{more}") from error
    facts = asdict(plan) | {"data": data, "recipe": plan.make_recipe().to_json()}
    settings: Json = json.loads(json.dumps({k: v for k, v in facts.items() if k not in ("jobs", "unsafe", "changes")}))
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"{out}: is a file, not a folder; choose another --out")
    if out.is_dir() and not (out / DEMO).is_file() and any(path.name != _LOCK for path in out.iterdir()):
        raise UserError(f"{out}: has no {DEMO}, so `lemur demo` did not create it; choose another --out")
    with hold_lock(out / _LOCK, out, "another run works there"):
        remove_dead(out)
        if (out / DEMO).is_file() and not force:
            try:
                known = dict(json.loads((out / DEMO).read_bytes()))
            except (ValueError, TypeError, RecursionError):
                known = {}
            if known != settings:
                differ = ", ".join(name for name in settings if known.get(name) != settings[name])
                raise UserError(f"{out}: made with other settings ({differ}); choose another --out, or add --force")
        write_text(out / DEMO, json.dumps(settings, indent=2) + "\n")
        outputs = {name: out / output for name, (output, _, _) in STAGES.items()}
        kept = [] if force else list(itertools.takewhile(lambda name: outputs[name].exists(), outputs))
        for name in outputs.keys() - kept:  # what follows a stage that is made again is made again, too
            if outputs[name].is_dir() and not outputs[name].is_symlink():
                check_ours(outputs[name])
            remove_path(outputs[name])
        outcomes: list[StageOutcome] = []
        for number, (name, (output, make, summarize)) in enumerate(STAGES.items(), 1):
            note(f"stage {number} of {len(STAGES)}, {name}{': is there' if name in kept else ''}")
            started = time.monotonic()
            if name not in kept:
                with _naming(name):
                    make(plan, out)
            seconds = 0.0 if name in kept else round(time.monotonic() - started, 3)
            outcomes.append(StageOutcome(name, output, name not in kept, seconds, summarize(out)))
    return outcomes


@contextlib.contextmanager
def _naming(stage: str) -> Iterator[None]:
    """In the block, a stage is made: name it where that fails."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"stage {stage}: {error}") from error
    except BaseException:
        # Ctrl-C and signals, too: what is cached stays.
        note(f"stage {stage}: not finished; run the same command again to resume")
        raise


def make_blocks(plan: Plan, out: Path) -> None:
    """Extract the corpus and the recipe's blocks, with specs."""
    options = Options(
        corpus=plan.corpus, sources=plan.sources, paths=plan.paths, jobs=plan.jobs, unsafe_no_sandbox=plan.unsafe
    )
    extract_to(out / BLOCKS, options, force=True)


def make_snapshot(plan: Plan, out: Path) -> None:
    """Curate a slice of LEMUR together with the blocks, with conversations."""
    options = CurateOptions(include=plan.include, chat=plan.chat, seed=plan.seed, unsafe_no_sandbox=plan.unsafe)
    source = open_sources([*plan.records, str(out / BLOCKS)])
    curate(source, out / SNAPSHOT, options, jobs=plan.jobs, force=True)


def make_network(plan: Plan, out: Path) -> None:
    """Assemble the recipe from the blocks; write the network, and a file with the facts that a run needs."""
    assembled = assemble(plan.make_recipe(), out / BLOCKS, unsafe_no_sandbox=plan.unsafe)
    parts = [part.model_dump(mode="json") for part in assembled.ingredients]
    facts = {"name": assembled.name, "prm": assembled.prm, "ingredients": parts}
    write_text(out / NETWORK_FACTS, json.dumps(facts, indent=2) + "\n")
    write_text(out / NETWORK, assembled.code)  # last: a stage with its output is done


def make_run(plan: Plan, out: Path) -> None:
    """Train the network briefly, evaluate it on the test images, and write its files for LEMUR.

    Raises: UserError with the reason if the run did not complete.
    """
    facts = network_facts(out)
    parts, recipe = tuple(map(Ingredient.model_validate, facts["ingredients"])), plan.make_recipe()
    network = Network(facts["name"], (out / NETWORK).read_text(encoding="utf-8"), facts["prm"], parts, recipe)
    data = load_cifar10(plan.data)
    available = len(data.train_labels)
    # A small data set keeps three quarters to train on.
    held_out = min(plan.held_out, available // 4)
    images = min(IMAGES, available - held_out) if plan.images is None else plan.images
    run = TrainingRun(network, recipe, plan.seed, data, held_out, images)
    # Always on the CPU, so that the figures are the same with and without a GPU.
    resources = Resources(plan.jobs, "cpu", unsafe=plan.unsafe)
    record = train_once(run, out / RUN, resources=resources, force=True, library=out / BLOCKS)
    if record.status != "ok":
        raise UserError(run_text(record, out / RUN))


def make_checks(plan: Plan, out: Path) -> None:
    """Verify the extraction, the snapshot and the run, and write the results.

    Raises: UserError if a check fails.
    """
    rows = []
    for name in (BLOCKS, SNAPSHOT, RUN):
        checks = verify_folder(out / name, jobs=plan.jobs)
        if failed := [check for check in checks if not check.ok]:
            raise UserError(
                f"{out / name}: {len(failed)} of {len(checks)} checks failed: {failed[0].name}: {failed[0].detail};"
                " run again with --force"
            )
        rows += [{"folder": name, "check": check.name, "detail": check.detail} for check in checks]
    write_text(out / CHECKS, json.dumps(rows, indent=2) + "\n")


def network_facts(out: Path) -> Json:
    """Return name, hyperparameters and blocks of the network."""
    facts: Json = json.loads((out / NETWORK_FACTS).read_text(encoding="utf-8"))
    return facts


# -- what came out of the stages, read from their outputs --------------------------------------------------------------


def _describe_blocks(out: Path) -> str:
    counts = read_manifest(out / BLOCKS).counts
    reached = counts["reached"]
    classes = plural(counts["blocks"], "class", "classes")
    return f"{classes}: {reached['executed']:,} execute, {reached['backward']:,} learn"


def _describe_snapshot(out: Path) -> str:
    counts = read_manifest(out / SNAPSHOT).counts
    text = f"{counts['rows']['kept']:,} of {counts['codes']:,} codes kept"
    return text + (f", {plural(counts['chat']['rows'], 'conversation')}" if "chat" in counts else "")


def _describe_network(out: Path) -> str:
    facts = network_facts(out)
    return f"{facts['name']}, {plural(len(facts['ingredients']), 'found block')}"


def _describe_run(out: Path) -> str:
    record = read_record(out / RUN)
    test = "–" if record.test_accuracy is None else f"{100 * record.test_accuracy:.1f} %"
    tested = "generated test images" if record.data == SYNTHETIC else "test images"
    return f"{test} of the {tested}, short run: {plural(record.epochs, 'epoch')} of {record.train_images:,} images"


def _describe_checks(out: Path) -> str:
    rows = json.loads((out / CHECKS).read_text(encoding="utf-8"))
    return f"{len(rows)} checks hold: {', '.join(dict.fromkeys(row['folder'] for row in rows))}"


#: By stage: its output, what makes it there, and what describes it in a line.
STAGES: Mapping[str, tuple[str, Callable[[Plan, Path], None], Callable[[Path], str]]] = {
    "blocks": (BLOCKS, make_blocks, _describe_blocks),
    "snapshot": (SNAPSHOT, make_snapshot, _describe_snapshot),
    "network": (NETWORK, make_network, _describe_network),
    "run": (RUN, make_run, _describe_run),
    "verify": (CHECKS, make_checks, _describe_checks),
}


# -- the output of the command: the stages, and next steps -------------------------------------------------------------


def print_demo(plan: Plan, out: Path, *, force: bool = False, as_json: bool = False) -> None:
    """Run a demo and print its stages. Raises: UserError as `run_demo`."""
    if plan.data == HUB and not (out / DEMO).exists():
        needed = "LEMUR 2.1.0 (99 MB), timm and segment-anything (3 MB), CIFAR-10 (144 MB)"
        note(f"downloads what is missing in {cache_folder()}: {needed}")
    outcomes = run_demo(plan, out, force=force)
    if as_json:
        stages = [asdict(outcome) | {"output": str(out / outcome.output)} for outcome in outcomes]
        seconds = round(sum(outcome.seconds for outcome in outcomes), 3)
        print(json.dumps({"out": str(out), "seconds": seconds, "stages": stages}))
        return
    rows = [("stage", "seconds", "what came out", "where")]
    for outcome in outcomes:
        spent = f"{outcome.seconds:,.1f}" if outcome.made else "kept"
        rows.append((outcome.stage, spent, outcome.text, str(out / outcome.output)))
    first, second, third, fourth = (max(map(len, column)) for column in zip(*rows, strict=True))
    for number, (stage, spent, text, where) in enumerate(rows):
        print(f"{stage:<{first}}   {spent:>{second}}   {text:<{third}}   {where}")
        if number == 0:
            print("─" * (first + second + third + fourth + 9))
    parts = network_facts(out)["ingredients"]
    block = parts[0]["block"] if parts else "NAME"
    print(
        f"next:\n  lemur open {out}\n  lemur show {block} --in {out / BLOCKS}\n"
        f'  lemur search "channel attention" --in {out / BLOCKS}\n'
        f"  lemur publish {out / SNAPSHOT} --repo-id OWNER/NAME --dry-run"
    )
