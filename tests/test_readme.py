"""What the README and the docs name exists: commands, options, make targets, benchmarks, files."""

import re
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lemur.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


TRAIN = ("assemble", "candidates", "search", "run", "ablate", "check", "register")
COMMANDS = (
    *("extract", "show", "search", "curate", "explain", "novel", "verify", "sensitivity", "publish", "pull"),
    *("run", "trace", "migrate", "synthesize", "cache", "doctor", "rebuild", "open", ""),
    *(f"train {command}" for command in TRAIN),
)


@cache
def help_of(command: str) -> str:
    done = CliRunner().invoke(app, [*command.split(), "--help"], prog_name="lemur", env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("command", sorted(set(re.findall(r"lemur ([a-z]+) ", TEXT))))
def test_commands_exist(command: str) -> None:
    assert "Usage: lemur" in help_of(command)


@pytest.mark.parametrize("command", sorted(set(re.findall(r"lemur train ([a-z]+)\b", TEXT))))
def test_train_commands_exist(command: str) -> None:
    assert command in TRAIN
    assert "Usage: lemur train" in help_of(f"train {command}")


_OPTION = r"(?<![\w-])--[a-z][a-z-]+"
MODULES = sorted({module for module in re.findall(r"python -m ([\w.]+)", TEXT) if module.startswith("benchmarks")})


@pytest.mark.parametrize("option", sorted(set(re.findall(_OPTION, TEXT))))
def test_options_exist(option: str) -> None:
    quoted = re.compile(f'"(--)?{option.removeprefix("--")}"')
    benchmarks = (ROOT / f"{module.replace('.', '/')}.py" for module in MODULES)
    assert any(f"{option} " in help_of(command) for command in COMMANDS) or any(
        quoted.search(path.read_text(encoding="utf-8")) for path in benchmarks
    )


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m ([\w.]+)", TEXT))))
def test_benchmarks_exist(module: str) -> None:
    assert (ROOT / f"{module.replace('.', '/')}.py").is_file()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([a-z-]+)\b", TEXT))))
def test_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


LINKS = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "link"), LINKS, ids=lambda item: getattr(item, "name", item))
def test_links_lead_somewhere(page: Path, link: str) -> None:
    assert link.startswith("https://") or (page.parent / link).exists()
