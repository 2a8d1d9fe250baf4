"""A small way: numbers -> a folder of squares -> their sum, and a check of all; and a walk on it that is killed."""

import itertools
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lemur.runner import Stage, Summary, run_stages
from lemur_core.files.atomic import atomic_file, atomic_folder

Hook = Callable[[str, str], None]
SECONDS = itertools.count()  # what differs from run to run


def nothing(stage: str, moment: str) -> None:
    """Called at the start, in the middle and at the end of each stage."""


def small_way(count: int = 3, power: int = 2, title: str = "sum", hook: Hook = nothing) -> list[Stage]:
    """Stages that really read and write; each is whole or absent, as those of `lemur demo` are."""

    def numbers(out: Path) -> None:
        hook("numbers", "start")
        with atomic_file(out / "numbers.json") as part:
            part.write_text("[")
            hook("numbers", "middle")
            part.write_text(json.dumps(list(range(count))))
        hook("numbers", "end")

    def powers(out: Path) -> None:
        hook("powers", "start")
        with atomic_folder(out / "powers", force=True) as folder:
            for number in json.loads((out / "numbers.json").read_text()):
                (folder / f"{number}.txt").write_text(str(number**power))
                hook("powers", "middle")
            (folder / "report.md").write_text(f"took {next(SECONDS)} s")
            keys = ("kind", "versions", "parameters", "inputs", "counts", "details", "measured")
            outputs = [{"path": path.name} for path in sorted(folder.iterdir())]
            (folder / "manifest.json").write_text(json.dumps({**dict.fromkeys(keys), "outputs": outputs}))
        hook("powers", "end")

    def total(out: Path) -> None:
        hook("total", "start")
        values = [int(path.read_text()) for path in sorted((out / "powers").glob("*.txt"))]
        with atomic_file(out / "total.txt") as part:
            part.write_text(f"{title} ")
            hook("total", "middle")
            part.write_text(f"{title} {sum(values)}")
        hook("total", "end")

    def told(name: str, out: Path) -> Summary:
        return Summary({"bytes": len((out / name).read_bytes())}, name)

    def told_powers(out: Path) -> Summary:
        return Summary({"files": len(list((out / "powers").glob("*.txt")))}, "powers")

    return [
        Stage("numbers", ("numbers.json",), numbers, partial(told, "numbers.json"), parameters={"count": count}),
        Stage("powers", ("powers",), powers, told_powers, ("numbers",), parameters={"power": power}),
        Stage("total", ("total.txt",), total, partial(told, "total.txt"), ("powers",), parameters={"title": title}),
    ]


def walk_and_die(out: str, stage: str, moment: str) -> None:
    """The body of a process that is killed, without a chance to clean up, at one moment of one stage."""

    def die(at_stage: str, at_moment: str) -> None:
        if (at_stage, at_moment) == (stage, moment):
            os.kill(os.getpid(), signal.SIGKILL)

    run_stages(small_way(hook=die), Path(out))
