"""The search for constructor arguments."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from extract.arguments.constructing import Arguments, Constructor, confirm, fails_only_on_meta, instances
from extract.arguments.trials import AttemptError
from tests.builders.suites import table

MakeConstructor = Callable[..., Constructor]


def first(made: Constructor) -> Arguments:
    """The arguments of the first module that can be constructed."""
    plan = next(made.plans(), None)
    assert plan is not None, made.best_failure
    return plan.arguments


def text(signature: str, body: str = "pass", more: str = "") -> str:
    lines = "\n        ".join(["super().__init__()", *body.split("\n")])
    return f"""
{more}
class A(nn.Module):
    def __init__(self{", " + signature if signature else ""}):
        {lines}

    def forward(self, x):
        return x
"""


@pytest.mark.parametrize(
    ("base", "body"),
    [
        ("nn.Conv2d", "super().__init__(*args, **kwargs)"),
        ("Base", "super().__init__(**kwargs)"),
        ("Base", "super().__init__(width=4, **kwargs)"),
    ],
)
def test_arguments_that_are_passed_on(constructor: MakeConstructor, base: str, body: str) -> None:
    """`*args, **kwargs`: what the constructor of a base says that it lacks is given by name."""
    made = constructor(f"""
class Base(nn.Module):
    def __init__(self, dim, *, num_heads, width=2):
        super().__init__()
        self.a = nn.MultiheadAttention(dim, num_heads)

class A({base}):
    def __init__(self, *args, **kwargs):
        {body}

    def forward(self, x):
        return x
""")
    wanted = {"dim", "num_heads"} if base == "Base" else {"in_channels", "out_channels", "kernel_size"}
    assert set(dict(first(made).kwargs)) == wanted


@table(__file__, "constructing.md", "Arguments by name", globals())
def test_arguments_by_name(constructor: MakeConstructor, signature: str, body: str, kwargs: dict[str, str]) -> None:
    column = """
class Column:
    def __init__(self, name, alpha=4):
        self.name, self.alpha = name, alpha
