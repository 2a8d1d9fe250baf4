"""The frozen base of `benchmarks.experts_bounds`: answered examples before each prompt, vectors, an expert's states."""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lemur.experts.facts import Question
from lemur.experts.language import Frame, Language, last_places, pad_rows, plain_prompt, prompt_with

LAYERS = (10, 20, -1)  # of the expert
_ROOM = 9  # tokens of an answer: a blank and the digits of the largest mark, and the end of the line
_BATCH = 96


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **more: Any) -> Any:
    """Attention in which all rows also see the same tokens before them, whose keys and values stand once."""
    rows, heads, length, width = query.shape
    groups = key.shape[1]
    asked = query.reshape(rows, groups, -1, width) * scaling
    own = (asked @ key.mT).view(rows, groups, -1, length, key.shape[2]) + mask[:, :, None]
    scores = own.view(rows, groups, -1, key.shape[2])
    if not more.get("shared"):
        return _rows(scores.softmax(-1) @ value, heads), None
    before, known = more["shared"][module.layer_idx]
    flat = asked.transpose(0, 1).reshape(groups, -1, width)
    seen = (flat @ before.mT).view(groups, rows, -1, before.shape[1]).transpose(0, 1)
    weights = torch.cat([seen, scores], -1).softmax(-1)
    first, last = weights[..., : before.shape[1]], weights[..., before.shape[1] :]
    read = (first.transpose(0, 1).reshape(groups, -1, before.shape[1]) @ known).view(groups, rows, -1, width)
    return _rows(read.transpose(0, 1) + last @ value, heads), None


def _rows(read: Tensor, heads: int) -> Tensor:
    return read.reshape(len(read), heads, -1, read.shape[-1]).transpose(1, 2)


def set_attention(model: Any) -> None:
    """Let it attend as above; torch's own attention took four tenths of a step."""
    transformers: Any = importlib.import_module("transformers")
    masks: Any = importlib.import_module("transformers.masking_utils")
    transformers.AttentionInterface.register("shared", attend)
    transformers.AttentionMaskInterface.register("shared", masks.eager_mask)
    model.set_attn_implementation("shared")


class Framed:
    """The frozen base behind the same answered examples, whose states are computed once."""

    def __init__(self, base: Language, frame: Frame, *, background: bool) -> None:
        self.base = base
        start = frame.with_background("") if background else frame.plain("")
        own = prompt_with("") if background else plain_prompt("")
        (self._end,) = base.bare_ids("\n")
        ids = base.bare_ids(start.removesuffix(own))
        self._before, self._shared = len(ids), []
        set_attention(base.model)
        if ids:
            with torch.no_grad():
                told = base.model(input_ids=torch.tensor([ids]), use_cache=True, logits_to_keep=1, shared=[])
            self._shared = [(layer.keys[0], layer.values[0]) for layer in told.past_key_values.layers]

    def _run(self, rows: Sequence[Tensor], kept: int, *, use_cache: bool) -> Any:
        embedded, mask, positions = pad_rows(rows)
        output = self.base.model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=positions + self._before, shared=self._shared,
            use_cache=use_cache, logits_to_keep=last_places(embedded.shape[1], kept),
        )  # fmt: skip
        return output, mask, positions[:, -1:] + self._before

    def loss(self, inputs: Sequence[Tensor], answers: Sequence[str]) -> Tensor:
        """Return the mean negative log-likelihood of the answers and the end of their lines, in nats a token."""
        ids = [self.base.bare_ids(f" {answer}\n") for answer in answers]
        kept = max(map(len, ids)) + 1
        rows = [torch.cat(pair) for pair in zip(inputs, self.base.embed(ids), strict=True)]
        scores = self._run(rows, kept, use_cache=False)[0].logits[:, :-1]
        wanted = torch.tensor([[-100] * (kept - 1 - len(row)) + row for row in ids])
        return nn.functional.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten())

    @torch.no_grad()
    def answers(self, inputs: Sequence[Tensor]) -> list[str]:
        """Return the greedy first line after each embedded prompt."""
        texts: list[str] = []
        for start in range(0, len(inputs), _BATCH):
            output, mask, at = self._run(inputs[start : start + _BATCH], 1, use_cache=True)
            tokens = [output.logits[:, -1].argmax(-1)]
            while len(tokens) < _ROOM and not all((torch.stack(tokens, 1) == self._end).any(1)):
                mask, at = torch.cat([mask, mask.new_ones(len(mask), 1)], 1), at + 1
                output = self.base.model(
                    input_ids=tokens[-1][:, None], attention_mask=mask, position_ids=at,
                    past_key_values=output.past_key_values, use_cache=True, shared=self._shared,
                )  # fmt: skip
                tokens.append(output.logits[:, -1].argmax(-1))
            decoded = self.base.tokenizer.batch_decode(torch.stack(tokens, 1), skip_special_tokens=True)
            texts += [next(iter(text.strip().splitlines()), "").strip() for text in decoded]
        return texts


