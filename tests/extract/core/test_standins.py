"""Replacements of compiled operators, absent packages and heavy bases: by mechanism and shape, not by origin."""

import ast
from typing import Any

import pytest
import torch
import torchvision

from extract.emit.emit import Emitted, Unresolved
from extract.folder.verify import import_faults
from tests.builders.suites import read_files, table

TEXTS = read_files(__file__, "standins.md")

BOXES = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 3.9], [5.0, 5.0, 6.0, 6.0]])
SCORES = torch.tensor([0.5, 0.9, 0.1])
CALL = "(b, s, iou_threshold=0.5, offset=0)"


@table(__file__, "standins.md", "Native", globals())
def test_a_compiled_operator_has_a_stand_in(corpus: Any, closed: Any, run: Any, head: str, call: str) -> None:
    made = corpus(f"{TEXTS['LOADER']}{head}class A(nn.Module):\n    def forward(self, b, s): return {call}\n")
    code = closed(made.emit("A"))
    assert run(code)["A"]()(BOXES, SCORES).tolist() == [1, 2]
    assert "import_module" not in code


def test_a_function_of_autograd_that_calls_compiled_operators_is_replaced_whole(
    corpus: Any, closed: Any, run: Any
) -> None:
    outcome = corpus(TEXTS["LOADER"] + TEXTS["FUNCTION"] % "output_size").emit("A")
    code = closed(outcome)
    assert "ext_module" not in code
    assert ("lemur-curator", "operators.py") in outcome.files
    image, rois = torch.arange(16.0).view(1, 1, 4, 4), torch.tensor([[0.0, 0, 0, 3, 3]])
    grads = []
    for function in (run(code)["A"](), lambda x, rois: torchvision.ops.roi_align(x, rois, 2, aligned=True)):
        x = image.clone().requires_grad_()
        function(x, rois).square().sum().backward()
        grads.append(x.grad)
    assert grads[0].any()
    assert torch.equal(*grads)


def test_a_function_of_another_shape_is_not_replaced(corpus: Any) -> None:
    outcome = corpus(TEXTS["LOADER"] + TEXTS["FUNCTION"] % "sizes").emit("A")
    assert isinstance(outcome, Unresolved)
    assert outcome.reason == "native_op"
    assert "ext_module.roi_align_" in outcome.detail


def test_an_operator_of_the_runtime_is_called_where_it_is(corpus: Any, closed: Any, run: Any) -> None:
    """Also used by the runtime's own classes: the package is imported only for its operators."""
    text = "def forward(self, b, s): return torch.ops.torchvision.nms(b, s, 0.5)"
    for folder in ("p", "torchvision"):
        made = corpus(f"--- {folder}/a.py\nimport torch\nfrom torch import nn\nclass A(nn.Module):\n    {text}\n")
        outcome = made.emit("A")
        code = closed(outcome)
        assert "\nimport torchvision\n" in code
        assert import_faults(ast.parse(code), (), frozenset({"torchvision"})) == []
        assert outcome.requires == ()
        assert run(code)["A"]()(BOXES, SCORES).tolist() == [1, 2]


def test_a_heavy_base_is_known_by_name_and_shape(corpus: Any, closed: Any, run: Any) -> None:
    other = corpus(TEXTS["HEAVY"].replace("from_pretrained", "other")).emit("A")
    assert isinstance(other, Unresolved)
    assert "everything" in other.detail
    outcome = corpus(TEXTS["HEAVY"]).emit("A")
    code = closed(outcome)
    assert "everything" not in code
    assert ("lemur-curator", "pretrained.py") in outcome.files
    config = type("Config", (), {"initializer_range": 0.02})()
    assert run(code)["A"](config)(torch.zeros(1, 2)).shape == (1, 2)


def test_a_heavy_class_that_is_asked_for_is_itself(corpus: Any, closed: Any) -> None:
    made = corpus(
        """
        --- p/a.py
        from torch import nn
        class PreTrainedModel(nn.Module):
            def from_pretrained(cls): return "mine"
            def post_init(self): pass
            def forward(self, x): return x
        """
    )
    assert 'return "mine"' in closed(made.emit("PreTrainedModel"))


