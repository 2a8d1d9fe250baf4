"""Small projects, and blocks to move into them."""

from pathlib import Path

from tests.builders.suites import read_files

TEXTS = read_files(__file__, "projects.md")

SCALED = TEXTS["DROP_PATH"].replace("SCALE", "random_tensor.div_(keep_prob)")
UNSCALED = TEXTS["DROP_PATH"].replace("SCALE", "pass")
#: A block's closed file with definitions of its own.
BLOCK = f"""# Residual, from alpha@1.0
#
# Block:   alpha@1.0::alpha.blocks.Residual
# Origin:  pkg:pypi/alpha@1.0
# File:    alpha/blocks.py, lines 3-9
# SWHID:   swh:1:cnt:0000000000000000000000000000000000000000
# Licence: MIT
# Changed: imports resolved and definitions brought together.

{SCALED.replace("import torch" + chr(10), "import math" + chr(10) + chr(10) + "import torch" + chr(10), 1)}

WIDTH = 2


# rounds up
def make_divisible(value, divisor=8):
    return int(math.ceil(value / divisor) * divisor)


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class Residual(nn.Module):
    def __init__(self, dim, rate=0.2):
        super().__init__()
        self.conv = nn.Conv2d(dim, make_divisible(dim * WIDTH), 1)
        self.act = Swish()
        self.back = nn.Conv2d(make_divisible(dim * WIDTH), dim, 1)
        self.drop = DropPath(rate)

    def forward(self, x):
        return x + self.drop(self.back(self.act(self.conv(x))))
"""
ARGUMENTS = '{"init": {"args": ["6"], "kwargs": {}}, "forward": {"args": ["torch.randn((2, 6, 5, 5))"], "kwargs": {}}}'
OBSERVED = {"cases": [{"inputs": {"x": "float32 2x6x5x5"}, "outputs": ["float32 2x6x5x5"]}]}
OBSERVED["cases"].append({"inputs": {"x": "float32 3x6x5x5"}, "outputs": ["float32 3x6x5x5"]})

PYPROJECT = '[project]\nname = "proj"\nversion = "1"\nlicense = "MIT"\ndependencies = ["torch"]\n'
OPS = """import math


def make_divisible(value: float, divisor: int = 8) -> int:
    \"\"\"Rounds up.\"\"\"
    return int(math.ceil(value / divisor) * divisor)
"""
#: A project with sources below src, modules in one folder, relative imports, re-exports with __all__, pytest functions.
SRC = {
    "pyproject.toml": PYPROJECT,
    "src/proj/__init__.py": "from .layers import DropPath, SqueezeExcite\n",
    "src/proj/layers/__init__.py": (
        "# layers\nfrom .drop import DropPath\nfrom .squeeze_excite import SqueezeExcite\n\n"
        "__all__ = [\n    'DropPath',\n    'SqueezeExcite',\n]\nVERSION = 1  # stays\n"
    ),
    "src/proj/layers/drop.py": SCALED,
    "src/proj/layers/ops.py": OPS,
    "src/proj/layers/squeeze_excite.py": TEXTS["SE"],
    "src/proj/train.py": "import proj\n",
    "tests/test_drop.py": "from proj.layers.drop import DropPath\n\n\ndef test_made():\n    assert DropPath(0.1)\n",
}
#: A project of one flat package, absolute imports, unittest classes, star imports, another naming.
FLAT = {
    "setup.py": "raise SystemExit('never run')\n",
    "LICENSE": "",
    "flatnet/__init__.py": "from flatnet.DropPath import *\nfrom flatnet.SqueezeExcite import *\n",
    "flatnet/DropPath.py": UNSCALED,
    "flatnet/SqueezeExcite.py": TEXTS["SE"].replace("from .ops", "from flatnet.ops"),
    "flatnet/ops.py": OPS.replace("math.ceil(value / divisor)", "round(value / divisor)"),
    "test/flat_test.py": "import unittest\n\n\nclass TestIt(unittest.TestCase):\n    def test_it(self):\n        pass\n",
}


def make(root: Path, files: dict[str, str], **changes: str) -> Path:
    """Write a project. Args: changes: files by their names, with `__` for slashes and without `.py`."""
    named = {name.replace("__", "/") + ".py": text for name, text in changes.items()}
    for path, text in {**files, **named}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root