"""
    found = first(constructor(text(signature, body, column if "Column" in body else "")))
    if "mult" in kwargs:  # which of several values works first is free
        assert dict(found.kwargs).keys() == kwargs.keys()
    else:
        assert dict(found.kwargs) == kwargs
    assert found.args == (("32",) if "/" in signature else ())


def test_settings_that_are_kept_before_the_module_is_initialized(constructor: MakeConstructor) -> None:
    early = text("config", "self.a = nn.Linear(self.config.width, 2)").replace(
        "super()", "self.config = config; super()"
    )
    assert dict(first(constructor(early)).kwargs) == {
        "config": "type('Stub', (types.SimpleNamespace,), {'width': 32})()"
    }


def test_defaults_first_but_small_ones_where_they_make_a_large_model(constructor: MakeConstructor) -> None:
    small = Arguments(kwargs=(("embed_dim", "32"), ("num_heads", "4")))
    made = constructor(text("embed_dim=768, num_heads=12", "self.a = nn.Linear(embed_dim, num_heads)"))
    assert [plan.arguments for plan in itertools.islice(made.plans(), 2)] == [Arguments(), small]
    made = constructor(text("embed_dim=768, num_heads=12", "self.a = nn.Linear(embed_dim, 1000 * num_heads)"))
    assert [plan.arguments for plan in itertools.islice(made.plans(), 2)] == [small, Arguments()]


def test_no_arguments_are_tried_twice(constructor: MakeConstructor, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Arguments] = []
    make = Constructor.make
    monkeypatch.setattr(Constructor, "make", lambda self, arguments, **how: tried.append(arguments) or make(self, arguments, **how))  # fmt: skip
    made = constructor(text("alpha, beta", "raise ValueError(alpha)"), init=[call(("1",), {}), call(("1",), {})])
    assert list(made.plans()) == []
    assert len(tried) == len(set(tried))
    assert len(tried) <= 150


def call(args: tuple[str, ...], kwargs: dict[str, str], way: str = "call") -> dict[str, Any]:
    return {"args": args, "kwargs": tuple(kwargs.items()), "way": way}


def test_what_the_corpus_passes_comes_first(constructor: MakeConstructor) -> None:
    hints = [call((), {"dim": "24"}), call(("48",), {}, "example"), call((), {"dim": "None"})]
    made = constructor(text("dim", "self.a = nn.Linear(dim, dim)"), init=hints)
    plans = [plan.arguments for plan in itertools.islice(made.plans(), 3)]
    assert plans[:2] == [Arguments(("48",)), Arguments(kwargs=(("dim", "24"),))]
    assert plans[2] == Arguments(kwargs=(("dim", "32"),))
    assert made.best_failure is not None
    assert "NoneType" in made.best_failure[0].message


def test_a_recorded_constructor_of_what_nobody_called_gets_few_tries_before_guesses(
    constructor: MakeConstructor,
) -> None:
    recorded = [{"args": [size], "kwargs": [], "way": "recorded"} for size in ("7", "9")]
    calls = [{"args": [], "kwargs": [], "init": {"args": ["9"], "kwargs": {}}}]
    made = constructor(text("dim", "self.dim = dim"), init=recorded, forward=calls)
    plans = [(plan.arguments.args or plan.arguments.kwargs, plan.tries) for plan in made.plans()]
    assert plans == [(("7",), 12), (("9",), None), ((("dim", "32"),), None), (("7",), None)]


def test_defaults_get_few_tries_before_arguments_that_were_seen_to_run(constructor: MakeConstructor) -> None:
    recorded = [{"args": [], "kwargs": [("dim", "9")], "way": "recorded"}]
    calls = [{"args": [], "kwargs": [], "init": {"args": [], "kwargs": {"dim": "9"}}}]
    made = constructor(text("dim=7", "self.dim = dim"), init=recorded, forward=calls)
    plans = [(plan.arguments.kwargs, plan.tries) for plan in made.plans()]
    assert plans == [((), 4), ((("dim", "9"),), None), ((), None)]


def test_repairs_start_from_a_recorded_constructor_that_failed(constructor: MakeConstructor) -> None:
    recorded = [{"args": [], "kwargs": [("dim", "32")], "way": "recorded"}]
    made = constructor(text("dim, mult=None", "self.a = nn.Linear(dim, int(dim * mult))"), init=recorded)
    assert dict(first(made).kwargs)["mult"] == "32"


def test_an_optional_argument_that_an_error_names(constructor: MakeConstructor) -> None:
    made = constructor(text("dim, groups=5", "self.a = nn.Conv2d(dim, dim, 1, groups=groups)"))
    found = dict(first(made).kwargs)
    assert found["dim"] == "32"
    assert int(found["groups"]) in (1, 4, 32)


SETTINGS = """
import dataclasses
@dataclasses.dataclass
class Settings:
    heads: int = 2
    window_size: object = None
    grid_size: object = None
"""


def test_settings_that_are_none_where_a_failure_names_them(constructor: MakeConstructor) -> None:
    body = "self.area = settings.window_size * 2\nassert settings.window_size == settings.grid_size"
    made = constructor(text("dim, settings: Settings = Settings()", body, SETTINGS))
    assert dict(first(made).kwargs) == {"dim": "32", "settings": "Settings(window_size=4, grid_size=4)"}


def test_settings_that_need_arguments_are_left_alone(constructor: MakeConstructor) -> None:
    settings = SETTINGS.replace("heads: int = 2", "heads: int")
    made = constructor(
        text("dim, settings: Settings = Settings(3)", "self.area = settings.window_size * dim", settings)
    )
    assert "Settings(" not in dict(first(made).kwargs)["settings"]


BLOCKS = """
class Basic(nn.Module):
    expansion = 2

    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)
"""


def test_a_class_of_the_file(constructor: MakeConstructor) -> None:
    made = constructor(text("block_type, width", "self.a = block_type(width)\nself.b = block_type.expansion", BLOCKS))
    assert dict(first(made).kwargs)["block_type"] == "Basic"


# --- companions -------------------------------------------------------------------------------------------------------


def companion(code: str, parameter: str, name: str = "", **more: Any) -> dict[str, Any]:
    found = {"parameter": parameter, "name": name, "qualname": f"lib.{name}", "code": code}
    return {**found, "wants_class": False, **more}


CONFIG = """
class SmallConfig:
    def __init__(self, hidden_size=768, layers=12):
        self.hidden_size, self.layers = hidden_size, layers
