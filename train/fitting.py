"""Asking the sandbox whether fillers fit their slots; what it said is kept by everything that it depends on."""

import contextlib
import hashlib
import importlib.metadata
import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UserError
from lemur_core.sandbox import Job, Limits, Outcome, Sandbox, Status
from train.slots import Filler

LIMITS = Limits(wall_seconds=120, cpu_seconds=45, memory_bytes=3 * 2**30)

PROBE, NETWORK = "train.fit:probe", "train.fit:check_network"
_CHECKED_BY = ("fit.py", "behaviour.py", "trial.py")
_OF_ONE_SLOT = ("residual", "attention")  # whose check is a file of that name
_ERROR_CHARACTERS = 200
#: Ends that a busy machine may be the reason of: not remembered.
_PASSING = frozenset({Status.CRASHED, Status.TIMEOUT, Status.OUT_OF_MEMORY})

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """Does this filler do what the slot asks for at these sizes, when its builds may name these factories?"""

    slot: str
    filler: Filler
    sizes: Sequence[dict[str, int]]
    support: str
    strict: bool = True

    @property
    def payload(self) -> dict[str, object]:
        """What the sandbox is given."""
        return {
            "slot": self.slot,
            "strict": self.strict,
            "code": self.filler.code,
            "target": self.filler.target,
            "builds": list(self.filler.builds),
            "support": "\n".join([self.support, *self.filler.imports]),
            "sizes": list(self.sizes),
        }


class Fitter:
    """Answers questions, from the cache or by a sandbox that starts with the first new one. A context manager."""

    def __init__(self, *, unsafe: bool = False, jobs: int = 1) -> None:
        self._unsafe, self._jobs = unsafe, jobs
        self._box: Sandbox | None = None
        self._database = _open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._database.close()
        if self._box is not None:
            self._box.close()

    def ask(self, questions: Sequence[Question], advance: Callable[[int], None] = lambda _count: None) -> list[Answer]:
        """The answers, as `train.fit.probe` gives them, in order; `advance` is called with the count done.

        Raises: UserError if no sandbox can be had.
        """
        return self._answers(PROBE, [question.payload for question in questions], advance)

    def check_network(self, code: str, prm: dict[str, float], in_shape: Sequence[int], classes: int) -> Answer:
        """Whether an assembled network runs as LEMUR runs one, as `train.fit.check_network` tells it."""
        payload: dict[str, object] = {"code": code, "prm": prm, "in_shape": list(in_shape), "out_shape": [classes]}
        return self._answers(NETWORK, [payload], lambda _count: None)[0]

    def _answers(
        self, entry: str, payloads: Sequence[dict[str, object]], advance: Callable[[int], None]
    ) -> list[Answer]:
        keys = [_key(entry, payload) for payload in payloads]
        answers = {key: answer for key in keys if (answer := self._stored(key)) is not None}
        new = {key: payload for key, payload in zip(keys, payloads, strict=True) if key not in answers}
        advance(len(keys) - len(new))
        for outcome in self._outcomes(Job(key, entry, payload) for key, payload in new.items()) if new else ():
            answers[outcome.key] = _answer(outcome)
            if outcome.status not in _PASSING:
                self._store(outcome.key, answers[outcome.key])
            advance(1)
        return [answers[key] for key in keys]

    def _outcomes(self, jobs: Iterable[Job]) -> Iterable[Outcome]:
        if self._box is None:
            entries = [PROBE, NETWORK]
            self._box = Sandbox(entries=entries, workers=self._jobs, limits=LIMITS, unsafe=self._unsafe)
            self._box.__enter__()
        return self._box.run(jobs)

    def _stored(self, key: str) -> Answer | None:
        row = self._database.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        return json.loads(row[0]) if row else None

    def _store(self, key: str, answer: Answer) -> None:
        with self._database:
            self._database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, json.dumps(answer)))


def fitter_for(given: Fitter | None, *, unsafe: bool, jobs: int = 1) -> contextlib.AbstractContextManager[Fitter]:
    """The given one, which stays open, or a new one."""
    return contextlib.nullcontext(given) if given is not None else Fitter(unsafe=unsafe, jobs=jobs)


def _answer(outcome: Outcome) -> Answer:
    if outcome.status is Status.OK and isinstance(outcome.value, dict):
        return outcome.value
    first = (outcome.error or "the sandbox gave no reason").splitlines()[0]
    return {"fits": False, "reason": f"{outcome.status.value}: {first[:_ERROR_CHARACTERS]}", "build": ""}


def _key(entry: str, payload: dict[str, object]) -> str:
    about = [entry, payload, asdict(LIMITS), _versions(str(payload.get("slot", "")))]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


@cache
def _versions(slot: str) -> tuple[str, ...]:
    """The libraries, and the checks themselves."""
    names = [*_CHECKED_BY, *([f"{slot}.py"] if slot in _OF_ONE_SLOT else [])]
    files = [hashlib.sha256((Path(__file__).parent / name).read_bytes()).hexdigest() for name in names]
    return (*(importlib.metadata.version(name) for name in ("torch", "torchvision")), *files)


def _open() -> sqlite3.Connection:
    path = cache_folder("fit") / "answers.sqlite"
    try:
        database = sqlite3.connect(path, timeout=60)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL)")
    except sqlite3.Error as error:
        raise UserError(f"cache {path}: {error}; remove it, or set LEMUR_CURATOR_CACHE to another folder") from error
    return database
