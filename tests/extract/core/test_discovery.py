"""Which classes are nn.Modules with a forward, followed across files, aliases, conditions and sources."""

from typing import Any

import pytest

HEAD = "import torch\nfrom torch import nn\n"
FORWARD = "    def forward(self, x): return x\n"

# the text of a file, and the classes that are found in it
FOUND: dict[str, tuple[str, str]] = {
    "plain": (f"{HEAD}class A(nn.Module):\n{FORWARD}", "A"),
    "no forward": (f"{HEAD}class A(nn.Module):\n    pass\n", ""),
    "no module": (f"{HEAD}class A:\n{FORWARD}", ""),
    "inherits forward": (f"{HEAD}class A(nn.Module):\n{FORWARD}class B(A): pass\n", "A B"),
    "inherits it from torch": (f"{HEAD}class A(nn.Conv2d): pass\nclass B(nn.Sequential): pass\n", "A B"),
    "inherits it from torchvision": ("from torchvision.models import ResNet\nclass A(ResNet): pass\n", "A"),
    "forward as an attribute": (f"{HEAD}class A(nn.Module):\n    def go(self, x): return x\n    forward = go\n", "A"),
    "forward under a condition": (
        f"{HEAD}class A(nn.Module):\n    if torch:\n        def forward(self, x): return x\n",
        "A",
    ),
    "forward of a mixin": (f"{HEAD}class Mix:\n{FORWARD}class A(Mix, nn.Module): pass\n", "A"),
    "abstract": (
        f"{HEAD}import abc\nclass A(nn.Module):\n    @abc.abstractmethod\n    def forward(self, x): ...\nclass B(A):\n{FORWARD}class C(A): pass\n",
        "B",
    ),
    "metaclass": (f"{HEAD}from abc import ABCMeta\nclass A(nn.Module, metaclass=ABCMeta):\n{FORWARD}", "A"),
    "torch.nn.Module": (f"import torch\nclass A(torch.nn.Module):\n{FORWARD}", "A"),
    "import torch.nn": (f"import torch.nn\nclass A(torch.nn.Module):\n{FORWARD}", "A"),
    "import torch, and a part": (
        f"import torch\nimport torch.utils.checkpoint\nclass A(torch.nn.Module):\n{FORWARD}",
        "A",
    ),
    "a part, then torch": (f"import torch.nn.functional\nimport torch\nclass A(torch.nn.Module):\n{FORWARD}", "A"),
    "import torch as": (f"import torch as th\nclass A(th.nn.Module):\n{FORWARD}", "A"),
    "import torch.nn as": (f"import torch.nn as N\nclass A(N.Module):\n{FORWARD}", "A"),
    "from torch.nn": (f"from torch.nn import Module as M\nclass A(M):\n{FORWARD}", "A"),
    "from torch.nn.modules": (f"from torch.nn.modules.module import Module\nclass A(Module):\n{FORWARD}", "A"),
    "star of torch.nn": (f"from torch.nn import *\nclass A(Module):\n{FORWARD}", "A"),
    "an alias": (f"{HEAD}Base = nn.Module\nclass A(Base):\n{FORWARD}", "A"),
    "an annotated alias": (f"{HEAD}Base: type = nn.Module\nclass A(Base):\n{FORWARD}", "A"),
    "an alias of an alias": (f"{HEAD}One = nn.Module\nTwo = One\nclass A(Two):\n{FORWARD}", "A"),
    "generic": (
        f"{HEAD}from typing import Generic, TypeVar\nT = TypeVar('T')\nclass A(nn.Module, Generic[T]):\n{FORWARD}class B(A[int]): pass\n",
        "A B",
    ),
    "in branches": (
        f"{HEAD}import sys\nif sys.version_info > (3,):\n    class A(nn.Module):\n        def forward(self, x): return x\nelse:\n    class B(nn.Module):\n        def forward(self, x): return x\n",
        "A B",
    ),
    "type checking only": (
        f"{HEAD}from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    class A(nn.Module):\n        def forward(self, x): return x\n",
        "",
    ),
    "a script's": (
        f"{HEAD}if __name__ == '__main__':\n    class A(nn.Module):\n        def forward(self, x): return x\n",
        "",
    ),
    "unless a package is there": (
        f"{HEAD}try:\n    from no_such_package_ import A\nexcept ImportError:\n    class A(nn.Module):\n        def forward(self, x): return x\n",
        "A",
    ),
    "a base unless a package is there": (
        f"{HEAD}try:\n    from no_such_package_ import Base\nexcept ImportError:\n    Base = nn.Module\nclass A(Base):\n{FORWARD}",
        "A",
    ),
    "a base in a try": (
        f"{HEAD}try:\n    Base = nn.NoSuchModule\nexcept AttributeError:\n    Base = nn.Module\nclass A(Base):\n{FORWARD}",
        "A",
    ),
    "inside a function": (f"{HEAD}def f():\n    class A(nn.Module):\n        def forward(self, x): return x\n", "A"),
    "its own base": (f"{HEAD}class A(A):\n{FORWARD}", ""),
    "a circle": (f"{HEAD}class A(B):\n{FORWARD}class B(A): pass\n", ""),
    "defined twice": (f"{HEAD}class A:\n    pass\nclass A(nn.Module):\n{FORWARD}", "A"),
    "defined twice, the last is none": (f"{HEAD}class A(nn.Module):\n{FORWARD}class A:\n    pass\n", ""),
    "defined twice, the same base": (f"{HEAD}class A(nn.Module):\n    pass\nclass A(nn.Module):\n{FORWARD}", "A"),
}


