"""What the README and the docs name exists: commands with their options, make targets, benchmarks, files, imports.

Every command of a console block is read by the command's own parser, without running it; `test_tutorials.py` and
`test_examples.py` run what can be run.
"""

import ast
import importlib
import json
import os
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from manifests.records.corpus import Corpus
from tests.builders.commands import TREE
from tests.test_floors import FLOORS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)

_FENCE = re.compile(r'^```(\w*)(?: title="[^"]+")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*(?![\w-])")


def blocks(page: Path, *kinds: str) -> Iterator[str]:
    for kind, body in _FENCE.findall(page.read_text(encoding="utf-8")):
        if kind in kinds:
            yield body


def typed(page: Path) -> Iterator[tuple[str, str, str]]:
    """Each command of a page's console blocks, the comments after it and on lines of their own below, and its output."""
    for body in blocks(page, "console", ""):
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            lines = part.replace("\\\n", " ").splitlines()
            below = [line for line in lines[1:] if re.match(r" +#", line)]
            command, _, comment = lines[0].partition(" #")
            printed = "".join(f"{line}\n" for line in lines[1:] if line not in below)
            yield command.strip(), " ".join([comment, *below]), printed


def variants(command: str) -> Iterator[list[str]]:
    """The words of a command line, once for each of the commands that it names as `a|b`, the first of other choices."""
    words = [word for word in shlex.split(command)[1:] if word.strip(".…")]
    words = [re.sub(r"[\[\]]|\.\.\.$", "", word) for word in words]
    words = ["3" if word in ("N", "K") else word for word in words]
    at = next((place for place, word in enumerate(words[:2]) if "|" in word), None)
    for choice in words[at].split("|") if at is not None else [""]:
        yield [choice if place == at else word.split("|")[0] for place, word in enumerate(words)]


def leaf(words: list[str]) -> tuple[str, list[str]]:
    for length in (2, 1):
        if " ".join(words[:length]) in TREE:
            return " ".join(words[:length]), words[length:]
    raise AssertionError(f"no command lemur {' '.join(words[:2])}")


def options_of(command: str) -> set[str]:
    return {option for one in TREE[command].params for option in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist_and_can_be_read(page: Path) -> None:
    for command, comment, _ in typed(page):
        if not command.startswith("lemur "):
            continue
        for words in variants(command):
            name, arguments = leaf(words)
            assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", comment)) <= options_of(name), (command, comment)
            if arguments and "..." not in command.split():  # else the command is only named, or its options
                TREE[name].make_context(name, arguments)
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for span in re.findall(r"`(lemur(?: [^`\n]+)?)`", prose):
        words = span.split()[1:]
        if words and re.fullmatch(r"[a-z]+", words[0]) and words != ["train"]:
            name, arguments = leaf(words)
            assert {word for word in arguments if _OPTION.fullmatch(word)} <= options_of(name), span
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for command, _, _ in typed(page):
        words = shlex.split(command)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        elif words[:2] == ["python", "-m"]:
            code = (ROOT / f"{words[2].replace('.', '/')}.py").read_text(encoding="utf-8")
            assert all(f'"{option}"' in code for option in words[3:] if option.startswith("--"))
        elif words[:2] == ["pip", "install"]:
            for extra in re.findall(r"lemur-curator\[(\w+)\]", command):
                assert extra in extras
        elif words[0].startswith(".ci/"):
            assert os.access(ROOT / words[0], os.X_OK)
        else:
            assert words[0] in ("lemur", "export", "git", "source", "squeue", "tail"), f"{command}: not checked here"


def test_the_references_are_current() -> None:
    text = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(ROOT / ".ci" / "columns.py"))["page_text"]() == text, "run: make columns"
    assert "|  |" not in text, "a column has no description"
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(ROOT / ".ci" / "commands.py"))["page_text"](text) == text, "run: make commands"
    assert [name for name in TREE if f"\n## lemur {name}\n" not in text] == []


def test_pieces_of_other_languages_can_be_read() -> None:
    for page in PAGES:
        for body in blocks(page, "json"):
            Corpus.model_validate(json.loads(body))
        for body in blocks(page, "toml"):
            tomllib.loads(body)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("tutorial-*.md"))]
    commands = [command for page in pages for command, _, _ in typed(page)]
    written = [folder for command in commands for folder in re.findall(r" --out (\S+)", command)]
    assert "make run" in commands
    assert sorted({*written, "snapshot"}) == sorted([*written, "snapshot"])


@pytest.mark.parametrize("page", [page for page in PAGES if "tutorial" not in page.name], ids=lambda page: page.name)
def test_python_is_python_and_imports_what_is_there(page: Path) -> None:
    for body in blocks(page, "python"):
        for node in ast.walk(ast.parse(body)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FLOORS:
                module = importlib.import_module(node.module or "")
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == [], node.module


def test_options_modules_and_targets_exist() -> None:
    """Of our commands and benchmarks, of pip and uv, and of make."""
    modules = {module: ROOT / f"{module.replace('.', '/')}.py" for module in re.findall(r"python -m ([\w.]+)", TEXT)}
    assert [module for module, path in modules.items() if not path.is_file()] == []
    ours = (path for module, path in modules.items() if module.startswith("benchmarks"))
    code = "".join(path.read_text(encoding="utf-8") for path in ours)
    known = {"--version", "--quiet", "--from", "--no-deps", "--overrides"}.union(*map(options_of, TREE))
    further = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) - known
    assert [option for option in further if not re.search(f'"(--)?{option.removeprefix("--")}"', code)] == []
    targets = re.findall(r"`make ([a-z-]+)`", TEXT)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "SECURITY.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """An anchor is a heading in lower case, with hyphens for spaces, without other punctuation."""
    for link in re.findall(r"\]\((?!https://)([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE) if anchor else [""]
        assert anchor in [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings], link
