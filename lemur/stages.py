"""The stages of `lemur demo`, with their inputs, implementations and summaries: deliberately small, but on real input.

Each stage is one call of the same function that its command calls.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from curate.sources import open_sources
from extract.extractor import extract_to
from extract.model.results import Options
from lemur.folders import verify_folder
from lemur.runner import STATE, Stage, StageOutcome, Summary, in_stage, run_stages
from lemur_core.files import Json
from lemur_core.files.atomic import write_text
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note
from manifests.folders.frame import Cell, Page, link, page_link, table, write_page
from manifests.folders.manifest import INDEX, read_manifest
from manifests.records import Ingredient
from manifests.records.corpus import load_corpus
from train.compose.assemble import assemble
from train.data import load_cifar10
from train.data.sources import open_source
from train.model.recipe import Network, Recipe, find_recipe
from train.runs.page import read_record
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
_SHARED_PACKAGES = ("manifests", "lemur_core")
_WIDTH = 1_000  # without a terminal: do not wrap lines


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


def plan_stages(plan: Plan) -> list[Stage]:
    """Return the stages of a plan, which is checked here, before minutes of work.

    Raises: UserError if the images or the recipe do not exist.
    """
    recipe = _recipe(plan)
    try:
        data = open_source(plan.data).sha256
    except UserError as error:
        more = "" if plan.data.startswith("synthetic") else "; --data synthetic uses generated images"
        raise in_stage("run", error, more) from error
    corpus = {"corpus": plan.corpus, "sources": plan.sources, "paths": plan.paths}
    records = {"records": plan.records, "include": plan.include, "chat": plan.chat, "seed": plan.seed}
    network = {"recipe": recipe.to_json()}
    run = {"seed": plan.seed, "data": data, "images": plan.images, "held_out": plan.held_out, **network}
    steps = ("extract", "curate", "train")

    def stage(
        name: str, outputs: tuple[str, ...], make: Callable[[Plan, Path], None],
        parents: tuple[str, ...], packages: tuple[str, ...], parameters: Mapping[str, object],
    ) -> Stage:  # fmt: skip
        ours = (*packages, *_SHARED_PACKAGES)
        return Stage(
            name, outputs, partial(make, plan), SUMMARIES[name], parents, ours, parameters, resumes=name == RUN
        )

    return [
        stage("blocks", (BLOCKS,), make_blocks, (), ("extract",), corpus),
        stage("snapshot", (SNAPSHOT,), make_snapshot, ("blocks",), ("curate",), records),
        stage("network", (NETWORK, NETWORK_FACTS), make_network, ("blocks",), ("train",), network),
        stage("run", (RUN,), make_run, ("network", "blocks"), ("train",), run),
        stage("verify", (CHECKS,), make_checks, ("blocks", "snapshot", "network", "run"), steps, {}),
    ]


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
    assembled = assemble(_recipe(plan), out / BLOCKS, unsafe_no_sandbox=plan.unsafe)
    parts = [part.model_dump(mode="json") for part in assembled.ingredients]
    facts = {"name": assembled.name, "prm": assembled.prm, "ingredients": parts}
    write_text(out / NETWORK_FACTS, json.dumps(facts, indent=2) + "\n")
    write_text(out / NETWORK, assembled.code)


def make_run(plan: Plan, out: Path) -> None:
    """Train the network briefly, evaluate it on the test images, and write its files for LEMUR.

    Raises: UserError with the reason if the run did not complete.
    """
    facts = network_facts(out)
    parts, recipe = tuple(map(Ingredient.model_validate, facts["ingredients"])), _recipe(plan)
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
    checks_by_folder = {name: verify_folder(out / name, jobs=plan.jobs) for name in (BLOCKS, SNAPSHOT, RUN)}
    for folder, checks in checks_by_folder.items():
        failed = [check for check in checks if not check.ok]
        if failed:
            raise UserError(
                f"{out / folder}: {len(failed)} of {len(checks)} checks failed: {failed[0].name}: {failed[0].detail};"
                " run again with --force"
            )
    rows = [
        {"folder": name, "check": c.name, "detail": c.detail}
        for name, checks in checks_by_folder.items()
        for c in checks
    ]
    write_text(out / CHECKS, json.dumps(rows, indent=2) + "\n")


def network_facts(out: Path) -> Json:
    """Return name, hyperparameters and blocks of the network."""
    facts: Json = json.loads((out / NETWORK_FACTS).read_text(encoding="utf-8"))
    return facts


# -- summaries of the stages, read from their outputs -----------------------------


def _blocks_summary(out: Path) -> Summary:
    counts = read_manifest(out / BLOCKS).counts
    reached = counts["reached"]
    figures = {"classes": counts["blocks"], "executed": reached["executed"], "backward": reached["backward"]}
    classes = plural(figures["classes"], "class", "classes")
    return Summary(figures, f"{classes}: {figures['executed']:,} execute, {figures['backward']:,} learn")


def _snapshot_summary(out: Path) -> Summary:
    counts = read_manifest(out / SNAPSHOT).counts
    figures = {"rows": counts["rows"]["input"], "kept": counts["rows"]["kept"]}
    text = f"{figures['kept']:,} of {counts['codes']:,} codes kept"
    if "chat" in counts:
        figures["conversations"] = counts["chat"]["rows"]
        text += f", {plural(figures['conversations'], 'conversation')}"
    return Summary({**figures, "codes": counts["codes"]}, text)


def _network_summary(out: Path) -> Summary:
    facts = network_facts(out)
    blocks = [part["block"] for part in facts["ingredients"]]
    return Summary({"name": facts["name"], "blocks": blocks}, f"{facts['name']}, {plural(len(blocks), 'found block')}")


def _run_summary(out: Path) -> Summary:
    """Summarize the training run: the accuracy, together with the data and the length of the run."""
    record = read_record(out / RUN)
    names = ("name", "data", "seed", "epochs", "train_images", "val_accuracy", "test_accuracy")
    images = f"{plural(record.epochs, 'epoch')} of {record.train_images:,} images"
    test = "–" if record.test_accuracy is None else f"{100 * record.test_accuracy:.1f} %"
    return Summary({name: getattr(record, name) for name in names}, f"{test} of the test images, short run: {images}")


def _checks_summary(out: Path) -> Summary:
    rows = json.loads((out / CHECKS).read_text(encoding="utf-8"))
    folders = list(dict.fromkeys(row["folder"] for row in rows))
    return Summary({"checks": len(rows), "folders": folders}, f"{len(rows)} checks hold: {', '.join(folders)}")


#: The summary functions by stage.
SUMMARIES: Mapping[str, Callable[[Path], Summary]] = {
    "blocks": _blocks_summary,
    "snapshot": _snapshot_summary,
    "network": _network_summary,
    "run": _run_summary,
    "verify": _checks_summary,
}


def pipeline_page(out: Path) -> Page:
    """Return the page of a pipeline run: its stages, with links to their pages, and the checks."""
    where = {"network": link(NETWORK, NETWORK), "verify": link(CHECKS, CHECKS)}
    where |= {name: page_link("open", f"{name}/{INDEX}") for name in (BLOCKS, SNAPSHOT, RUN)}
    rows: list[Sequence[Cell]] = [[name, summarize(out).text, where[name]] for name, summarize in SUMMARIES.items()]
    checks = json.loads((out / CHECKS).read_text(encoding="utf-8"))
    views = [
        table("Stages", ["stage", "what came out", "where"], rows),
        table("Checks", ["folder", "check", "what holds"], [[c["folder"], c["check"], c["detail"]] for c in checks]),
    ]
    lead = "Extracted blocks, a curated snapshot, and a trained network assembled from the blocks; all verified."
    return Page("The full pipeline", "lemur demo", lead, views)


def _recipe(plan: Plan) -> Recipe:
    """Return the recipe with its changes. Raises: UserError if it is invalid."""
    recipe = find_recipe(plan.recipe)
    return recipe.changed(**plan.changes) if plan.changes else recipe


# -- the output of the command: a table of the stages, and next steps --------------------------------------------


def run_pipeline(plan: Plan, out: Path, *, force: bool = False, as_json: bool = False) -> None:
    """Bring all stages up to date, and print the results.

    Raises: UserError that names the failed stage.
    """
    if plan.data == HUB and not (out / STATE).exists():
        needed = "LEMUR 2.1.0 (99 MB), timm and segment-anything (3 MB), CIFAR-10 (144 MB)"
        note(f"downloads what is missing in {cache_folder()}: {needed}")
    outcomes = run_stages(plan_stages(plan), out, force=force)
    write_page(out, pipeline_page(out))
    if as_json:
        print(json.dumps(summary(outcomes, out)))
        return
    print_table(outcomes, out)
    print("\n".join(next_lines(out)))


def summary(outcomes: Sequence[StageOutcome], out: Path) -> Json:
    """Return the run as JSON data."""
    stages = [
        {
            "stage": outcome.stage.name,
            "made": outcome.why is not None,
            "why": outcome.why,
            "seconds": outcome.seconds,
            "where": [str(out / name) for name in outcome.stage.outputs],
            "counts": dict(outcome.summary.counts),
        }
        for outcome in outcomes
    ]
    return {"out": str(out), "seconds": round(sum(outcome.seconds for outcome in outcomes), 3), "stages": stages}


def print_table(outcomes: Sequence[StageOutcome], out: Path) -> None:
    """Print the stages, one per row."""
    columns = ("stage", Column("seconds", justify="right"), "what came out", Column("where", overflow="fold"))
    stage_table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for outcome in outcomes:
        seconds = "kept" if outcome.why is None else f"{outcome.seconds:,.1f}"
        stage_table.add_row(outcome.stage.name, seconds, outcome.summary.text, str(out / outcome.stage.outputs[0]))
    # Otherwise Rich wraps the output to a pipe at 80 columns.
    width = None if sys.stdout.isatty() else _WIDTH
    Console(file=sys.stdout, width=width, markup=False, highlight=False).print(stage_table)


def next_lines(out: Path) -> list[str]:
    """Return commands to try next, with names from this run."""
    parts = network_facts(out)["ingredients"]
    block = parts[0]["block"] if parts else "NAME"
    return [
        "next:",
        f"  lemur open {out}",
        f"  lemur show {block} --in {out / BLOCKS}",
        f'  lemur search "channel attention" --in {out / BLOCKS}',
        f"  lemur publish {out / SNAPSHOT} --repo-id OWNER/NAME --dry-run",
    ]
