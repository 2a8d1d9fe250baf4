"""One stage of work in the sandbox: a guest, its limits, retries and progress, and the types of its answers.

A stage takes payloads and yields replies. Payloads are frozen dataclasses whose fields are JSON values; the guest's
function declares the same type and gets an instance. An answer comes from a process that ran foreign code, so it is
checked against its declared type whenever it arrives, from the guest or from the cache; an answer that does not fit
counts as a crash of the job.

    >>> stage = SandboxStage[Level | Failure]("extract.guest:validate", Level | Failure, Limits(), label="validate")
    >>> with CachedSandbox(entries=[stage.guest]) as box:
    ...     for reply in stage.run(box, {"timm::SEModule": Candidate(code="…")}):
    ...         print(reply.key, reply.answer or reply.failure(300))
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from pydantic import TypeAdapter, ValidationError

from lemur_core.files.progress import progress
from lemur_core.sandbox.cached import CachedSandbox, SharedSandbox, Store, describe_failure
from lemur_core.sandbox.client import META_PRELOAD
from lemur_core.sandbox.server.jobs import Failure, Job, Limits, Outcome, Status

if TYPE_CHECKING:
    from _typeshed import DataclassInstance as Payload


class SandboxOptions(TypedDict, total=False):
    """How a stage uses the sandbox: the number of parallel jobs, folders with the requirements of self-contained files,
    whether without confinement, a sandbox that is shared with other stages, and the folders of it that are not for it.
    """

    jobs: int
    runtime: Sequence[Path]
    unsafe: bool
    shared: SharedSandbox | None
    hidden: Sequence[Path]


Answer = TypeVar("Answer")
Item = TypeVar("Item")

_FAULT_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Reply(Generic[Answer]):
    """The outcome of one job. `answer` is None unless the guest returned an answer of the declared type."""

    outcome: Outcome
    answer: Answer | None

    @property
    def key(self) -> str:
        """The key of its payload."""
        return self.outcome.key

    def reason(self, limit: int) -> str:
        """Return the message of a job without an answer in one line, or its status if there is no message."""
        return describe_failure(self.outcome, limit)

    def ending(self, limit: int = 400) -> str:
        """Return how a job without an answer ended, the same in every run: its status, and one line of its message."""
        return f"{self.outcome.status.value}: {describe_failure(self.outcome, limit)}"

    def failure(self, limit: int) -> Failure:
        """Return `ending` as a record."""
        return Failure(self.ending(limit))


@dataclass(frozen=True)  # with slots, Python 3.11 cannot construct SandboxStage[Answer](…)
class SandboxStage(Generic[Answer]):
    """One kind of job.

    Args:
        guest: the function that runs in the sandbox, as in `Job.entry`.
        answer: the type of its answers: a dataclass, a union of them, or any type that pydantic knows.
        limits: the limits of one job.
        retries: run jobs again that a busy machine may have ended: alone, after pauses, as the sandbox is configured.
        label: the label of the progress; if it is empty, no progress is shown.
        unit: the noun for the items that the progress counts.
    """

    guest: str
    answer: Any
    limits: Limits
    retries: bool = True
    label: str = ""
    unit: str = "blocks"

    def job(self, key: str, payload: "Payload", name: str = "") -> Job:
        """Return the job of one payload."""
        values = {f.name: getattr(payload, f.name) for f in fields(payload)}
        return Job(key, self.guest, values, self.limits, name=name)

    def run(
        self, box: CachedSandbox, payloads: "Mapping[str, Payload]", names: Mapping[str, str] = MappingProxyType({})
    ) -> Iterator[Reply[Answer]]:
        """Yield the replies; those of jobs that were retried come last.

        Args:
            payloads: the requests, by the key of the reply.
            names: the names to show in the progress, by key; by default the key itself.
        Raises: UserError if no sandbox is available.
        """
        jobs = (self.job(key, payload, names.get(key, "")) for key, payload in payloads.items())
        shown = progress(self.label, len(payloads), self.unit) if self.label else nullcontext(lambda _count: None)
        with shown as advance:
            for reply in self.run_jobs(box, jobs):
                yield reply
                advance(1)

    def run_jobs(self, box: CachedSandbox, jobs: Iterable[Job]) -> Iterator[Reply[Answer]]:
        """Yield the replies of jobs, which are taken from the iterable one by one as the sandbox needs them."""
        return map(self.read, box.run(jobs, retries=self.retries))

    def run_groups(
        self,
        box: CachedSandbox,
        groups: Sequence[Sequence[Item]],
        payload: "Callable[[Sequence[Item]], Payload]",
        name: Callable[[Item], str],
    ) -> "dict[str, Any | Failure]":
        """Run one job per group, and return the answers by item; a group whose job fails is split in two and repeated.

        Args:
            payload: returns the payload of a group, which the guest answers with one answer per name.
            name: returns the name of an item.
        """
        answers: dict[str, Any | Failure] = {}
        while groups:
            again: list[Sequence[Item]] = []
            for reply in self.run(box, {str(number): payload(group) for number, group in enumerate(groups)}):
                group = groups[int(reply.key)]
                names = [name(item) for item in group]
                if isinstance(reply.answer, Mapping) and reply.answer.keys() == set(names):
                    answers |= reply.answer
                elif len(group) == 1:
                    missing = "invalid answer: about other items" if reply.answer is not None else ""
                    answers[names[0]] = Failure(missing or reply.reason(_FAULT_CHARACTERS))
                else:
                    middle = len(group) // 2
                    again += [group[:middle], group[middle:]]
            groups = again
        return answers

    def read(self, outcome: Outcome) -> Reply[Answer]:
        """Check an outcome's answer."""
        if outcome.status is not Status.OK:
            return Reply(outcome, None)
        try:
            # As JSON, for which strict checking accepts a list as a tuple, and converts nothing else.
            return Reply(outcome, _adapter(self.answer).validate_json(json.dumps(outcome.value), strict=True))
        except (ValidationError, RecursionError) as error:
            fault = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": "nested too deeply"}
            where = ".".join(map(str, fault["loc"]))
            text = f"invalid answer: {where}: {str(fault['msg']).removeprefix('Value error, ')}"[:_FAULT_CHARACTERS]
            return Reply(replace(outcome, status=Status.CRASHED, value=None, error=text), None)


def open_sandbox(
    store: Store | None,
    stages: "Iterable[SandboxStage[Any]]",
    options: SandboxOptions,
    *,
    folders: Iterable[Path] = (),
    **cached: Any,
) -> CachedSandbox:
    """Return the sandbox of these stages.

    Args:
        store: of the outcomes; None for the user's cache folder.
        folders: to read besides the runtime.
        cached: further arguments of `CachedSandbox`.
    """
    return CachedSandbox(
        store,
        workers=options.get("jobs", 2),
        readable=sorted({*options.get("runtime", ()), *folders}),
        unsafe=options.get("unsafe", False),
        shared=options.get("shared"),
        hidden=options.get("hidden", ()),
        entries=[stage.guest for stage in stages],
        **{"preload": META_PRELOAD, **cached},
    )


@cache
def _adapter(answer: Any) -> TypeAdapter[Any]:
    return TypeAdapter(answer)
