"""A stand-in for Slurm on this machine: `sbatch` records jobs, `squeue` lists them, and `run_all` runs them in order."""

import json
import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

_SBATCH = """
import json, pathlib, sys
jobs = pathlib.Path({folder!r})
number = len(list(jobs.glob("*.json"))) + 1
(jobs / f"{{number:03d}}.json").write_text(json.dumps({{"words": sys.argv[1:], "script": sys.stdin.read()}}))
print(f"Submitted batch job {{number}}" if "--parsable" not in sys.argv else number)
"""
_SQUEUE = """
import pathlib
print(pathlib.Path({folder!r}, "queue.txt").read_text(), end="")
"""
_SCONTROL = """
import sys
print("MaxArraySize            = {array}" if sys.argv[1:] == ["show", "config"] else "here")
"""


@dataclass(frozen=True)
class Job:
    """One job array as it was submitted."""

    number: int
    words: list[str]
    script: str

    def option(self, name: str) -> str | None:
        """Return the value of an option of the command line."""
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"--{name}=")), None)

    def directive(self, name: str) -> str | None:
        """Return the value of a directive of the script."""
        stated = re.search(rf"^#SBATCH --{name}(?:=(.*))?$", self.script, re.MULTILINE)
        return None if stated is None else stated[1] or ""


@dataclass
class FakeSlurm:
    """Commands of Slurm in `folder/bin`, for a cluster that allows so many tasks in an array."""

    folder: Path
    array: int = 1001
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        self.queue("")
        for name, text in (("sbatch", _SBATCH), ("squeue", _SQUEUE), ("scontrol", _SCONTROL)):
            path = self.folder / "bin" / name
            path.write_text(f"#!{sys.executable} -SE\n{text.format(folder=str(self.folder), array=self.array)}")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    @property
    def path(self) -> str:
        """The search path of commands with those of Slurm."""
        return f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def queue(self, lines: str) -> None:
        """Set what `squeue` prints."""
        (self.folder / "queue.txt").write_text(lines)

    def jobs(self) -> list[Job]:
        """Return the jobs in the order of their submission."""
        files = sorted(self.folder.glob("*.json"))
        return [Job(number, **json.loads(path.read_text())) for number, path in enumerate(files, 1)]

    def run_all(self, *, after: int = 0) -> None:
        """Run the jobs of a later submission, as far as those that they depend on did not fail."""
        for job in self.jobs()[after:]:
            needed = re.findall(r"\d+", (job.option("dependency") or "").partition(",")[0])
            depends = "afterok" in (job.option("dependency") or "")
            if depends and self.failed & set(map(int, needed)):
                self.failed.add(job.number)
                continue
            last = re.fullmatch(r"0-(\d+)(?:%\d+)?", job.directive("array") or "")
            assert last is not None
            for index in range(int(last[1]) + 1):
                if self.run_task(job, index):
                    self.failed.add(job.number)

    def run_task(self, job: Job, index: int) -> int:
        """Run one task of an array and return its exit code."""
        offset = re.search(r"RUN_OFFSET=(\d+)", job.option("export") or "")
        assert offset is not None
        own = {"SLURM_ARRAY_TASK_ID": str(index), "SLURM_JOB_ID": f"{job.number}00{index}", "SLURM_NODELIST": "here"}
        done = subprocess.run(
            ["bash", "-c", job.script],
            env={**os.environ, **own, "RUN_OFFSET": offset[1], "PATH": self.path},
            capture_output=True,
            check=False,
        )
        return done.returncode
