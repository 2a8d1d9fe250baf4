"""Assembling: one file of found blocks and built-in parts, the same bytes each time, that runs as LEMUR runs it."""

import ast
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from lemur_core.files.errors import UserError
from tests.builders import slot_blocks
from tests.builders.suites import table
from tests.test_floors import list_imports
from train.compose.assemble import PREAMBLE, assemble, network_text
from train.model.contract import check_contract
from train.model.recipe import SHIPPED, Network, Recipe, Slots, load_recipe
from train.model.slots import Filler

SMALL = {"model": {"name": "small", "widths": (8, 16), "depths": (1, 2)}}
FOUND = {
    "residual": {"use": "PreAct", "arguments": {"in_chs": "$channels", "norm_layer": "$norm_activation"}},
    "attention": "kit::kit.gates.Gate", "downsample": "kit.pool.Blur", "stochastic_depth": "DropBranch",
}  # fmt: skip


def recipe(slots: dict[str, Any], **more: Any) -> Recipe:
    return Recipe.model_validate({**SMALL, "slots": slots, **more})


@pytest.fixture(scope="module")
def made(folder: Path) -> Network:
    mixing = {"mixup_alpha": 0.2, "cutmix_alpha": 1.0}
    return assemble(recipe(FOUND, augmentation=mixing, training={"schedule": "linear"}), folder)


def load(code: str) -> ModuleType:
    """The file as a module. It was made from this test's own blocks."""
    module = ModuleType("assembled_here")
    sys.modules[module.__name__] = module
    exec(compile(code, "assembled_here.py", "exec"), vars(module))
    return module


def net_of(made: Network, **prm: float) -> Any:
    torch.manual_seed(0)
    return load(made.code).Net((4, 3, 32, 32), (10,), {**made.prm, **prm}, torch.device("cpu"))


def test_the_file_tells_what_it_is(made: Network, folder: Path) -> None:
    lines = made.code.splitlines()
    assert made.recipe is not None
    assert lines[0] == "# small: a residual network, assembled from a recipe by `lemur train assemble`."
    assert f"# Recipe:  SHA-256 {made.recipe.sha256}" in lines
    assert "# SPDX-License-Identifier: MIT" in lines
    assert "# attention         kit@1.0::kit.gates.Gate (MIT)" in lines
    block = slot_blocks.make_block("kit.gates.Gate")
    said = "# Block:   kit@1.0::kit.gates.Gate\n# File:    kit/gates.py, lines 3-20\n"
    said += f"# SWHID:   {block.swhid}\n# Licence: MIT\n# SHA-256: {block.code_sha256} (of the extracted file)\n"
    assert f"\n# Slot attention: Gate.\n#\n{said}" in made.code
    assert str(folder) not in made.code
    assert [part.slot for part in made.ingredients] == ["residual", "attention", "stochastic_depth", "downsample"]
    assert made.ingredients[1].code_sha256 == block.code_sha256
    assert made.prm == {"lr": 0.1, "momentum": 0.9, "stochastic_depth": 0.1}
    assert load(made.code).supported_hyperparameters() == set(made.prm)
    assert check_contract(made.code) is None
    assert made.recipe.model.name == made.name == "small"


def test_it_runs_learns_and_pickles(made: Network) -> None:
    net = net_of(made)
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 2
    net.train_setup({**made.prm, "epoch": 12})
    first = torch.nn.functional.cross_entropy(net.eval()(images), labels).item()
    assert net.stem.weight.is_contiguous(memory_format=torch.channels_last)
    for _ in range(12):
        net.learn([(images, labels)])
    last = torch.nn.functional.cross_entropy(net.eval()(images), labels).item()
    assert last < first
    assert net.steps == 12
    again = pickle.loads(pickle.dumps(net))
    assert torch.equal(again.eval()(images), net(images))
    weights, others = net.optimizer.param_groups  # norms and biases do not decay
    assert (weights["weight_decay"], others["weight_decay"]) == (5e-4, 0.0)
    assert {parameter.dim() for parameter in weights["params"]} == {2, 4}
    assert len(weights["params"]) + len(others["params"]) == len(list(net.parameters()))
    with pytest.raises(FloatingPointError, match="in step 13; lower lr"):
        net.learn([(images.fill_(float("nan")), labels)])
    net = net_of(made, stochastic_depth=0.4)
    residual = [module for module in net.modules() if type(module).__name__ == "PreAct"]
    assert [[type(part).__name__ for part in block.last] for block in residual] == [["Gate", "DropBranch"]] * 3
    assert [round(block.last[1].drop_prob, 6) for block in residual] == [0.0, 0.2, 0.4]
    torch.nn.init.zeros_(residual[0].conv.weight)
    torch.nn.init.zeros_(residual[0].conv.bias)
    inputs = torch.randn(2, 8, 8, 8)
    assert torch.equal(residual[0].eval()(inputs), inputs)


