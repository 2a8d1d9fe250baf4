"""Options that are declared on a dataclass: what the command line shows, and what the command is called with."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import typer

from lemur_core.files.errors import UsageError
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


calls: list[tuple[str, Settings, int | None]] = []
app = typer.Typer(add_completion=False)


@app.command()
@takes_options
def run(
    *, out: Annotated[str, typer.Argument()], settings: Settings, jobs: Annotated[int | None, typer.Option()] = None
) -> None:
    calls.append((out, settings, jobs))


COMMAND: Any = typer.main.get_command(app)


def test_fields_stand_in_place_of_the_dataclass() -> None:
    options = {option.opts[0]: option for option in COMMAND.params}
    assert [*options] == ["out", "--kind", "--name", "--pairs", "--limit", "--check-it", "--jobs"]
    assert all(not option.secondary_opts for option in COMMAND.params), "no flag has an opposite"
    names = options["--name"]
    assert (names.metavar, names.help, names.rich_help_panel) == ("N", "Names.", "Names")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", Settings()),
        ("--kind b --check-it", Settings(kind="b", check_it=True)),
        ("--name x --name y", Settings(names=("x", "y"))),
        ("--pairs x:1 --pairs y:2 --limit 4", Settings(pairs=(("x", 1), ("y", 2)), limit=4)),
        *((line, 2) for line in ("--kind c", "--limit 0", "--limit x", "--hidden 4")),
        ("--name no", "--name no: is not a name"),
    ],
)
def test_the_command_gets_the_dataclass_or_is_refused(line: str, expected: Settings | int | str) -> None:
    calls.clear()
    words = ["there", *line.split(), "--jobs", "2"]
    if isinstance(expected, Settings):
        COMMAND.main(words, standalone_mode=False)
        assert calls == [("there", expected, 2)]
        return
    with pytest.raises(Exception, match=r".*") as refused:
        COMMAND.main(words, standalone_mode=False)
    told = str(refused.value) if isinstance(refused.value, UsageError) else refused.value.exit_code  # type: ignore[attr-defined]
    assert (told, calls) == (expected, [])
