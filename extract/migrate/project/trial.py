"""Try a block as a module in a copy of a project.

All foreign code runs in the sandbox, which can read only the copy.
"""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from extract.arguments.messages import BlockRun, BlockUses, CallsToRun, CallTexts
from extract.migrate.messages import ModuleToSign, SeenBlock
from extract.migrate.project.layout import ModuleLocation, Project, TestPlace
from extract.migrate.project.writing import SourceModule
from extract.minimize.stage import SIGN, Signed, Stopped, difference, list_sizes
from extract.proofs.runtime import runtime_for
from extract.sources.contents import MAX_FILE_BYTES
from lemur_core.files.atomic import scratch_folder
from lemur_core.files.errors import UserError
from lemur_core.files.foreign import may_hold_secrets
from lemur_core.sandbox import META_PRELOAD, Failure, Limits, Sandbox
from lemur_core.sandbox.stage import Reply, SandboxStage

#: CPU time and memory are the effective limits, so outcomes do not depend on machine load.
LIMITS = Limits(wall_seconds=900, cpu_seconds=240, memory_bytes=8 * 2**30)
_GUEST = "extract.migrate.project.trial_guest"
_PRINTED = "repr"  # the only step in which a project's class may differ, since its name may
_MISSING = "No module named"


@dataclass(frozen=True, slots=True)
class SignedInProject(Signed):
    """The results of a block as a module of the project; `test`: the number of smoke tests that passed, or an error."""

    test: int | str


OBSERVE = SandboxStage[SeenBlock | Failure](f"{_GUEST}:observe_block", SeenBlock | Failure, LIMITS)
PROVE = SandboxStage[SignedInProject | Failure](f"{_GUEST}:sign_in_project", SignedInProject | Failure, LIMITS)
# The block alone gets the same limits as in the project, so that none is refused for needing more.
_ALONE = replace(SIGN, limits=LIMITS)
_Payload = BlockRun | ModuleToSign | BlockUses
_Request = tuple[SandboxStage[Any], _Payload]


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a trial."""

    wrong: str  # the fault; "" if there is none
    steps: int = 0  # number of ways of using the block with bit-identical results
    tests: int = 0  # number of smoke tests that passed


@contextmanager
def trial(donated: SourceModule, project: Project, *, unsafe: bool = False) -> Iterator["MigrationTrial"]:
    """Copy a project into a temporary folder, without hidden files and environments."""
    with scratch_folder("migrate") as folder:
        copy = folder / project.root.name
        shutil.copytree(project.root, copy, symlinks=True, ignore=partial(_list_ignored, project))
        with ExitStack() as undo:
            yield MigrationTrial(donated, project, copy, unsafe, undo)


def _list_ignored(project: Project, folder: str, names: Sequence[str]) -> list[str]:
    """Return what a copy skips: hidden, generated, large or secret files, environments, and folders without code."""
    # Folders inside a package are kept, since its code may read their files.
    inside = (Path(folder) / "__init__.py").is_file()
    ignored = []
    for path in (Path(folder, name) for name in names):
        skip = path.name.startswith(".") or path.name == "__pycache__" or (path / "pyvenv.cfg").is_file()
        if path.is_dir():
            below = f"{path.relative_to(project.root).as_posix()}/"
            skip |= not (inside or any(other.startswith(below) for other in project.paths))
        else:
            skip |= may_hold_secrets(path.name) or (path.is_file() and path.stat().st_size > MAX_FILE_BYTES)
        ignored += [path.name] * skip
    return ignored


@dataclass(slots=True)
class MigrationTrial:
    """A block and the copy of the project to try it in."""

    donated: SourceModule
    project: Project
    copy: Path
    unsafe: bool
    _open: ExitStack
    _box: Sandbox | None = None
    _folders: list[Path] = field(default_factory=list)  # with the required packages
    _complete: bool = False  # True if they include the project's requirements

    def observe(self) -> SeenBlock:
        """Run the block alone. Raises: UserError if it does not run."""
        donated = self.donated
        (reply,) = self._run([(OBSERVE, BlockRun(donated.code, donated.row.name, (), (), self._calls, ()))])
        if not isinstance(reply.answer, SeenBlock):
            raise UserError(f"{donated.row.block}: does not run here: {_error(reply)}; nothing was written")
        return reply.answer

    def prove(self, location: ModuleLocation, test: TestPlace, files: Mapping[str, bytes]) -> Proof:
        """Verify that a module behaves bit-identically to the block, and that its smoke test passes.

        Args: files: path below the project -> new content.
        """
        for path, data in files.items():
            target = self.copy / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        name, calls = self.donated.row.name, self._calls
        sizes = list_sizes(json.loads(self.donated.row.observed or "{}"))
        sign = BlockUses(self.donated.code, name, (), (), calls, (), sizes, {}, backward=True)
        roots = [str(self.copy / root) if root else str(self.copy) for root in self.project.import_roots]
        path = str(self.copy / test.path)
        prove = ModuleToSign(roots, sorted(self.project.packages), (), location.module, name, calls, sizes, path)
        alone, within = self._run([(_ALONE, sign), (PROVE, prove)])
        if not isinstance(alone.answer, Signed):
            return Proof(f"the block itself does not run again: {_error(alone)}")
        if not isinstance(signed := within.answer, SignedInProject):
            return Proof(_error(within))
        steps = {name: value for name, value in alone.answer.steps.items() if name != _PRINTED}
        if wrong := difference(signed, steps):
            return Proof(f"differs from the block in {wrong}")
        if not isinstance(signed.test, int) or not signed.test:
            return Proof(f"its smoke test fails: {signed.test or 'none is found in its file'}")
        return Proof("", len(steps), signed.test)

    def _run(self, requests: Sequence[_Request]) -> list[Reply[Any]]:
        """Run requests; if a package is missing, run them again with the project's requirements."""
        if self._box is None:
            self._start(self.donated.requires)
        replies = self._run_once(requests)
        # The project's requirements can be large: they are fetched only if an import fails without them.
        if self._complete or not any(_MISSING in json.dumps([r.outcome.value, r.outcome.error]) for r in replies):
            return replies
        self._complete = True
        self._start({*self.donated.requires, *self.project.source.requires})
        return self._run_once(requests)

    def _start(self, requires: Collection[str]) -> None:
        self._open.close()
        self._folders = runtime_for(sorted(requires)).folders
        box = Sandbox(
            workers=1,
            readable=[self.copy, *self._folders],
            unsafe=self.unsafe,
            preload=META_PRELOAD,
            entries=[stage.guest for stage in (OBSERVE, PROVE, _ALONE)],
        )
        self._box = self._open.enter_context(box)

    def _run_once(self, requests: Sequence[_Request]) -> list[Reply[Any]]:
        assert self._box is not None
        folders = [str(folder) for folder in self._folders]
        queue = [
            stage.job(str(number), replace(payload, folders=folders))
            for number, (stage, payload) in enumerate(requests)
        ]
        return [stage.read(outcome) for (stage, _), outcome in zip(requests, self._box.run(queue), strict=True)]

    @property
    def _calls(self) -> CallsToRun:
        worked = self.donated.worked
        assert worked.forward is not None
        init, forward = (
            CallTexts(args=list(call.args), kwargs=dict(call.kwargs or {})) for call in (worked.init, worked.forward)
        )
        return {"init": init, "forward": forward}


def _error(reply: Reply[Any]) -> str:
    """Return the error in a guest's answer, or how the sandbox ended the guest."""
    return reply.answer.error if isinstance(reply.answer, Failure | Stopped) else reply.ending()
