"""Commands that are killed, with everything that they have started, at a counted change of a file."""

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.builders.kills import PROBE

#: The cache's own notes: which of its folders are ours, and when its size was measured.
_OF_THE_CACHE = (".lemur", ".measured")
_LEMUR = [sys.executable, "-P", "-c", "import lemur; lemur.main()"]


@dataclass(frozen=True)
class Rerun:
    """A command in a folder of its own, which holds what it writes: outputs, cache and temporary files.

    Attributes:
        folder: a new folder for each run that is killed.
        words: the arguments of `lemur`.
    """

    folder: Path
    words: Sequence[str]

    def run(self, *, at: int = 0) -> tuple[int, str, int]:
        """Run the command, and kill it at this change; 0 for none. Returns: exit code, stderr, and changes so far."""
        temporary, counter = self.folder / "tmp", self.folder.with_suffix(".count")
        temporary.mkdir(parents=True, exist_ok=True)
        counter.unlink(missing_ok=True)
        paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {"PYTHONPATH": paths, "TMPDIR": str(temporary), "LEMUR_CURATOR_CACHE": str(self.folder / "cache")}
        counted = {"KILL_UNDER": str(self.folder), "KILL_COUNTER": str(counter), "KILL_AT": str(at)}
        done = subprocess.run(
            [*_LEMUR, *self.words],
            cwd=self.folder,
            env={**os.environ, **own, **counted},
            start_new_session=True,  # killed as a group
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr, counter.stat().st_size if counter.exists() else 0

    def list_litter(self) -> list[str]:
        """List unfinished and temporary files, which nobody looks for."""
        hidden = (path for path in self.folder.rglob(".*") if path.name not in _OF_THE_CACHE)
        left = (path for path in self.folder.rglob("*") if path.suffix in (".part", ".old"))
        temporary = (path for path in (self.folder / "tmp").iterdir() if not PROBE.fullmatch(path.name))
        return sorted({path.relative_to(self.folder).as_posix() for path in (*hidden, *left, *temporary)})


def choose_moments(changes: int, count: int, *, share: int, shares: int) -> Iterator[int]:
    """Yield every `shares`-th of `count` seeded moments, spread over all changes of a run."""
    dice = random.Random(changes)
    bounds = [1 + changes * place // count for place in range(count + 1)]
    moments = [dice.randrange(low, max(high, low + 1)) for low, high in itertools.pairwise(bounds)]
    yield from moments[share::shares]
