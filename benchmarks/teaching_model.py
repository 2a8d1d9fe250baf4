"""The model of `benchmarks.teaching`: a small decoder of `transformers`, its tokens, its training, what it writes.

A run is a folder. It goes on from its last checkpoint, which is at most half a minute old, and ends in `model`, which
`transformers` loads. Equal settings and seed give equal weights, interrupted or not: there is no dropout, and the order
of the texts follows from the seed alone.
"""

import importlib
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.teaching_speed import attend_in_blocks, mean_loss
from lemur_core.files.atomic import atomic_file, write_text
from train.runs.process import DeviceContext

Tokens = npt.NDArray[np.uint16]

#: Begins every text, and so ends the one before it.
FILE = "<|file|>"

_SAVED_EVERY = 30.0  # seconds
_TOLD_EVERY = 50  # steps
_BETAS, _DECAY, _CLIPPED = (0.9, 0.95), 0.1, 1.0
_WARM, _LOWEST = 0.03, 0.1  # of the steps, of the rate
_JUDGED_BATCH = 8  # windows
_CHECKPOINT = "checkpoint.pt"

#: What is told of a training that came to its end.
TRAINED = "training.json"


@dataclass(frozen=True, slots=True)
class Shape:
    """The model, and how it learns; `context` and `tokens` count tokens, `batch` windows of a context."""

    vocabulary: int = 4096
    width: int = 192
    inner: int = 512
    layers: int = 4
    heads: int = 3
    context: int = 1024
    batch: int = 4
    rate: float = 2e-3
    tokens: int = 2_000_000

    @property
    def steps(self) -> int:
        """Of training."""
        return self.tokens // (self.context * self.batch)


@dataclass(frozen=True, slots=True)
class Stream:
    """What an arm learns: its texts, each epoch in an order of its own. `rows`: windows, shape (n, context + 1)."""

    rows: Tokens
    epochs: float  # by bytes


def make_tokenizer(texts: Sequence[str], size: int, folder: Path) -> Any:
    """A byte-level BPE of these texts, written to a folder; the one that is there already is read."""
    transformers: Any = importlib.import_module("transformers")
    if not (folder / "tokenizer.json").is_file():
        tokenizers: Any = importlib.import_module("tokenizers")
        trained = tokenizers.ByteLevelBPETokenizer()
        trained.train_from_iterator(texts, vocab_size=size, special_tokens=[FILE], show_progress=False)
        begun = {"single": f"{FILE} $A", "special_tokens": [(FILE, trained.token_to_id(FILE))]}
        trained._tokenizer.post_processor = tokenizers.processors.TemplateProcessing(**begun)
        made = transformers.PreTrainedTokenizerFast(
            tokenizer_object=trained._tokenizer, bos_token=FILE, eos_token=FILE, pad_token=FILE
        )
        made.save_pretrained(folder)
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def encode(tokenizer: Any, text: str) -> list[int]:
    """A text as tokens, with the one that begins it."""
    ids: list[int] = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    return [tokenizer.bos_token_id, *ids]


def make_stream(texts: Sequence[str], tokenizer: Any, shape: Shape, seed: int) -> Stream:
    """The windows of all steps, in the order in which they are learned."""
    needed = shape.steps * shape.batch * shape.context
    ids: list[int] = []
    bytes_, whole = 0, sum(len(text.encode()) for text in texts)
    epoch = 0
    while len(ids) <= needed:
        for text in random.Random(f"{seed} {epoch}").sample(texts, len(texts)):
            ids += encode(tokenizer, text)
            bytes_ += len(text.encode())
            if len(ids) > needed:
                break
        epoch += 1
    flat = np.array(ids[: needed + 1], np.uint16)
    starts = np.random.default_rng(seed).permutation(shape.steps * shape.batch) * shape.context
    return Stream(flat[starts[:, None] + np.arange(shape.context + 1)], bytes_ / whole)


def make_model(shape: Shape, tokenizer: Any, seed: int) -> Any:
    """The model before training: the same for every arm."""
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=shape.width,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            max_position_embeddings=shape.context,
            tie_word_embeddings=True,
            attn_implementation="sdpa",
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def flops_a_token(shape: Shape, parameters: int) -> float:
    """Of training: six for each parameter, and attention over half a context, forward and backward."""
    return 6.0 * parameters + 6.0 * shape.layers * shape.width * shape.context