"""


def test_a_companion_configuration(constructor: MakeConstructor) -> None:
    made = constructor(
        text("config", "self.a = nn.Linear(config.hidden_size, config.layers)"),
        companions=[companion(CONFIG, "config", "SmallConfig")],
    )
    assert dict(first(made).kwargs) == {"config": "SmallConfig(hidden_size=32, layers=2)"}


def test_calls_come_after_a_small_configuration_that_fails(constructor: MakeConstructor) -> None:
    made = constructor(
        text("config", "assert config.layers == 5\nself.a = nn.Linear(config.hidden_size, config.layers)"),
        companions=[companion(CONFIG, "config", "SmallConfig")],
        init=[{"args": ["SmallConfig(16, 5)"], "kwargs": [], "way": "call"}],
    )
    assert [plan.arguments.args for plan in made.plans()] == [("SmallConfig(16, 5)",)]


def test_a_companion_takes_the_place_of_what_only_annotations_name(constructor: MakeConstructor) -> None:
    """The closed file has `object` for the configuration's class."""
    made = constructor(
        text("config: SmallConfig", "self.a = nn.Linear(config.hidden_size, 2)", "SmallConfig = object"),
        companions=[companion(CONFIG, "config", "SmallConfig")],
    )
    assert dict(first(made).kwargs) == {"config": "SmallConfig(hidden_size=32, layers=2)"}


def test_the_file_s_own_class_is_preferred_to_the_companion(constructor: MakeConstructor) -> None:
    own = CONFIG.replace("768", "640")
    made = constructor(
        text("config", "self.size = config.layers", own), companions=[companion("raise 1", "config", "SmallConfig")]
    )
    plan = next(made.plans())
    assert dict(plan.arguments.kwargs) == {"config": "SmallConfig(hidden_size=32, layers=2)"}


def test_a_companion_that_cannot_be_made_is_replaced(constructor: MakeConstructor) -> None:
    code = "from torch import nn\nclass Hub(nn.Module):\n    def __init__(self): raise OSError('no file')\n"
    made = constructor(text("model", "self.model = model"), companions=[companion(code, "model", "Hub")])
    assert dict(first(made).kwargs) == {"model": "nn.Identity()"}


@pytest.mark.parametrize("code", ["raise ValueError('no')", "import absent_package", "X = 1", ")"])
def test_a_companion_that_does_not_load_is_left_out(constructor: MakeConstructor, code: str) -> None:
    made = constructor(text("dim", "self.a = nn.Linear(dim, 2)"), companions=[companion(code, "dim", "Missing")])
    assert dict(first(made).kwargs) == {"dim": "32"}


def test_a_companion_that_ends_the_process_is_left_out(constructor: MakeConstructor) -> None:
    made = constructor(
        text("dim", "self.a = nn.Linear(dim, 2)"), companions=[companion("raise SystemExit(1)", "dim", "Missing")]
    )
    assert dict(first(made).kwargs) == {"dim": "32"}


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("Gate", "class Gate:\n    def __init__(self, dim, eps=1): pass", ["Gate(dim=32)"]),
        ("make", "def make(): pass", ["make"]),
        ("Plain", "class Plain: pass", ["Plain()"]),
        (
            "Point",
            "import dataclasses\n@dataclasses.dataclass\nclass Point:\n    dim: int\n    depth: int = 24",
            ["Point(depth=2, dim=32)", "Point(dim=32)"],
        ),
    ],
)
def test_instances(name: str, code: str, expected: list[str]) -> None:
    names: dict[str, Any] = {}
    exec(code, names)
    assert instances(name, names[name]) == expected


def test_a_class_is_wanted_not_an_instance(constructor: MakeConstructor) -> None:
    made = constructor(
        text("gate", "self.a = gate(4)"),
        companions=[companion("from torch import nn\nclass Gate(nn.Linear):\n    def __init__(self, n):\n        super().__init__(n, n)\n", "gate", "Gate", wants_class=True)],
    )  # fmt: skip
    assert dict(first(made).kwargs) == {"gate": "Gate"}


