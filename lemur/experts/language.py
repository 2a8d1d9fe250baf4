"""A causal language model of `transformers` and its tokenizer: states, answers, and vectors injected as inputs.

No class of `transformers` is subclassed: vectors are injected through `inputs_embeds`.
"""

import hashlib
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lemur.experts.local_models import import_transformers, load_model, model_name
from lemur.experts.settings import BaseSettings, Tiny
from lemur_core.files.errors import UserError

#: Placeholder of the background: a text, or an injected vector.
MARK = "{background}"
_ROOM = 12  # maximum number of tokens of an answer
_BATCH = 128
_IGNORED = -100
_END, _PAD = "<|end|>", "<|pad|>"


def plain_prompt(question: str) -> str:
    """Return the prompt of a question alone."""
    return f"{question}\nAnswer:"


def prompt_with(question: str, background: str = MARK) -> str:
    """Return the prompt of a question after a background text, or after the mark where one is injected."""
    return f"Background: {background}\n{plain_prompt(question)}"


@dataclass(frozen=True, slots=True)
class Frame:
    """Answered examples before each prompt of the base. Args: shots: question, background and answer of each."""

    shots: Sequence[tuple[str, str, str]] = ()

    def plain(self, question: str) -> str:
        """Return the prompt of a question alone."""
        before = "".join(f"{plain_prompt(other)} {answer}\n\n" for other, _, answer in self.shots)
        return before + plain_prompt(question)

    def with_background(self, question: str, background: str = MARK) -> str:
        """Return the prompt of a question after a background text, or after the mark where one is injected."""
        before = "".join(f"{prompt_with(other, text)} {answer}\n\n" for other, text, answer in self.shots)
        return before + prompt_with(question, background)


@dataclass(frozen=True, slots=True)
class Language:
    """A language model that answers prompts. `name` is its name in records; `chat`: prompts get its chat template."""

    name: str
    model: Any
    tokenizer: Any
    chat: bool = False

    @property
    def width(self) -> int:
        """Width of its input embeddings."""
        return int(self.model.get_input_embeddings().weight.shape[1])

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
        """Return the tokens of an answer, with the end token."""
        return [*self.tokenizer(f" {answer}", add_special_tokens=False).input_ids, self.tokenizer.eos_token_id]

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

    @torch.no_grad()
    def states(self, prompts: Sequence[Sequence[int]], layers: Sequence[int], *, answered: bool = False) -> Tensor:
        """Return mean-pooled hidden states, (prompts, layers, width), float32.

        Args:
            prompts: tokens of each.
            answered: pool over the model's own continuation, starting at the last token of the prompt.
        """
        self.model.eval()
        pooled = []
        for start in range(0, len(prompts), _BATCH):
            rows = prompts[start : start + _BATCH]
            continuations = self._generate(self.embed(rows)).sequences if answered else None
            if continuations is not None:
                tails = [list(takewhile(self._continues, tokens.tolist())) for tokens in continuations]
                whole = self.embed([[*row, *tail] for row, tail in zip(rows, tails, strict=True)])
            else:
                whole = self.embed(rows)
            embedded, mask, positions = pad_rows(whole)
            states = self.model(
                inputs_embeds=embedded, attention_mask=mask, position_ids=positions, output_hidden_states=True,
                use_cache=False, logits_to_keep=1,
            ).hidden_states  # fmt: skip
            # The last token of a prompt already predicts the answer.
            starts = torch.tensor([len(row) - 1 if answered else 0 for row in rows], device=mask.device)
            wanted = (mask.bool() & (positions >= starts[:, None]))[..., None]
            pooled += [
                torch.stack([(states[layer] * wanted).sum(1) / wanted.sum(1) for layer in layers], 1).float().cpu()
            ]
        return torch.cat(pooled)

    @torch.no_grad()
    def answers(self, inputs: Sequence[Tensor]) -> tuple[list[str], str]:
        """Return the greedy first line after each embedded prompt, and SHA-256 of the scores of all first tokens."""
        self.model.eval()
        texts: list[str] = []
        digest = hashlib.sha256()
        for start in range(0, len(inputs), _BATCH):
            generated = self._generate(inputs[start : start + _BATCH])
            digest.update(generated.scores[0].float().cpu().numpy().tobytes())
            decoded = self.tokenizer.batch_decode(generated.sequences, skip_special_tokens=True)
            texts += [next(iter(text.strip().splitlines()), "").strip() for text in decoded]
        return texts, digest.hexdigest()

    def _generate(self, inputs: Sequence[Tensor]) -> Any:
        """Generate greedy continuations of a batch; returns `sequences` and `scores` of `transformers`."""
        embedded, mask, _ = pad_rows(inputs)
        pad = self.tokenizer.pad_token_id
        return self.model.generate(
            inputs_embeds=embedded,
            attention_mask=mask,
            max_new_tokens=_ROOM,
            do_sample=False,
            pad_token_id=pad if pad is not None else self.tokenizer.eos_token_id,
            return_dict_in_generate=True,
            output_scores=True,
        )

    def _continues(self, token: int) -> bool:
        return token not in (self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)

    def save(self, folder: Path) -> None:
        """Save weights, configuration and tokenizer in the format of `transformers`."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def last_places(length: int, kept: int) -> Tensor:
    """Return the last places of rows, as `logits_to_keep`; for a number, torch would copy the head for each row."""
    return torch.arange(length - kept, length)


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
    tokenizer, model = load_model(_transformers(), name, option)
    model = model.to(settings.device, getattr(torch, settings.dtype))
    return Language(model_name(name), model, tokenizer, tokenizer.chat_template is not None and not settings.shots)


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


def draw_tiny(name: str, tiny: Tiny, tokenizer: Any, seed: int) -> Language:
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
    return Language(name, transformers.LlamaForCausalLM(config), tokenizer)


def _transformers() -> Any:
    return import_transformers("lemur experts", "'lemur-curator[experts]'")
