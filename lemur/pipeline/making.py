"""How each stage is made: one call of the package that does it, as its command makes it."""

import importlib
import json
from pathlib import Path
from typing import Any

from lemur.pipeline.plan import IMAGES, Plan
from lemur_core.files.atomic import atomic_file
from lemur_core.files.errors import RetryableError, UserError

BLOCKS, SNAPSHOT, NETWORK, NETWORK_FACTS, RUN = "blocks", "snapshot", "network.py", "network.json", "run"
_MEMORY_GIB = 8.0


def package(name: str) -> Any:
    """A module of another package; named, since this one imports none of them."""
    return importlib.import_module(name)


def make_blocks(plan: Plan, out: Path) -> None:
    """Extract the corpus and what the recipe needs; each closed file gets its spec."""
    extractor = package("extract.extractor")
    options = extractor.Options(
        corpus=plan.corpus,
        sources=plan.sources,
        selection=package("extract.select").Selection(paths=plan.paths),
        jobs=plan.jobs,
        unsafe=plan.unsafe,
    )
    extractor.extract_to(out / BLOCKS, options, force=True)


def make_snapshot(plan: Plan, out: Path) -> None:
    """Curate a slice of LEMUR together with the blocks, with conversations."""
    options = package("curate.options").CurateOptions(
        include=plan.include, chat=plan.chat, seed=plan.seed, unsafe_no_sandbox=plan.unsafe and plan.chat
    )
    source = package("curate.sources").open_sources([*plan.records, str(out / BLOCKS)])
    package("curate.pipeline").curate(source, out / SNAPSHOT, options, jobs=plan.jobs, force=True)


def make_network(plan: Plan, out: Path) -> None:
    """Assemble the recipe from the blocks: the network's file, and beside it what a run has to know of it."""
    made = package("train.assemble").assemble(_recipe(plan), out / BLOCKS, unsafe=plan.unsafe)
    parts = [part.model_dump(mode="json") for part in made.ingredients]
    facts = {"name": made.name, "prm": made.prm, "ingredients": parts}
    for name, text in ((NETWORK_FACTS, json.dumps(facts, indent=2) + "\n"), (NETWORK, made.code)):
        with atomic_file(out / name) as part:
            part.write_text(text, encoding="utf-8")


def make_run(plan: Plan, out: Path) -> None:
    """Train that file shortly, evaluate it on the test images, and write its files for LEMUR.

    Raises: UserError if the run did not come to its end, with the reason.
    """
    facts = json.loads((out / NETWORK_FACTS).read_text(encoding="utf-8"))
    run, commands = package("train.run"), package("train.commands")
    ingredient = package("manifests.records").Ingredient
    network = run.Network(
        name=facts["name"],
        code=(out / NETWORK).read_text(encoding="utf-8"),
        prm=facts["prm"],
        ingredients=tuple(ingredient.model_validate(part) for part in facts["ingredients"]),
        assembled=True,
    )
    data = package("train.data").load_cifar10(plan.data)
    there = len(data.train_labels)
    held_out = min(plan.held_out, there // 4)
    record = commands.train_to(
        out / RUN,
        network,
        _recipe(plan),
        seed=plan.seed,
        data=data,
        held_out=held_out,
        images=min(IMAGES, there - held_out) if plan.images is None else plan.images,
        resources=commands.resources(plan.jobs, _MEMORY_GIB, None, unsafe=plan.unsafe, device="cpu"),
        force=True,
        library=out / BLOCKS,
    )
    if record.status != "ok":
        raise UserError(commands.run_text(record, out / RUN))


def find_data(plan: Plan) -> str:
    """The digest of the images, before anything else is done: who has none learns so at once.

    Raises: UserError if there are none, with a way on without them.
    """
    try:
        digest: str = package("train.data.opening").open_source(plan.data).sha256
    except UserError as error:
        more = "" if plan.data.startswith("synthetic") else "; --data synthetic goes the way on generated images"
        raise (RetryableError if isinstance(error, RetryableError) else UserError)(f"{error}{more}") from error
    return digest


def recipe_facts(plan: Plan) -> str:
    """The recipe with its changes, as JSON.

    Raises: UserError if it is none.
    """
    facts: str = _recipe(plan).to_json()
    return facts


def _recipe(plan: Plan) -> Any:
    recipe = package("train.recipe").find_recipe(plan.recipe)
    return recipe.changed(**plan.changes) if plan.changes else recipe
