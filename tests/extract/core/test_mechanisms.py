"""Mechanisms of real repositories: operators registered from Python, modules as values, packages needed late."""

from typing import Any

from extract.emit import Emitted, Unresolved

HEAD = "import torch\nfrom torch import nn\n"


def test_an_operator_that_the_file_registers_itself(corpus: Any) -> None:
    made = corpus(
        {
            "p/a.py": HEAD
            + "def _twice(x: torch.Tensor) -> torch.Tensor:\n    return 2 * x\n\n"
            + 'torch.library.custom_op("lemurtest::twice", _twice, mutates_args=())\n'
            + 'torch.library.define("lemurtest::other", "(Tensor x) -> Tensor")\n'
            + "class A(nn.Module):\n    def forward(self, x):\n        return torch.ops.lemurtest.twice(x)\n"
        }
    )
    outcome = made.emit("A")
    assert isinstance(outcome, Emitted), outcome
    assert "lemurtest::twice" in outcome.code
    assert "lemurtest::other" not in outcome.code


def test_a_module_used_as_a_value_becomes_a_namespace(corpus: Any) -> None:
    made = corpus(
        {
            "p/norms.py": HEAD + "class N1(nn.Identity): pass\nclass N2(nn.Identity): pass\n_hidden = 1\n",
            "p/a.py": HEAD
            + "from . import norms\n"
            + "class A(nn.Module):\n    def forward(self, x, name='N1'):\n        return getattr(norms, name)()(x)\n",
        }
    )
    outcome = made.emit("A")
    assert isinstance(outcome, Emitted), outcome
    assert "norms = types.SimpleNamespace(\n    N1=N1,\n    N2=N2,\n" in outcome.code
    assert not outcome.undefined


def test_a_module_as_a_value_while_the_file_runs_is_refused(corpus: Any) -> None:
    made = corpus(
        {
            "p/norms.py": "a = 1\n",
            "p/a.py": HEAD
            + "from . import norms\nTABLE = vars(norms)\n"
            + "class A(nn.Module):\n    def forward(self, x): return TABLE\n",
        }
    )
    outcome = made.emit("A")
    assert isinstance(outcome, Unresolved)
    assert outcome.reason == "dynamic_module"
    assert "norms" in outcome.detail


def test_a_package_that_only_functions_need_does_not_stop_the_file(corpus: Any) -> None:
    made = corpus(
        {
            "p/a.py": HEAD
            + "import lemurabsent\nimport lemurearly\n\nSIZE = lemurearly.size\n"
            + "class A(nn.Module):\n    def forward(self, x): return lemurabsent.f(x)\n"
            + "class B(nn.Module):\n    def forward(self, x): return x + SIZE\n"
        }
    )
    late, early = made.emit("A"), made.emit("B")
    assert isinstance(late, Emitted)
    assert isinstance(early, Emitted)
    assert "try:\n    import lemurabsent\nexcept ImportError:\n    lemurabsent = NotInstalled(" in late.code
    assert late.requires == ("lemurabsent",)
    assert "\nimport lemurearly\n" in early.code
    assert early.requires == ("lemurearly",)


def test_settings_need_no_validating_decorator(corpus: Any) -> None:
    made = corpus(
        {
            "p/base.py": "class PreTrainedConfig:\n    def from_pretrained(self): pass\n    def to_dict(self): pass\n",
            "p/a.py": HEAD
            + "from lemurabsent import strict\nfrom .base import PreTrainedConfig\n"
            + "@strict\nclass Settings(PreTrainedConfig):\n    size: int = 3\n"
            + "class A(nn.Module):\n    def forward(self, x): return x * Settings().size\n",
        }
    )
    outcome = made.emit("A")
    assert isinstance(outcome, Emitted), outcome
    assert "@strict" not in outcome.code.split("# Changed")[1].split("\n\n", 1)[1]
    assert outcome.requires == ()
