"""Our stand-ins for heavy definitions behave as what they stand in for, as far as a block needs it."""

import logging
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from extract.standins import frameworks, pretrained


def test_registry_builds_by_name_scope_class_and_list() -> None:
    layers = frameworks.Registry("layers")
    layers.register_module(module=nn.Linear)
    layers.register_module("BN", module=nn.BatchNorm2d)

    @layers.register_module(name=["act", "relu"])
    class Act(nn.ReLU):
        pass

    assert layers.get("BN") is nn.BatchNorm2d
    assert layers.get("some.BN") is nn.BatchNorm2d
    assert layers.get("no") is None
    assert "act" in layers
    assert "no" not in layers
    assert layers.get("relu") is Act
    built = layers.build({"type": "Linear", "in_features": 2}, default_args={"out_features": 3, "in_features": 9})
    assert (built.in_features, built.out_features) == (2, 3)
    assert isinstance(frameworks.build_from_cfg({"type": Act}, layers), Act)
    assert len(layers.build([{"type": "BN", "num_features": 1}, "act"])) == 2
    with pytest.raises(KeyError, match="'no' is not registered"):
        layers.build({"type": "no"})
    with layers.switch_scope_and_registry(None) as same:
        assert same is layers
    layers.register(nn.Tanh)  # as fvcore writes it
    assert layers.register()(nn.ELU) is layers.get("ELU") is nn.ELU
    assert layers.get("Tanh") is nn.Tanh


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("GELU", nn.GELU),
        ("mmengine.GELU", nn.GELU),
        ("BN1d", nn.BatchNorm1d),
        ("SmoothL1Loss", None),
        ("Bilinear", None),
    ],
)
def test_registry_knows_the_layers_that_are_always_registered(key: str, kind: type[nn.Module] | None) -> None:
    layers = frameworks.Registry("layers")
    assert layers.get(key) is kind

    class Own(nn.Module):
        pass

    layers.register_module(key.rpartition(".")[2], module=Own)
    assert layers.get(key) is Own