def test_the_file_is_clean_and_the_same_from_another_process(made: Network, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "net.py").write_text(made.code, encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "pyflakes", "net.py"], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")
    imported = {name.partition(".")[0] for name in list_imports(ast.parse(made.code), ())}
    assert imported <= {"torch", "torchvision"} | sys.stdlib_module_names
    assert max(map(len, made.code.splitlines())) <= 120
    assert made.recipe is not None
    script = (
        "import sys; from pathlib import Path; from train.compose.assemble import assemble; from train.model.recipe import Recipe; "
        "sys.stdout.write(assemble(Recipe.model_validate_json(sys.argv[1]), Path(sys.argv[2])).code)"
    )
    environment = os.environ | {"PYTHONHASHSEED": "77", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", script, made.recipe.to_json(), str(folder)]
    done = subprocess.run(command, capture_output=True, check=True, env=environment, cwd=Path(__file__).parents[2])
    assert done.stdout.decode() == made.code


def test_names_of_the_network_stay_and_those_of_blocks_move(folder: Path) -> None:
    made = assemble(recipe({"attention": "kit.gates.Net"}), folder)
    gates = [one for one in net_of(made).modules() if type(one).__name__ != "Net" and hasattr(one, "fc")]
    assert len(gates) == 3
    assert load(made.code).make_conv.__code__.co_varnames[0] == "in_channels"


@table(__file__, "assemble.md", "Built in parts and other slots", globals())
def test_built_in_parts_and_other_slots(slots: dict[str, str]) -> None:
    made = assemble(recipe(slots))
    assert net_of(made).eval()(torch.randn(2, 3, 16, 16)).shape == (2, 10)
    assert ("stochastic_depth" in made.prm) == ("stochastic_depth" in slots)


@table(__file__, "assemble.md", "Schedules", globals())
def test_schedules(training: dict[str, Any]) -> None:
    facts = {"branch_end": "end", "empty_end": False, "changes_channels": False}
    filled = dict.fromkeys(Slots.model_fields, Filler("identity", "nn.Identity", ("",), facts=facts))
    text = network_text(recipe({}, training=training), filled, "")
    factor = load(f"import math\n{PREAMBLE}\n{text}").rate_factor
    values = [factor(step / 100) for step in range(101)]
    warm = int(100 * training["warmup_fraction"])
    assert all(0 <= value <= 1 for value in values)
    assert values[warm] == pytest.approx(1)
    assert values[:warm] == sorted(values[:warm])
    if warm < 100:
        assert values[warm:] == sorted(values[warm:], reverse=True)
        assert values[-1] == pytest.approx(0, abs=1e-9)


def test_a_whitening_stem_is_measured_once_on_the_first_batch_of_training() -> None:
    made = assemble(recipe({"stem": "whitening"}), None)
    net, again = net_of(made), net_of(made)
    torch.manual_seed(1)
    images = torch.nn.functional.avg_pool2d(torch.randn(64, 3, 34, 34), 3, 1) * 2 + 1  # neighbors are alike
    net.eval()(images)
    assert not net.stem.measured
    net.train()(images)
    assert net.stem.measured
    filters = net.stem.whiten.weight[:27]
    inside = torch.nn.functional.conv2d(images, filters).permute(1, 0, 2, 3).flatten(1)
    assert torch.allclose(torch.cov(inside), torch.eye(27), atol=0.1)
    assert torch.equal(net.stem.whiten.weight[27:], -filters)
    assert not net.stem.whiten.weight.requires_grad
    net(images * torch.linspace(0, 1, 32))
    assert torch.equal(net.stem.whiten.weight[:27], filters)
    again.load_state_dict(net.state_dict())
    again.train()(images * torch.linspace(0, 1, 32))
    assert torch.equal(again.stem.whiten.weight[:27], filters)


@pytest.mark.parametrize(("order", "size", "most"), [("pool_conv", 16, 0), ("conv_max_pool", 32, 1)])
def test_a_transition_in_each_order(folder: Path, order: str, size: int, most: int) -> None:
    model = {**SMALL["model"], "transition": order}
    made = assemble(recipe({"downsample": "kit.pool.Blur"}, model=model), folder)
    net = net_of(made).eval()
    seen: list[tuple[int, ...]] = []
    transition = net.stages[1]
    for module in transition.modules():
        if isinstance(module, torch.nn.Conv2d) and module.out_channels == 16 and module.groups == 1:
            module.register_forward_hook(lambda _module, _given, output: seen.append(tuple(output.shape[1:])))
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert seen == [(16, size, size)]
    assert sum(isinstance(module, torch.nn.MaxPool2d) for module in transition.modules()) == most


@table(__file__, "assemble.md", "Refused", globals())
def test_refused(slots: dict[str, Any], said: str, folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        assemble(recipe(slots), folder)
    assert said in str(caught.value)


def test_a_slot_may_be_computed_in_float32(folder: Path) -> None:
    made = assemble(recipe({**FOUND, "downsample": {"use": "kit.pool.Blur", "float32": True}}), folder)
    net = net_of(made)
    (wrapped,) = [part for part in net.modules() if type(part).__name__ == "InFloat32"]
    seen: list[torch.dtype] = []
    wrapped.part.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    wrapped.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.randn(2, 3, 16, 16))
    assert seen == [torch.float32, torch.bfloat16]


def test_shipped_recipes_are_valid_and_the_plain_one_needs_no_folder() -> None:
    names = {path.stem for path in SHIPPED.glob("*.toml")}
    assert {"plain", "preact_se"} <= names
    full = load_recipe(SHIPPED / "preact_se.toml")
    for slot in ("residual", "attention", "downsample", "stochastic_depth"):
        assert getattr(full.slots, slot).use.startswith("timm::")
    assert full.augmentation.cutmix_alpha > 0
    made = assemble(load_recipe(SHIPPED / "plain.toml"), None)
    assert not made.ingredients
    assert check_contract(made.code) is None
    for wanted, said in (
        (recipe({"attention": "Gate"}), "no part 'Gate'; built in: 'none'; for blocks, pass --in DIR"),
        (recipe({}, training={"learning_rate": 2.0}), r"training.learning_rate: 2.0; the hyperparameters of LEMUR"),
    ):
        with pytest.raises(UserError, match=said):
            assemble(wanted, None)
