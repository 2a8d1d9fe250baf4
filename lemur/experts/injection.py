"""How one vector carries an expert's answer into a frozen language model (arXiv:2601.08209): the method.

From top to bottom: a language model of `transformers`, whose inputs take vectors beside words; the codebook, whose
vectors make the frozen base say a number; the router, in which nothing is trained; the training loop. No class of
`transformers` is subclassed: vectors go through `inputs_embeds`.
"""

import contextlib
import hashlib
import inspect
import math
import pickle
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, pad

from lemur.experts.facts import GENERAL, BaseSettings, Tiny, Training
from lemur.experts.local_models import import_transformers, load_model
from lemur_core.files.atomic import atomic_file
from lemur_core.files.cache import cache_folder, remove_path
from lemur_core.files.progress import progress

# -- a language model --------------------------------------------------------------------------------------------------

#: Placeholder of the background: a text, or an injected vector.
MARK = "{background}"
_ROOM = 12  # maximum number of tokens of an answer
_BATCH = 128
_SHARED = 16  # least number of tokens that are computed once for all rows
_IGNORED = -100
_END, _PAD = "<|end|>", "<|pad|>"


def prompt_of(question: str, background: str | None = None) -> str:
    """Return the prompt of a question, with a background text, or with the mark where one is injected.

    The background comes last: the vectors of all numbers are trained behind one question, which is computed once.
    """
    return f"{question}\nAnswer:" if background is None else f"{question}\nBackground: {background}\nAnswer:"


