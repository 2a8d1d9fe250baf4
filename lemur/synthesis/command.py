"""`lemur synthesize`: opens what is asked for and what it is judged beside, runs the loop, trains, writes, prints."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lemur.synthesis.folder.write import PARAMETERS, accepted_of, counts_of, write_synthesis
from lemur.synthesis.models.endpoint import Endpoint, check_url
from lemur.synthesis.models.local import Local, name_of
from lemur.synthesis.models.model import Asker, Budget, Model, Sampling
from lemur.synthesis.prompting.plan import Choice, digest_of, draw
from lemur.synthesis.proving.loop import Tried, synthesize
from lemur.synthesis.proving.steps import Prover
from lemur_core.files.atomic import check_free, claim
from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note
from manifests.folders.manifest import Stopwatch
from train.data import load_cifar10
from train.lemur.check import CheckResult, CheckSettings, check_nn, open_box
from train.model.contract import lemur_name
from train.runs.register import archive, check_enters


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of models, and how."""

    choice: Choice
    goal: str = ""
    parents: Path | None = None
    attempts: int = 8
    rounds: int = 2
    planned: bool = False
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True)
class Service:
    """How models are reached. `url`: of the endpoint of those that name none; None: they are on this machine."""

    url: str | None = None
    key_name: str = "LEMUR_MODEL_KEY"
    at_once: int = 4
    retries: int = 5
    timeout: float = 600.0
    tokens: int | None = None
    seconds: float | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class Training:
    """A short training of accepted networks. `db`: the LEMUR database that they are entered in."""

    data: str
    epochs: int = 1
    images: int | None = None
    db: Path | None = None


