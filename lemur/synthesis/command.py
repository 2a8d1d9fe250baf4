"""`lemur synthesize`: open the inputs and the reference folders, run the loop, train, write, print."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lemur.synthesis.folder.write import PARAMETERS, collect_accepted, count_attempts, write_synthesis
from lemur.synthesis.models.endpoint import Endpoint, check_url
from lemur.synthesis.models.local import LocalModel, model_name
from lemur.synthesis.models.model import Asker, Model, Sampling, TokenBudget
from lemur.synthesis.prompting.plan import Attempt, BlockPool, digest_attempts, draw
from lemur.synthesis.proving.loop import Tried, synthesize
from lemur.synthesis.proving.steps import Prover
from lemur_core.files.atomic import check_free, hold_lock
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
    """The requests to models, and how they are sampled."""

    choice: BlockPool
    goal: str = ""
    parents: Path | None = None
    attempts: int = 8
    rounds: int = 2
    planned: bool = False
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True)
class Service:
    """How to reach models. `url`: endpoint of models that name none; None: they are on this machine."""

    url: str | None = None
    key_name: str = "LEMUR_MODEL_KEY"
    at_once: int = 4
    retries: int = 5
    timeout: float = 600.0
    tokens: int | None = None
    seconds: float | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class ShortTraining:
    """A short training of accepted networks. `db`: the LEMUR database that they are added to."""

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
    training: ShortTraining | None = None,
    license_: str = "NOASSERTION",
    jobs: int | None = None,
    unsafe: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Let models write networks from specs, and keep those that pass every step.

    Args:
        models: `NAME` or `NAME@URL`; one, or several that are compared on the same attempts.
        against: snapshots and extractions that a network must differ from, in addition to the library.
    Returns: the counts by model.
    Raises: UserError if a file or model is not accessible; UsageError if options contradict each other.
    """
    places = _places(models, service)
    check_free(out, force=force)
    watch = Stopwatch()
    cifar10 = load_cifar10(training.data) if training is not None else None
    if training is not None and training.db is not None and cifar10 is not None:
        check_enters(training.db, cifar10.label, PARAMETERS)
    attempts, pool = draw(library, ask.choice, goal=ask.goal, parents=ask.parents, attempts=ask.attempts, seed=ask.seed)
    blocks = {one.spec.block for attempt in attempts for one in attempt.requested}
    note(f"{plural(len(attempts), 'attempt')} with {len(blocks)} of {plural(pool, 'eligible block')}")
    references = list(dict.fromkeys([*against, library]))
    tried: list[Tried] = []
    with ExitStack() as stack:
        stack.enter_context(_alone(out))
        for name, url in places:
            # Each model has a prover of its own: what another model wrote does not make its network known.
            with Prover(references, jobs=jobs, unsafe=unsafe) as prover:
                answers = _ask_model(name, url, attempts, ask, service, prover)
            tried += answers
            watch.lap(answers[0].record.model)
        trained: dict[str, CheckResult] = {}
        if training is not None and cifar10 is not None:
            trained = _train(tried, training, cifar10, seed=ask.seed, unsafe=unsafe)
            watch.lap("training")
        accepted = collect_accepted(tried, license_, trained, training.epochs if training else None)
        counts = count_attempts([one.record for one in tried])
        parameters = _parameters(ask, list(counts), service, training, digest_attempts(attempts))
        folders = [*references, *([ask.parents] if ask.parents else [])]
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


def _ask_model(
    name: str, url: str | None, attempts: Sequence[Attempt], ask: Ask, service: Service, prover: Prover
) -> list[Tried]:
    """Return all answers of one model. Raises: UserError if it returned none at all."""
    budget = TokenBudget(service.tokens, service.seconds)
    model = _open(name, url, service, budget)
    with Asker(model, ask.sampling, budget, again=service.again) as asker:
        answers = synthesize(attempts, asker, prover, rounds=ask.rounds, planned=ask.planned)
        if all(one.record.answer is None for one in answers):
            raise UserError(f"{model.name}: returned no answer at all: {answers[-1].record.error}; nothing was written")
        if asker.reused:
            note(f"{model.name}: {plural(asker.reused, 'answer')} from an earlier run")
    return answers


def _places(models: Sequence[str], service: Service) -> list[tuple[str, str | None]]:
    """Return each model with its URL; None: on this machine. Raises: UsageError, before any request."""
    places: list[tuple[str, str | None]] = []
    called: set[str] = set()
    for name in models:
        model, at, address = name.partition("@") if "://" in name else (name, "", "")
        url = address if at else service.url
        if not model:
            raise UsageError(f"--model {name}: use NAME, or NAME@URL")
        if url is not None:
            check_url(url, service.key_name)
        places.append((model, url))
        known = model_name(model) if url is None else model
        if known in called:
            raise UsageError(f"--compare {name}: two models are named {known}; compare different ones")
        called.add(known)
    return places


def _open(name: str, url: str | None, service: Service, budget: TokenBudget) -> Model:
    if url is None:
        return LocalModel(name, budget=budget)
    return Endpoint(
        name,
        url,
        key_name=service.key_name,
        budget=budget,
        at_once=service.at_once,
        retries=service.retries,
        timeout=service.timeout,
    )


def _alone(out: Path) -> AbstractContextManager[None]:
    """Lock `out` during the block: two runs would request the same answers twice."""
    name = hashlib.sha256(str(out.absolute()).encode()).hexdigest()[:16]
    return hold_lock(cache_folder("synthesis") / f"{name}.lock", out, "another run is writing it")


def _train(
    tried: Sequence[Tried], training: ShortTraining, cifar10: Any, *, seed: int, unsafe: bool
) -> dict[str, CheckResult]:
    """Train each accepted network briefly and return the results by name; add them to the database if requested."""
    codes = {one.record.nn: one.record.code for one in tried if one.record.nn is not None}
    results: dict[str, CheckResult] = {}
    settings = CheckSettings(training.epochs, training.images, seed)
    with open_box(cifar10, unsafe=unsafe) as box:
        for place, (name, code) in enumerate(codes.items(), start=1):
            assert name is not None
            assert code is not None
            result = check_nn(code, PARAMETERS, dataset=cifar10, settings=settings, unsafe=unsafe, box=box)
            results[name] = result
            outcome = f"{result.accuracy:.4f}" if result.accuracy is not None else f"{result.status}: {result.error}"
            note(f"training {place} of {len(codes)}: {name}: {outcome}")
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
    return results


def _parameters(
    ask: Ask, models: Sequence[str], service: Service, training: ShortTraining | None, plan: str
) -> dict[str, Any]:
    """Return the parameters for the manifest, without URLs of models or folders of this machine."""
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


def format_counts(counts: dict[str, Any], out: Path) -> list[str]:
    """Format the counts as lines to print."""
    lines = []
    for model, figures in counts.items():
        failed = ", ".join(f"{number} {step}" for step, number in figures["failed"].items())
        lines.append(
            f"{model}: {figures['accepted']} of {plural(figures['attempts'], 'attempt')} accepted,"
            f" {figures['answers']} answers, {figures['prompt_tokens'] + figures['answer_tokens']:,} tokens"
            + (f"; failed: {failed}" if failed else "")
        )
    return [*lines, f"-> {out / 'report.md'}"]


def print_synthesis(counts: dict[str, Any], out: Path, *, as_json: bool) -> None:
    """Print the results of a run."""
    print(
        json.dumps({"out": str(out), "models": counts}, indent=2) if as_json else "\n".join(format_counts(counts, out))
    )
