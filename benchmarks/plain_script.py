"""Run the classes of installed packages plainly, in one process and without a sandbox: `benchmarks.versus_plain`.

Arguments of the constructor: literal call sites of the package, defaults, guesses by name. Inputs: one of eight shapes
for all of them. A class runs if its `forward` returns a tensor in eval mode.
"""

import ast
import contextlib
import importlib
import inspect
import json
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

_SHAPES = ((2, 3, 32, 32), (2, 64, 16, 16), (2, 32, 64), (2, 64), (2, 64, 32), (2, 16, 16, 64), (2, 3, 8, 32, 32), (2,))
_GUESSES = {"kernel": 3, "head": 4, "depth": 2, "layer": 2, "class": 10, "size": 32, "stride": 1, "rate": 0.1}
_SECONDS = 10  # of a class
_SITES = 5  # to be tried


def find_sites(folder: Path) -> dict[str, list[tuple[list[Any], dict[str, Any]]]]:
    """Return the calls with literal arguments, by the last part of the called name."""
    found: dict[str, list[tuple[list[Any], dict[str, Any]]]] = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                    name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                    with contextlib.suppress(ValueError, TypeError):
                        args = [ast.literal_eval(item) for item in node.args]
                        found[name].append((args, {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}))
    return found


def construct(cls: type[nn.Module], sites: list[tuple[list[Any], dict[str, Any]]]) -> Iterator[nn.Module]:
    """Yield the modules that can be made."""
    required = [p for p in inspect.signature(cls).parameters.values() if p.default is p.empty and p.kind < 2]
    guess = {p.name: next((v for k, v in _GUESSES.items() if k in p.name), 64) for p in required}
    for args, kwargs in [*sites[:_SITES], ([], {}), ([], guess)]:
        with contextlib.suppress(Exception):
            yield cls(*args, **kwargs).eval()


def runs(cls: type[nn.Module], sites: list[tuple[list[Any], dict[str, Any]]]) -> bool:
    """Return whether some module of the class takes one of the shapes."""
    for module in construct(cls, sites):
        parameters = inspect.signature(module.forward).parameters.values()
        count = sum(p.default is p.empty and p.kind < 2 for p in parameters)
        for shape in _SHAPES:
            with contextlib.suppress(Exception), torch.no_grad():
                answer = module(*(torch.randn(shape) for _ in range(max(1, count))))
                if any(isinstance(item, torch.Tensor) for item in (answer if isinstance(answer, tuple) else (answer,))):
                    return True
    return False


def _stop(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    """Print the names that run. Arguments: a JSON file of `MODULE:CLASS`, and the names of packages."""
    names, *packages = sys.argv[1:]
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _stop)
    folders = (Path(str(importlib.import_module(package).__file__)).parent for package in packages)
    sites = {package: find_sites(folder) for package, folder in zip(packages, folders, strict=True)}
    found = []
    for name in json.loads(Path(names).read_text(encoding="utf-8")):
        module, _, qualname = name.partition(":")
        signal.alarm(_SECONDS)
        with contextlib.suppress(Exception):
            cls = getattr(importlib.import_module(module), qualname)
            if runs(cls, sites[module.partition(".")[0]][qualname]):
                found.append(name)
        signal.alarm(0)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