# --- variants, sizes, failures ----------------------------------------------------------------------------------------


def test_a_module_that_has_the_attribute_that_is_read(constructor: MakeConstructor) -> None:
    made = constructor(text("vit", "self.vit = nn.Sequential(vit)\nself.a = nn.Linear(vit.embed_dim, vit.depth)"))
    plan = first(made)
    assert dict(plan.kwargs) == {"vit": "type('Stub', (nn.Identity,), {'depth': 2, 'embed_dim': 32})()"}
    assert made.names.value(dict(plan.kwargs)["vit"]).depth == 2


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a, b, c, d = kernel_size", "(3, 3, 3, 3)"),
        ("if len(kernel_size) != 5: raise ValueError('kernel_size needs 5 values')", "(3, 3, 3, 3, 3)"),
    ],
)
def test_as_many_items_as_the_message_names(constructor: MakeConstructor, body: str, expected: str) -> None:
    assert made_value(constructor(text("kernel_size: list", body))) == expected


def test_items_of_a_dict_that_have_the_attributes_that_are_read(constructor: MakeConstructor) -> None:
    body = "stage = input_shape.popitem()[1]\nself.a = nn.Conv2d(stage.channels, 8, 3, stage.stride)"
    plan = first(constructor(text("input_shape: dict", body)))
    assert dict(plan.kwargs) == {"input_shape": "{'0': type('Stub', (nn.Identity,), {'stride': 1, 'channels': 32})()}"}


STUB = "type('Stub', (nn.Identity,), {'depth': 2, 'width': 32})()"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "self.a = nn.Linear(config['width'], config['hidden_size'])",
            {"config": "{'width': 32, 'hidden_size': 32}"},
        ),
        (
            "key = config['user_field']\nwidths = config['widths']\n[w.bit_length() for w in widths + [1]]",
            {"config": "{'user_field': 'user_field', 'widths': [32, 32, 32]}"},
        ),
        (
            "self.a = nn.Linear(config.count('users'), 2)\nself.b = nn.Linear(config.size_of('users'), 2)",
            {
                "config": "type('Stub', (nn.Identity,), {'size_of': lambda *_, **__: 32, 'count': lambda *_, **__: 32})()"
            },
        ),
        (
            "for item in config:\n    self.c = nn.Linear(item.width, item.depth)",
            {"config": f"[{', '.join([STUB] * 3)}]"},
        ),
        (
            "for key in ('a', 'b'):\n    self.c = nn.Linear(config[key], 2)",
            {"config": "{'b': 32, 'a': 32}"},
        ),
    ],
)
def test_what_is_read_by_name(constructor: MakeConstructor, body: str, expected: dict[str, str]) -> None:
    assert dict(first(constructor(text("config", body))).kwargs) == expected


@pytest.mark.parametrize(
    "body",
    [
        "assert dim % 64 == 0, 'the width must be a multiple of 64'",
        "self.a = nn.Linear(dim // 64 * 4, 64 // (dim // 64))",
        "torch.zeros(64).reshape(8, dim // 64, -1)",
    ],
)
def test_a_width_of_which_a_fraction_is_none(constructor: MakeConstructor, body: str) -> None:
    assert dict(first(constructor(text("dim", body))).kwargs) == {"dim": "128"}


def made_value(made: Constructor) -> str:
    return repr(tuple(made.names.value(dict(first(made).kwargs)["kernel_size"])))


@pytest.mark.parametrize("annotation", ["Type[nn.Module]", "type[nn.Module]"])
def test_an_annotation_that_wants_a_class(constructor: MakeConstructor, annotation: str) -> None:
    made = constructor(text(f"kind: {annotation}", "self.a = kind(4)", "from typing import Type\n"))
    assert dict(first(made).kwargs) == {"kind": "nn.Identity"}


