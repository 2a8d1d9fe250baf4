"""Handing jobs to servers and outcomes back in order; starting a server again when it dies."""

import dataclasses
import logging
import os
import selectors
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from lemur_core.files.errors import UserError
from lemur_core.sandbox.jobs import Job, Limits, Outcome, Status, read_report
from lemur_core.sandbox.link import Link, ServerDiedError, Setup, StartError, WallError
from lemur_core.sandbox.protocol import Message

_LOG = logging.getLogger(__name__)
_AHEAD = 64  # jobs handed out beyond the oldest one that is not done, for each slot
_QUEUED = 2  # jobs at a server for each slot: one that runs and one that waits, so that no slot is ever idle


class Pool:
    """The servers of one sandbox, each with the jobs that are in its hands."""

    def __init__(self, setup: Setup, servers: int) -> None:
        self.setup = setup
        self._setups = [
            dataclasses.replace(setup, root=setup.root.with_name(f"{setup.root.name}-{number}"))
            for number in range(servers)
        ]
        self.links: list[Link | None] = [None] * servers
        self.held: list[dict[int, Job]] = [{} for _ in range(servers)]

    def start(self) -> None:
        """Start the servers that do not run, all at once.

        Raises: StartError or ServerDiedError if one cannot.
        """
        fresh = [index for index, link in enumerate(self.links) if link is None]
        for index in fresh:
            self.links[index] = Link(self._setups[index])
        for index in fresh:
            link = self.links[index]
            assert link is not None
            link.wait_ready()

    def stop(self, indices: Iterable[int] | None = None) -> None:
        """Stop these servers, or all of them, with what they run."""
        for index in list(range(len(self.links)) if indices is None else indices):
            link, self.links[index] = self.links[index], None
            self.held[index].clear()
            if link is not None:
                link.stop()

    def suits(self, index: int, scratch: str | None) -> bool:
        """Whether this server can be handed a job with that scratch folder, if need be by starting it anew."""
        return not self.held[index] or not self._must_rebind(index, scratch)

    def rebind(self, index: int, scratch: str | None) -> None:
        """Show the server that scratch folder, and no other one of the caller's; it must be idle.

        Raises: StartError, ServerDiedError or WallError if it does not start again.
        """
        if self._must_rebind(index, scratch):
            self.stop([index])
            self._setups[index] = dataclasses.replace(self._setups[index], scratch=scratch)
            self.start()

    def _must_rebind(self, index: int, scratch: str | None) -> bool:
        return self.setup.backend == "bubblewrap" and self._setups[index].scratch != scratch

    def stop_busy(self) -> None:
        """Stop the servers that still hold jobs; the next run starts them again."""
        self.stop(index for index, held in enumerate(self.held) if held)


