"""A causal language model of `transformers` and its tokenizer: states, answers, and vectors put among its inputs.

Nothing of `transformers` is subclassed: what is injected goes in through `inputs_embeds`.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lemur.experts.domains.settings import Tiny
from lemur_core.files.errors import UserError

#: Where the background stands: a text, or what is injected.
MARK = "{background}"
_ROOM = 8  # tokens of an answer at most
_BATCH = 128
_IGNORED = -100
_END, _PAD = "<|end|>", "<|pad|>"


def plain_prompt(question: str) -> str:
    """A question alone."""
    return f"{question}\nAnswer:"


def prompt_with(question: str, background: str = MARK) -> str:
    """A question after a background, or after the place that one is injected at."""
    return f"Background: {background}\n{plain_prompt(question)}"


@dataclass(frozen=True, slots=True)
class Language:
    """A model that is asked. `name` is how it is called in records."""

    name: str
    model: Any
    tokenizer: Any

    @property
    def width(self) -> int:
        """Of its input embeddings."""
        return int(self.model.get_input_embeddings().weight.shape[1])

    @property
    def digest(self) -> str:
        """SHA-256 of all weights."""
        told = hashlib.sha256()
        for key, value in sorted(self.model.state_dict().items()):
            told.update(key.encode() + value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return told.hexdigest()

    def ids(self, prompt: str) -> list[int]:
        """The tokens of a prompt; a chat model's by its template."""
        chat = self.tokenizer.chat_template is not None
        return list(self.tokenizer(self._framed(prompt), add_special_tokens=not chat).input_ids)

    def around_mark(self, prompt: str) -> tuple[list[int], list[int]]:
        """The tokens before and after the marked place."""
        chat = self.tokenizer.chat_template is not None
        before, _, after = self._framed(prompt).partition(MARK)
        first = list(self.tokenizer(before.rstrip(), add_special_tokens=not chat).input_ids)
        return first, list(self.tokenizer(after, add_special_tokens=False).input_ids)

    def _framed(self, prompt: str) -> str:
        if self.tokenizer.chat_template is None:
            return prompt
        asked = [{"role": "user", "content": prompt}]
        return str(self.tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False))

    def answer_ids(self, answer: str) -> list[int]:
        """The tokens of an answer and its end."""
        return [*self.tokenizer(f" {answer}", add_special_tokens=False).input_ids, self.tokenizer.eos_token_id]

    def embed(self, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        """Input embeddings of several rows of tokens, each (tokens, width)."""
        table = self.model.get_input_embeddings()
        flat = torch.tensor([token for row in rows for token in row], dtype=torch.long, device=table.weight.device)
        return list(table(flat).split([len(row) for row in rows]))

    def asked(self, prompts: Sequence[str]) -> list[Tensor]:
        """The inputs of prompts, each (tokens, width)."""
        return self.embed([self.ids(prompt) for prompt in prompts])

    def injected(self, prompts: Sequence[str], slots: Tensor) -> list[Tensor]:
        """Inputs of prompts with vectors at their marks, each (tokens, width). Args: slots: (prompts, slots, width)."""
        around = [part for prompt in prompts for part in self.around_mark(prompt)]
        parts = self.embed(around)
        put = slots.to(parts[0].dtype)
        return [torch.cat([parts[2 * at], put[at], parts[2 * at + 1]]) for at in range(len(prompts))]

    def loss(self, inputs: Sequence[Tensor], answers: Sequence[str]) -> Tensor:
        """Mean negative log-likelihood of the answers' tokens, nats.

        Args: inputs: of each prompt, (tokens, width), which the answer follows.
        """
        ids = [self.answer_ids(answer) for answer in answers]
        rows = [torch.cat(pair) for pair in zip(inputs, self.embed(ids), strict=True)]
        embedded, mask, places = _padded(rows)
        kept = max(map(len, ids)) + 1
        scores = self.model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=places, use_cache=False, logits_to_keep=kept
        ).logits[:, :-1]
        wanted = torch.tensor([[_IGNORED] * (kept - 1 - len(row)) + row for row in ids], device=scores.device)
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten(), ignore_index=_IGNORED)

    @torch.no_grad()
    def states(self, prompts: Sequence[str], layers: Sequence[int], *, answered: bool = False) -> Tensor:
        """Mean-pooled hidden states, (prompts, layers, width), float32.

        Args: answered: pooled over the model's own continuation, from the last token of the prompt on.
        """
        self.model.eval()
        found = []
        for start in range(0, len(prompts), _BATCH):
            rows = [self.ids(prompt) for prompt in prompts[start : start + _BATCH]]
            said = self._continued(self.embed(rows)).sequences if answered else None
            tails = [self._until_end(tokens.tolist()) for tokens in said] if said is not None else [[] for _ in rows]
            whole = self.embed([row + tail for row, tail in zip(rows, tails, strict=True)])
            embedded, mask, places = _padded(whole)
            states = self.model(
                inputs_embeds=embedded, attention_mask=mask, position_ids=places, output_hidden_states=True,
                use_cache=False, logits_to_keep=1,
            ).hidden_states  # fmt: skip
            starts = torch.tensor([len(row) - 1 if answered else 0 for row in rows], device=mask.device)
            wanted = (mask.bool() & (places >= starts[:, None]))[..., None]
            found += [
                torch.stack([(states[layer] * wanted).sum(1) / wanted.sum(1) for layer in layers], 1).float().cpu()
            ]
        return torch.cat(found)

    @torch.no_grad()
    def answers(self, inputs: Sequence[Tensor]) -> tuple[list[str], str]:
        """The likeliest first line after each embedded prompt; and SHA-256 of the scores of all their first tokens."""
        self.model.eval()
        texts: list[str] = []
        told = hashlib.sha256()
        for start in range(0, len(inputs), _BATCH):
            made = self._continued(inputs[start : start + _BATCH])
            told.update(made.scores[0].float().cpu().numpy().tobytes())
            texts += map(line_of, self.tokenizer.batch_decode(made.sequences, skip_special_tokens=True))
        return texts, told.hexdigest()

    def _continued(self, inputs: Sequence[Tensor]) -> Any:
        """Likeliest continuations of a batch, `sequences` and `scores` as `transformers` tells them."""
        embedded, mask, _ = _padded(inputs)
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

    def _until_end(self, tokens: list[int]) -> list[int]:
        ends = (self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)
        return tokens[: next((at for at, token in enumerate(tokens) if token in ends), len(tokens))]

    def save(self, folder: Path) -> None:
        """Weights, configuration and tokenizer as `transformers` keeps them."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in one tensor, nothing before the shorter ones; what is there, and at which place it stands."""
    longest = max(map(len, rows))
    embedded = torch.stack([torch.nn.functional.pad(row, (0, 0, longest - len(row), 0)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows], device=embedded.device)
    places = torch.arange(longest, device=embedded.device)[None] - (longest - lengths)[:, None]
    return embedded, (places >= 0).long(), places.clamp(min=0)


def line_of(text: str) -> str:
    """The first line of an answer."""
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else ""


def open_language(name: str, *, option: str = "--base") -> Language:
    """A model by its folder, or its name on the Hub. Its own code is never run, and weights are safetensors.

    Raises: UserError if transformers is not there, or it cannot be loaded.
    """
    transformers = _transformers()
    from safetensors import SafetensorError

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        model = transformers.AutoModelForCausalLM.from_pretrained(name, trust_remote_code=False, use_safetensors=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{option} {name}: cannot be loaded: {said}; give a folder or a name on the Hub") from error
    folder = Path(name)
    return Language(folder.resolve().name if folder.is_dir() else name, model.eval(), tokenizer)


def learn_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """A byte-pair tokenizer of these texts: their frequent words are one token each."""
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
    """A model of Llama's architecture whose weights are drawn at random."""
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
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import transformers
    except ImportError as error:
        raise UserError("lemur experts: needs transformers; pip install 'lemur-curator[experts]'") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers
