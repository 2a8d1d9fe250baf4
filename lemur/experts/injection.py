"""Domain experts for a frozen language model, whose answer enters it as one vector (arXiv:2601.08209).

From top to bottom: a language model of `transformers`, whose inputs take vectors beside words; the codebook, whose
vectors make the frozen base say a number; the router, in which nothing is trained; the training loop; the stages, each
a folder that is complete or absent (facts, base, codebook, and for each domain an expert and prototypes); the
evaluation; and `ask`. No class of `transformers` is subclassed: vectors go through `inputs_embeds`.
"""

import contextlib
import copy
import hashlib
import importlib
import inspect
import json
import math
import pickle
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, pad

from lemur.experts.facts import (
    ANSWERS,
    BASE,
    CODEBOOK,
    DATA,
    ELSEWHERE,
    EVALUATED,
    EXPERT,
    FACTS,
    GENERAL,
    NAMES,
    RELATIONS,
    ROUTED,
    BaseSettings,
    Settings,
    Tiny,
    Training,
    ask,
    compute_majority,
    compute_scores,
    count_facts,
    document,
    documents,
    facts_in,
    questions,
    read_facts,
    read_number,
    report_text,
    wordings,
)
from lemur.experts.local_models import find_model, import_transformers, load_model
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_file, atomic_folder, own, write_text
from lemur_core.files.cache import cache_folder, remove_path
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note, progress
from manifests.folders.manifest import (
    FILE_NAME,
    Manifest,
    Stopwatch,
    describe_parent,
    list_outputs,
    package_versions,
    read_manifest,
    write_manifest,
)
from manifests.folders.tables import write_table
from manifests.records import ExpertAnswer, ExpertFact, arrow_schema

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


# -- the stages --------------------------------------------------------------------------------------------------------

SETTINGS = "settings.json"
VECTORS, PROTOTYPES = "vectors.safetensors", "prototypes.safetensors"
#: Draws one prompt and its answer.
Draw = Callable[[random.Random], tuple[str, str]]
_TEXTS = 20_000  # for training the tokenizer of a tiny base
_ALONE, _WITH_ANSWER = 0.25, 0.5  # cumulative shares of prompts: question alone, with the answer; rest: with a document
_ONSETS = (*"bcdfghjklmnpqrstvwxyz", "tr", "st", "ch", "gr", "pl", "")
_ENDS = ("", "", "n", "m", "r", "t", "s", "x", "l", "rm", "ck")


