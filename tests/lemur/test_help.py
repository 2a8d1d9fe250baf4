"""The help of every command, old names, and `lemur list`."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lemur.cli import app, suggest_near
from lemur.folders import list_items
from lemur_core.files.errors import UserError
from tests.builders import extractions
from tests.builders.commands import TREE


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*words, name))


COMMANDS = dict(walk(typer.main.get_command(app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_options_are_whole(words: tuple[str, ...]) -> None:
    own = {option for item in COMMANDS[words].params if not item.hidden for option in item.opts if option[0] == "-"}
    for columns in ("80", "200"):
        shown = CliRunner(env={"COLUMNS": columns}).invoke(app, [*words, "--help"]).stdout
        assert own <= set(re.findall(r"--?[a-z][\w-]*", shown))


@pytest.mark.parametrize("name", TREE)
def test_every_help_has_an_example(name: str) -> None:
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*name.split(), "--help"]).stdout
    assert re.search(rf"^ Examples: *\n +lemur {name}\b", shown, re.MULTILINE)


def test_the_help_ends_with_the_addresses_of_the_package() -> None:
    """They come with the wheel; documents do not."""
    urls = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["--help"]).stdout
    assert re.findall(r"https://[^\s.]+(?:[.][^\s.]+)+", shown) == list(urls.values())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("extract --souce timm --out x", "No such option: --souce. Did you mean --source?"),
        ("verify x --zzzz", "No such option: --zzzz"),
        ("export x --format kernelbnch --out y", "'prompt-completion'; did you mean 'kernelbench'?"),
        ("search x --in y --level backwrd", "'backward'; did you mean 'backward'?"),
        ("curate x --out y --tokens other", "'other' is not one of 'abstract', 'literal'."),
    ],
)
def test_a_wrong_option_or_choice_gets_the_near_right_one(line: str, message: str) -> None:
    with pytest.raises(typer.BadParameter.__mro__[1]) as wrong:
        app(line.split(), standalone_mode=False)
    assert suggest_near(wrong.value.format_message()).endswith(message)


@pytest.fixture(scope="module")
def extraction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("list")
    source = extractions.source(base)
    extractions.write(base / "blocks", extractions.results([source]), [source])
    return base / "blocks"


def test_any_name_of_a_block_finds_it(extraction: Path) -> None:
    rows = list_items(extraction)
    block = "alpha@1.0::alpha.blocks.Attention"
    assert block in [item.names[0] for item in rows]
    for pattern in (block, "attention", "*blocks.att*", "ALPHA@*Attention"):
        assert block in [item.names[0] for item in list_items(extraction, pattern)]
    printed = CliRunner().invoke(app, ["list", str(extraction)]).stdout.splitlines()
    assert len(printed) == len(rows)
    stated = json.loads(CliRunner().invoke(app, ["list", str(extraction), "*Attention", "--json"]).stdout)
    assert {"name", "level", "category", "n_lines", "license"} == stated[0].keys()
    with pytest.raises(UserError, match=r"Nope: none of the \d+ items of .* has such a name; try '\*Nope\*'"):
        list_items(extraction, "Nope")
