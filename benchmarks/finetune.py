"""Trainers of `trl` on the conversations of a folder: `python -m benchmarks.finetune DIR`.

`datasets.load_dataset` opens the configuration, and `trl`'s SFTTrainer takes a few steps on it on the CPU, with a small
randomly initialized model of `transformers` and a tokenizer trained on the conversations themselves: first from whole
tables, then streaming. DIR may also be a folder of `lemur export`: prompts with completions (`--config
prompt_completion`). No model is downloaded; these packages are, once, into an environment in the cache that also sees
this one's PyTorch and `datasets`. Without DIR, the conversations are those of a small slice of LEMUR.

Claims, each asserted: every loss is finite, and what is learned in every step is the assistant's text, whole, and no
other token.
"""

import argparse
import importlib
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.environment import make_environment
from lemur_core.files.cache import cache_folder

_PACKAGES = ("trl~=1.16.0", "transformers~=5.23.0")
_SLICE = ("--include", "rl", "--include", "AlexNet")  # 37 networks of release 2.1.0
_HERE = "LEMUR_FINETUNE_HERE"  # set for the second process, whose environment has these packages
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(Path(__file__).parents[1])}

_ROLES = ("system", "user", "assistant")
_PAD, _END = "<|pad|>", "<|end|>"
_UNLABELLED = -100  # what the loss leaves out

#: The markers around the assistant's text are what `assistant_only_loss` goes by.
_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def main() -> None:
    """Make the environment when it is missing, and run there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR", help="default: a slice of LEMUR, made anew")
    parser.add_argument("--config", default="chat", help="chat or prompt_completion")
    parser.add_argument("--split", default="train")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=2, help="conversations a step")
    parser.add_argument("--max-length", type=int, default=2048, help="tokens; longer conversations are left out")
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.folder is not None and not options.folder.is_dir():
        parser.error(f"{options.folder}: no such folder")
    if _HERE in os.environ:
        _train_both(options)
        return
    python = _environment()
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        made = [] if options.folder is not None else [str(_make_folder(Path(scratch) / "snapshot"))]
        command = [str(python), "-P", "-m", "benchmarks.finetune", *made, *sys.argv[1:]]
        status = subprocess.run(command, env={**os.environ, **_OFFLINE, _HERE: "1"}, check=False).returncode
    sys.exit(status)


def _make_folder(out: Path) -> Path:
    lemur = str(Path(sys.executable).with_name("lemur"))
    command = [lemur, "curate", "lemur", *_SLICE, "--chat", "--out", str(out)]
    subprocess.run(command, stdout=sys.stderr, check=True)
    return out


def _environment() -> Path:
    """The interpreter of an environment with the packages."""
    return make_environment("finetune", [_PACKAGES], ", ".join(_PACKAGES))


def _train_both(options: argparse.Namespace) -> None:
    """From whole tables, then streaming."""
    versions = [f"{name} {importlib.import_module(name).__version__}" for name in ("trl", "transformers", "datasets")]
    with tempfile.TemporaryDirectory() as scratch:
        data = _open(options, scratch, streaming=False)
        texts = [message["content"] for row in data for message in _conversation(row)]
        tokenizer = _tokenizer(texts, options.vocabulary)
        count = len(data)
        fitting = data.filter(_Fits(tokenizer, options.max_length))
        if not len(fitting):
            sys.exit(f"{options.folder}: no conversation has at most {options.max_length:,} tokens; raise --max-length")
        print(f"{', '.join(versions)}; {options.config}, split {options.split}: {count:,} conversations,")
        print(f"{len(fitting):,} of them with at most {options.max_length:,} of {len(tokenizer):,} different tokens")
        _train(options, tokenizer, fitting, scratch, "whole tables")
        stream = _open(options, scratch, streaming=True).filter(_Fits(tokenizer, options.max_length))
        _train(options, tokenizer, stream, scratch, "streaming")


def _open(options: argparse.Namespace, scratch: str, *, streaming: bool) -> Any:
    datasets: Any = importlib.import_module("datasets")
    datasets.disable_progress_bars()
    found = datasets.load_dataset(
        str(options.folder), options.config, split=options.split, streaming=streaming, cache_dir=scratch
    )
    if not {"messages", "prompt"} & found.features.keys():
        sys.exit(f"{options.folder}: configuration {options.config} has no conversations")
    return found


def _conversation(row: dict[str, Any]) -> list[dict[str, str]]:
    """The whole conversation in a row."""
    messages: list[dict[str, str]] = row["messages"] if "messages" in row else row["prompt"] + row["completion"]
    return messages


def _tokenizer(texts: Sequence[str], size: int) -> Any:
    """A byte-level BPE of these texts, with the roles as tokens of their own."""
    transformers: Any = importlib.import_module("transformers")
    tokenizers: Any = importlib.import_module("tokenizers")
    trained = tokenizers.ByteLevelBPETokenizer()
    special = [_PAD, _END, *(f"<|{role}|>" for role in _ROLES)]
    trained.train_from_iterator(texts, vocab_size=size, special_tokens=special, show_progress=False)
    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, pad_token=_PAD, eos_token=_END, additional_special_tokens=special[2:]
    )
    found.chat_template = _TEMPLATE
    return found


@dataclass(frozen=True)
class _Fits:
    """Whether a conversation has few enough tokens, so that none is cut."""

    tokenizer: Any
    limit: int

    def __call__(self, row: dict[str, Any]) -> bool:
        text = self.tokenizer.apply_chat_template(_conversation(row), tokenize=False)
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"]) <= self.limit


@dataclass
class _Watched:
    """The trainer's own collator; keeps the batches that it makes, which are those that the model learns from."""

    collate: Any
    batches: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, rows: Any) -> Any:
        batch = self.collate(rows)
        self.batches.append({name: batch[name].clone() for name in ("input_ids", "labels", "attention_mask")})
        return batch