@dataclass(frozen=True, slots=True)
class Workspace:
    """The stages of one settings file. `force`: rebuild stages that were built with other settings."""

    settings: Settings
    force: bool = False

    def train(self, domains: Sequence[str] = ()) -> Path:
        """Build what is not there yet: facts, base, codebook, these domains (default: all), and the evaluation.

        Returns: the folder of the evaluation, which covers all domains that are there.
        Raises: UserError if a domain is unknown, or a stage was built with other settings and `force` is not set.
        """
        known = self.settings.data.domains
        if unknown := [domain for domain in domains if domain not in known]:
            raise UserError(f"{unknown[0]}: not a domain of the settings; choose from {', '.join(known)}")
        with self.alone():
            self.make_data()
            self.make_base()
            self.make_codebook()
            for domain in domains or known:
                self.make_expert(domain)
            for domain in (*(domains or known), GENERAL):
                self.make_prototypes(domain)
            folder = self.make_evaluation()
            write_text(self.settings.out / SETTINGS, self.settings.model_dump_json(indent=1) + "\n")
        return folder

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder, and use one thread, so that sums do not depend on the number of cores."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with own(self.settings.out, ".lock", "another run works there"):
                yield
        finally:
            torch.set_num_threads(threads)

    def make_data(self) -> None:
        """Build the facts from the libraries."""
        data = self.settings.data

        def fill(folder: Path, _key: str) -> Json:
            facts = read_facts(data, self.settings.seed)
            write_table(folder / FACTS, arrow_schema(ExpertFact), (fact.model_dump() for fact in facts))
            return count_facts(facts)

        parameters = data.model_dump(mode="json", exclude={"libraries"}) | {"seed": self.settings.seed}
        self._make(self.folder("data"), DATA, parameters, data.libraries, fill)

    def make_base(self) -> None:
        """Train the tiny base on the general set; does nothing if the settings name a real base."""
        settings, seed = self.settings.base, self.settings.seed
        if settings.model is not None:
            return

        def fill(folder: Path, key: str) -> Json:
            draw = _draw_reading(self.facts())
            rng = random.Random(seed)
            # The tokenizer sees the same mixture of prompts as the training.
            texts = [f"{prompt} {answer}" for prompt, answer in (draw(rng) for _ in range(_TEXTS))]
            language = draw_tiny(settings.tiny, learn_tokenizer(texts, settings.vocabulary), seed)
            return self._tune(folder, language, draw, settings.training, "base", key)

        self._make(self.folder("base"), BASE, self._parameters(settings), [self.folder("data")], fill)

    def make_expert(self, domain: str) -> None:
        """Stage I: adapt a model to all facts of a domain, in the training wordings."""
        settings, base = self.settings.expert, self.settings.base

        def fill(folder: Path, key: str) -> Json:
            named = settings.model
            language = copy.deepcopy(self.base()) if named is None else open_language(named, base, "expert.model")
            rows = questions(self.question_facts(domain), held=False)

            def draw(step: random.Random) -> tuple[str, str]:
                row = step.choice(rows)
                return prompt_of(row.text), row.fact.answer

            return {"questions": len(rows)} | self._tune(folder, language, draw, settings.training, domain, key)

        parameters = self._parameters(settings, domain=domain, start=_digest(settings.model or self._base_model))
        self._make(self.folder("domains", domain, "expert"), EXPERT, parameters, self._ground, fill)

    def make_codebook(self) -> None:
        """Stage II: train the vectors of all numbers on questions of the general set, with the base frozen."""
        settings, seed = self.settings.codebook, self.settings.seed

        def fill(folder: Path, key: str) -> Json:
            from safetensors.torch import save_file

            base, frame, numbers = self.base(), self.frame(), self.numbers()
            general = self.question_facts(GENERAL)
            rows = questions((fact for fact in general if not fact.held), held=False)
            codebook = Codebook(numbers, settings.slots, base)

            def compute_loss(step: random.Random) -> Tensor:
                # Whatever is asked: so it is learned once, and serves all domains.
                answers = step.sample(numbers, min(settings.training.batch, len(numbers)))
                prompts = [frame.with_answer(step.choice(rows).text)] * len(answers)
                return base.loss(base.embed_injected(prompts, codebook(answers)), answers)

            loss = fit(codebook, compute_loss, settings.training, label="codebook", key=key, seed=seed)
            save_file(codebook.state_dict(), folder / VECTORS)
            others = questions((fact for fact in general if fact.held), held=True)
            prompts = [frame.with_answer(row.text) for row in random.Random(seed).choices(others, k=len(numbers))]
            with torch.no_grad():
                answers, _ = base.answers(base.embed_injected(prompts, codebook(numbers)))
            right = sum(read_number(text) == number for text, number in zip(answers, numbers, strict=True))
            return {"numbers": len(numbers), "repeated": right, "loss": round(loss, 6)}

        parameters = self._parameters(settings, base=_digest(self._base_model))
        self._make(self.folder("codebook"), CODEBOOK, parameters, self._ground, fill)

    def make_prototypes(self, domain: str) -> None:
        """Build the prototypes of a domain or the general set from the training questions, without held-out blocks."""
        settings = self.settings.router

        def fill(folder: Path, _key: str) -> Json:
            from safetensors.torch import save_file

            rows = questions((fact for fact in self.question_facts(domain) if not fact.held), held=False)
            if not rows:
                raise UserError(f"{domain}: no question about a block that is not held out; add blocks, or lower held")
            states = encode(self.base(), [row.text for row in rows])
            prototypes = centers(states, settings.prototypes, self.settings.seed)
            save_file({"prototypes": prototypes}, folder / PROTOTYPES)
            return {"questions": len(rows), "prototypes": len(prototypes)}

        parameters = self._parameters(settings, domain=domain, encoder=_digest(self._base_model))
        del parameters["margin"], parameters["least"]  # of routing alone
        self._make(self.folder("domains", domain, "prototypes"), ROUTED, parameters, self._ground, fill)

    def make_evaluation(self) -> Path:
        """Ask all domains that are there; what is already there about other ones is replaced."""
        ground = [describe_parent(folder) for folder in self._ground]
        stages: list[Path] = []
        domains = []
        for domain in self.settings.data.domains:
            folders = [self.folder("domains", domain, stage) for stage in ("expert", "prototypes")]
            built = all((folder / FILE_NAME).is_file() for folder in folders)
            if built and all(read_manifest(folder).parents == ground for folder in folders):
                domains.append(domain)
                stages += folders
        stages += [self.folder("codebook"), self.folder("domains", GENERAL, "prototypes")]

        def fill(folder: Path, _key: str) -> Json:
            answers, found = evaluate(self, domains)
            write_table(folder / ANSWERS, arrow_schema(ExpertAnswer), (answer.model_dump() for answer in answers))
            counts = {"scores": compute_scores(answers), "majority": compute_majority(answers), "found": found}
            write_text(folder / "report.md", report_text(counts))
            return counts

        router = self.settings.router.model_dump(include={"margin", "least"})
        parameters = {"domains": domains, "seed": self.settings.seed, **router}
        out = self.folder("evaluation")
        self._make(out, EVALUATED, parameters, [*self._ground, *stages], fill, force=True)
        return out

    # What the stages read of each other

    def folder(self, *parts: str) -> Path:
        """Return the folder of a stage: `data`, `base`, `codebook`, or `domains`, a domain, and its stage."""
        return self.settings.out.joinpath(*parts)

    def facts(self) -> list[ExpertFact]:
        """Return the facts. Raises: UserError if they have not been built."""
        return facts_in(self.folder("data"))

    def question_facts(self, domain: str) -> list[ExpertFact]:
        """Return the facts of a domain that are used in questions."""
        return [fact for fact in self.facts() if fact.domain == domain and fact.asked]

    def numbers(self) -> list[str]:
        """Return all answers of all questions."""
        return sorted({fact.answer for fact in self.facts() if fact.asked}, key=int)

    def base(self) -> Language:
        """Open the frozen base. Raises: UserError if it has not been built, or cannot be loaded."""
        if self.settings.base.model is None:
            read_manifest(self.folder("base"))
        return _open_frozen(self._base_model, _digest(self._base_model), self.settings.base)

    def frame(self) -> Frame:
        """Return the examples before each prompt of the base: general facts in training wordings."""
        rng = random.Random(self.settings.seed)
        general = [fact for fact in self.facts() if fact.domain == GENERAL and not fact.held]
        texts = documents(general)
        candidates = [fact for fact in general if fact.asked]
        chosen = rng.sample(candidates, min(self.settings.base.shots, len(candidates)))
        asked = [ask(fact, rng.choice(wordings(fact.relation, held=False))).text for fact in chosen]
        return Frame([(text, texts[fact.block], fact.answer) for text, fact in zip(asked, chosen, strict=True)])

    def ask_expert(self, domain: str, texts: Sequence[str]) -> tuple[list[str], list[int]]:
        """Return a domain's expert's answers, and the tokens of its prompts. Raises: UserError if it is not built."""
        folder = self.folder("domains", domain, "expert")
        read_manifest(folder)
        return _ask(str(folder / "model"), _digest(str(folder / "model")), self.settings.base, tuple(texts))

    def slots(self, domain: str, texts: Sequence[str], base: Language) -> Tensor:
        """Return the vectors that a domain injects for each question: (questions, slots, base width).

        They are those of the number that its expert says.
        """
        from safetensors.torch import load_file

        folder = self.folder("codebook")
        read_manifest(folder)
        codebook = Codebook(self.numbers(), self.settings.codebook.slots, base)
        codebook.load_state_dict(load_file(folder / VECTORS))
        answers, _ = self.ask_expert(domain, texts)
        with torch.no_grad():
            slots: Tensor = codebook([read_number(text) or "0" for text in answers])
        return slots

    def inject(self, texts: Sequence[str], routed: Sequence[str], base: Language) -> list[Tensor]:
        """Embed questions, each with the vectors of the domain that it is routed to; plain ones for general."""
        frame = self.frame()
        inputs = base.embed_prompts([frame.plain(text) for text in texts])
        for domain in sorted(set(routed) - {GENERAL}):
            places = [at for at, name in enumerate(routed) if name == domain]
            slots = self.slots(domain, [texts[at] for at in places], base)
            injected = base.embed_injected([frame.with_answer(texts[at]) for at in places], slots)
            for at, embedded in zip(places, injected, strict=True):
                inputs[at] = embedded
        return inputs

    def router(self, domains: Sequence[str]) -> Router:
        """Open the router for these domains and the general set. Raises: UserError if one has no prototypes."""
        from safetensors.torch import load_file

        prototypes = {}
        for name in (*domains, GENERAL):
            folder = self.folder("domains", name, "prototypes")
            read_manifest(folder)
            prototypes[name] = load_file(folder / PROTOTYPES)["prototypes"]
        return Router(prototypes, self.settings.router.margin, self.settings.router.least)

    @property
    def _base_model(self) -> str:
        return self.settings.base.model or str(self.folder("base") / "model")

    @property
    def _ground(self) -> list[Path]:
        """The parents of every stage after the base."""
        return [self.folder("data"), *([] if self.settings.base.model else [self.folder("base")])]

    def _parameters(self, part: BaseModel, **further: Any) -> dict[str, Any]:
        """Return the parameters of a stage; a model's digest replaces its path, so that they do not depend on it."""
        shared = {"seed": self.settings.seed, "dtype": self.settings.base.dtype, "shots": self.settings.base.shots}
        return part.model_dump(mode="json", exclude={"model"}) | further | shared

    def _tune(self, folder: Path, language: Language, draw: Draw, training: Training, label: str, key: str) -> Json:
        """Train a language model on drawn prompts, and save it in the format of `transformers`."""

        def compute_loss(step: random.Random) -> Tensor:
            prompts, answers = zip(*(draw(step) for _ in range(training.batch)), strict=True)
            return language.loss(language.embed_prompts(prompts), answers)

        trained = language.model.requires_grad_(requires_grad=True)
        if training.rank:
            try:
                peft: Any = importlib.import_module("peft")
            except ImportError as error:
                raise UserError("training.rank: needs peft; pip install peft, or set rank to 0") from error
            torch.manual_seed(self.settings.seed)
            low_rank = peft.LoraConfig(r=training.rank, lora_alpha=2 * training.rank, target_modules="all-linear")
            trained = peft.get_peft_model(language.model, low_rank)
        loss = fit(trained, compute_loss, training, label=label, key=key, seed=self.settings.seed)
        if training.rank:
            trained.merge_and_unload()
        language.model.save_pretrained(folder / "model")
        language.tokenizer.save_pretrained(folder / "model")
        size = sum(parameter.numel() for parameter in language.model.parameters())
        return {"loss": round(loss, 6), "parameters": size, "weights": language.digest}

    def _make(
        self, out: Path, kind: str, parameters: Mapping[str, object], parents: Sequence[Path],
        fill: Callable[[Path, str], Json], *, force: bool = False,
    ) -> None:  # fmt: skip
        """Build one stage, unless it exists with the same inputs.

        Args: fill: writes the files, with a cache key for checkpoints of an unfinished run, and returns the counts.
        Raises: UserError if it exists with other inputs, and may not be replaced.
        """
        above = [describe_parent(folder) for folder in parents]
        if (out / FILE_NAME).is_file():
            older = read_manifest(out)
            if older.kind == kind and older.parameters == parameters and older.parents == above:
                note(f"{out}: up to date")
                return
            if not (force or self.force):
                raise UserError(
                    f"{out}: was built with other settings or from other folders; add --force to replace it"
                )
        watch = Stopwatch()
        versions = package_versions() | {"torch": torch.__version__}
        # With the versions: another torch trains other weights, so its checkpoints are not continued.
        identity = json.dumps([kind, parameters, [parent.sha256 for parent in above], versions], sort_keys=True)
        with atomic_folder(out, force=force or self.force) as folder:
            counts = fill(folder, hashlib.sha256(identity.encode()).hexdigest()[:32])
            rows = {path.name: pq.read_metadata(path).num_rows for path in folder.glob("*.parquet")}
            manifest = Manifest(
                kind=kind,
                versions=versions,
                parameters=dict(parameters),
                inputs=[],
                parents=above,
                counts=counts,
                details={},
                outputs=list_outputs(folder, rows),
                measured=watch.measure(),
            )
            write_manifest(folder, manifest)
        note(f"{out}: built in {watch.measure().seconds:.1f} s")