class Vectors(nn.Module):
    """Free vectors for each number, with a length of their own; at first the mean of the embeddings of its digits."""

    def __init__(self, numbers: Sequence[str], slots: int, base: Language) -> None:
        super().__init__()
        self._numbers = {number: at for at, number in enumerate(numbers)}
        table = base.model.get_input_embeddings().weight.float()
        starts = []
        for number in numbers:
            rows = table[base.bare_ids(number)]
            if len(rows) < slots:  # blanks before it: a digit that stands twice is read twice
                rows = torch.cat([table[base.bare_ids(" ")].expand(slots - len(rows), -1), rows])
            parts = rows.tensor_split(slots)
            starts.append(torch.stack([part.reshape(-1, table.shape[1]).mean(0) for part in parts]))
        self._length = float(table.norm(dim=1).mean())
        self.scale = nn.Parameter(torch.zeros(len(numbers), slots, 1))
        self.free = nn.Parameter(normalize(torch.stack(starts), dim=-1) * table.shape[1] ** 0.5)

    def forward(self, numbers: Sequence[str]) -> Tensor:
        """Return the vectors of these numbers, (numbers, slots, width)."""
        at = [self._numbers[number] for number in numbers]
        return normalize(self.free[at], dim=-1) * self._length * (self.scale[at] / 10).exp()


@torch.no_grad()
def read_states(
    expert: Language, rows: Sequence[Question], said: Sequence[str] | None = None
) -> tuple[dict[str, Tensor], list[str]]:
    """Return an expert's states, (rows, layers, width), by what they are the mean of, and its answers.

    Args: said: the answers, where they are not the expert's own.
    """
    alone = Framed(expert, Frame(), background=False)
    prompts = [expert.ids(plain_prompt(row.text)) for row in rows]
    said = alone.answers(expert.embed(prompts)) if said is None else said
    found: dict[str, list[Tensor]] = {"question": [], "last": [], "answer": []}
    for start in range(0, len(rows), _BATCH):
        own = prompts[start : start + _BATCH]
        whole = [p + expert.bare_ids(f" {text}") for p, text in zip(own, said[start : start + _BATCH], strict=True)]
        embedded, mask, positions = pad_rows(expert.embed(whole))
        states = expert.model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=positions, output_hidden_states=True,
            use_cache=False, logits_to_keep=1,
        ).hidden_states  # fmt: skip
        chosen = torch.stack([states[layer].float() for layer in LAYERS], 1)
        for row, (before, length) in enumerate((len(p), len(w)) for p, w in zip(own, whole, strict=True)):
            line = chosen[row, :, -length:]
            found["question"].append(line[:, :before].mean(1))
            found["last"].append(line[:, before - 1])
            found["answer"].append(line[:, before - 1 :].mean(1))
    return {pool: torch.stack(states) for pool, states in found.items()}, list(said)


def probe(states: Tensor, answers: Sequence[str], asked: Tensor) -> list[str]:
    """Return the answers that a linear map (ridge) from these states to their answers gives for other states."""
    names = sorted(set(answers))
    wanted = nn.functional.one_hot(torch.tensor([names.index(answer) for answer in answers])).float()
    mean, deviation = states.mean(0), states.std(0) + 1e-6
    known = (states - mean) / deviation
    weights = torch.linalg.solve(known.T @ known + len(known) * torch.eye(known.shape[1]) * 0.1, known.T @ wanted)
    return [names[at] for at in ((asked - mean) / deviation @ weights).argmax(1).tolist()]
