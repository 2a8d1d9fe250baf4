"""The policy: what a text may name of torch, torchvision, numpy and Python, by whatever name it was imported."""

import ast
import importlib
import json
import types
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lemur.synthesis import steps as policy
from lemur.synthesis.steps import find_forbidden
from tests.builders import synthesis
from tests.builders.commands import run_lemur
from tests.builders.model_server import serving
from tests.builders.suites import table

HEAD = "import torch\nimport numpy as np\nfrom torch import nn\n"


def read(text: str) -> list[tuple[int, str]]:
    code = f"{HEAD}{text}\n"
    return list(find_forbidden(ast.parse(code), code))


@table(__file__, "policy.md", "What is refused", globals())
def test_what_is_refused(text: str, line: int, reason: str) -> None:
    found = read(text)
    assert [told for at, told in found if at == line and told.startswith(reason)], found
    assert min(at for at, _ in found) == line


@table(__file__, "policy.md", "What is accepted", globals())
def test_what_is_accepted(text: str) -> None:
    assert read(text) == []


def test_a_shell_behind_a_condition_is_refused_by_the_command(
    library: Path, tmp_path: Path, curator_cache: Path
) -> None:
    """Code that would run where there is a GPU passes all that runs here; the text is read before."""
    shell = 'if torch.cuda.is_available():\n            collect.run("touch PWNED")\n        '
    head = "import torch\nimport torch.utils.collect_env as collect\nfrom torch import nn\n\n\n"

    def script(request: dict[str, Any], number: int) -> str:
        name = "ResidualPair" if "ResidualPair" in json.dumps(request["messages"]) else "SqueezeGate"
        code = synthesis.network(name, head=head).replace("self.device = device", f"{shell}self.device = device")
        return f"```python\n{code}```"

    with serving(script) as server:
        options = ("--model", "scripted", "--base-url", server.url, "--n", 1, "--jobs", 1)
        done = run_lemur("synthesize", "--in", library, "--out", "out", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    row, _ = pq.read_table(tmp_path / "out" / "attempts.parquet").to_pylist()
    assert "touch PWNED" in row["code"]
    told = "line 2: imports torch.utils.collect_env; of torch, only what networks are made of"
    assert (row["failed"], row["error"]) == ("policy", told)
    assert not list(tmp_path.rglob("PWNED"))


def load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:  # a module by another name
        above, _, last = name.rpartition(".")
        return getattr(importlib.import_module(above), last)


@pytest.fixture(scope="module")
def listed() -> dict[str, Any]:
    """What the installed releases have of the table, by dotted name."""
    modules = {name: load(name) for name in policy._MODULES}
    return {
        f"{name}.{each}": getattr(module, each)
        for name, module in modules.items()
        for each in dir(module)
        if policy._is_listed(name, each) and f"{name}.{each}" not in modules
    }


def test_every_line_of_the_table_names_something(listed: dict[str, Any]) -> None:
    for line in policy._TABLE.strip().replace("\n    ", " ").splitlines():
        modules, names = (part.split() for part in line.split(":"))
        for name in names:
            places = [f"{module}.{name}" for module in modules]
            found = any(fnmatchcase(each, place) for place in places for each in listed)
            assert found or name == "-" or modules[0] == "torch.backends.cuda", (name, modules)


def test_nothing_listed_is_a_module_or_shows_one(listed: dict[str, Any]) -> None:
    """Neither do the attributes that a text may read of what is listed, nor theirs."""
    values = list(listed.items())
    seen = set()
    for depth in range(3):
        assert [name for name, value in values if isinstance(value, types.ModuleType | types.CodeType)] == []
        new = [(name, value) for name, value in values if id(value) not in seen and not isinstance(value, str | int)]
        seen |= {id(value) for _, value in new}
        values = (
            [(f"{name}.{each}", inner) for name, value in new for each, inner in attributes(value)] if depth < 2 else []
        )


def attributes(value: Any) -> list[tuple[str, Any]]:
    found = []
    for name in dir(value):
        refused = policy._NEVER_REACHED.fullmatch(name) or [*policy._check_dunder(name)]
        try:
            found += [] if refused else [(name, getattr(value, name))]
        except (AttributeError, RuntimeError, TypeError, ValueError, NotImplementedError):
            continue  # it has no value here
    return found