@lru_cache(maxsize=1)
def _open_frozen(model: str, _digest: str, settings: BaseSettings) -> Language:
    """Open a base once in a process, since unpacking a GGUF file takes long; other weights have another digest."""
    language = open_language(model, settings)
    language.model.requires_grad_(requires_grad=False)
    return language


@cache
def _ask(model: str, _digest: str, settings: BaseSettings, texts: tuple[str, ...]) -> tuple[list[str], list[int]]:
    """Ask an expert the same only once in a process; other weights have another digest."""
    expert = open_language(model, settings)
    inputs = expert.embed_prompts([prompt_of(text) for text in texts])
    return expert.answers(inputs)[0], [len(row) for row in inputs]


def _digest(model: str) -> str:
    """Return SHA-256 of the weights in a model's folder, or the name of a model on the Hub."""
    files = find_model(model, "base.model")
    # By the weights alone: neither a path nor a date makes a stage look changed.
    return model if files.folder is None else files.digest(".safetensors")


def _draw_reading(facts: Sequence[ExpertFact]) -> Draw:
    """Return a function that draws one training example of a base: prompt and answer.

    The base learns the facts of the general set, and to read a background: about classes with invented names, with
    answers drawn from those of the general set, so that only the background can provide them.
    """
    general = [fact for fact in facts if fact.domain == GENERAL]
    asked = [fact for fact in general if fact.asked]
    values = {relation: sorted({fact.answer for fact in general if fact.relation == relation}) for relation in NAMES}
    seen = {relation: wordings(relation, held=False) for relation in NAMES}

    def invent(rng: random.Random) -> str:
        """Invent a word of one to four syllables, like `mofe-kubra`."""
        syllables = (rng.choice(_ONSETS) + rng.choice("aeiou") + rng.choice(_ENDS) for _ in range(rng.randint(1, 4)))
        return rng.choice(("", "", "", "-")).join(syllables)

    def draw(rng: random.Random) -> tuple[str, str]:
        fact = rng.choice(asked)
        question = ask(fact, rng.choice(seen[fact.relation])).text
        kind = rng.random()
        if kind < _ALONE:
            return prompt_of(question), fact.answer
        answer = rng.choice(values[fact.relation])
        # A name that no fact has, so that only the background can hold the answer.
        invented = fact.model_copy(update={"name": invent(rng).title(), "package": invent(rng)})
        question = ask(invented, rng.choice(seen[fact.relation])).text
        if kind < _WITH_ANSWER:
            named = rng.choice(["", f"{NAMES[fact.relation][0]} "])
            return prompt_of(question, named + answer), answer
        others = [relation for relation in RELATIONS if relation != fact.relation and values[relation]]
        some = rng.sample(others, rng.randint(0, len(others)))
        known = {relation: rng.choice(values[relation]) for relation in some} | {fact.relation: answer}
        shown = [(relation, known[relation]) for relation in RELATIONS if relation in known]
        return prompt_of(question, document(invented.name, invented.package, shown)), answer

    return draw