ATTENDED = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(1)) > 0.3
ATTENDED |= torch.eye(5, dtype=torch.bool)
BIAS = torch.randn(1, 4, 5, 5, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize(
    ("mask", "causal", "bias"),
    [
        (None, False, None),
        (None, True, None),
        (ATTENDED, False, None),
        (None, False, BIAS),
        (None, True, BIAS),
        (ATTENDED, False, BIAS),
    ],
    ids=["plain", "causal", "masked", "biased", "causal and biased", "masked and biased"],
)
def test_sdpa_equals_the_definition(
    groups: int, length: int, mask: torch.Tensor | None, causal: bool, bias: torch.Tensor | None
) -> None:
    """Groups of heads may share their keys; a single query stands before keys that a cache holds."""
    torch.manual_seed(0)
    module = nn.Module()
    module.num_key_value_groups = groups
    mask, bias = (None if item is None else item[:, :, -length:] for item in (mask, bias))
    query, key, value = torch.randn(2, 4, length, 8), *torch.randn(2, 2, 4 // groups, 5, 8)
    output, weights = pretrained.sdpa_attention_forward(
        module, query, key, value, mask, is_causal=causal, scaling=0.3, position_bias=bias
    )
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * 0.3 + (0 if bias is None else bias)
    if mask is None and causal and length > 1:
        mask = torch.ones(5, 5, dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    expected = (scores.softmax(-1) @ value.repeat_interleave(groups, 1)).transpose(1, 2)
    assert weights is None
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


def test_attention_table() -> None:
    table = pretrained.AttentionInterface()
    assert table.get_interface("eager", len) is len
    assert table.get_interface(None, len) is len
    assert table.get_interface("sdpa", len) is pretrained.sdpa_attention_forward
    with pytest.raises(KeyError):
        table.get_interface("flash_attention_2", len)


class Text(pretrained.PreTrainedConfig):
    model_type = "text"
    attribute_map: ClassVar = {"width": "hidden_size"}
    hidden_size: int = 4
    rope_parameters: "dict[str, float] | None" = None  # in text: names that the file may lack are not looked up
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: object) -> None:
        self.doubled = 2 * self.hidden_size
        super().__post_init__(**kwargs)


class Both(pretrained.PreTrainedConfig):
    sub_configs_defaults: ClassVar = {
        "text_config": Text,
        "other": pretrained.SubConfigSpec(frameworks.AutoClass, model_type="text", init_kwargs={"hidden_size": 6}),
        "maybe": pretrained.SubConfigSpec(Text, optional=True),
    }
    text_config: object = None
    other: object = None
    maybe: object = None


def test_configurations_inside_a_configuration() -> None:
    both = Both(text_config={"width": 5}, extra=1, num_labels=3)
    assert [type(part) for part in (both.text_config, both.maybe)] == [Text, type(None)]
    assert type(both.other) is pretrained.PreTrainedConfig, "which class a model type has is not looked up"
    assert (both.text_config.hidden_size, both.other.hidden_size) == (5, 6)
    assert (both.text_config.width, both.text_config.doubled) == (5, 8), "names that are no fields are set last"
    assert (both.extra, both.num_labels, both.id2label[2]) == (1, 3, "LABEL_2")
    assert both.get_text_config() is both.text_config
    assert Both(other=both.text_config).other is both.text_config
    assert both._attn_implementation is both.text_config._attn_implementation is None, "each model chooses its own"
    assert both.to_dict()["text_config"]["model_type"] == "text"
    assert not hasattr(both, "initializer_range"), "initial weights ask for it"
    assert not hasattr(both, "rope_parameters")


def test_rotary_settings_are_gathered() -> None:
    assert Text().rope_parameters == {"rope_theta": 10000.0, "rope_type": "default"}
    scaled = Text(rope_scaling={"type": "yarn"}, rope_theta=5.0)
    assert (scaled.rope_parameters["rope_type"], scaled.rope_parameters["rope_theta"]) == ("yarn", 5.0)


def test_a_field_without_a_default_is_needed() -> None:
    with pytest.raises(TypeError, match="Lacking needs 'size'"):
        type("Lacking", (pretrained.PreTrainedConfig,), {"__annotations__": {"size": int}})()


def test_a_field_may_be_called_like_a_common_setting() -> None:
    class Labelled(pretrained.PreTrainedConfig):
        num_labels: int = 5

    assert Labelled().num_labels == 5
    assert Labelled(num_labels=7).num_labels == 7


def test_a_configuration_of_another_file_counts_by_its_name() -> None:
    other: dict[str, Any] = {}
    exec(compile(Path(pretrained.__file__).read_text(), "other.py", "exec"), other)
    twin = type("Text", (other["PreTrainedConfig"],), {"model_type": "text"})()
    assert isinstance(twin, Text)
    assert isinstance(twin, pretrained.PreTrainedConfig)
    assert not isinstance(twin, Both)
    assert Both(text_config=twin).text_config is twin


def test_models_inside_a_model_keep_their_first_weights() -> None:
    class Inner(pretrained.PreTrainedModel):
        _supports_sdpa = True

        def __init__(self, config: pretrained.PreTrainedConfig) -> None:
            super().__init__(config)
            self.layer = nn.Linear(3, 3)
            self.post_init()

        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 7.0)

    class Outer(pretrained.PreTrainedModel):
        def __init__(self, config: Both) -> None:
            super().__init__(config)
            self.inner = Inner(config.text_config)
            self.norm = nn.LayerNorm(3)
            self.layer = nn.Linear(3, 3)
            self.post_init()

    torch.manual_seed(0)
    outer = Outer(Both())
    after = torch.rand(1)
    torch.manual_seed(0)
    nn.Linear(3, 3)
    assert torch.equal(outer.inner.layer.weight, torch.empty(3, 3).normal_(7.0, 1.0))
    nn.Linear(3, 3)
    assert torch.equal(outer.layer.weight, torch.empty(3, 3).normal_(0.0, 0.02))
    assert torch.equal(after, torch.rand(1)), "nothing else was drawn"
    assert (outer.config._attn_implementation, outer.inner.config._attn_implementation) == ("eager", "sdpa")
    assert pretrained.RecordedOutputs().get(outer) == {}


def test_pretrained_model_initialises_and_ties() -> None:
    class Settings(pretrained.PreTrainedConfig):
        hidden_size: int = 4
        sizes: list = field(default_factory=list)
        tie_word_embeddings: bool = True

    class Model(pretrained.PreTrainedModel):
        _tied_weights_keys = {"lm_head.weight": "wte.weight"}
        _input_embed_layer = "wte"

        def __init__(self, config: Settings) -> None:
            super().__init__(config)
            self.wte = nn.Embedding(6, config.hidden_size, padding_idx=0)
            self.lm_head = nn.Linear(config.hidden_size, 6, bias=True)
            self.post_init()

    config = Settings(hidden_size=8)
    assert Settings().sizes is not Settings().sizes
    model = Model(config)
    assert model.lm_head.weight is model.wte.weight
    assert model.get_input_embeddings() is model.wte
    assert model.dtype == torch.float32
    assert float(model.lm_head.bias.detach().abs().sum()) == 0.0
    Model._tied_weights_keys = {r"heads.\d+": "wte"}
    with pytest.raises(NotImplementedError, match="by a pattern"):
        Model(config)
    with pytest.raises(NotImplementedError, match="pretrained weights"):
        Model.from_pretrained("x")


def test_loggers(caplog: pytest.LogCaptureFixture) -> None:
    logger = frameworks.get_logger("some.module")
    for _ in range(3):
        logger.warning_once("only once")
    frameworks.print_log("told", logger="other", level=logging.WARNING)
    frameworks.print_log("never", logger="silent", level=logging.ERROR)
    assert [record.message for record in caplog.records] == ["only once", "told"]
    assert isinstance(frameworks.NamedLogger.get_current_instance(), logging.Logger)


def test_what_is_absent_says_so() -> None:
    absent = frameworks.NotInstalled("flash_attn")
    assert not isinstance(absent, (int, absent))
    assert not issubclass(dict, absent)
    assert not absent
    for use in (lambda: absent(1), lambda: absent.function):
        with pytest.raises(ModuleNotFoundError, match="flash_attn"):
            use()
    with pytest.raises(NotImplementedError, match="not part of this block"):
        frameworks.AutoClass.from_config(None)
    with pytest.raises(NotImplementedError, match="not part of this block"):
        frameworks.load_checkpoint(nn.Linear(2, 2), "w.pth", strict=True)


@given(st.integers(0, 2**31), st.integers(1, 9), st.floats(0.1, 3), st.booleans(), st.sampled_from([1, 2, 32, None]))
@settings(max_examples=20, deadline=None)
def test_edges_of_near_points(seed: int, count: int, r: float, loop: bool, most: int | None) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, batch = torch.randn(count, 2, generator=generator), torch.randint(0, 2, (count,), generator=generator)
    expected = []
    for centre in range(count):
        near = [k for k in range(count) if batch[k] == batch[centre] and float((x[k] - x[centre]).norm()) <= r]
        near = [k for k in near if loop or k != centre]
        expected += [(k, centre) for k in near[:most]]
    found = frameworks.radius_graph(x, r, batch, loop=loop, max_num_neighbors=most)
    assert [tuple(edge) for edge in found.T.tolist()] == expected
    back = frameworks.radius_graph(x, r, batch, loop=loop, max_num_neighbors=most, flow="target_to_source")
    assert torch.equal(back, found.flip(0))


def test_one_example_and_one_coordinate() -> None:
    assert frameworks.radius_graph(torch.tensor([0.0, 1.0, 9.0]), 1.0).tolist() == [[1, 0], [0, 1]]
