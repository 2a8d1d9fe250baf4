"""How one vector carries an expert's answer into a frozen language model (arXiv:2601.08209): the method and its stages.

From top to bottom: a language model of `transformers`, whose inputs take vectors beside words; the codebook, whose
vectors make the frozen base say a number; the router, in which nothing is trained; the training loop; the stages of
`lemur experts train`, its evaluation, and `lemur experts ask`. No class of `transformers` is subclassed: vectors go
through `inputs_embeds`.
"""

import contextlib
import hashlib
import importlib
import inspect
import json
import math
import os
import pickle
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, pad

from lemur.experts.facts import (
    CODEBOOK,
    DATA,
    ELSEWHERE,
    EVALUATION,
    EXPERT,
    GENERAL,
    PROTOTYPES,
    Settings,
    Training,
    ask,
    count_facts,
    documents,
    facts_in,
    read_facts,
    read_number,
    wordings,
    write_scores,
)
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_file, atomic_folder, hold_lock, sha256_file, write_text
from lemur_core.files.cache import cache_folder, remove_path
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note, progress
from manifests.folders.kinds import Kind
from manifests.folders.manifest import (
    FILE_NAME,
    Stopwatch,
    describe_parent,
    package_versions,
    read_manifest,
)
from manifests.folders.tables import READ_ERRORS, describe, write_table
from manifests.records import ExpertAnswer, ExpertFact, arrow_schema

# -- a language model --------------------------------------------------------------------------------------------------

#: Placeholder of the background: a text, or an injected vector.
MARK = "{background}"
_ROOM = 12  # maximum number of tokens of an answer
_BATCH = 128
_SHARED = 16  # least number of tokens that are computed once for all rows
_IGNORED = -100
_PACKAGE = "package:"


def find_model(name: str, option: str) -> tuple[str, str | None]:
    """Return where a model is: a folder, or its name on the Hub; and its GGUF file there. Nothing is imported for it.

    Args: name: a folder, a GGUF file, a name on the Hub, or `package:NAME`, an installed distribution with a GGUF file
        or a folder with a `config.json`; option: that names the model.
    Raises: UserError if the distribution is not installed, or does not hold exactly one model.
    """
    path = Path(name)
    if name.startswith(_PACKAGE):
        wanted = name.removeprefix(_PACKAGE)
        try:
            files = [Path(str(file.locate())) for file in distribution(wanted).files or ()]
        except (PackageNotFoundError, ValueError) as error:
            raise UserError(f"{option} {name}: {wanted} is not installed; pip install {wanted}") from error
        models = [file for file in files if file.suffix == ".gguf" or file.name == "config.json"]
        if len(models) != 1:
            raise UserError(f"{option} {name}: {wanted} holds {len(models)} models, not one; pass a folder or a file")
        path = models[0] if models[0].suffix == ".gguf" else models[0].parent
    return (str(path.parent), path.name) if path.suffix == ".gguf" else (str(path), None)


