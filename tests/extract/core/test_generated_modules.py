"""Generated packages: blocks are closed, run in their order, and compute what the original computes."""

import random
import re
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FILES = ("a", "b", "c")
WORD = re.compile(r"\w+")


class Writer:
    """Generate a package whose import works by construction: module-level code reads only names defined above it."""

    def __init__(self, seed: int, size: int) -> None:
        self.random = random.Random(seed)
        self.names: list[tuple[int, str, str]] = []  # file, name, kind: value, function or class
        self.lines: list[list[str]] = [["from torch import nn"] for _ in FILES]
        self.number = 0
        for place, _ in enumerate(FILES):
            for _ in range(size):
                self.definition(place)

    def fresh(self) -> str:
        """Return a name, sometimes one that another file has, too."""
        self.number += 1
        return f"n{self.random.randrange(8)}_" if self.random.random() < 0.5 else f"u{self.number}"

    def above(self, place: int, kinds: str) -> str | None:
        """Return a bound name of that kind as this file refers to it; imports it if necessary."""
        known = [(p, n) for p, n, kind in self.names if kind in kinds]
        if not known:
            return None
        where, name = self.random.choice(known)
        if where == place:
            return name
        bound = {n for p, n, _ in self.names if p == place}
        if self.random.random() < 0.3:
            line, called = f"from . import {FILES[where]}", f"{FILES[where]}.{name}"
        elif name in bound or self.random.random() < 0.3:
            line, called = f"from .{FILES[where]} import {name} as {name}x{where}", f"{name}x{where}"
        else:
            line, called = f"from .{FILES[where]} import {name}", name
            self.names.append((place, name, next(k for p, n, k in self.names if (p, n) == (where, name))))
        if line not in self.lines[place]:
            self.lines[place].append(line)
        return called

    def value(self, place: int) -> str:
        choices = [str(self.random.randrange(9))]
        for kind, form in (("v", "{}"), ("f", "{}(1)"), ("c", "{}()(1)"), ("c", "{}.width")):
            found = self.above(place, kind)
            if found is not None:
                choices.append(form.format(found))
        first, second = self.random.choice(choices), self.random.choice(choices)
        return self.random.choice(
            [first, f"[{first} for _ in range(1)][0]", f"({first} + {second})", f"max({first}, {second})"]
        )

    def definition(self, place: int) -> None:
        kind = self.random.choice("vvfffcc+")
        own = [n for p, n, k in self.names if p == place]
        if kind == "+":
            tables = [n for p, n, k in self.names if p == place and k == "t"]
            if tables:
                self.lines[place].append(f"{self.random.choice(tables)}.append({self.value(place)})")
            else:
                name = f"t{self.number}"
                self.number += 1
                self.lines[place].append(f"{name} = [{self.value(place)}]")
                self.names.append((place, name, "t"))
            return
        tables = [n for p, n, k in self.names if p == place and k == "t"]
        extra = f" + sum({self.random.choice(tables)})" if tables and self.random.random() < 0.5 else ""
        first, second = self.value(place), self.value(place) + extra
        local = self.random.choice([n for n in ("x", *own, "n1_", "n2_") if n not in WORD.findall(second)])
        base = self.above(place, "c") or "nn.Module"
        name = self.fresh()
        if name in WORD.findall(" ".join(self.lines[place])):
            return
        form = {
            "v": "{name} = {second}",
            "f": "def {name}({local}=1, *, k={first}):\n    return {local} + k + {second}",
            "c": "class {name}({base}):\n    width = {first}\n    def forward(self, x):\n"
            "        return x + self.width + {second}",
        }[kind]
        self.lines[place].append(form.format(name=name, first=first, second=second, local=local, base=base))
        self.names.append((place, name, kind))

    def text(self) -> dict[str, str]:
        last = len(FILES) - 1
        if not any(p == last and n == "Root" for p, n, _ in self.names):
            value = " + ".join(self.value(last) for _ in range(3))
            self.lines[last].append(f"class Root(nn.Module):\n    def forward(self, x):\n        return x + {value}")
        return {f"p/{name}.py": "\n".join(self.lines[i]) + "\n" for i, name in enumerate(FILES)}


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), size=st.integers(2, 7))
def test_blocks_compute_what_the_original_computes(
    corpus: Any, closed: Any, run: Any, original: Any, seed: int, size: int
) -> None:
    made = corpus(Writer(seed, size).text())
    expected = {}
    with original(made, "p.c"):
        for found in made.found:
            expected[found.qualname] = sys.modules[found.module.name].__dict__[found.name]()(1)
    for qualname, outcome in made.blocks().items():
        name = qualname.rpartition(".")[2]
        assert run(closed(outcome))[name]()(1) == expected[qualname], qualname