# -- the evaluation, and questions of one's own ------------------------------------------------------------------------


def evaluate(workspace: Workspace, domains: Sequence[str]) -> tuple[list[ExpertAnswer], Json]:
    """Have the held-out questions of domains, and those of the general set, answered in every way (`ARMS`).

    Returns: all answers; and what routing and the base did. Raises: UserError if a stage has not been built.
    """
    base, frame, facts = workspace.base(), workspace.frame(), workspace.facts()
    # The tiny base was trained on all general facts, in other wordings; prototypes saw none of these blocks.
    held = [fact for fact in facts if fact.asked and fact.held]
    rows = {name: questions([fact for fact in held if fact.domain == name], held=True) for name in (*domains, GENERAL)}
    texts = {name: [row.text for row in own] for name, own in rows.items()}
    told = documents(facts)
    found: list[ExpertAnswer] = []

    def record(
        arm: str, domain: str, said: Sequence[str], tokens: Sequence[int], routed: Sequence[str | None] = ()
    ) -> None:
        for row, answer, by, number in zip(rows[domain], said, routed or [None] * len(said), tokens, strict=True):
            fact: Json = {name: getattr(row.fact, name) for name in ("id", "block", "relation", "code_sha256")}
            fact |= {"arm": arm, "domain": domain, "question": row.text, "expected": row.fact.answer}
            right = read_number(answer) == row.fact.answer
            found.append(ExpertAnswer(**fact, routed=by, answer=answer, correct=right, tokens=number))

    def book(arm: str, domain: str, inputs: Sequence[Tensor], routed: Sequence[str | None] = ()) -> str:
        """Let the base answer, and return the digest of its scores."""
        said, scores = base.answers(inputs)
        record(arm, domain, said, [len(row) for row in inputs], routed)
        return scores

    def plain(domain: str) -> list[Tensor]:
        return base.embed_prompts([frame.plain(text) for text in texts[domain]])

    # At both ends: nothing in between may change the base.
    before = base.digest
    closed = {domain: book("closed", domain, plain(domain)) for domain in rows}
    for domain in domains:
        slots, prompts = workspace.slots(domain, texts[domain], base), list(map(frame.with_answer, texts[domain]))
        by = [domain] * len(prompts)
        book("oracle", domain, base.embed_injected(prompts, slots), by)
        if len(prompts) > 1:
            # Never by 0: each question gets the token of another one.
            turn = random.Random(f"{workspace.settings.seed} {domain}").randrange(1, len(prompts))
            book("shuffled", domain, base.embed_injected(prompts, slots.roll(turn, 0)), by)
    router = workspace.router(domains)
    routes = {name: router.route(encode(base, own)) for name, own in texts.items()}
    for name, routed in routes.items():
        injected = workspace.inject(texts[name], routed, base)
        book("routed", name, injected, [None if by == GENERAL else by for by in routed])
    for domain in domains:
        shown = [frame.with_document(row.text, told[row.fact.block]) for row in rows[domain]]
        book("told", domain, base.embed_prompts(shown))
        said, tokens = workspace.ask_expert(domain, texts[domain])
        record("expert", domain, said, tokens)
        book("expert as text", domain, base.embed_prompts(list(map(frame.with_answer, texts[domain], said))))
    after, again = base.digest, base.answers(plain(GENERAL))[1]
    return found, {
        "routing": {name: [routed.count(name), len(routed)] for name, routed in routes.items()},
        "elsewhere": router.route(encode(base, ELSEWHERE)).count(GENERAL),
        "digest_before": before,
        "digest_after": after,
        "general_exact": before == after and again == closed[GENERAL],
        "slots": workspace.settings.codebook.slots,
    }