def train(
    folder: Path,
    shape: Shape,
    stream: Stream,
    tokenizer: Any,
    seed: int,
    place: DeviceContext,
    until: float,
    label: str,
) -> dict[str, Any] | None:
    """Learn a stream, or go on with it.

    Args:
        until: of the monotonic clock; then what is done so far is saved.
        label: of the progress lines.

    Returns: what is told of the training; None if the time was over before its end.
    """
    done = folder / TRAINED
    if done.is_file():
        told: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        return told
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model(shape, tokenizer, seed)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape.rate, betas=_BETAS, weight_decay=_DECAY, fused=True)
    state: dict[str, Any] = {"step": 0, "seconds": 0.0, "cpu": 0.0, "losses": []}
    if (folder / _CHECKPOINT).is_file():
        saved = torch.load(folder / _CHECKPOINT, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state = saved["state"]
    each = flops_a_token(shape, parameters) * shape.context * shape.batch
    rows = torch.from_numpy(stream.rows.astype(np.int64))
    clock, cpu = time.monotonic(), time.process_time()
    saved_at = clock
    model.train()
    attend_in_blocks(model)
    while state["step"] < shape.steps:
        step = state["step"]
        for group in optimizer.param_groups:
            group["lr"] = shape.rate * rate_at(step, shape.steps)
        batch = rows[step * shape.batch : (step + 1) * shape.batch]
        loss = _training_loss(model, batch, place)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIPPED)
        optimizer.step()
        optimizer.zero_grad()
        state["step"] = step + 1
        state["losses"].append(round(float(loss.detach()), 4))
        now = time.monotonic()
        if state["step"] == shape.steps or now - saved_at >= _SAVED_EVERY or now >= until:
            state["seconds"] += now - clock
            state["cpu"] += time.process_time() - cpu
            clock, cpu, saved_at = now, time.process_time(), now
            with atomic_file(folder / _CHECKPOINT) as part:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "state": state}, part)
        if state["step"] % _TOLD_EVERY == 0 or state["step"] == shape.steps:
            recent = state["losses"][-_TOLD_EVERY:]
            print(
                f"{label}: step {state['step']:,} of {shape.steps:,}, loss {sum(recent) / len(recent):.3f},"
                f" {state['step'] * each:.2e} FLOP",
                flush=True,
            )
        if now >= until and state["step"] < shape.steps:
            return None
    told = {
        "parameters": parameters,
        "tokens": shape.steps * shape.batch * shape.context,
        "flop": shape.steps * each,
        "epochs": round(stream.epochs, 3),
        "seconds": round(state["seconds"], 1),
        "cpu_seconds": round(state["cpu"], 1),
        "place": f"{place.describe()}, {place.precision}",
        "losses": state["losses"],
    }
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    write_text(done, json.dumps(told))
    (folder / _CHECKPOINT).unlink()
    return told


def rate_at(step: int, steps: int) -> float:
    """The share of the full rate at a step: up in a line, then down by a cosine to a tenth."""
    warm = max(1, int(_WARM * steps))
    if step < warm:
        return (step + 1) / warm
    return _LOWEST + (1 - _LOWEST) * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def load_model(folder: Path) -> Any:
    """The trained model of a run, ready to be asked."""
    transformers: Any = importlib.import_module("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()


def _training_loss(model: Any, rows: Tensor, place: DeviceContext) -> Tensor:
    """The mean of what `_losses` gives; quicker, and with a gradient."""
    with place.autocast():
        hidden = model.model(input_ids=rows[:, :-1], use_cache=False).last_hidden_state
    precision: torch.dtype = getattr(torch, place.precision)
    return mean_loss(hidden.flatten(0, 1), model.lm_head.weight, rows[:, 1:].flatten(), precision)


def _losses(model: Any, rows: Tensor, place: DeviceContext) -> Tensor:
    """The cross-entropy of each token after the first, in nats, shape (rows, tokens - 1)."""
    with place.autocast():
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten(), reduction="none")
    return flat.view(len(rows), -1)


# -- judging ---------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def bits(model: Any, tokenizer: Any, texts: Sequence[str], shape: Shape, place: DeviceContext) -> list[float]:
    """The bits that the model needs for each text; a token is told from half a context before it at least."""
    found = [0.0] * len(texts)
    jobs = sorted(_windows(tokenizer, texts, shape.context), key=lambda job: -len(job[1]))
    for at in range(0, len(jobs), _JUDGED_BATCH):
        part = jobs[at : at + _JUDGED_BATCH]
        rows = torch.zeros(len(part), len(part[0][1]), dtype=torch.int64)
        for row, (_, ids, _) in zip(rows, part, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        for (text, ids, known), losses in zip(part, _losses(model, rows, place), strict=True):
            found[text] += float(losses[known - 1 : len(ids) - 1].double().sum()) / math.log(2)
    return found


def _windows(tokenizer: Any, texts: Sequence[str], context: int) -> Iterator[tuple[int, list[int], int]]:
    """Text, tokens, and how many of these are known: the next window begins half a context later."""
    for number, text in enumerate(texts):
        ids = encode(tokenizer, text)
        known = 1
        while known < len(ids):
            start = 0 if known == 1 else known - context // 2
            window = ids[start : start + context + 1]
            yield number, window, known - start
            known = start + len(window)


@torch.inference_mode()
def write(
    model: Any, tokenizer: Any, prompts: Sequence[str], limit: int, temperature: float, seed: int, context: int
) -> list[str]:
    """How the model goes on after each prompt, until it ends the file or has written `limit` tokens.

    What it sees is half a context at least, as far as there is so much.
    """
    torch.manual_seed(seed)
    given = [encode(tokenizer, prompt) for prompt in prompts]
    written: list[list[int]] = [[] for _ in prompts]
    going = list(range(len(prompts)))
    end, chunk = tokenizer.eos_token_id, context // 2
    for done in range(0, limit, chunk):
        seen = [(given[place] + written[place])[-chunk:] for place in going]
        longest = max(map(len, seen))
        ids = torch.tensor([[end] * (longest - len(one)) + one for one in seen])
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in seen])
        count = min(chunk, limit - done)
        made = model.generate(
            ids, attention_mask=mask, max_new_tokens=count, do_sample=True, temperature=temperature, top_k=0
        )
        still = []
        for place, row in zip(going, made[:, longest:].tolist(), strict=True):
            ended = end in row
            written[place] += row[: row.index(end)] if ended else row
            if not ended:
                still.append(place)
        going = still
        if not going:
            break
    return [tokenizer.decode(ids) for ids in written]
