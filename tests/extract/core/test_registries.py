"""Registries and strings that name classes: resolved statically, and replaced by a small class in the block's file."""

from collections.abc import Callable

import pytest

Behaves = Callable[..., str]

# A registry with a parent, as OpenMMLab writes them, small.
REGISTRY = '''
--- p/registry.py
class Registry:
    """What strings name."""
    def __init__(self, name, parent=None, scope=None):
        self.name, self.parent, self.table = name, parent, {}
    def register_module(self, name=None, force=False, module=None):
        def add(item):
            for key in [name] if isinstance(name, str) else name or [item.__name__]:
                self.table[key] = item
            return item
        return add if module is None else add(module)
    def get(self, key):
        key = key.rpartition(".")[2]
        found = self.table.get(key)
        return self.parent.get(key) if found is None and self.parent is not None else found
    def build(self, cfg, **kwargs):
        values = dict(cfg, **kwargs)
        return self.get(values.pop("type"))(**values)
--- p/root.py
from .registry import Registry
MODELS = Registry("models")
--- p/norms.py
from torch import nn
from .root import MODELS
MODELS.register_module("BN", module=nn.BatchNorm2d)
for layer in [nn.LayerNorm, nn.GroupNorm]:
    MODELS.register_module(module=layer)
@MODELS.register_module()
class Plain(nn.Module):
    def forward(self, x): return ("plain", x)
@MODELS.register_module(name=["One", "Two"])
class Many(nn.Module):
    def __init__(self, size=1):
        super().__init__()
        self.size = size
    def forward(self, x): return ("many", self.size, x)
@MODELS.register_module()
class Unasked(nn.Module):
    def forward(self, x): return "never copied"
'''

CASES: dict[str, tuple[str, str, object]] = {
    "dict(type=...)": (
        "class A(nn.Module):\n    def forward(self, x): return MODELS.build(dict(type='Plain'))(x)\n",
        "A()(1)",
        ("plain", 1),
    ),
    "a dict display": (
        "class A(nn.Module):\n    def forward(self, x): return MODELS.build({'type': 'Two', 'size': 3})(x)\n",
        "A()(1)",
        ("many", 3, 1),
    ),
    "with a scope": (
        "class A(nn.Module):\n    def forward(self, x): return MODELS.build(dict(type='p.One'), size=5)(x)\n",
        "A()(1)",
        ("many", 5, 1),
    ),
    "a known default": (
        "class A(nn.Module):\n    def __init__(self, norm=dict(type='BN', num_features=4)):\n        super().__init__()\n        self.norm = MODELS.build(norm)\n    def forward(self, x): return self.norm.num_features\n",
        "A()(1)",
        4,
    ),
    "registered in a loop": (
        "class A(nn.Module):\n    def forward(self, x): return MODELS.build(dict(type='LayerNorm', normalized_shape=2)).normalized_shape\n",
        "A()(1)",
        (2,),
    ),
    "get": (
        "class A(nn.Module):\n    def forward(self, x): return MODELS.get('Plain')()(x)\n",
        "A()(1)",
        ("plain", 1),
    ),
    "a child of a registry": (
        "from .registry import Registry\nHEADS = Registry('heads', parent=MODELS)\n@HEADS.register_module()\nclass Head(nn.Module):\n    def forward(self, x): return ('head', x)\nclass A(nn.Module):\n    def forward(self, x): return HEADS.build(dict(type='Head'))(x), HEADS.build(dict(type='Plain'))(x)\n",
        "A()(1)",
        (("head", 1), ("plain", 1)),
    ),
    "through a builder in another file": (
        "from .build import build_norm\nclass A(nn.Module):\n    def forward(self, x): return build_norm(dict(type='One', size=2))(x)\n",
        "A()(1)",
        ("many", 2, 1),
    ),
    "the class itself is registered": (
        "@MODELS.register_module(name='It')\nclass A(nn.Module):\n    def forward(self, x): return MODELS.build(dict(type='It')).__class__.__name__\n",
        "A()(1)",
        "A",
    ),
    "a key with a quotation mark": (
        "@MODELS.register_module(name='it\"s')\nclass Odd(nn.Module):\n    def forward(self, x): return 'odd'\nclass A(nn.Module):\n    def forward(self, x): return MODELS.build(dict(type='it\"s'))(x)\n",
        "A()(1)",
        "odd",
    ),
    "a name of its own in a table": (
        "LAYERS = {}\ndef register(name):\n    def wrap(cls):\n        LAYERS[name] = cls\n        return cls\n    return wrap\n@register('own')\nclass Own(nn.Module):\n    def forward(self, x): return 'own'\nclass A(nn.Module):\n    def forward(self, x): return LAYERS['own']()(x)\n",
        "A()(1)",
        "own",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_strings_that_name_classes(behaves: Behaves, case: str) -> None:
    text, expression, expected = CASES[case]
    head = "from torch import nn\nfrom . import norms\nfrom .root import MODELS\n"
    build = "from .root import MODELS\ndef build_norm(cfg): return MODELS.build(cfg)\n"
    code = behaves(f"{REGISTRY}--- p/build.py\n{build}--- p/a.py\n{head}{text}", expression, expected)
    assert "never copied" not in code


def test_a_decorator_of_a_registry_is_left_out(corpus, closed) -> None:  # type: ignore[no-untyped-def]
    code = closed(corpus(REGISTRY).emit("Many"))
    assert "\nclass Many(nn.Module):\n" in code
    assert '#   left out the decorator @MODELS.register_module(name=["One", "Two"])' in code
    assert "class Registry" not in code


@pytest.mark.parametrize("order", [False, True], ids=["mine first", "mine last"])
def test_the_own_source_comes_first(corpus, closed, run, order: bool) -> None:  # type: ignore[no-untyped-def]
    """Two sources register the same name in the same registry: each finds its own entry."""
    other = "from torch import nn\nfrom p.root import MODELS\n@MODELS.register_module()\nclass Plain(nn.Module):\n    def forward(self, x): return 'other'\nclass A(nn.Module):\n    def forward(self, x): return MODELS.build(dict(type='Plain'))(x)\n"
    name = "a" if order else "q"
    files = {f"{name}/other.py": other}
    for part in REGISTRY.split("--- ")[1:]:
        path, _, text = part.partition("\n")
        files[path] = text
    made = corpus(files, apart=True)
    assert run(closed(made.emit("A")))["A"]()(1) == "other"


def test_a_table_that_registers_nothing_stays_what_it_is(behaves) -> None:  # type: ignore[no-untyped-def]
    code = behaves(
        """
        --- p/table.py
        class _SeenRegistry(dict):
            def get(self, key):
                return super().get(str(key)) or {}
        SEEN = _SeenRegistry()
        SEEN["1"] = {"one": 1}
        --- p/a.py
        from torch import nn
        from .table import SEEN
        class A(nn.Module):
            def forward(self, x): return dict(SEEN.get(x))
        """,
        "A()(1), A()(2)",
        ({"one": 1}, {}),
    )
    assert "class _SeenRegistry(dict):" in code
