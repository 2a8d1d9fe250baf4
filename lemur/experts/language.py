"""A causal language model of `transformers` and its tokenizer: answers, and vectors injected as inputs.

No class of `transformers` is subclassed: vectors are injected through `inputs_embeds`. What all rows of a batch begin
with, such as answered examples, is computed once.
"""

import hashlib
import importlib
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lemur.experts.local_models import import_transformers, load_model
from lemur.experts.settings import BaseSettings, Tiny
from lemur_core.files.errors import UserError

#: Placeholder of the background: a text, or an injected vector.
MARK = "{background}"
_ROOM = 12  # maximum number of tokens of an answer
_BATCH = 128
_SHARED = 16  # least number of tokens that are computed once for all rows
_IGNORED = -100
_END, _PAD = "<|end|>", "<|pad|>"


def plain_prompt(question: str) -> str:
    """Return the prompt of a question alone."""
    return f"{question}\nAnswer:"


def prompt_with(question: str, background: str = MARK) -> str:
    """Return the prompt of a question with a background text, or with the mark where one is injected.

    The background comes last: the vectors of all numbers are trained behind one question, which is computed once.
    """
    return f"{question}\nBackground: {background}\nAnswer:"


@dataclass(frozen=True, slots=True)
class Frame:
    """Answered examples before each prompt of the base. Args: shots: question, background and answer of each."""

    shots: Sequence[tuple[str, str, str]] = ()

    def plain(self, question: str) -> str:
        """Return the prompt of a question alone."""
        before = "".join(f"{plain_prompt(other)} {answer}\n\n" for other, _, answer in self.shots)
        return before + plain_prompt(question)

    def with_document(self, question: str, document: str) -> str:
        """Return the prompt of a question with a document; the examples have documents, too."""
        before = "".join(f"{prompt_with(other, text)} {answer}\n\n" for other, text, answer in self.shots)
        return before + prompt_with(question, document)

    def with_answer(self, question: str, answer: str = MARK) -> str:
        """Return the prompt of a question with an answer, or the mark where one is injected, as in the examples."""
        before = "".join(f"{prompt_with(other, known)} {known}\n\n" for other, _, known in self.shots)
        return before + prompt_with(question, answer)