def test_an_absent_package_fails_as_it_is_used(corpus: Any, closed: Any, run: Any) -> None:
    made = corpus(
        """
        --- p/a.py
        from torch import nn
        try:
            from no_such_package_ import go, Base
            HAS = True
        except ImportError:
            HAS = False
        class A(nn.Module):
            def forward(self, x): return go(x) if x else (Base and 1)
        """
    )
    outcome = made.emit("A")
    names = run(closed(outcome))
    assert outcome.requires == ()
    assert not names["A"]()(0)
    with pytest.raises(ModuleNotFoundError, match="no_such_package_"):
        names["A"]()(1)


def test_a_package_that_only_functions_need_does_not_stop_the_file(corpus: Any) -> None:
    made = corpus(
        """
        --- p/a.py
        import lemurabsent, lemurearly
        from torch import nn
        SIZE = lemurearly.size
        class A(nn.Module):
            def forward(self, x): return lemurabsent.f(x)
        class B(nn.Module):
            def forward(self, x): return x + SIZE
        """
    )
    late, early = made.emit("A"), made.emit("B")
    assert isinstance(late, Emitted)
    assert isinstance(early, Emitted)
    assert "try:\n    import lemurabsent\nexcept ImportError:\n    lemurabsent = NotInstalled(" in late.code
    assert late.requires == ('lemurabsent; extra == "guess"',)
    assert "\nimport lemurearly\n" in early.code
    assert early.requires == ('lemurearly; extra == "guess"',)


def test_what_stands_in_comes_before_annotations_that_name_it(corpus: Any, closed: Any, run: Any) -> None:
    """Else these would have to become text, which TorchScript cannot read."""
    made = corpus(
        """
        --- p/base.py
        class PreTrainedConfig:
            def from_pretrained(self): pass
            def to_dict(self): pass
        --- p/a.py
        from torch import nn
        from .base import PreTrainedConfig
        class Index:
            def take(self, other: PreTrainedConfig): return other.size
        class A(nn.Module):
            def forward(self, x): return x * Index().take(PreTrainedConfig(size=3))
        """
    )
    outcome = made.emit("A")
    code = closed(outcome)
    assert ("lemur-curator", "pretrained.py") in outcome.files
    assert "__future__" not in code
    assert run(code)["A"]()(2) == 6


def test_settings_need_no_validating_decorator(corpus: Any) -> None:
    outcome = corpus(
        """
        --- p/base.py
        class PreTrainedConfig:
            def from_pretrained(self): pass
            def to_dict(self): pass
        --- p/a.py
        from torch import nn
        from lemurabsent import strict
        from .base import PreTrainedConfig
        @strict
        class Settings(PreTrainedConfig):
            size: int = 3
        class A(nn.Module):
            def forward(self, x): return x * Settings().size
        """
    ).emit("A")
    assert isinstance(outcome, Emitted), outcome
    assert "@strict" not in outcome.code.split("# Changed")[1].split("\n\n", 1)[1]
    assert outcome.requires == ()


def test_a_class_that_only_isinstance_asks_for(corpus: Any, closed: Any, run: Any) -> None:
    """If its package is not a requirement, nothing is an instance of the class."""
    made = corpus(
        """
        --- p/a.py
        from torch import nn
        class A(nn.Module):
            def forward(self, x):
                from absent.types import Mapping as Named, List
                if isinstance(x, (dict, Named)) or isinstance(x, List):
                    return "mapping"
                return x
        class B(nn.Module):
            def forward(self, x):
                from absent.types import List
                return List(x)
        """
    )
    code = closed(made.emit("A"))
    assert "taken as not installed: absent" in code
    assert [run(code)["A"]()(x) for x in ({}, 1)] == ["mapping", 1]
    with pytest.raises(ModuleNotFoundError, match="absent"):
        run(closed(made.emit("B")))["B"]()(1)


def test_the_model_of_a_configuration_is_not_looked_up(corpus: Any, closed: Any, run: Any) -> None:
    code = closed(corpus(TEXTS["LOOKED_UP"]).emit("GateHead"))
    assert "class GateModel" not in code
    with pytest.raises(NotImplementedError, match="the class that a configuration names"):
        run(code)["GateHead"](None)
