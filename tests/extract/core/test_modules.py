"""Resolution of imports and names: relative imports, re-exports, star imports, lazy and namespace packages."""

from typing import Any

import pytest

from extract.resolve.modules import Definition, External, Missing, Module, Target
from tests.builders.suites import read_files, read_table, table

TEXTS = read_files(__file__, "modules.md")
PACKAGE = TEXTS["PACKAGE"]

# a name in p.user, and what it stands for
MEANING: dict[str, str] = read_table(__file__, "modules.md", "Meaning", globals())


def spoken(target: Target) -> str:
    if isinstance(target, Definition):
        return f"{target.module.name}.{target.name}"
    if isinstance(target, Module):
        return f"module {target.name}"
    if isinstance(target, External):
        return f"external {target.package} {target.name}".strip()
    assert isinstance(target, Missing)
    assert target.where
    return "missing"


def test_public_names(corpus: Any) -> None:
    library = corpus(PACKAGE).library
    by_path = library.by_path
    assert library.public_names(by_path["src", "p/core.py"]) == ["base", "shared", "_private"]
    assert set(library.public_names(by_path["src", "p/sub/deep.py"])) == {"math", "F", "shared", "pi"}
    assert {"shared", "pi", "base", "value"} <= set(library.public_names(by_path["src", "p/sub/__init__.py"]))


def test_names_in_any_order(corpus: Any) -> None:
    names = list(MEANING)
    for order in (names, names[::-1], sorted(names), names[7:] + names[:7]):
        library = corpus(PACKAGE).library
        module = library.by_path["src", "p/user.py"]
        assert {name: spoken(library.lookup(module, name)) for name in order} == MEANING


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_star_imports_in_a_circle(corpus: Any, order: str) -> None:
    library = corpus(TEXTS["STAR_CYCLE"]).library
    for name in order:
        assert spoken(library.lookup(library.by_path["src", f"p/{name}.py"], "x")) == "p.c.x"


def test_a_circle_of_many_files_is_searched_once(corpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = range(6)
    files = {f"p/m{i}.py": "".join(f"from .m{j} import *\n" for j in numbers if j != i) for i in numbers}
    library = corpus(files).library
    calls = []
    look = library._lookup
    monkeypatch.setattr(library, "_lookup", lambda *given: calls.append(given) or look(*given))
    assert spoken(library.lookup(library.by_path["src", "p/m0.py"], "nothing")) == "missing"
    assert len(calls) <= len(numbers) ** 2


def test_a_package_whose_try_looks_into_itself(corpus: Any) -> None:
    files = """
    --- p/__init__.py
    try:
        from .fast import conv
    except ImportError:
        conv = None
    def late(x): return x
    --- p/fast.py
    from . import late as conv
    """
    library = corpus(files).library
    package = library.by_path["src", "p/__init__.py"]
    assert package.find_binders("conv")
    assert spoken(library.lookup(package, "late")) == "p.late"


def test_folders_without_init(behaves: Any) -> None:
    imports = "from torch import nn\nimport layers.drop as d\nfrom layers import drop as e\nfrom layers.drop import f\n"
    text = f"{imports}class A(nn.Module):\n    def forward(self, x): return d.f(x), e.g(x), f(x)\n"
    files = {"layers/drop.py": "def f(x): return ('f', x)\ndef g(x): return ('g', x)\n", "main.py": text}
    behaves(files, "A()(1)", (("f", 1), ("g", 1), ("f", 1)), bare=True)


ACTS = """from torch import nn
{stated}
def public(c):
    {adds}
    return c
@public
class Swoosh(nn.Module):
    def forward(self, x): return x * 2
class Hidden(nn.Module):
    def forward(self, x): return -x
"""


@table(__file__, "modules.md", "A computed list of exports", globals())
def test_a_computed_list_of_exports(
    corpus: Any, closed: Any, run: Any, original: Any, stated: str, adds: str, init: str
) -> None:
    """A star import binds what it does in Python; where that is not known, all public names."""
    files = {
        "__init__.py": f"from .acts import Swoosh\nfrom .base import *\n{init}\n",
        "acts.py": ACTS.format(stated=stated, adds=adds),
        "base.py": "from torch import nn\nclass Base(nn.Module):\n    def forward(self, x): return x\nHidden = Base\n",
        "net.py": "from torch import nn\nfrom demo.base import *\nfrom demo import *\n"
        "class Net(nn.Module):\n    def forward(self, x): return Hidden()(Swoosh()(Base()(x)))\n",
    }
    made = corpus({f"demo/{name}": text for name, text in files.items()})
    with original(made, "demo.net") as theirs:
        assert run(closed(made.emit("Net")))["Net"]()(3) == theirs["Net"]()(3) == 6