def answer(folder: Path, asked: Sequence[str], domain: str | None = None) -> list[Json]:
    """Answer questions by a finished folder: each one's domain, by the router or as given, its cosine with all of them,
    and the base's answer with and without the injected token.

    Raises: UserError if the folder is not finished, or has no such domain.
    """
    try:
        settings = Settings.model_validate_json((folder / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise UserError(f"{folder}: has no readable {SETTINGS}; pass a folder of `lemur experts train`") from error
    workspace = Workspace(settings.model_copy(update={"out": folder}))
    domains: list[str] = read_manifest(workspace.folder("evaluation")).parameters["domains"]
    if domain is not None and domain not in (*domains, GENERAL):
        raise UserError(f"{domain}: not a domain of {folder}; choose from {', '.join((*domains, GENERAL))}")
    with workspace.alone():
        base, frame, router = workspace.base(), workspace.frame(), workspace.router(domains)
        states = encode(base, asked)
        cosines = {name: values.tolist() for name, values in router.cosines(states).items()}
        routed = router.route(states) if domain is None else [domain] * len(asked)
        said, _ = base.answers(workspace.inject(asked, routed, base))
        without, _ = base.answers(base.embed_prompts([frame.plain(text) for text in asked]))
    return [
        {
            "question": text,
            "routed": routed[at],
            "cosines": {name: round(values[at], 4) for name, values in cosines.items()},
            "answer": said[at],
            "without": without[at],
        }
        for at, text in enumerate(asked)
    ]