@dataclass(frozen=True, slots=True)
class Frame:
    """Answered examples before each prompt of the base. Args: shots: question, document and answer of each."""

    shots: Sequence[tuple[str, str, str]] = ()

    def plain(self, question: str) -> str:
        """Return the prompt of a question alone."""
        return self._behind([prompt_of(asked) for asked, _, _ in self.shots], prompt_of(question))

    def with_document(self, question: str, text: str) -> str:
        """Return the prompt of a question with a document; the examples have documents, too."""
        return self._behind([prompt_of(asked, shown) for asked, shown, _ in self.shots], prompt_of(question, text))

    def with_answer(self, question: str, answer: str = MARK) -> str:
        """Return the prompt of a question with an answer, or the mark where one is injected, as in the examples."""
        return self._behind([prompt_of(asked, known) for asked, _, known in self.shots], prompt_of(question, answer))

    def _behind(self, examples: Sequence[str], last: str) -> str:
        answered = (f"{example} {shot[2]}\n\n" for example, shot in zip(examples, self.shots, strict=True))
        return "".join(answered) + last


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
        """Return the tokens of a text alone: a chat template would make unlike questions alike."""
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def answer_ids(self, answer: str) -> list[int]:
        """Return the tokens of an answer, with its end."""
        return self.bare_ids(f" {answer}\n") if self.lines else [*self.bare_ids(f" {answer}"), self._ends[0]]

    def _apply_template(self, prompt: str) -> str:
        if not self.chat:
            return prompt
        messages = [{"role": "user", "content": prompt}]
        return str(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    @property
    def _ends(self) -> list[int]:
        ends = [self.tokenizer.eos_token_id, self.tokenizer.pad_token_id, *(self.bare_ids("\n") if self.lines else ())]
        return [token for token in ends if token is not None]

    def embed(self, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the input embeddings of rows of tokens, each (tokens, width)."""
        embeddings = self.model.get_input_embeddings()
        flat = torch.tensor([token for row in rows for token in row], dtype=torch.long, device=embeddings.weight.device)
        return list(embeddings(flat).split([len(row) for row in rows]))

    def embed_prompts(self, prompts: Sequence[str]) -> list[Tensor]:
        """Return the input embeddings of prompts, each (tokens, width)."""
        return self.embed([self.ids(prompt) for prompt in prompts])

    def embed_injected(self, prompts: Sequence[str], slots: Tensor) -> list[Tensor]:
        """Embed prompts with vectors at their marks, each (tokens, width). Args: slots: (prompts, slots, width)."""
        around = []
        for prompt in prompts:
            before, _, after = self._apply_template(prompt).partition(MARK)
            # The blank before the mark would be a token of its own, which a prompt with a text does not have.
            around.append(list(self.tokenizer(before.rstrip(), add_special_tokens=not self.chat).input_ids))
            around.append(self.bare_ids(after))
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
        return cross_entropy(scores.flatten(0, 1).float(), wanted.flatten(), ignore_index=_IGNORED)

    def _loss_behind(self, start: int, rows: Sequence[Tensor], ids: Sequence[Sequence[int]]) -> Tensor:
        """Return the loss of rows with a common start: as one sequence, in which a row sees the start and itself."""
        tails = [row[start:] for row in rows]
        lengths = torch.tensor([start, *map(len, tails)])
        owners = torch.arange(len(lengths)).repeat_interleave(lengths)
        places = torch.arange(len(owners))
        seen = (places[:, None] >= places) & ((owners[:, None] == owners) | (owners == 0))
        embedded = torch.cat([rows[0][:start], *tails])[None]
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
        return cross_entropy(scores.float(), wanted)

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

    def _generate(self, rows: Sequence[Tensor]) -> tuple[list[list[int]], Tensor]:
        """Return the tokens of greedy answers, without their ends, and the scores of the first ones."""
        cached = import_transformers("lemur experts", "'lemur-curator[experts]'").DynamicCache()
        start = count_common(rows)
        if start:
            self._call(cached, rows[0][None, :start])
            cached.batch_repeat_interleave(len(rows))
        embedded, mask, positions = pad_rows([row[start:] for row in rows])
        mask, positions = pad(mask, (start, 0), value=1), positions + start
        first = self._call(cached, embedded, attention_mask=mask, position_ids=positions)
        embeddings, ends = self.model.get_input_embeddings(), torch.tensor(self._ends, device=mask.device)
        tokens = first.argmax(-1, keepdim=True)
        while tokens.shape[1] < _ROOM and not torch.isin(tokens, ends).any(1).all():
            mask = pad(mask, (0, 1), value=1)
            at = positions[:, -1:] + tokens.shape[1]
            scores = self._call(cached, embeddings(tokens[:, -1:]), attention_mask=mask, position_ids=at)
            tokens = torch.cat([tokens, scores.argmax(-1, keepdim=True)], 1)
        return [list(takewhile(lambda token: token not in self._ends, row)) for row in tokens.tolist()], first

    def _call(self, cached: Any, embedded: Tensor, **further: Tensor) -> Tensor:
        # Newer releases of transformers renamed the argument, and warn of the other name.
        name = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
        places = last_places(embedded.shape[1], 1)
        output = self.model(inputs_embeds=embedded, use_cache=True, logits_to_keep=places, **{name: cached}, **further)
        scores: Tensor = output.logits[:, -1]
        return scores


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
    embedded = torch.stack([pad(row, (0, 0, longest - len(row), 0)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows], device=embedded.device)
    positions = torch.arange(longest, device=embedded.device)[None] - (longest - lengths)[:, None]
    return embedded, (positions >= 0).long(), positions.clamp(min=0)


def open_language(name: str, settings: BaseSettings, key: str = "base.model") -> Language:
    """Open a model on this machine or on the Hub. Its own code is never run; weights must be safetensors or GGUF.

    Args: name: a folder, a GGUF file, `package:NAME`, or a name on the Hub; key: names it in the settings.
    Raises: UserError if transformers is not installed, or the model cannot be loaded.
    """
    transformers = import_transformers("lemur experts", "'lemur-curator[experts]'")
    # For prompts of this length torch's own attention takes almost twice as long to train through in bfloat16.
    tokenizer, model = load_model(transformers, name, key, attn_implementation="eager")
    model = model.to(settings.device, getattr(torch, settings.dtype))
    chat = tokenizer.chat_template is not None and not settings.shots
    return Language(model, tokenizer, chat, lines=settings.shots > 0)


def learn_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """Train a byte-pair tokenizer on these texts; frequent words become single tokens."""
    transformers = import_transformers("lemur experts", "'lemur-curator[experts]'")
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
    transformers = import_transformers("lemur experts", "'lemur-curator[experts]'")
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


# -- codebook and router -----------------------------------------------------------------------------------------------

_ROUNDS = 50  # of k-means; it ends earlier once no center moves
_WIDTH = 512  # of the vectors of tokens, for the router


class Codebook(nn.Module):
    """Vectors for each number, with a length of their own: the base says the number that it gets as its background.

    At first they are the mean embeddings of equal parts of its digits.
    """

    def __init__(self, numbers: Sequence[str], slots: int, base: Language) -> None:
        super().__init__()
        self._numbers = [int(number) for number in numbers]
        embeddings = base.model.get_input_embeddings().weight.detach().float()
        (blank,) = base.bare_ids(" ")[:1]
        starts = []
        for number in numbers:
            digits = base.bare_ids(number)
            # Blanks before a short one: a digit that stands twice is read twice.
            parts = embeddings[[blank] * (slots - len(digits)) + digits].tensor_split(slots)
            starts.append(torch.stack([part.mean(0) for part in parts]))
        self._length = float(embeddings.norm(dim=1).mean())
        self.scale = nn.Parameter(torch.zeros(len(numbers), slots, 1))
        self.free = nn.Parameter(normalize(torch.stack(starts), dim=-1) * embeddings.shape[1] ** 0.5)

    def forward(self, numbers: Sequence[str]) -> Tensor:
        """Return the vectors of these numbers, or of the nearest that have some, (numbers, slots, width)."""
        marks = self._numbers
        at = [min(range(len(marks)), key=lambda at: abs(marks[at] - int(number))) for number in numbers]
        return normalize(self.free[at], dim=-1) * self._length * (self.scale[at] / 10).exp()


def centers(states: Tensor, number: int, seed: int) -> Tensor:
    """Return prototypes: spherical k-means of L2-normalized states, each center of length 1.

    Args: states: (questions, width). Returns: (at most number, width), float32; depends only on these states.
    Source: k-means++ (Arthur and Vassilvitskii, 2007) for the starts.
    """
    points = normalize(states.double(), dim=-1)
    generator = torch.Generator().manual_seed(seed)
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    while len(chosen) < min(number, len(points)):
        away = (1 - (points @ points[chosen].T).amax(1)).clamp(min=0)
        # Only copies of the chosen points are left.
        if float(away.max()) < 1e-12:
            break
        chosen.append(int(torch.multinomial(away, 1, generator=generator)))
    prototypes = points[chosen]
    for _ in range(_ROUNDS):
        nearest = (points @ prototypes.T).argmax(1)
        sums = torch.zeros_like(prototypes).index_add_(0, nearest, points)
        moved = torch.where((sums.norm(dim=1) > 1e-12)[:, None], normalize(sums, dim=-1), prototypes)
        if torch.equal(moved, prototypes):
            break
        prototypes = moved
    return prototypes.float()


@dataclass(frozen=True, slots=True)
class Router:
    """Prototypes by domain, including `general`. Add or remove an entry to add or remove a domain."""

    prototypes: Mapping[str, Tensor]
    margin: float = 0.0
    least: float = -1.0

    def cosines(self, states: Tensor) -> dict[str, Tensor]:
        """Return the largest cosine of each state with a prototype of each domain. Args: states: (questions, width)."""
        points = normalize(states.double(), dim=-1)
        return {
            name: (points @ normalize(prototypes.double(), dim=-1).T).amax(1)
            for name, prototypes in sorted(self.prototypes.items())
        }

    def route(self, states: Tensor) -> list[str]:
        """Return the domain of each state: the one with the largest cosine, the first by name among equal ones; general
        if that is below `least`, or the best two differ by less than `margin`."""
        cosines = self.cosines(states)
        names = list(cosines)
        scores = torch.stack([cosines[name] for name in names], 1)
        first, at = scores.max(1)
        certain = first >= self.least
        if self.margin and len(names) > 1:
            certain &= first - scores.topk(2, dim=1).values[:, 1] >= self.margin
        return [names[best] if sure else GENERAL for best, sure in zip(at.tolist(), certain.tolist(), strict=True)]


def encode(base: Language, texts: Sequence[str]) -> Tensor:
    """Return the mean vectors of the tokens of questions, (questions, width); each token's is random and fixed."""
    # A fixed seed: a token has the same vector when prototypes are built and when questions are routed.
    vectors = torch.randn(len(base.tokenizer), _WIDTH, generator=torch.Generator().manual_seed(0))
    return torch.stack([vectors[base.bare_ids(question)].mean(0) for question in texts])


# -- the training loop -------------------------------------------------------------------------------------------------

_WARM = 0.05  # fraction of all steps
_KEEP_SECONDS = 20.0  # between checkpoints
_CLIP = 1.0  # norm of the whole gradient


def fit(
    module: nn.Module,
    compute_loss: Callable[[random.Random], Tensor],
    training: Training,
    *,
    label: str,
    key: str,
    seed: int,
) -> float:
    """Train a module in place. Returns: the mean loss of the last 5 % of the steps, in nats.

    Each step has its own random generator, so a resumed run ends in the same weights.

    Args:
        compute_loss: computes the loss of one step from its generator; draws the batch.
        key: cache key of the run: a digest of everything that it depends on.
    """
    module.train()
    chosen = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    optimizer = torch.optim.AdamW(chosen.values(), training.rate, (0.9, 0.98), weight_decay=training.decay)
    # In the cache: the folder of a stage is complete or absent.
    kept = cache_folder("experts") / f"{key}.pt"
    losses: list[float] = []
    # A checkpoint that is missing or damaged, or fits another model, only costs time.
    with contextlib.suppress(OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError):
        checkpoint = torch.load(kept, weights_only=True)
        for name, parameter in chosen.items():
            parameter.detach().copy_(checkpoint["module"][name])
        optimizer.load_state_dict(checkpoint["optimizer"])
        losses = [float(loss) for loss in checkpoint["losses"]]
    last, warm = time.monotonic(), max(1, round(_WARM * training.steps))
    with progress(label, training.steps - len(losses), "steps") as advance:
        for step in range(len(losses), training.steps):
            factor = min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * step / training.steps))
            for group in optimizer.param_groups:
                group["lr"] = training.rate * factor
            loss = compute_loss(random.Random(f"{seed} {step}"))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(chosen.values(), _CLIP)
            optimizer.step()
            losses.append(float(loss.detach()))
            advance(1)
            if time.monotonic() - last > _KEEP_SECONDS:
                # Of the parameters that are trained: with LoRA, most of a model stays as it is.
                trained = {name: parameter.detach() for name, parameter in chosen.items()}
                with atomic_file(kept) as part:
                    torch.save({"module": trained, "optimizer": optimizer.state_dict(), "losses": losses}, part)
                last = time.monotonic()
    module.eval()
    remove_path(kept)
    tail = losses[-max(1, training.steps // 20) :]
    return sum(tail) / max(1, len(tail))
