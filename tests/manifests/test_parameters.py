"""Options that are declared on a dataclass: what the command line shows, and what the command is called with."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import pytest
import typer

from lemur_core.files.errors import UsageError
from lemur_core.files.progress import paint, paint_changes, paint_outcomes
from manifests.options import Option, takes_options


def parse_pair(text: str) -> tuple[str, int]:
    name, _, number = text.partition(":")
    return name, int(number)


@dataclass(frozen=True, slots=True)
class Settings:
    kind: Annotated[Literal["a", "b"], Option("The kind.")] = "a"
    names: Annotated[tuple[str, ...], Option("Names.", flag="--name", metavar="N", panel="Names")] = ()
    hidden: int = 3
    pairs: Annotated[tuple[tuple[str, int], ...], Option("Pairs.", read=parse_pair)] = ()
    limit: Annotated[int | None, Option("At most.", least=1)] = None
    check_it: Annotated[bool, Option("Check.")] = False

    def __post_init__(self) -> None:
        if self.names == ("no",):
            raise UsageError("--name no: is not a name")


@pytest.fixture
def calls() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def command(calls: list[dict[str, Any]]) -> Any:
    app = typer.Typer()

    @app.command()
    @takes_options
    def run(
        *,
        out: Annotated[str, typer.Argument()],
        settings: Settings,
        jobs: Annotated[int | None, typer.Option()] = None,
        last: Annotated[bool, typer.Option("--last")] = False,
    ) -> None:
        calls.append({"out": out, "settings": settings, "jobs": jobs, "last": last})

    return typer.main.get_command(app)


def test_fields_stand_in_place_of_the_dataclass(command: Any) -> None:
    options = [option.opts[0] for option in command.params]
    assert [name for name in options if name not in ("--install-completion", "--show-completion")] == [
        *("out", "--kind", "--name", "--pairs", "--limit", "--check-it", "--jobs", "--last")
    ]
    assert all(not option.secondary_opts for option in command.params), "no flag has an opposite"
    (names,) = (option for option in command.params if option.opts == ["--name"])
    assert (names.metavar, names.help, names.rich_help_panel) == ("N", "Names.", "Names")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", Settings()),
        ("--kind b --check-it", Settings(kind="b", check_it=True)),
        ("--name x --name y", Settings(names=("x", "y"))),
        ("--pairs x:1 --pairs y:2 --limit 4", Settings(pairs=(("x", 1), ("y", 2)), limit=4)),
    ],
)
def test_the_command_gets_the_dataclass(
    command: Any, calls: list[dict[str, Any]], line: str, expected: Settings
) -> None:
    command.main(["there", *line.split(), "--jobs", "2"], standalone_mode=False)
    assert calls == [{"out": "there", "settings": expected, "jobs": 2, "last": False}]


@pytest.mark.parametrize("line", ["--kind c", "--limit 0", "--limit x", "--hidden 4"])
def test_a_wrong_value_is_refused(command: Any, calls: list[dict[str, Any]], line: str) -> None:
    with pytest.raises(Exception, match=r".*") as refused:
        command.main(["there", *line.split()], standalone_mode=False)
    assert (refused.value.exit_code, calls) == (2, [])  # type: ignore[attr-defined]


def test_the_dataclass_refuses_what_contradicts_itself(command: Any, calls: list[dict[str, Any]]) -> None:
    with pytest.raises(UsageError, match=r"^--name no: "):
        command.main(["there", "--name", "no"], standalone_mode=False)
    assert calls == []


# Colors: on a terminal that shows them, and nowhere else.


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stream:
        yield stream
    os.close(ours)


def test_only_a_terminal_gets_colors(terminal: TextIO, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert paint("lemur:", "bold red", terminal) == "\033[1;31mlemur:\033[0m"
    with (tmp_path / "file").open("w") as file:
        assert paint("lemur:", "bold red", file) == "lemur:"
    monkeypatch.setenv("TERM", "dumb")
    assert paint("lemur:", "red", terminal) == "lemur:"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("lemur:", "red", terminal) == "lemur:"


def test_outcomes_and_changes(terminal: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", terminal)  # here: pytest replaces it after fixtures
    text = paint_outcomes("ok    torch: 2\nFAIL  disk: full\nokay  is a word")
    assert text == "\033[32mok\033[0m    torch: 2\n\033[31mFAIL\033[0m  disk: full\nokay  is a word"
    shown = paint_changes("name  -x\n\n--- a\n+++ b\n@@ -1 +1 @@\n same\n-old\n+new").split("\n")
    assert shown[:2] == ["name  -x", ""]
    colors = ["\033[31m", "\033[32m", "\033[36m", " same", "\033[31m", "\033[32m"]
    assert [line[: len(color)] for line, color in zip(shown[2:], colors, strict=True)] == colors
    assert paint_changes("nothing differs") == "nothing differs"
