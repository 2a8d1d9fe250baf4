"""Resolution of imports and names: relative imports, re-exports, star imports, lazy and namespace packages."""

from typing import Any

import pytest

from extract.resolve.modules import Definition, External, Missing, Module, Target

# module, is it a package, import: the absolute name (None: it leaves the package)
RELATIVE: list[tuple[str, bool, str, str | None]] = [
    ("p", True, "from . import x", "p"),
    ("p", True, "from .a import x", "p.a"),
    ("p", True, "from .a.b import x", "p.a.b"),
    ("p", True, "from .. import x", ""),
    ("p", True, "from ...a import x", None),
    ("p.a", False, "from . import x", "p"),
    ("p.a", False, "from .b import x", "p.b"),
    ("p.a", False, "from .. import x", ""),
    ("p.a", False, "from ...b import x", None),
    ("p.s", True, "from . import x", "p.s"),
    ("p.s", True, "from .. import x", "p"),
    ("p.s", True, "from ..b import x", "p.b"),
    ("p.s.a", False, "from . import x", "p.s"),
    ("p.s.a", False, "from ..b.c import x", "p.b.c"),
    ("p.s.a", False, "from q import x", "q"),
    ("a", False, "from . import x", ""),
    ("a", False, "from .b import x", "b"),
    ("a", False, "from ..b import x", None),
]


@pytest.mark.parametrize(("name", "package", "statement", "expected"), RELATIVE)
def test_relative_imports(corpus: Any, name: str, package: bool, statement: str, expected: str | None) -> None:
    path = name.replace(".", "/") + ("/__init__.py" if package else ".py")
    files = {path: statement + "\n", "p/__init__.py" if path != "p/__init__.py" else "other.py": ""}
    if name.startswith("p.s"):
        files.setdefault("p/s/__init__.py", "")
    library = corpus(files).library
    module = library.by_path["src", path]
    (found,) = module.facts.statements
    assert module.name == name
    assert module.file.is_package == package
    assert library.absolute_name(module, found.aliases[0]) == expected


PACKAGE = """
--- p/__init__.py
from .core import *
from .core import base as foundation
from . import core as kernel, sub
import torch.nn as nn
try:
    from .fast import speed
except ImportError:
    speed = None
--- p/core.py
__all__ = ["base", "shared", "_private"]
from .sub.deep import shared
def base(): pass
def _private(): pass
def hidden(): pass
--- p/sub/__init__.py
from .deep import *
from ..core import base
value = 1
--- p/sub/deep.py
import math
from torch.nn import functional as F
def shared(): pass
def _mine(): pass
pi = math.pi
--- p/lazy/__init__.py
from typing import TYPE_CHECKING
import sys
_structure = {"model": ["Net"]}
if TYPE_CHECKING:
    from .model import Net
    from .model import *
else:
    sys.modules[__name__] = object()
def __getattr__(name): raise AttributeError
--- p/lazy/model.py
class Net: pass
class Other: pass
--- p/user.py
import p
import p.sub.deep
import p.sub.deep as pd
from p import base, foundation, kernel, shared, speed, _private, hidden, nn, sub
from .sub import F, pi, _mine, deep, base as again, value
from .lazy import Net, Other
import no_such_package_.a as gone, numpy as np, os.path
from no_such_package_ import thing
from . import user
"""

# a name in p.user, and what it stands for
MEANING: dict[str, str] = {
    "p": "module p",
    "pd": "module p.sub.deep",
    "base": "p.core.base",
    "foundation": "p.core.base",
    "again": "p.core.base",
    "kernel": "module p.core",
    "sub": "module p.sub",
    "deep": "module p.sub.deep",
    "shared": "p.sub.deep.shared",
    "_private": "p.core._private",
    "hidden": "missing",
    "_mine": "missing",
    "nn": "external torch.nn",
    "F": "external torch.nn functional",
    "pi": "p.sub.deep.pi",
    "value": "p.sub.value",
    "speed": "p.speed",
    "Net": "p.lazy.model.Net",
    "Other": "p.lazy.model.Other",
    "gone": "external no_such_package_.a",
    "thing": "external no_such_package_ thing",
    "np": "external numpy",
    "os": "external os.path",
    "user": "module p.user",
    "nothing": "missing",
}


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


@pytest.fixture(scope="module")
def package(corpus: Any) -> Any:
    return corpus(PACKAGE)


@pytest.mark.parametrize("name", MEANING)
def test_names(package: Any, name: str) -> None:
    module = package.library.by_path["src", "p/user.py"]
    assert spoken(package.library.lookup(module, name)) == MEANING[name]


def test_public_names(package: Any) -> None:
    library = package.library
    by_path = library.by_path
    assert library.public_names(by_path["src", "p/core.py"]) == ["base", "shared", "_private"]
    assert set(library.public_names(by_path["src", "p/sub/deep.py"])) == {"math", "F", "shared", "pi"}
    assert {"shared", "pi", "base", "value"} <= set(library.public_names(by_path["src", "p/sub/__init__.py"]))


def test_the_answer_does_not_depend_on_what_was_asked_before(corpus: Any) -> None:
    names = list(MEANING)
    for order in (names[::-1], sorted(names), names[7:] + names[:7]):
        library = corpus(PACKAGE).library
        module = library.by_path["src", "p/user.py"]
        assert {name: spoken(library.lookup(module, name)) for name in order} == MEANING


STAR_CYCLE = """
--- p/a.py
from .c import *
from .b import *
--- p/b.py
from .a import *
--- p/c.py
def x(): pass
"""


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_star_imports_in_a_circle(corpus: Any, order: str) -> None:
    library = corpus(STAR_CYCLE).library
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


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("import layers.drop as d", "d.f"),
        ("from layers import drop as d", "d.f"),
        ("from layers.drop import f", "f"),
    ],
)
def test_folders_without_init(behaves: Any, text: str, call: str) -> None:
    files = {
        "layers/drop.py": "def f(x): return ('f', x)\n",
        "main.py": f"from torch import nn\n{text}\nclass A(nn.Module):\n    def forward(self, x): return {call}(x)\n",
    }
    behaves(files, "A()(1)", ("f", 1), bare=True)