def run_synthesis(
    library: Path,
    models: Sequence[str],
    out: Path,
    ask: Ask,
    service: Service,
    *,
    against: Sequence[Path] = (),
    training: Training | None = None,
    license_: str = "NOASSERTION",
    jobs: int | None = None,
    unsafe: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Have models write networks from specs, and keep those that pass every step.

    Args:
        models: `NAME` or `NAME@URL`, one, or several that are compared on the same attempts.
        against: snapshots and extractions beside which a network must be new; the library is one of them.
    Returns: the counts by model.
    Raises: UserError if something cannot be read, asked or written; UsageError if options contradict each other.
    """
    places = _places(models, service)
    check_free(out, force=force)
    watch = Stopwatch()
    cifar10 = load_cifar10(training.data) if training is not None else None
    if training is not None and training.db is not None and cifar10 is not None:
        check_enters(training.db, cifar10.label, PARAMETERS)
    attempts, pool = draw(library, ask.choice, goal=ask.goal, parents=ask.parents, attempts=ask.attempts, seed=ask.seed)
    blocks = {one.spec.block for attempt in attempts for one in attempt.asked}
    note(f"{plural(len(attempts), 'attempt')} with {len(blocks)} of {plural(pool, 'block')} that can be asked for")
    beside = list(dict.fromkeys([*against, library]))
    tried: list[Tried] = []
    with ExitStack() as stack:
        stack.enter_context(_alone(out))
        for name, url in places:
            budget = Budget(service.tokens, service.seconds)
            model = _open(name, url, service, budget)
            with (
                Asker(model, ask.sampling, budget, again=service.again) as asker,
                Prover(beside, jobs=jobs, unsafe=unsafe) as prover,
            ):
                made = synthesize(attempts, asker, prover, rounds=ask.rounds, planned=ask.planned)
                if all(one.record.answer is None for one in made):
                    raise UserError(
                        f"{model.name}: gave no answer at all: {made[-1].record.error}; nothing was written"
                    )
                tried += made
                if asker.reused:
                    note(f"{model.name}: {plural(asker.reused, 'answer')} from an earlier run")
            watch.lap(model.name)
        trained: dict[str, CheckResult] = {}
        if training is not None and cifar10 is not None:
            trained = _train(tried, training, cifar10, seed=ask.seed, unsafe=unsafe)
            watch.lap("training")
        accepted = accepted_of(tried, license_, trained, training.epochs if training else None)
        counts = counts_of([one.record for one in tried])
        parameters = _parameters(ask, list(counts), service, training, digest_of(attempts))
        folders = [*beside, *([ask.parents] if ask.parents else [])]
        write_synthesis(
            out,
            tried,
            accepted,
            parameters=parameters,
            folders=folders,
            trained=trained,
            license_=license_,
            watch=watch,
            force=force,
        )
    return counts


def _places(models: Sequence[str], service: Service) -> list[tuple[str, str | None]]:
    """Each model and the URL that it is at; None: on this machine. Raises: UsageError, before any is asked."""
    places: list[tuple[str, str | None]] = []
    called: set[str] = set()
    for name in models:
        model, at, told = name.partition("@") if "://" in name else (name, "", "")
        url = told if at else service.url
        if not model:
            raise UsageError(f"--model {name}: give NAME, or NAME@URL")
        if url is not None:
            check_url(url, service.key_name)
        places.append((model, url))
        known = name_of(model) if url is None else model
        if known in called:
            raise UsageError(f"--compare {name}: two models are called {known}; compare different ones")
        called.add(known)
    return places


def _open(name: str, url: str | None, service: Service, budget: Budget) -> Model:
    if url is None:
        return Local(name, budget=budget)
    return Endpoint(
        name,
        url,
        key_name=service.key_name,
        budget=budget,
        at_once=service.at_once,
        retries=service.retries,
        timeout=service.timeout,
    )


def _alone(out: Path) -> Any:
    """The right to make `out`, until the block ends: two runs would ask for the same answers twice."""
    stack = ExitStack()
    name = hashlib.sha256(str(out.absolute()).encode()).hexdigest()[:16]
    file = stack.enter_context((cache_folder("synthesis") / f"{name}.lock").open("w"))
    if not claim(file.fileno()):
        stack.close()
        raise UserError(f"{out}: another run makes it; wait for it, or choose another --out")
    return stack


def _train(
    tried: Sequence[Tried], training: Training, cifar10: Any, *, seed: int, unsafe: bool
) -> dict[str, CheckResult]:
    """What a short training of each accepted network gives, by name; entered in the database where that is asked."""
    codes = {one.record.nn: one.record.code for one in tried if one.record.nn is not None}
    found: dict[str, CheckResult] = {}
    settings = CheckSettings(training.epochs, training.images, seed)
    with open_box(cifar10, unsafe=unsafe) as box:
        for place, (name, code) in enumerate(codes.items(), start=1):
            assert name is not None
            assert code is not None
            result = check_nn(code, PARAMETERS, dataset=cifar10, settings=settings, unsafe=unsafe, box=box)
            found[name] = result
            said = f"{result.accuracy:.4f}" if result.accuracy is not None else f"{result.status}: {result.error}"
            note(f"training {place} of {len(codes)}: {name}: {said}")
            if training.db is not None and result.status == "ok":
                assert result.accuracy is not None
                assert result.duration is not None
                archive(
                    training.db,
                    code,
                    lemur_name(code, name),
                    PARAMETERS,
                    data=cifar10.label,
                    epoch=training.epochs,
                    accuracy=result.accuracy,
                    duration=result.duration,
                )
    return found


def _parameters(
    ask: Ask, models: Sequence[str], service: Service, training: Training | None, plan: str
) -> dict[str, Any]:
    """What was asked, as the manifest states it: nothing of where models are reached, or of this machine's folders."""
    return {
        "models": list(models),
        "attempts": ask.attempts,
        "rounds": ask.rounds,
        "planned": ask.planned,
        "seed": ask.seed,
        "goal": ask.goal,
        "blocks": ask.choice.count,
        "search": ask.choice.query,
        "spec": ask.choice.spec and ask.choice.spec.name,
        "delta": ask.parents is not None,
        "sampling": asdict(ask.sampling),
        "plan_sha256": plan,
        "token_budget": service.tokens,
        "training": training and {"epochs": training.epochs, "images": training.images},
    }


def lines_of(counts: dict[str, Any], out: Path) -> list[str]:
    """The counts, as lines to print."""
    lines = []
    for model, told in counts.items():
        failed = ", ".join(f"{number} {step}" for step, number in told["failed"].items())
        lines.append(
            f"{model}: {told['accepted']} of {plural(told['attempts'], 'attempt')} accepted, {told['answers']} answers,"
            f" {told['prompt_tokens'] + told['answer_tokens']:,} tokens" + (f"; failed: {failed}" if failed else "")
        )
    return [*lines, f"-> {out / 'report.md'}"]


def print_synthesis(counts: dict[str, Any], out: Path, *, as_json: bool) -> None:
    """Print what a run came to."""
    print(json.dumps({"out": str(out), "models": counts}, indent=2) if as_json else "\n".join(lines_of(counts, out)))
