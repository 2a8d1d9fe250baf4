"""The model of `benchmarks.teaching`: a small decoder, its tokens, its training.

It is a Llama written out, so that a machine with torch alone can train and judge it.

A run is a folder. It goes on from its last checkpoint, which is at most half a minute old. Equal settings and seed give
equal weights, interrupted or not: there is no dropout, and the order of the texts follows from the seed alone.
"""

import contextlib
import importlib
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from lemur_core.files.atomic import atomic_file, write_text

Tokens = npt.NDArray[np.uint16]

#: Begins every text, and so ends the one before it.
FILE = "<|file|>"

_SAVED_EVERY = 30.0  # seconds
_TOLD_EVERY = 50  # steps
_BETAS, _DECAY, _CLIPPED = (0.9, 0.95), 0.1, 1.0
_WARM, _LOWEST = 0.03, 0.1  # of the steps, of the rate
_JUDGED_BATCH = 8  # windows
_CHECKPOINT, _WEIGHTS = "checkpoint.pt", "weights.pt"
_EPS, _BASE, _SPREAD = 1e-6, 10000.0, 0.02  # of the norms, of the rotations, of the weights before training

#: What is told of a training that came to its end.
TRAINED = "training.json"


class Place(Protocol):
    """Where it computes, such as `train.runs.process.DeviceContext`, which a machine with torch alone cannot import."""

    @property
    def device(self) -> torch.device: ...  # noqa: D102 (of a protocol)

    @property
    def precision(self) -> str: ...  # noqa: D102

    def autocast(self) -> contextlib.AbstractContextManager[object]: ...  # noqa: D102

    def describe(self) -> str: ...  # noqa: D102


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


def make_stream(sizes: Sequence[int], tokens: Callable[[int], Sequence[int]], shape: Shape, seed: int) -> Stream:
    """The windows of all steps, in the order in which they are learned.

    Args: sizes: the bytes of each text. tokens: those of a text, by its place.
    """
    needed = shape.steps * shape.batch * shape.context
    ids: list[int] = []
    bytes_ = epoch = 0
    while len(ids) <= needed:
        for place in random.Random(f"{seed} {epoch}").sample(range(len(sizes)), len(sizes)):
            ids += tokens(place)
            bytes_ += sizes[place]
            if len(ids) > needed:
                break
        epoch += 1
    flat = np.array(ids[: needed + 1], np.uint16)
    starts = np.random.default_rng(seed).permutation(shape.steps * shape.batch) * shape.context
    return Stream(flat[starts[:, None] + np.arange(shape.context + 1)], bytes_ / sum(sizes))


