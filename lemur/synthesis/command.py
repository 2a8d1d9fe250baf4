"""`lemur synthesize`: open the inputs and the reference folders, run the loop, train, write, print."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from curate.published.reference_corpus import check_graphs
from lemur.experts.local_models import model_name
from lemur.synthesis.attempts.asking import Asker, Model, TokenBudget
from lemur.synthesis.attempts.loop import Tried, synthesize
from lemur.synthesis.attempts.models import Endpoint, LocalModel, check_url
from lemur.synthesis.attempts.options import AttemptOptions, Sampling, Service, ShortTraining
from lemur.synthesis.attempts.plan import Attempt, digest_attempts, draw
from lemur.synthesis.attempts.steps import Prover
from lemur.synthesis.report import ModelCounts
from lemur.synthesis.write import PARAMETERS, write_synthesis
from lemur_core.files import Json
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


def run_synthesis(
    library: Path,
    models: Sequence[str],
    out: Path,
    options: AttemptOptions,
    service: Service,
    *,
    sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
    against: Sequence[Path] = (),
    training: ShortTraining | None = None,
    license_: str = "NOASSERTION",
    jobs: int | None = None,
    unsafe: bool = False,
    force: bool = False,
) -> dict[str, ModelCounts]:
    """Let models write networks from specs, and keep those that pass every step.

    Args:
        models: `NAME` or `NAME@URL`; one, or several that are compared on the same attempts.
        against: snapshots and extractions that a network must differ from, in addition to the library.
    Returns: the counts by model.
    Raises: UserError if a file or model is not accessible; UsageError if options contradict each other.
    """
    # Everything that can be refused, before the first request costs anything.
    places = _places(models, service)
    check_free(out, force=force)
    watch = Stopwatch()
    cifar10 = load_cifar10(training.data) if training is not None else None
    if training is not None and training.db is not None and cifar10 is not None:
        check_enters(training.db, cifar10.label, PARAMETERS)
    attempts, pool = draw(library, options)
    blocks = {block.spec.block for attempt in attempts for block in attempt.requested}
    note(f"{plural(len(attempts), 'attempt')} with {len(blocks)} of {plural(pool, 'eligible block')}")
    references = list(dict.fromkeys([*against, library]))
    for folder in references:  # before anything is paid for
        check_graphs(folder)
    tried: list[Tried] = []
    trained: dict[str, CheckResult] = {}
    with lock_output(out):
        for name, url in places:
            # Each model has its own prover, so that the networks of another model do not count as known.
            with Prover(references, jobs=jobs, unsafe=unsafe) as prover:
                answers = _ask_model(name, url, attempts, options, sampling, service, prover)
            tried += answers
            watch.lap(answers[0].record.model)
        if training is not None and cifar10 is not None:
            trained = _train(tried, training, cifar10, seed=options.seed, unsafe=unsafe)
            watch.lap("training")
        names = list(dict.fromkeys(result.record.model for result in tried))
        return write_synthesis(
            out,
            tried,
            parameters=_parameters(options, sampling, names, service, training, digest_attempts(attempts)),
            folders=[*references, *([options.parents] if options.parents else [])],
            trained=trained,
            epochs=training.epochs if training else None,
            license_=license_,
            watch=watch,
            force=force,
        )


def _ask_model(
    name: str,
    url: str | None,
    attempts: Sequence[Attempt],
    options: AttemptOptions,
    sampling: Sampling,
    service: Service,
    prover: Prover,
) -> list[Tried]:
    """Return all answers of one model. Raises: UserError if it returned none at all."""
    budget = TokenBudget(service.tokens, service.seconds)
    model: Model = LocalModel(name, budget=budget) if url is None else Endpoint(name, url, service, budget)
    with Asker(model, sampling, budget, again=service.again) as asker:
        answers = synthesize(attempts, asker, prover, rounds=options.rounds, planned=options.planned)
        if all(answer.record.answer is None for answer in answers):
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


def lock_output(out: Path) -> AbstractContextManager[None]:
    """Lock `out` during the block: two runs would request the same answers twice."""
    name = hashlib.sha256(str(out.absolute()).encode()).hexdigest()[:16]
    return hold_lock(cache_folder("synthesis") / f"{name}.lock", out, "another run is writing it")


def _train(
    tried: Sequence[Tried], training: ShortTraining, cifar10: Any, *, seed: int, unsafe: bool
) -> dict[str, CheckResult]:
    """Train each accepted network briefly and return the results by name; add them to the database if requested."""
    codes = {result.record.nn: result.record.code for result in tried if result.record.nn is not None}
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
    options: AttemptOptions,
    sampling: Sampling,
    models: Sequence[str],
    service: Service,
    training: ShortTraining | None,
    plan: str,
) -> Json:
    """Return the parameters for the manifest, without URLs of models or folders of this machine."""
    return {
        "models": list(models),
        "attempts": options.attempts,
        "rounds": options.rounds,
        "planned": options.planned,
        "seed": options.seed,
        "goal": options.goal,
        "blocks": options.blocks,
        "search": options.query,
        "spec": options.spec and options.spec.name,
        "delta": options.parents is not None,
        "sampling": asdict(sampling),
        "plan_sha256": plan,
        "token_budget": service.tokens,
        "training": training and {"epochs": training.epochs, "images": training.images},
    }


def print_synthesis(counts: Mapping[str, ModelCounts], out: Path, *, as_json: bool) -> None:
    """Print the results of a run."""
    if as_json:
        print(json.dumps({"out": str(out), "models": counts}, indent=2))
        return
    for model, figures in counts.items():
        failed = ", ".join(f"{number} {step}" for step, number in figures["failed"].items())
        print(
            f"{model}: {figures['accepted']} of {plural(figures['attempts'], 'attempt')} accepted,"
            f" {figures['answers']} answers, {figures['prompt_tokens'] + figures['answer_tokens']:,} tokens"
            + (f"; failed: {failed}" if failed else "")
        )
    print(f"-> {out / 'report.md'}")