def test_variants_change_what_forward_s_failure_names(constructor: MakeConstructor) -> None:
    made = constructor(text("dim, window_size=5", "self.dim, self.window = dim, window_size"))
    plan = next(made.plans())
    mistake = AttemptError(ValueError("no"))
    mistake.lines = ("assert n % window_size == 0",)
    found = [dict(variant.arguments.kwargs) for variant in made.variants(plan, mistake)]
    assert [kwargs.get("window_size") for kwargs in found][:3] == ["4", "(4, 4)", "2"]
    assert any(kwargs["dim"] != "32" for kwargs in found)


def test_an_index_that_is_out_of_bounds_becomes_small(constructor: MakeConstructor) -> None:
    made = constructor(text("joints", "self.joints = joints"))
    plan = next(made.plans())
    mistake = AttemptError(IndexError("index 32 is out of bounds for dimension 0 with size 16"))
    mistake.lines = ("x - x[:, self.joints]",)
    assert next(dict(variant.arguments.kwargs)["joints"] for variant in made.variants(plan, mistake)) == "1"


def test_a_large_module_stays_on_meta(constructor: MakeConstructor) -> None:
    made = next(constructor(text("wide=1024", "self.a = nn.Linear(wide, wide)")).plans())
    assert made.on_meta
    assert made.size == 1024 * 1024 + 1024
    assert next(made.module.parameters()).is_meta
    small = next(constructor(text("", "self.a = nn.Linear(8, 8)")).plans())
    assert not small.on_meta
    assert not next(small.module.parameters()).is_meta


@pytest.mark.parametrize(
    "body",
    [
        "self.a = nn.Parameter(torch.zeros(int(torch.ones(()).item())))",
        "self.a = nn.Parameter(torch.from_numpy(torch.ones(3).numpy()))",
    ],
)
def test_what_fails_only_on_meta_is_made_for_real(constructor: MakeConstructor, body: str) -> None:
    made = next(constructor(text("", body)).plans())
    assert not made.on_meta


@pytest.mark.parametrize(
    ("error", "only"),
    [
        (NotImplementedError("Cannot copy out of meta tensor; no data!"), True),
        (RuntimeError("Tensor.item() cannot be called on meta tensors"), True),
        (ValueError("dims must be positive"), False),
        (TypeError("missing 1 required positional argument"), False),
    ],
)
def test_only_on_meta(error: Exception, only: bool) -> None:
    assert fails_only_on_meta(AttemptError(error)) == only


def test_the_mistake_that_came_furthest_is_kept(constructor: MakeConstructor) -> None:
    body = "if kind == 4:\n    self.a = nn.Linear(2, 2)(torch.zeros(2, 2))\n    raise ValueError('further')\nraise ValueError('early: kind')"
    made = constructor(text("kind: int", body))
    made.budget.constructions = 12
    assert list(made.plans()) == []
    assert made.best_failure is not None
    mistake, arguments = made.best_failure
    assert mistake.message == "ValueError: further"
    assert dict(arguments.kwargs) == {"kind": "4"}


def test_a_constructor_that_gives_no_module(constructor: MakeConstructor) -> None:
    made = constructor("class A(nn.Module):\n    def __new__(cls):\n        return 3\n")
    assert list(made.plans()) == []
    assert made.best_failure is not None
    assert made.best_failure[0].message == "TypeError: the constructor returned a int, not a module"


def test_the_budget_ends_the_search(constructor: MakeConstructor) -> None:
    made = constructor(text("a, b, c, d", "raise ValueError(a)"))
    made.budget.constructions = 5
    assert list(made.plans()) == []
    assert made.budget.constructions == 0
    made = constructor(text("a, b, c, d", "raise ValueError(a)"))
    made.budget.seconds = -1.0
    assert list(made.plans()) == []
    assert made.budget.constructions == 150


def test_construction_is_the_same_each_time(constructor: MakeConstructor) -> None:
    made = constructor(text("dim", "self.a = nn.Linear(dim, dim)\nself.b = nn.Parameter(torch.empty(dim))"))
    (one, unset), (two, _) = (confirm(made, Arguments(kwargs=(("dim", "5"),))) for _ in range(2))
    assert unset == ["b"]
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    assert all(bool(torch.isfinite(p).all()) for p in one.parameters())
    with pytest.raises(AttemptError):
        confirm(made, Arguments())
