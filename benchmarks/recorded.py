"""What the documents show of commands that take minutes: run anew and kept word for word, for a test to compare.

    python -m benchmarks.recorded --data cifar10-jpeg [NAME ...]

A record is a file of `tests/fixtures/recorded`: a line `$ COMMAND`, as a page has it, and what it prints. The records
are made in the order of the list, in one folder, since later commands read what earlier ones wrote: --place names it,
to go on there.
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lemur_core.files.atomic import write_text
from lemur_core.files.progress import note

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "fixtures" / "recorded"

#: A clone of what is committed here, with what is locked and no development tools.
_FRESH = 'rm -rf clone && git clone -q "$ROOT" clone && make -s -C clone .venv/.ready >&2'
_ONE_BLOCK = "lemur train run plain --in pp --set 'slots.attention=\"timm::timm.layers.squeeze_excite.SEModule\"'"


@dataclass(frozen=True, slots=True)
class Record:
    """A command as a page has it; `before`: what makes its input; `run`: what is run for it, if not the same."""

    name: str
    command: str
    before: tuple[str, ...] = ()
    run: str = ""


RECORDS = (
    Record(
        "snapshot", "make run", before=(_FRESH, "rm -rf snapshot"), run="make -s -C clone run && mv clone/snapshot ."
    ),
    Record("explain", "lemur show ga-667 --in snapshot"),
    Record(
        "run",
        "lemur demo --out out --data cifar10-jpeg",
        before=("rm -rf out cache",),
        run="LEMUR_CURATOR_CACHE=$PWD/cache lemur demo --out out --data cifar10-jpeg",  # with empty caches
    ),
    Record(
        "trace",
        "lemur show net --in run --in pp",
        before=(
            "lemur extract SEModule --source timm@1.0.30 --out pp --force",
            f"{_ONE_BLOCK} --data cifar10-jpeg --images 256 --held-out 0 --epochs 1 --out run --force",
        ),
    ),
)


def main() -> None:
    """Run what is named, or all; a command that fails ends it, with what it said."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all; {', '.join(r.name for r in RECORDS)}")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="CIFAR-10 as JPEG, in Parquet")
    parser.add_argument("--place", type=Path, metavar="FOLDER", help="where to run; default: a folder that is removed")
    given = parser.parse_args()
    unknown = set(given.names) - {record.name for record in RECORDS}
    if unknown:
        parser.error(f"no record {', '.join(sorted(unknown))}; there are {', '.join(r.name for r in RECORDS)}")
    with tempfile.TemporaryDirectory() as made:
        place = given.place or Path(made)
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "cifar10-jpeg").exists():
            (place / "cifar10-jpeg").symlink_to(given.data.resolve())
        for record in RECORDS:
            if not given.names or record.name in given.names:
                note(f"== {record.command}")
                for command in record.before:
                    _shell(command, place)
                printed = _shell(record.run or record.command, place)
                write_text(FOLDER / f"{record.name}.txt", f"$ {record.command}\n{printed}")


def _shell(command: str, place: Path) -> str:
    """What a command prints; with this interpreter's commands and this checkout's benchmarks. Raises: SystemExit."""
    env = f'export ROOT={ROOT} PYTHONPATH={ROOT} PATH={Path(sys.executable).parent}:"$PATH"; '
    done = subprocess.run(["bash", "-c", env + command], cwd=place, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command}: exit {done.returncode}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


if __name__ == "__main__":
    main()