@pytest.mark.parametrize("case", FOUND)
def test_classes_of_a_file(corpus: Any, case: str) -> None:
    text, expected = FOUND[case]
    made = corpus({"p/a.py": text})
    assert " ".join(found.name for found in made.found) == expected


SOURCES = """
--- base/__init__.py
from .model import *
--- base/model.py
from torch import nn
__all__ = ["BaseModule"]
class BaseModule(nn.Module):
    def __init__(self, init_cfg=None):
        super().__init__()
        self.init_cfg = init_cfg
class BaseDecoder(BaseModule):
    def forward(self, x): return ("decoded", x)
--- tool/__init__.py
from base import BaseModule as Root
import base.model as bm
--- tool/heads.py
import tool
from . import bm
class Head(tool.Root):
    def forward(self, x): return ("head", x)
class Decoder(bm.BaseDecoder): pass
class Nothing(tool.Root): pass
"""


def test_subclasses_across_sources(corpus: Any, closed: Any, run: Any) -> None:
    made = corpus(SOURCES, apart=True)
    assert [found.block for found in made.found] == [
        "base::base.model.BaseDecoder",
        "tool::tool.heads.Head",
        "tool::tool.heads.Decoder",
    ]
    assert [found.own_forward for found in made.found] == [True, True, False]
    for name, expected in (("Head", "head"), ("Decoder", "decoded")):
        outcome = made.emit(name)
        assert run(closed(outcome))[name]()(1) == (expected, 1)
        assert ("base", "model.py") in outcome.files


def test_the_order_of_sources_does_not_matter_to_what_is_found(corpus: Any) -> None:
    forward, backward = corpus(SOURCES, apart=True), corpus(SOURCES, apart=True, reverse=True)
    assert sorted(forward.names()) == sorted(backward.names())


def test_names_and_places(corpus: Any) -> None:
    made = corpus(
        f"--- p/s/__init__.py\n{HEAD}class A(nn.Module):\n{FORWARD}--- p/m.py\n\n{HEAD}class A(nn.Module):\n{FORWARD}"
    )
    assert [(found.qualname, found.module.file.path) for found in made.found] == [
        ("p.m.A", "p/m.py"),
        ("p.s.A", "p/s/__init__.py"),
    ]