class Flow:
    """One run: jobs in, outcomes out."""

    def __init__(self, pool: Pool, limits: Limits) -> None:
        self._pool = pool
        self._limits = limits
        self._done: dict[int, Outcome] = {}
        self._suspects: deque[tuple[int, Job]] = deque()  # were in the hands of a server that died
        self._tried: set[int] = set()
        self._taken: tuple[int, Job] | None = None  # from the iterable, but no server is free for it yet
        self._alone = False  # a suspect is running, and nothing else

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """The outcomes, in the order of the jobs.

        Raises: UserError if a server that died cannot be started again.
        """
        source = enumerate(jobs)
        handed, given, exhausted = 0, 0, False
        slots = self._pool.setup.slots
        ahead = _AHEAD * slots * len(self._pool.links)
        while True:
            self._restart()
            while not exhausted and not self._suspects and not self._alone and handed - given < ahead:
                index = min(range(len(self._pool.held)), key=lambda number: len(self._pool.held[number]))
                if len(self._pool.held[index]) >= _QUEUED * slots:
                    break
                self._taken = self._taken or next(source, None)
                if self._taken is None:
                    exhausted = True
                elif not self._pool.suits(index, self._taken[1].scratch):
                    break
                else:
                    pair, self._taken = self._taken, None
                    handed += 1
                    self._hand(index, *pair)
            if not any(self._pool.held):
                self._alone = bool(self._suspects)
                if self._suspects:
                    self._hand(0, *self._suspects.popleft())
            while given in self._done:
                yield self._done.pop(given)
                given += 1
            if exhausted and given == handed:
                return
            self._listen()

    def _hand(self, index: int, number: int, job: Job) -> None:
        fault = _scratch_fault(job.scratch)
        if fault:
            self._done[number] = Outcome(job.key, Status.ERROR, error=fault)
            return
        self._rebind(index, job.scratch)
        link = self._pool.links[index]
        assert link is not None
        message = {"number": number, "entry": job.entry, "payload": job.payload, "scratch": job.scratch}
        try:
            link.channel.send({**message, "limits": dataclasses.asdict(job.limits or self._limits)})
        except (TypeError, ValueError) as error:
            self._done[number] = Outcome(job.key, Status.ERROR, error=f"the payload cannot be sent: {error}")
            return
        self._pool.held[index][number] = job

    def _listen(self) -> None:
        """Wait until a server says something or dies."""
        if not any(self._pool.held):
            return
        with selectors.DefaultSelector() as selector:
            for index, link in enumerate(self._pool.links):
                assert link is not None
                pending = selectors.EVENT_WRITE if link.channel.pending else 0
                selector.register(link.channel, selectors.EVENT_READ | pending, (index, link))
            for key, _ in selector.select():
                index, link = key.data
                link.channel.flush()
                for message in link.channel.receive():
                    number = message["number"]
                    self._file(self._pool.held[index].pop(number), number, message)
                if link.channel.closed:
                    self._bury(index, link)

    def _file(self, job: Job, number: int, message: Message) -> None:
        status, text = message["status"], message["text"]
        ended, value, error = (Status(status), None, text) if status else read_report(text)
        self._done[number] = Outcome(
            key=job.key,
            status=ended,
            value=value,
            error=error,
            seconds=message.get("seconds", 0.0),
            stdout_tail=message.get("stdout_tail", ""),
            stderr_tail=message.get("stderr_tail", ""),
            peak_bytes=message.get("peak_bytes", 0),
        )

    def _bury(self, index: int, link: Link) -> None:
        """Note what a dead server held: to be run again alone, or, the second time, as crashed."""
        words = link.last_words()
        for number, job in self._pool.held[index].items():
            if number in self._tried:
                error = f"the sandbox's server died twice while this job ran ({words})"
                self._done[number] = Outcome(job.key, Status.CRASHED, error=error)
            else:
                self._tried.add(number)
                self._suspects.append((number, job))
        _LOG.warning("the sandbox's server died (%s); %d jobs are run again", words, len(self._suspects))
        self._pool.stop([index])

    def _restart(self) -> None:
        try:
            self._pool.start()
        except (StartError, ServerDiedError) as error:
            raise UserError(f"the sandbox's server died and cannot be started again: {error}") from error

    def _rebind(self, index: int, scratch: str | None) -> None:
        try:
            self._pool.rebind(index, scratch)
        except (StartError, ServerDiedError, WallError) as error:
            raise UserError(f"{scratch}: the sandbox's server cannot be started with this folder: {error}") from error


def _scratch_fault(scratch: str | None) -> str:
    """Why a folder of the caller's cannot be a job's scratch folder; empty if it can.

    A link is refused: an earlier job may have put it in the place of a folder that it could write to.
    """
    if scratch is None:
        return ""
    if not Path(scratch).is_absolute() or os.path.realpath(scratch) != scratch:
        return f"{scratch}: not a path without links and dots, so not a scratch folder; resolve it first"
    return "" if Path(scratch).is_dir() else f"{scratch}: no such folder, so not a scratch folder; make it first"
