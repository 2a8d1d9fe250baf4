"""The stages of `lemur run`, in their order, and what decides each."""

from functools import partial

from lemur.pipeline.checking import CHECKS, make_checks, tell_checks
from lemur.pipeline.making import (
    BLOCKS,
    NETWORK,
    NETWORK_FACTS,
    RUN,
    SNAPSHOT,
    find_data,
    make_blocks,
    make_network,
    make_run,
    make_snapshot,
    recipe_facts,
)
from lemur.pipeline.plan import Plan
from lemur.pipeline.runner import in_stage
from lemur.pipeline.stage import Stage
from lemur.pipeline.telling import tell_blocks, tell_network, tell_run, tell_snapshot
from lemur_core.files.errors import UserError

_BASE = ("manifests", "lemur_core")


def plan_stages(plan: Plan) -> list[Stage]:
    """The stages of a plan. What cannot come out well is refused here, before minutes of work.

    Raises: UserError if there are no such images or no such recipe.
    """
    recipe = recipe_facts(plan)
    try:
        data = find_data(plan)
    except UserError as error:
        raise in_stage("run", error) from error
    corpus = {"corpus": plan.corpus, "sources": plan.sources, "paths": plan.paths}
    slice_ = {"records": plan.records, "include": plan.include, "chat": plan.chat, "seed": plan.seed}
    short = {"seed": plan.seed, "data": data, "images": plan.images, "held_out": plan.held_out, "recipe": recipe}
    return [
        Stage("blocks", (BLOCKS,), partial(make_blocks, plan), tell_blocks, (), ("extract", "curate", *_BASE), corpus),
        Stage(
            "snapshot",
            (SNAPSHOT,),
            partial(make_snapshot, plan),
            tell_snapshot,
            ("blocks",),
            ("curate", *_BASE),
            slice_,
        ),
        Stage(
            "network",
            (NETWORK, NETWORK_FACTS),
            partial(make_network, plan),
            tell_network,
            ("blocks",),
            ("train", *_BASE),
            {"recipe": recipe},
        ),
        Stage(
            "run",
            (RUN,),
            partial(make_run, plan),
            tell_run,
            ("network", "blocks"),
            ("train", *_BASE),
            short,
            resumes=True,
        ),
        Stage(
            "verify",
            (CHECKS,),
            partial(make_checks, plan.jobs),
            tell_checks,
            ("blocks", "snapshot", "network", "run"),
            ("extract", "curate", "train", *_BASE),
        ),
    ]