def _model(options: argparse.Namespace, tokenizer: Any) -> Any:
    """A small randomly initialized model."""
    transformers: Any = importlib.import_module("transformers")
    transformers.set_seed(options.seed)
    shape = {"hidden_size": options.width, "intermediate_size": 2 * options.width, "num_attention_heads": 4}
    config = transformers.LlamaConfig(
        **shape,
        num_hidden_layers=options.layers,
        vocab_size=len(tokenizer),
        max_position_embeddings=options.max_length,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def _settings(options: argparse.Namespace, scratch: str) -> dict[str, Any]:
    """What both trainers are told."""
    return {
        "output_dir": str(Path(scratch) / "out"),
        "max_steps": options.steps,
        "per_device_train_batch_size": options.batch,
        "learning_rate": 1e-3,
        "max_length": options.max_length,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "seed": options.seed,
    }


def _printer() -> Any:
    """The callback that prints its log as dictionaries."""
    return importlib.import_module("transformers").PrinterCallback


def _train(options: argparse.Namespace, tokenizer: Any, data: Any, scratch: str, how: str) -> None:
    """A few steps; prints the loss of each, and checks what was learned from."""
    trl: Any = importlib.import_module("trl")
    model = _model(options, tokenizer)
    with_messages = "messages" in next(iter(data))
    settings = trl.SFTConfig(**_settings(options, scratch), assistant_only_loss=with_messages)
    trainer = trl.SFTTrainer(model=model, args=settings, train_dataset=data, processing_class=tokenizer)
    watched = trainer.data_collator = _Watched(trainer.data_collator)
    trainer.remove_callback(_printer())
    started = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - started
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    losses = [entry["loss"] for entry in steps]
    assert len(losses) == options.steps, f"{len(losses)} losses for {options.steps} steps"
    assert all(math.isfinite(loss) for loss in losses), losses
    used = watched.batches[: options.steps]  # it may have collated one batch ahead
    learned, seen = _check_learned(tokenizer, data, used, options.batch)
    print(f"{how}: {model.num_parameters():,} parameters, {options.steps} steps of {options.batch} conversations")
    totals = list(itertools.accumulate(int(batch["attention_mask"].sum()) for batch in used))
    assert totals == [entry["num_tokens"] for entry in steps], "the trainer learned from other batches"
    for step, (loss, total) in enumerate(zip(losses, totals, strict=True), 1):
        print(f"  step {step}: loss {loss:.4f}, {total:,} tokens seen")
    print(f"  {seconds:.1f} s; learned {learned:,} of {seen:,} tokens: the assistant's text of each, whole")


def _check_learned(tokenizer: Any, data: Any, batches: Sequence[dict[str, Any]], size: int) -> tuple[int, int]:
    """Tokens with a label, and all; the labels of each conversation must be its assistant's text, and only that."""
    answers: dict[str, set[str]] = {}
    for row in data:
        *before, last = _conversation(row)
        answers.setdefault("".join(_turns(before)), set()).add(last["content"] + _END)
    learned = seen = 0
    for batch in batches:
        assert len(batch["labels"]) <= size
        for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
            chosen = labels != _UNLABELLED
            assert bool((labels[chosen] == ids[chosen]).all()), "a label is not the token in its place"
            whole = tokenizer.decode(ids[mask.bool()])
            prompt, _, _ = whole.partition("<|assistant|>")
            answer = tokenizer.decode(labels[chosen])
            assert answer in answers[prompt], f"what is learned is not the answer: {answer[:80]!r}"
            learned += int(chosen.sum())
            seen += int(mask.sum())
    assert learned, "nothing is learned"
    return learned, seen


def _turns(messages: Sequence[dict[str, str]]) -> Iterator[str]:
    for message in messages:
        yield f"<|{message['role']}|>{message['content']}{_END}"


if __name__ == "__main__":
    main()