def load_model(name: str, option: str) -> tuple[Any, Any]:
    """Return the tokenizer and the model, in eval mode. Its own code is never run; weights must be safetensors or GGUF.

    Args: name, option: as for `find_model`.
    Raises: UserError if it cannot be loaded.
    """
    # Otherwise the library warns whenever a process is forked.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        transformers: Any = importlib.import_module("transformers")
        from safetensors import SafetensorError
    except ImportError as error:
        raise UserError(f"{option}: needs transformers; pip install 'lemur-curator[experts]'") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    source, gguf = find_model(name, option)
    packed = {} if gguf is None else {"gguf_file": gguf}
    weights: dict[str, object] = {**packed, "dtype": "float32"} if packed else {"use_safetensors": True}
    # Newer releases would compute with packed weights where a kernel for them is installed.
    if packed and hasattr(transformers, "GgufConfig"):
        weights["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False, **packed)
        model = transformers.AutoModelForCausalLM.from_pretrained(source, trust_remote_code=False, **weights)
    except (ImportError, OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        advice = "pass a folder, a GGUF file, package:NAME or a name on the Hub"
        raise UserError(f"{option} {name}: cannot be loaded: {reason}; {advice}") from error
    return tokenizer, model.eval()


def digest_model(name: str) -> str:
    """Return SHA-256 of the weights of a model: neither a path nor a date changes it. On the Hub: its name."""
    source, gguf = find_model(name, "base.model")
    if not Path(source).is_dir():
        return name
    files = [Path(source, gguf)] if gguf else sorted(Path(source).glob("*.safetensors"))
    return hashlib.sha256("".join(f"{path.name} {sha256_file(path)}\n" for path in files).encode()).hexdigest()


def prompt_of(question: str, background: str | None = None) -> str:
    """Return the prompt of a question, with a background text, or with the mark where one is injected.

    The background comes last: the vectors of all numbers are trained behind one question, which is computed once.
    """
    return f"{question}\nAnswer:" if background is None else f"{question}\nBackground: {background}\nAnswer:"


@dataclass(frozen=True, slots=True)
class Frame:
    """Answered examples before each prompt of the base. Args: shots: question, document and answer of each."""

    shots: Sequence[tuple[str, str, str]] = ()

    def prompt(self, question: str, background: str | None = None, *, document: bool = False) -> str:
        """Return the prompt of a question. The examples have backgrounds if it has: answers, or documents."""
        lines = []
        for asked, shown, answer in self.shots:
            known = None if background is None else shown if document else answer
            lines.append(f"{prompt_of(asked, known)} {answer}\n\n")
        return "".join([*lines, prompt_of(question, background)])


@dataclass(frozen=True, slots=True)
class Language:
    """A language model that completes prompts; its answers end with their line."""

    model: Any
    tokenizer: Any

    @property
    def digest(self) -> str:
        """SHA-256 of all weights."""
        digest = hashlib.sha256()
        for key, value in sorted(self.model.state_dict().items()):
            # As bytes: NumPy has no bfloat16.
            digest.update(key.encode() + value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def ids(self, text: str, *, special: bool = False) -> list[int]:
        """Return the tokens of a text, with those that start a prompt if `special`."""
        return list(self.tokenizer(text, add_special_tokens=special).input_ids)

    def embed(self, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the input embeddings of rows of tokens, each (tokens, width)."""
        embeddings = self.model.get_input_embeddings()
        flat = torch.tensor([token for row in rows for token in row], dtype=torch.long, device=embeddings.weight.device)
        return list(embeddings(flat).split([len(row) for row in rows]))

    def embed_prompts(self, prompts: Sequence[str]) -> list[Tensor]:
        """Return the input embeddings of prompts, each (tokens, width)."""
        return self.embed([self.ids(prompt, special=True) for prompt in prompts])

    def embed_injected(self, prompts: Sequence[str], vectors: Tensor) -> list[Tensor]:
        """Embed prompts with a vector at the mark of each, (tokens, width). Args: vectors: (prompts, width)."""
        around = []
        for prompt in prompts:
            before, _, after = prompt.partition(MARK)
            # The blank before the mark would be a token of its own, which a prompt with a text does not have.
            around += [self.ids(before.rstrip(), special=True), self.ids(after)]
        parts = self.embed(around)
        put = vectors.to(parts[0].dtype)[:, None]
        return [torch.cat([parts[2 * at], put[at], parts[2 * at + 1]]) for at in range(len(prompts))]

    def loss(self, inputs: Sequence[Tensor], answers: Sequence[str]) -> Tensor:
        """Return the mean negative log-likelihood of the answers' tokens, in nats.

        Args: inputs: embedded prompts that the answers follow, each (tokens, width).
        """
        ids = [self.ids(f" {answer}\n") for answer in answers]
        rows = [torch.cat(pair) for pair in zip(inputs, self.embed(ids), strict=True)]
        # Rows end together, so only the last places predict answers; with a real vocabulary, the scores of all places
        # would not fit in memory.
        kept = max(map(len, ids)) + 1
        scores = self._read(rows, count_common(inputs), kept)[0][:, :-1]
        wanted = torch.tensor([[_IGNORED] * (kept - 1 - len(row)) + row for row in ids], device=scores.device)
        return cross_entropy(scores.flatten(0, 1).float(), wanted.flatten(), ignore_index=_IGNORED)

    @torch.no_grad()
    def answers(self, inputs: Sequence[Tensor]) -> list[str]:
        """Return the greedy first line after each embedded prompt."""
        self.model.eval()
        ends = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id, *self.ids("\n")} - {None}
        texts: list[str] = []
        for start in range(0, len(inputs), _BATCH):
            rows = inputs[start : start + _BATCH]
            scores, cached, mask, positions = self._read(rows, count_common(rows), 1)
            tokens = scores[:, -1].argmax(-1, keepdim=True)
            stop = torch.tensor(sorted(ends), device=mask.device)
            while tokens.shape[1] < _ROOM and not torch.isin(tokens, stop).any(1).all():
                mask = pad(mask, (0, 1), value=1)
                last = self.model.get_input_embeddings()(tokens[:, -1:])
                scores = self._call(cached, last, 1, mask, positions[:, -1:] + tokens.shape[1])
                tokens = torch.cat([tokens, scores[:, -1].argmax(-1, keepdim=True)], 1)
            said = [list(takewhile(lambda token: token not in ends, row)) for row in tokens.tolist()]
            decoded = self.tokenizer.batch_decode(said, skip_special_tokens=True)
            texts += [next(iter(text.strip().splitlines()), "").strip() for text in decoded]
        return texts

    def _read(self, rows: Sequence[Tensor], start: int, kept: int) -> tuple[Tensor, Any, Tensor, Tensor]:
        """Read embedded rows, the first `start` places once for all.

        Returns: the scores of the last `kept` places, (rows, kept, vocabulary); the cache; mask and positions.
        """
        cached = importlib.import_module("transformers").DynamicCache()
        if start:
            self._call(cached, rows[0][None, :start], 1)
            cached.batch_repeat_interleave(len(rows))
        tails = [row[start:] for row in rows]
        longest = max(map(len, tails))
        # Padded on the left.
        embedded = torch.stack([pad(row, (0, 0, longest - len(row), 0)) for row in tails])
        lengths = torch.tensor([len(row) for row in tails], device=embedded.device)
        positions = torch.arange(longest, device=embedded.device)[None] - (longest - lengths)[:, None]
        mask = pad((positions >= 0).long(), (start, 0), value=1)
        positions = positions.clamp(min=0) + start
        return self._call(cached, embedded, kept, mask, positions), cached, mask, positions

    def _call(
        self, cached: Any, embedded: Tensor, kept: int, mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        # Newer releases of transformers renamed the argument, and warn of the other name.
        name = "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"
        # As places: for a number of them, torch would copy the head for each row.
        places = torch.arange(embedded.shape[1] - kept, embedded.shape[1])
        scores: Tensor = self.model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=places,
            **{name: cached},
        ).logits  # fmt: skip
        return scores


def count_common(rows: Sequence[Tensor]) -> int:
    """Return how many first places all rows have in common; 0 if they are few. Each row keeps a place of its own."""
    least = min(map(len, rows)) - 1
    same = torch.stack([(row[:least] == rows[0][:least]).all(-1) for row in rows]).all(0)
    number = int(same.long().cumprod(0).sum())
    return number if len(rows) > 1 and number >= _SHARED else 0


# -- codebook and router -----------------------------------------------------------------------------------------------

_ROUNDS = 50  # of k-means; it ends earlier once no center moves
_WIDTH = 512  # of the vectors of tokens, for the router


class Codebook(nn.Module):
    """A vector for each number, with a length of its own: the base says the number that it gets as its background.

    At first it is the mean embedding of its digits.
    """

    def __init__(self, numbers: Sequence[str], base: Language) -> None:
        super().__init__()
        self._numbers = [int(number) for number in numbers]
        embeddings = base.model.get_input_embeddings().weight.detach().float()
        starts = torch.stack([embeddings[base.ids(number)].mean(0) for number in numbers])
        self._length = float(embeddings.norm(dim=1).mean())
        self.scale = nn.Parameter(torch.zeros(len(numbers), 1))
        self.free = nn.Parameter(normalize(starts, dim=-1) * embeddings.shape[1] ** 0.5)

    def forward(self, numbers: Sequence[str]) -> Tensor:
        """Return the vectors of these numbers, or of the nearest that have one, (numbers, width)."""
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
        if that is below `least`."""
        cosines = self.cosines(states)
        first, at = torch.stack(list(cosines.values()), 1).max(1)
        pairs = zip(at.tolist(), first.tolist(), strict=True)
        return [list(cosines)[best] if cosine >= self.least else GENERAL for best, cosine in pairs]


def encode(base: Language, texts: Sequence[str]) -> Tensor:
    """Return the mean vectors of the tokens of questions, (questions, width); each token's is random and fixed."""
    # A fixed seed: a token has the same vector when prototypes are built and when questions are routed.
    vectors = torch.randn(len(base.tokenizer), _WIDTH, generator=torch.Generator().manual_seed(0))
    return torch.stack([vectors[base.ids(question)].mean(0) for question in texts])


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
FACTS, ANSWERS = "facts.parquet", "answers.parquet"
VECTORS, CENTERS = "vectors.safetensors", "prototypes.safetensors"


@dataclass
class Workspace:
    """The stages of one settings file: the facts, the codebook, and for each domain an expert and prototypes.

    A stage is a folder that is complete or absent. What has not changed is not built again, and a domain is built from
    facts and base alone. `force`: rebuild stages that were built with other settings.
    """

    settings: Settings
    force: bool = False

    def train(self, domains: Sequence[str] = ()) -> Path:
        """Build what is not there yet: facts, codebook, these domains (default: all), and the evaluation.

        Returns: the folder of the evaluation, which covers all domains that are there.
        Raises: UserError if a domain is unknown, or a stage was built with other settings and `force` is not set.
        """
        known = self.settings.data.domains
        if unknown := [domain for domain in domains if domain not in known]:
            raise UserError(f"{unknown[0]}: not a domain of the settings; choose from {', '.join(known)}")
        with self.alone():
            self.make_data()
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
            with hold_lock(self.settings.out / ".lock", self.settings.out, "another run works there"):
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
        self._make("data", DATA, parameters, data.libraries, fill)

    def make_expert(self, domain: str) -> None:
        """Stage I: adapt a model to all facts of a domain, in the training wordings."""
        settings, name = self.settings.expert, self.settings.expert.model or self.settings.base.model
        training = settings.training

        def fill(folder: Path, key: str) -> Json:
            language = self._open(name, "expert.model")
            rows = [(text, fact.answer) for fact in self.asked(domain) for text in wordings(fact, held=False)]

            def compute_loss(step: random.Random) -> Tensor:
                texts, answers = zip(*(step.choice(rows) for _ in range(training.batch)), strict=True)
                return language.loss(language.embed_prompts([prompt_of(text) for text in texts]), answers)

            trained = language.model
            if training.rank:
                try:
                    peft: Any = importlib.import_module("peft")
                except ImportError as error:
                    raise UserError("training.rank: needs peft; pip install peft, or set rank to 0") from error
                torch.manual_seed(self.settings.seed)
                low_rank = peft.LoraConfig(r=training.rank, lora_alpha=2 * training.rank, target_modules="all-linear")
                trained = peft.get_peft_model(language.model, low_rank)
            loss = fit(trained, compute_loss, training, label=domain, key=key, seed=self.settings.seed)
            if training.rank:
                trained.merge_and_unload()
            language.model.save_pretrained(folder / "model")
            language.tokenizer.save_pretrained(folder / "model")
            size = sum(parameter.numel() for parameter in language.model.parameters())
            return {"questions": len(rows), "loss": round(loss, 6), "parameters": size, "weights": language.digest}

        parameters = self._parameters(settings, domain=domain, start=digest_model(name))
        self._make(f"domains/{domain}/expert", EXPERT, parameters, [self.folder("data")], fill)

    def make_codebook(self) -> None:
        """Stage II: train the vectors of all numbers on questions of the general set, with the base frozen."""
        settings, seed = self.settings.codebook, self.settings.seed

        def fill(folder: Path, key: str) -> Json:
            from safetensors.torch import save_file

            base, frame, numbers, general = self.base, self.frame(), self.numbers(), self.asked(GENERAL)
            rows = [text for fact in general if not fact.held for text in wordings(fact, held=False)]
            codebook = Codebook(numbers, base)

            def compute_loss(step: random.Random) -> Tensor:
                # Whatever is asked: so it is learned once, and serves all domains.
                answers = step.sample(numbers, min(settings.training.batch, len(numbers)))
                prompts = [frame.prompt(step.choice(rows), MARK)] * len(answers)
                return base.loss(base.embed_injected(prompts, codebook(answers)), answers)

            loss = fit(codebook, compute_loss, settings.training, label="codebook", key=key, seed=seed)
            save_file(codebook.state_dict(), folder / VECTORS)
            others = [ask(fact, random.Random(fact.id), held=True) for fact in general if fact.held]
            chosen = random.Random(seed).choices(others, k=len(numbers))
            with torch.no_grad():
                inputs = base.embed_injected([frame.prompt(text, MARK) for text in chosen], codebook(numbers))
            right = sum(map(str.__eq__, map(read_number, base.answers(inputs)), numbers))
            return {"numbers": len(numbers), "repeated": right, "loss": round(loss, 6)}

        parameters = self._parameters(settings, base=digest_model(self.settings.base.model))
        self._make("codebook", CODEBOOK, parameters, [self.folder("data")], fill)

    def make_prototypes(self, domain: str) -> None:
        """Build the prototypes of a domain or the general set from the training questions, without held-out blocks."""
        number, seed = self.settings.router.prototypes, self.settings.seed

        def fill(folder: Path, _key: str) -> Json:
            from safetensors.torch import save_file

            rows = [text for fact in self.asked(domain) if not fact.held for text in wordings(fact, held=False)]
            if not rows:
                raise UserError(f"{domain}: no question about a block that is not held out; add blocks, or lower held")
            prototypes = centers(encode(self.base, rows), number, seed)
            save_file({"prototypes": prototypes}, folder / CENTERS)
            return {"questions": len(rows), "prototypes": len(prototypes)}

        parameters = {"prototypes": number, "domain": domain, "encoder": digest_model(self.settings.base.model)}
        parents = [self.folder("data")]
        self._make(f"domains/{domain}/prototypes", PROTOTYPES, parameters | {"seed": seed}, parents, fill)

    def make_evaluation(self) -> Path:
        """Ask all domains that are there; what is already there about other ones is replaced."""
        ground = [describe_parent(self.folder("data"))]
        stages = [self.folder("data"), self.folder("codebook"), self.folder("domains", GENERAL, "prototypes")]
        domains = []
        for domain in self.settings.data.domains:
            folders = [self.folder("domains", domain, stage) for stage in ("expert", "prototypes")]
            if all((one / FILE_NAME).is_file() and read_manifest(one).parents == ground for one in folders):
                domains.append(domain)
                stages += folders

        def fill(folder: Path, _key: str) -> Json:
            answers, found = evaluate(self, domains)
            write_table(folder / ANSWERS, arrow_schema(ExpertAnswer), (answer.model_dump() for answer in answers))
            return write_scores(folder, answers, found)

        parameters = {"domains": domains, "seed": self.settings.seed, "least": self.settings.router.least}
        self._make("evaluation", EVALUATION, parameters, stages, fill, force=True)
        return self.folder("evaluation")

    # What the stages read of each other

    def folder(self, *parts: str) -> Path:
        """Return the folder of a stage: `data`, `codebook`, or `domains`, a domain, and its stage."""
        return self.settings.out.joinpath(*parts)

    def facts(self) -> list[ExpertFact]:
        """Return the facts. Raises: UserError if they have not been built."""
        return facts_in(self.folder("data"))

    def asked(self, domain: str) -> list[ExpertFact]:
        """Return the facts of a domain that are used in questions."""
        return [fact for fact in self.facts() if fact.domain == domain and fact.asked]

    def numbers(self) -> list[str]:
        """Return all answers of all questions."""
        return sorted({fact.answer for fact in self.facts() if fact.asked}, key=int)

    @cached_property
    def base(self) -> Language:
        """The frozen base. Raises: UserError if it cannot be loaded."""
        language = self._open(self.settings.base.model, "base.model")
        language.model.requires_grad_(requires_grad=False)
        return language

    def frame(self) -> Frame:
        """Return the examples before each prompt of the base: general facts in training wordings."""
        rng = random.Random(self.settings.seed)
        general = [fact for fact in self.facts() if fact.domain == GENERAL and not fact.held]
        texts = documents(general)
        candidates = [fact for fact in general if fact.asked]
        chosen = rng.sample(candidates, min(self.settings.base.shots, len(candidates)))
        return Frame([(ask(fact, rng), texts[fact.block], fact.answer) for fact in chosen])

    def ask_experts(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Return what experts say. Args: pairs: of a question and the domain that is asked; general says nothing.

        Raises: UserError if one is not built.
        """
        said: dict[tuple[str, str], str] = {}
        for domain in {by for _, by in pairs} - {GENERAL}:
            folder = self.folder("domains", domain, "expert")
            read_manifest(folder)
            expert = self._open(str(folder / "model"), "expert.model")
            own = list(dict.fromkeys(pair for pair in pairs if pair[1] == domain))
            answers = expert.answers(expert.embed_prompts([prompt_of(text) for text, _ in own]))
            said |= dict(zip(own, answers, strict=True))
        return said

    def inject(self, texts: Sequence[str], said: Sequence[str | None]) -> list[Tensor]:
        """Embed questions, each with the vector of the number that its expert said; plain ones without any."""
        from safetensors.torch import load_file

        folder, base, frame = self.folder("codebook"), self.base, self.frame()
        read_manifest(folder)
        codebook = Codebook(self.numbers(), base)
        codebook.load_state_dict(load_file(folder / VECTORS))
        inputs = base.embed_prompts([frame.prompt(text) for text in texts])
        for at, number in enumerate(said):
            if number is not None:
                with torch.no_grad():
                    vector = codebook([read_number(number) or "0"])
                (inputs[at],) = base.embed_injected([frame.prompt(texts[at], MARK)], vector)
        return inputs

    def router(self, domains: Sequence[str]) -> Router:
        """Open the router for these domains and the general set. Raises: UserError if one has no prototypes."""
        from safetensors.torch import load_file

        prototypes = {}
        for name in (*domains, GENERAL):
            folder = self.folder("domains", name, "prototypes")
            read_manifest(folder)
            prototypes[name] = load_file(folder / CENTERS)["prototypes"]
        return Router(prototypes, self.settings.router.least)

    def _open(self, name: str, option: str) -> Language:
        settings = self.settings.base
        tokenizer, model = load_model(name, option)
        try:
            return Language(model.to(settings.device, getattr(torch, settings.dtype)), tokenizer)
        except RuntimeError as error:
            raise UserError(f"base.device {settings.device}: {str(error).splitlines()[0]}; use cpu") from error

    def _parameters(self, part: BaseModel, **further: Any) -> dict[str, Any]:
        """Return the parameters of a stage; a model's digest replaces its path, so that they do not depend on it."""
        shared = {"seed": self.settings.seed, "dtype": self.settings.base.dtype, "shots": self.settings.base.shots}
        return part.model_dump(mode="json", exclude={"model"}) | further | shared

    def _make(
        self, name: str, kind: Kind, parameters: Json, parents: Sequence[Path],
        fill: Callable[[Path, str], Json], *, force: bool = False,
    ) -> None:  # fmt: skip
        """Build one stage, unless it exists with the same inputs.

        Args: fill: writes the files, with a cache key for checkpoints of an unfinished run, and returns the counts.
        Raises: UserError if it exists with other inputs, and may not be replaced.
        """
        out, above = self.folder(name), [describe_parent(folder) for folder in parents]
        force = force or self.force
        if (out / FILE_NAME).is_file():
            older = read_manifest(out)
            if (older.kind, older.parameters, older.parents) == (kind.name, parameters, above):
                note(f"{out}: up to date")
                return
            if not force:
                raise UserError(
                    f"{out}: was built with other settings or from other folders; add --force to replace it"
                )
        watch = Stopwatch()
        versions = package_versions() | {"torch": torch.__version__}
        # With the versions: another torch trains other weights, so its checkpoints are not continued.
        identity = json.dumps([kind.name, parameters, [parent.sha256 for parent in above], versions], sort_keys=True)
        with atomic_folder(out, force=force) as folder:
            counts = fill(folder, hashlib.sha256(identity.encode()).hexdigest()[:32])
            about: Json = {"parameters": dict(parameters), "parents": above, "counts": counts}
            kind.finish(folder, watch, versions=versions, **about)
        note(f"{out}: built in {watch.measure().seconds:.1f} s")


# -- the evaluation, and questions of one's own ------------------------------------------------------------------------


def evaluate(workspace: Workspace, domains: Sequence[str]) -> tuple[list[ExpertAnswer], Json]:
    """Have the held-out questions of domains, and those of the general set, answered in every way (`ARMS`).

    Returns: all answers; and what routing and the base did. Raises: UserError if a stage has not been built.
    """
    base, frame, facts = workspace.base, workspace.frame(), workspace.facts()
    before = base.digest
    # Prototypes saw none of these blocks.
    held = [fact for fact in facts if fact.asked and fact.held]
    rows = {name: [fact for fact in held if fact.domain == name] for name in (*domains, GENERAL)}
    texts = {name: [ask(fact, random.Random(fact.id), held=True) for fact in own] for name, own in rows.items()}
    router = workspace.router(domains)
    routes = {name: list(zip(own, router.route(encode(base, own)), strict=True)) for name, own in texts.items()}
    own_pairs = {domain: [(text, domain) for text in texts[domain]] for domain in domains}
    said = workspace.ask_experts([pair for some in (own_pairs, routes) for pairs in some.values() for pair in pairs])
    found: list[ExpertAnswer] = []

    def record(arm: str, domain: str, answers: Sequence[str], inputs: Sequence[Tensor], by: Sequence[str]) -> None:
        for at, fact in enumerate(rows[domain]):
            shared: Json = {name: getattr(fact, name) for name in ("id", "block", "relation", "code_sha256")}
            shared |= {"arm": arm, "domain": domain, "question": texts[domain][at], "expected": fact.answer}
            shared |= {"answer": answers[at], "correct": read_number(answers[at]) == fact.answer}
            routed = by[at] if by and by[at] != GENERAL else None
            found.append(ExpertAnswer(**shared, routed=routed, tokens=len(inputs[at]) if inputs else 0))

    def ask_base(arm: str, domain: str, inputs: Sequence[Tensor], by: Sequence[str] = ()) -> None:
        record(arm, domain, base.answers(inputs), inputs, by)

    for name, asked in texts.items():
        ask_base("closed", name, base.embed_prompts(list(map(frame.prompt, asked))))
    told = documents(facts)
    for domain in domains:
        asked, own = texts[domain], [said[pair] for pair in own_pairs[domain]]
        by = [domain] * len(own)
        ask_base("oracle", domain, workspace.inject(asked, own), by)
        if len(own) > 1:
            # Never by 0: each question gets the token of another one.
            turn = random.Random(f"{workspace.settings.seed} {domain}").randrange(1, len(own))
            ask_base("shuffled", domain, workspace.inject(asked, own[-turn:] + own[:-turn]), by)
        shown = [
            frame.prompt(text, told[fact.block], document=True) for text, fact in zip(asked, rows[domain], strict=True)
        ]
        ask_base("told", domain, base.embed_prompts(shown))
        record("expert", domain, own, (), ())
        ask_base("expert as text", domain, base.embed_prompts(list(map(frame.prompt, asked, own))))
    for name, pairs in routes.items():
        ask_base("routed", name, workspace.inject(texts[name], list(map(said.get, pairs))), [by for _, by in pairs])
    elsewhere = router.route(encode(base, ELSEWHERE)).count(GENERAL)
    return found, {"elsewhere": elsewhere, "base_unchanged": base.digest == before}


def answer(folder: Path, asked: Sequence[str]) -> list[Json]:
    """Answer questions by a finished folder: the domain of each, by the router, its cosine with all of them, and the
    base's answer with and without the injected token.

    Raises: UserError if the folder is not finished.
    """
    try:
        settings = Settings.model_validate_json((folder / SETTINGS).read_text(encoding="utf-8"))
    except READ_ERRORS as error:
        raise UserError(f"{folder / SETTINGS}: {describe(error)}; pass a folder of `lemur experts train`") from error
    workspace = Workspace(settings.model_copy(update={"out": folder}))
    domains: list[str] = read_manifest(workspace.folder("evaluation")).parameters["domains"]
    with workspace.alone():
        base, frame, router = workspace.base, workspace.frame(), workspace.router(domains)
        states = encode(base, asked)
        cosines = {name: values.tolist() for name, values in router.cosines(states).items()}
        routes = list(zip(asked, router.route(states), strict=True))
        said = workspace.ask_experts(routes)
        answers = base.answers(workspace.inject(asked, list(map(said.get, routes))))
        without = base.answers(base.embed_prompts(list(map(frame.prompt, asked))))
    return [
        {
            "question": text,
            "routed": by,
            "cosines": {name: round(values[at], 4) for name, values in cosines.items()},
            "answer": answers[at],
            "without": without[at],
        }
        for at, (text, by) in enumerate(routes)
    ]