@dataclass(frozen=True, slots=True)
class Language:
    """A language model that answers prompts. `chat`: prompts get its chat template.

    `lines`: its answers end with their line, as in examples, not with the end token.
    """

    model: Any
    tokenizer: Any
    chat: bool = False
    lines: bool = False

    @property
    def digest(self) -> str:
        """SHA-256 of all weights."""
        digest = hashlib.sha256()
        for key, value in sorted(self.model.state_dict().items()):
            # As bytes: NumPy has no bfloat16.
            digest.update(key.encode() + value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def ids(self, prompt: str) -> list[int]:
        """Return the tokens of a prompt, with the chat template if it is used."""
        # A chat template writes the special tokens itself.
        return list(self.tokenizer(self._apply_template(prompt), add_special_tokens=not self.chat).input_ids)

    def bare_ids(self, text: str) -> list[int]:
        """Return the tokens of a text alone: a chat template would make the states of unlike questions alike."""
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def around_mark(self, prompt: str) -> tuple[list[int], list[int]]:
        """Return the tokens before and after the mark."""
        before, _, after = self._apply_template(prompt).partition(MARK)
        # The blank before the mark would be a token of its own, which a prompt with a text does not have.
        first = list(self.tokenizer(before.rstrip(), add_special_tokens=not self.chat).input_ids)
        return first, list(self.tokenizer(after, add_special_tokens=False).input_ids)

    def _apply_template(self, prompt: str) -> str:
        if not self.chat:
            return prompt
        messages = [{"role": "user", "content": prompt}]
        return str(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def answer_ids(self, answer: str) -> list[int]:
        """Return the tokens of an answer, with its end."""
        return self.bare_ids(f" {answer}\n") if self.lines else [*self.bare_ids(f" {answer}"), self._ends[0]]

    @property
    def _ends(self) -> list[int]:
        own = [self.tokenizer.eos_token_id, self.tokenizer.pad_token_id, *(self.bare_ids("\n") if self.lines else ())]
        return [token for token in own if token is not None]

    def embed(self, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the input embeddings of rows of tokens, each (tokens, width)."""
        table = self.model.get_input_embeddings()
        flat = torch.tensor([token for row in rows for token in row], dtype=torch.long, device=table.weight.device)
        return list(table(flat).split([len(row) for row in rows]))

    def embed_prompts(self, prompts: Sequence[str]) -> list[Tensor]:
        """Return the input embeddings of prompts, each (tokens, width)."""
        return self.embed([self.ids(prompt) for prompt in prompts])

    def embed_injected(self, prompts: Sequence[str], slots: Tensor) -> list[Tensor]:
        """Embed prompts with vectors at their marks, each (tokens, width). Args: slots: (prompts, slots, width)."""
        around = [part for prompt in prompts for part in self.around_mark(prompt)]
        parts = self.embed(around)
        put = slots.to(parts[0].dtype)
        return [torch.cat([parts[2 * at], put[at], parts[2 * at + 1]]) for at in range(len(prompts))]

    def loss(self, inputs: Sequence[Tensor], answers: Sequence[str]) -> Tensor:
        """Return the mean negative log-likelihood of the answers' tokens, in nats.

        Args: inputs: embedded prompts that the answers follow, each (tokens, width).
        """
        ids = [self.answer_ids(answer) for answer in answers]
        rows = [torch.cat(pair) for pair in zip(inputs, self.embed(ids), strict=True)]
        start = count_common(inputs)
        if start:
            return self._loss_behind(start, rows, ids)
        embedded, mask, positions = pad_rows(rows)
        # Rows end together, so only the last positions predict answers; with a real vocabulary, the logits of all
        # positions would not fit in memory.
        kept = max(map(len, ids)) + 1
        scores = self.model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=positions, use_cache=False,
            logits_to_keep=last_places(embedded.shape[1], kept),
        ).logits[:, :-1]  # fmt: skip
        wanted = torch.tensor([[_IGNORED] * (kept - 1 - len(row)) + row for row in ids], device=scores.device)
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten(), ignore_index=_IGNORED)

    def _loss_behind(self, start: int, rows: Sequence[Tensor], ids: Sequence[Sequence[int]]) -> Tensor:
        """Return the loss of rows with a common start: as one sequence, in which a row sees the start and itself."""
        own = [row[start:] for row in rows]
        lengths = torch.tensor([start, *map(len, own)])
        owners = torch.arange(len(lengths)).repeat_interleave(lengths)
        places = torch.arange(len(owners))
        seen = (places[:, None] >= places) & ((owners[:, None] == owners) | (owners == 0))
        embedded = torch.cat([rows[0][:start], *own])[None]
        mask = torch.zeros(seen.shape, dtype=embedded.dtype).masked_fill(~seen, torch.finfo(embedded.dtype).min)
        ends = lengths.cumsum(0)
        positions = places - (owners > 0) * (ends[owners - 1] - start)
        # The token before each of an answer predicts it.
        kept = [torch.arange(int(end) - len(row), int(end)) - 1 for row, end in zip(ids, ends[1:], strict=True)]
        scores = self.model(
            inputs_embeds=embedded, attention_mask=mask[None, None].to(embedded.device), use_cache=False,
            position_ids=positions[None].to(embedded.device), logits_to_keep=torch.cat(kept).to(embedded.device),
        ).logits[0]  # fmt: skip
        wanted = torch.tensor([token for row in ids for token in row], device=scores.device)
        return torch.nn.functional.cross_entropy(scores.float(), wanted)

    @torch.no_grad()
    def answers(self, inputs: Sequence[Tensor]) -> tuple[list[str], str]:
        """Return the greedy first line after each embedded prompt, and SHA-256 of the scores of all first tokens."""
        self.model.eval()
        texts: list[str] = []
        digest = hashlib.sha256()
        for start in range(0, len(inputs), _BATCH):
            tokens, scores = self._generate(inputs[start : start + _BATCH])
            digest.update(scores.float().cpu().numpy().tobytes())
            decoded = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
            texts += [next(iter(text.strip().splitlines()), "").strip() for text in decoded]
        return texts, digest.hexdigest()

    def _generate(self, inputs: Sequence[Tensor]) -> tuple[list[list[int]], Tensor]:
        """Return the tokens of greedy answers, without their ends, and the scores of the first ones."""
        first, cache, mask, positions = self._run(inputs)
        table, ends = self.model.get_input_embeddings(), torch.tensor(self._ends, device=mask.device)
        tokens = first.argmax(-1, keepdim=True)
        while tokens.shape[1] < _ROOM and not torch.isin(tokens, ends).any(1).all():
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            at = positions[:, -1:] + tokens.shape[1]
            scores = self._call(cache, table(tokens[:, -1:]), attention_mask=mask, position_ids=at)
            tokens = torch.cat([tokens, scores.argmax(-1, keepdim=True)], 1)
        return [list(takewhile(lambda token: token not in self._ends, row)) for row in tokens.tolist()], first

    def _run(self, rows: Sequence[Tensor]) -> tuple[Tensor, Any, Tensor, Tensor]:
        """Return the scores at the ends of rows, the cache of all places, the mask and the positions."""
        cache = _transformers().DynamicCache()
        start = count_common(rows)
        if start:
            self._call(cache, rows[0][None, :start])
            cache.batch_repeat_interleave(len(rows))
        embedded, mask, positions = pad_rows([row[start:] for row in rows])
        mask, positions = torch.nn.functional.pad(mask, (start, 0), value=1), positions + start
        return self._call(cache, embedded, attention_mask=mask, position_ids=positions), cache, mask, positions

    def _call(self, cache: Any, embedded: Tensor, **further: Tensor) -> Tensor:
        # Newer releases of transformers renamed the argument, and warn of the other name.
        name = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
        places = last_places(embedded.shape[1], 1)
        output = self.model(inputs_embeds=embedded, use_cache=True, logits_to_keep=places, **{name: cache}, **further)
        scores: Tensor = output.logits[:, -1]
        return scores

    def save(self, folder: Path) -> None:
        """Save weights, configuration and tokenizer in the format of `transformers`."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def last_places(length: int, kept: int) -> Tensor:
    """Return the last places of rows, as `logits_to_keep`; for a number, torch would copy the head for each row."""
    return torch.arange(length - kept, length)


def count_common(rows: Sequence[Tensor]) -> int:
    """Return how many first places all rows have in common; 0 if they are few. Each row keeps a place of its own."""
    least = min(map(len, rows)) - 1
    same = torch.stack([(row[:least] == rows[0][:least]).all(-1) for row in rows]).all(0)
    number = int(same.long().cumprod(0).sum())
    return number if len(rows) > 1 and number >= _SHARED else 0


def pad_rows(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Left-pad rows to one tensor; also return the mask and the position ids."""
    longest = max(map(len, rows))
    embedded = torch.stack([torch.nn.functional.pad(row, (0, 0, longest - len(row), 0)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows], device=embedded.device)
    positions = torch.arange(longest, device=embedded.device)[None] - (longest - lengths)[:, None]
    return embedded, (positions >= 0).long(), positions.clamp(min=0)


def open_language(name: str, settings: BaseSettings, *, option: str = "--base") -> Language:
    """Open a model on this machine or on the Hub. Its own code is never run; weights must be safetensors or GGUF.

    Args: name: a folder, a GGUF file, `package:NAME`, or a name on the Hub; settings: device, type, use of a template.
    Raises: UserError if transformers is not installed, or the model cannot be loaded.
    """
    # For prompts of this length torch's own attention takes almost twice as long to train through in bfloat16.
    tokenizer, model = load_model(_transformers(), name, option, attn_implementation="eager")
    model = model.to(settings.device, getattr(torch, settings.dtype))
    chat = tokenizer.chat_template is not None and not settings.shots
    return Language(model, tokenizer, chat, lines=settings.shots > 0)


def add_adapters(model: Any, rank: int) -> Any:
    """Return a model with LoRA's matrices in all linear layers, which alone are trained; `merge_and_unload` ends it.

    Raises: UserError if peft is not installed.
    """
    try:
        peft: Any = importlib.import_module("peft")
    except ImportError as error:
        raise UserError("training.rank: needs peft; pip install peft, or set rank to 0") from error
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))


def learn_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """Train a byte-pair tokenizer on these texts; frequent words become single tokens."""
    transformers = _transformers()
    import tokenizers

    kept = tokenizers.Tokenizer(tokenizers.models.BPE())
    lines = tokenizers.pre_tokenizers.Split("\n", "isolated")
    words = tokenizers.pre_tokenizers.Split(" ", "merged_with_next")
    bytes_ = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    kept.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([lines, words, bytes_])
    kept.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[_PAD, _END], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    kept.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=kept, eos_token=_END, pad_token=_PAD)


def draw_tiny(tiny: Tiny, tokenizer: Any, seed: int) -> Language:
    """Return a randomly initialized model with the Llama architecture."""
    transformers = _transformers()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=tiny.width,
        intermediate_size=2 * tiny.width,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    return Language(transformers.LlamaForCausalLM(config), tokenizer)


def _transformers() -> Any:
    return import_transformers("lemur experts", "'lemur-curator[experts]'")
