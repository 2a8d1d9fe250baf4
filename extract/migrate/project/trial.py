"""Try a block in a copy of a project: compared with the project's own definitions, and as a module of it.

All foreign code runs in the sandbox, which can read only the copy.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extract.migrate.project.layout import Definition, Place, Project, TestPlace
from extract.migrate.project.writing import Donated
from extract.minimize.stage import SIGN, Signed, Stop, difference, list_sizes
from extract.proofs.runtime import runtime_for
from extract.sources.contents import MAX_FILE_BYTES
from lemur_core.files.errors import UserError
from lemur_core.sandbox import META_PRELOAD, Job, Limits, Sandbox
from lemur_core.sandbox.cached import answer_of

COMPARE, PROVE, IMPORT = (
    f"extract.migrate.project.equivalent_definition_guest:{name}"
    for name in ("compare_definitions", "sign_in_project", "import_first")
)

#: CPU time and memory are the effective limits, so outcomes do not depend on machine load.
LIMITS = Limits(wall_seconds=900, cpu_seconds=240, memory_bytes=8 * 2**30)
_PRINTED = "repr"  # the one step in which a project's class may differ: it may have another name
_MISSING = "No module named"


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a trial.

    Attributes:
        wrong: description of the fault; "" if there is none.
        steps: number of ways of using the block with bit-identical results.
        tests: number of smoke tests that passed.
    """

    wrong: str
    steps: int = 0
    tests: int = 0


@contextmanager
def trial(donated: Donated, project: Project, *, unsafe: bool = False) -> Iterator["Trial"]:
    """Make a temporary copy of a project without hidden files and environments."""
    folder = Path(tempfile.mkdtemp(prefix="lemur-migrate-")).resolve()
    try:
        copy = folder / project.root.name
        shutil.copytree(project.root, copy, symlinks=True, ignore=_aside(project))
        with ExitStack() as undo:
            yield Trial(donated, project, copy, unsafe, undo)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _aside(project: Project) -> Callable[[str, list[str]], Collection[str]]:
    """Return the filter for a copy: skip hidden, generated and large files, environments, and folders without code.

    Folders inside a package are kept, since its code may read their files.
    """

    def aside(folder: str, names: list[str]) -> Collection[str]:
        inside = (Path(folder) / "__init__.py").is_file()
        return [name for name in names if _is_aside(project, Path(folder, name), inside)]

    return aside


def _is_aside(project: Project, path: Path, inside: bool) -> bool:
    if path.name.startswith(".") or path.name == "__pycache__":
        return True
    if not path.is_dir():
        return path.is_file() and path.stat().st_size > MAX_FILE_BYTES
    below = f"{path.relative_to(project.root).as_posix()}/"
    return (path / "pyvenv.cfg").is_file() or not (inside or any(one.startswith(below) for one in project.paths))


@dataclass(slots=True)
class Trial:
    """A block and the copy of the project to try it in."""

    donated: Donated
    project: Project
    copy: Path
    unsafe: bool
    _open: ExitStack
    _box: Sandbox | None = None
    _folders: list[Path] = field(default_factory=list)  # with the required packages
    _complete: bool = False  # whether they include the project's requirements

    def compare(self, wanted: Mapping[str, Sequence[Definition]]) -> Mapping[str, Any]:
        """Compare definitions of the block's file with those of the project.

        Args: wanted: name in the block's file -> candidate definitions of the project.
        Returns: the answer of `extract.migrate.project.equivalent_definition_guest.compare_definitions`.
        Raises: UserError if the block does not run.
        """
        listed = [{"name": name, "modules": [one.module for one in same]} for name, same in wanted.items()]
        (answer,) = self._run([(COMPARE, {"code": self.donated.code, "wanted": listed})])
        if "error" in answer:
            raise UserError(f"{self.donated.row.block}: does not run here: {answer['error']}; nothing was written")
        return answer

    def prove(self, place: Place, test: TestPlace, files: Mapping[str, bytes], others: Collection[str] = ()) -> Proof:
        """Verify that a module behaves bit-identically to the block, and that its smoke test passes.

        Args:
            files: path below the project -> new content.
            others: modules of the project that must still be importable before the new one.
        """
        for path, data in files.items():
            target = self.copy / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        prove = {"module": place.module, "test": str(self.copy / test.path)}
        imports = [(IMPORT, {"module": name}) for name in sorted(others)]
        alone, within, *imported = self._run(
            [(SIGN.guest, {"code": self.donated.code, "origin": []}), (PROVE, prove), *imports]
        )
        if "error" in alone:
            return Proof(f"the block itself does not run again: {alone['error']}")
        for answer in (within, *imported):
            if "error" in answer:
                return Proof(str(answer["error"]))
        steps = {name: value for name, value in alone["steps"].items() if name != _PRINTED}
        signed = Signed(within["steps"], tuple(Stop(**stop) for stop in within["stops"]))
        if wrong := difference(signed, steps):
            return Proof(f"differs from the block in {wrong}")
        if not isinstance(within["test"], int) or not within["test"]:
            return Proof(f"its smoke test fails: {within['test'] or 'none is found in its file'}")
        return Proof("", len(steps), within["test"])

    def _run(self, jobs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """Run jobs; if a package is missing, run them again with the project's requirements."""
        if self._box is None:
            self._start(self.donated.requires)
        answers = self._run_once(jobs)
        if self._complete or _MISSING not in json.dumps(answers):
            return answers
        self._complete = True
        self._start({*self.donated.requires, *self.project.source.requires})
        return self._run_once(jobs)

    def _start(self, requires: Collection[str]) -> None:
        self._open.close()
        self._folders = runtime_for(sorted(requires)).folders
        options: dict[str, Any] = {"preload": META_PRELOAD, "entries": [COMPARE, PROVE, IMPORT, SIGN.guest]}
        box = Sandbox(workers=1, readable=[self.copy, *self._folders], unsafe=self.unsafe, **options)
        self._box = self._open.enter_context(box)

    def _run_once(self, jobs: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
        worked = self.donated.worked
        assert worked.forward is not None
        calls = {"init": worked.init, "forward": worked.forward}
        payload: dict[str, Any] = {
            "name": self.donated.row.name,
            "arguments": {name: {"args": list(c.args), "kwargs": dict(c.kwargs or {})} for name, c in calls.items()},
            "companions": [],
            "folders": [str(one) for one in self._folders],
            "sizes": list_sizes(json.loads(self.donated.row.observed or "{}")),
        }
        roots = [str(self.copy / one) if one else str(self.copy) for one in self.project.import_roots]
        project: dict[str, object] = {"roots": roots, "packages": sorted(self.project.packages)}
        unwatched: dict[str, object] = {"others": {}}
        queue = [
            Job(str(number), entry, payload | (unwatched if entry == SIGN.guest else project) | dict(more), LIMITS)
            for number, (entry, more) in enumerate(jobs)
        ]
        assert self._box is not None
        return [answer_of(outcome) for outcome in self._box.run(queue)]