class Decoder(nn.Module):
    """A Llama; before training the same for every arm."""

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        width, inner, heads = shape.width, shape.inner, shape.heads
        self.heads = heads

        def layer() -> nn.ModuleDict:
            square = {f"{name}_proj": nn.Linear(width, width, bias=False) for name in "qkvo"}
            mlp = {f"{name}_proj": nn.Linear(width, inner, bias=False) for name in ("gate", "up")}
            return nn.ModuleDict(
                {
                    "input_layernorm": nn.RMSNorm(width, eps=_EPS),
                    "self_attn": nn.ModuleDict(square),
                    "post_attention_layernorm": nn.RMSNorm(width, eps=_EPS),
                    "mlp": nn.ModuleDict(mlp | {"down_proj": nn.Linear(inner, width, bias=False)}),
                }
            )

        layers = nn.ModuleList(layer() for _ in range(shape.layers))
        embedding = nn.Embedding(shape.vocabulary, width)
        self.model = nn.ModuleDict({"embed_tokens": embedding, "layers": layers, "norm": nn.RMSNorm(width, eps=_EPS)})
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=_SPREAD)

    def forward(self, ids: Tensor) -> Tensor:
        """The last hidden states, shape (rows, tokens, width)."""
        model: Any = self.model
        hidden: Tensor = model.embed_tokens(ids)
        turn = _rotation(ids.shape[1], hidden.shape[2] // self.heads, ids.device)
        for layer in model.layers:
            hidden = hidden + self._attend(layer.self_attn, layer.input_layernorm(hidden), turn)
            mlp, seen = layer.mlp, layer.post_attention_layernorm(hidden)
            hidden = hidden + mlp.down_proj(functional.silu(mlp.gate_proj(seen)) * mlp.up_proj(seen))
        return cast(Tensor, model.norm(hidden))

    def _attend(self, layer: Any, seen: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        projected = (layer.q_proj(seen), layer.k_proj(seen), layer.v_proj(seen))
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in projected)
        query, key = (part * turn[0] + _half_turned(part) * turn[1] for part in (query, key))
        query, key = query.to(value.dtype), key.to(value.dtype)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return cast(Tensor, layer.o_proj(found.transpose(1, 2).flatten(2)))


def _rotation(tokens: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines by which a head is turned at each place."""
    angles = torch.arange(tokens, device=device)[:, None] * _BASE ** (-torch.arange(0, width, 2, device=device) / width)
    angles = torch.cat([angles, angles], 1)
    return angles.cos(), angles.sin()


def _half_turned(part: Tensor) -> Tensor:
    first, second = part.chunk(2, -1)
    return torch.cat([-second, first], -1)


def flops_a_token(shape: Shape, parameters: int) -> float:
    """Of training: six for each parameter, and attention over half a context, forward and backward."""
    return 6.0 * parameters + 6.0 * shape.layers * shape.width * shape.context


def train(
    folder: Path,
    shape: Shape,
    stream: Stream,
    seed: int,
    place: Place,
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
    model = Decoder(shape, seed).to(place.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=shape.rate, betas=_BETAS, weight_decay=_DECAY, fused=True)
    state: dict[str, Any] = {"step": 0, "seconds": 0.0, "cpu": 0.0, "losses": []}
    if (folder / _CHECKPOINT).is_file():
        saved = torch.load(folder / _CHECKPOINT, map_location=place.device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state = saved["state"]
    each = flops_a_token(shape, parameters) * shape.context * shape.batch
    rows = torch.from_numpy(stream.rows.astype(np.int64)).to(place.device)
    clock, cpu = time.monotonic(), time.process_time()
    saved_at = clock
    waiting: list[Tensor] = []
    while state["step"] < shape.steps:
        step = state["step"]
        for group in optimizer.param_groups:
            group["lr"] = shape.rate * rate_at(step, shape.steps)
        batch = rows[step * shape.batch : (step + 1) * shape.batch]
        loss = _losses(model, batch, place).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIPPED)
        optimizer.step()
        optimizer.zero_grad()
        state["step"] = step + 1
        waiting.append(loss.detach())
        now = time.monotonic()
        ends = state["step"] == shape.steps or now - saved_at >= _SAVED_EVERY or now >= until
        # A read waits for an accelerator.
        if ends or place.device.type == "cpu" or state["step"] % _TOLD_EVERY == 0:
            state["losses"] += [round(float(value), 4) for value in waiting]
            waiting = []
        if ends:
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
        "torch": torch.__version__,
        "losses": state["losses"],
    }
    torch.save(model.state_dict(), folder / _WEIGHTS)
    write_text(done, json.dumps(told))
    (folder / _CHECKPOINT).unlink()
    return told


def rate_at(step: int, steps: int) -> float:
    """The share of the full rate at a step: up in a line, then down by a cosine to a tenth."""
    warm = max(1, int(_WARM * steps))
    if step < warm:
        return (step + 1) / warm
    return _LOWEST + (1 - _LOWEST) * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def load_decoder(folder: Path, shape: Shape, place: Place) -> Decoder:
    """The trained model of a run, to be judged."""
    model = Decoder(shape, 0)
    model.load_state_dict(torch.load(folder / _WEIGHTS, weights_only=True))
    return model.to(place.device).eval()


def _losses(model: Decoder, rows: Tensor, place: Place) -> Tensor:
    """The cross-entropy of each token after the first, in nats, shape (rows, tokens - 1)."""
    with place.autocast():
        logits = functional.linear(model(rows[:, :-1]), cast(nn.Embedding, model.model.embed_tokens).weight)
    flat = functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten(), reduction="none")
    return flat.view(len(rows), -1)


# -- judging ---------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def bits(model: Decoder, texts: Sequence[Sequence[int]], shape: Shape, place: Place) -> list[float]:
    """The bits that the model needs for each text; a token is told from half a context before it at least.

    Args: texts: their tokens.
    """
    found = [0.0] * len(texts)
    jobs = sorted(_windows(texts, shape.context), key=lambda job: -len(job[1]))
    for at in range(0, len(jobs), _JUDGED_BATCH):
        part = jobs[at : at + _JUDGED_BATCH]
        rows = torch.zeros(len(part), len(part[0][1]), dtype=torch.int64)
        for row, (_, ids, _) in zip(rows, part, strict=True):
            row[: len(ids)] = torch.tensor(ids)
        told = _losses(model, rows.to(place.device), place).double().cpu()
        for (text, ids, known), losses in zip(part, told, strict=True):
            found[text] += float(losses[known - 1 : len(ids) - 1].sum()) / math.log(2)
    return found


def _windows(texts: Sequence[Sequence[int]], context: int) -> Iterator[tuple[int, Sequence[int], int]]:
    """Text, tokens, and how many of these are known: the next window begins half a context later."""
    for number, ids in enumerate(texts):
        known = 1
        while known < len(ids):
            start = 0 if known == 1 else known - context // 2
            window = ids[start : start + context + 1]
            yield number, window, known - start
            known = start + len(window)
