"""The commands of training as a user calls them: what they print, refuse, and leave behind."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lemur_core.files.errors import UsageError, UserError
from tests.builders import synthesis
from tests.builders.commands import run_here, run_lemur
from tests.builders.training import made_up_record
from train.cli import read_numbers
from train.model.recipe import Recipe, agree_on_training, find_recipe, network_in, open_recipe, read_prm
from train.runs.run_folder import run_text

NET = '# Prm:     {"lr": 0.1, "momentum": 0.9}\n' + synthesis.network()


def test_what_arguments_are_read_as(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("")
    assert find_recipe(str(tmp_path / "mine.toml")) == Recipe().changed(model__name="mine")
    (tmp_path / "prm.json").write_text('{"lr": 0.5}')
    assert read_prm('{"lr": 0.5}') == read_prm(str(tmp_path / "prm.json")) == {"lr": 0.5}
    assert read_numbers("0, 1,2", "--seeds", 0) == (0, 1, 2)
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: find_recipe("gone.toml"), r"gone\.toml: No such file"),
        (lambda: read_prm("{lr}"), "not JSON"),
        (lambda: read_prm(str(tmp_path / "none")), "neither a JSON object nor a file"),
        *((lambda text=text: read_numbers(text, "--seeds", 0), "--seeds .* is not a whole number >= 0; write 1,2,3")
          for text in ("1,x", "", "1,,2", "-1")),
    ]  # fmt: skip
    for call, said in wrong:
        with pytest.raises(UserError, match=said):
            call()


def test_a_network_states_its_hyperparameters_and_is_trained_with_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(NET)
    assert network_in(path, None).prm == {"lr": 0.1, "momentum": 0.9}
    assert network_in(path, '{"lr": 0.2}').prm == {"lr": 0.2}
    path.write_text(NET.partition("\n")[2])
    with pytest.raises(UserError, match="pass its hyperparameters, for example --prm"):
        network_in(path, None)
    path.write_text("x = 1\n")
    with pytest.raises(UserError, match=r"mine\.py: does not meet LEMUR's contract: "):
        network_in(path, "{}")
    path.write_text(NET)
    net = network_in(path, '{"lr": 0.05, "momentum": 0.8, "batch": 16, "dropout": 0.3}')
    recipe, same = agree_on_training(Recipe(), net, ())
    assert (recipe.training.learning_rate, recipe.training.momentum, recipe.training.batch_size) == (0.05, 0.8, 16)
    assert same == net
    changes = ["training.learning_rate=0.2"]
    recipe, changed = agree_on_training(open_recipe("plain", changes), net, changes)
    assert (recipe.training.learning_rate, recipe.training.momentum) == (0.2, 0.8)
    assert changed.prm == {**net.prm, "lr": 0.2}, "what the constructor gets and the page shows"
    with pytest.raises(UsageError, match=r"training\.learning_rate: .*, not 'fast'"):
        agree_on_training(Recipe(), network_in(path, '{"lr": "fast"}'), ())


def test_what_became_of_a_run_says_where_it_is_and_what_to_do(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()  # of an older run, which --force is to replace
    for status, error, said in (
        ("error", "KeyError: 'mine'", f"error: KeyError: 'mine'; see {out}/record.json"),
        ("out_of_memory", "none", f"out_of_memory: none; --memory gives it more; see {out}/record.json"),
        ("timeout", "stopped after 9 s", "stopped after 9 s; run the same command again to resume"),
    ):
        assert run_text(made_up_record(status=status, error=error), out) == f"tiny: {said}"


@pytest.mark.slow
def test_assemble_writes_a_file_that_run_takes(tmp_path: Path) -> None:
    net = tmp_path / "plain.py"
    widths = "model.widths=[8, 8], model.depths=[0, 1]"
    done = run_here("train", "assemble", "plain", "--out", net, "--set", widths, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert f"# Prm:     {json.dumps(said['prm'], sort_keys=True)}\n" in net.read_text()
    again = run_here("train", "assemble", "plain", "--out", net, cwd=tmp_path)
    assert again.returncode == 1
    assert again.stderr == f"lemur: {net}: exists already; choose another --out, or add --force\n"
    out = tmp_path / "out"
    few = "--data synthetic:200 --held-out 50 --images 100 --epochs 1 --threads 1 --json"
    run = run_lemur("train", "run", net, "--out", out, *few.split(), cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    assert record["status"] == "ok"
    assert record["data"] == "synthetic (smoke test only)"
    assert record["train_images"] == 100
    assert json.loads((out / "record.json").read_text()) == record
    assert not (out / "lemur").exists()  # nothing on synthetic images enters LEMUR
