"""How one vector carries an expert's answer into a frozen language model (arXiv:2601.08209): the method and its stages.

From top to bottom: a language model of `transformers`, whose inputs take vectors beside words; the codebook, whose
vectors make the frozen base say a number; the router, in which nothing is trained; the training loop; the stages of
`lemur experts train`, its evaluation, and `lemur experts ask`. No class of `transformers` is subclassed: vectors go
through `inputs_embeds`.
"""

import contextlib
import hashlib
import json
import math
import os
import pickle
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.cluster.vq import kmeans2
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations
from torch.nn.utils.rnn import pad_sequence

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
    count_facts,
    held_question,
    list_questions,
    read_facts,
    read_number,
    score_answers,
    write_documents,
)
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_file, atomic_folder, hold_lock, sha256_file, write_text
from lemur_core.files.cache import cache_folder, remove_path
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note, progress
from manifests.folders.kinds import Kind
from manifests.folders.manifest import FILE_NAME, Stopwatch, describe_parent, package_versions, read_manifest
from manifests.folders.tables import READ_ERRORS, describe, write_table
from manifests.records import ExpertAnswer, ExpertFact, arrow_schema

try:
    import transformers
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    raise UserError("experts: needs transformers; pip install 'lemur-curator[experts]'") from missing

# Otherwise the library warns whenever a process is forked.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

# -- a language model --------------------------------------------------------------------------------------------------

_PACKAGE = "package:"
_ANSWER_TOKENS = 12  # at most
_BATCH = 128  # prompts that are answered together
_SHARED = 16  # a common start of this many tokens is computed once for all rows
_IGNORED = -100  # by the loss


def find_model(name: str, option: str) -> tuple[str, str | None]:
    """Return where a model is: a folder, or its name on the Hub; and its GGUF file there. Nothing is imported for it.

    Args: name: a folder, a GGUF file, a name on the Hub, or `package:NAME`, an installed distribution with a GGUF file
        or a folder with a `config.json`; option: that names the model.
    Raises: UserError if the distribution is not installed, or does not hold exactly one model.
    """
    path = Path(name)
    if name.startswith(_PACKAGE):
        package = name.removeprefix(_PACKAGE)
        try:
            files = [Path(str(file.locate())) for file in distribution(package).files or ()]
        except (PackageNotFoundError, ValueError) as error:
            raise UserError(f"{option} {name}: {package} is not installed; pip install {package}") from error
        models = [file for file in files if file.suffix == ".gguf" or file.name == "config.json"]
        if len(models) != 1:
            raise UserError(f"{option} {name}: {package} holds {len(models)} models, not one; pass a folder or a file")
        path = models[0] if models[0].suffix == ".gguf" else models[0].parent
    return (str(path.parent), path.name) if path.suffix == ".gguf" else (str(path), None)


def load_model(name: str, option: str) -> tuple[Any, Any]:
    """Return the tokenizer and the model, in eval mode. Its own code is never run; weights must be safetensors or GGUF.

    Args: name, option: as for `find_model`.
    Raises: UserError if it cannot be loaded.
    """
    source, gguf = find_model(name, option)
    packed = {} if gguf is None else {"gguf_file": gguf}
    weights: Json = {"use_safetensors": True}
    if packed:
        # Else it would compute with packed weights where a kernel for them is installed.
        weights = {**packed, "dtype": "float32", "quantization_config": transformers.GgufConfig(dequantize=True)}
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


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A language model that completes prompts; its answers end with their line."""

    model: Any
    tokenizer: Any

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

    def inject(self, prompt: str, vector: Tensor) -> Tensor:
        """Embed a prompt with a vector at its mark, (tokens, width). Args: vector: (width,)."""
        before, _, after = prompt.partition(PLACEHOLDER)
        # The blank before the mark would be a token of its own, which a prompt with a text does not have.
        start, end = self.embed([self.ids(before.rstrip(), special=True), self.ids(after)])
        return torch.cat([start, vector.to(start.dtype)[None], end])

    def loss(self, inputs: Sequence[Tensor], answers: Sequence[str]) -> Tensor:
        """Return the mean negative log-likelihood of the answers' tokens, in nats.

        Args: inputs: embedded prompts that the answers follow, each (tokens, width).
        """
        targets = [self.ids(f" {answer}\n") for answer in answers]
        rows = [torch.cat(pair) for pair in zip(inputs, self.embed(targets), strict=True)]
        # Rows end together, so only the last places predict answers; with a real vocabulary, the logits of all places
        # would not fit in memory.
        longest = max(map(len, targets))
        logits, _, _ = self._prefill(rows, count_shared(inputs), longest + 1)
        labels = torch.tensor([[_IGNORED] * (longest - len(row)) + row for row in targets], device=logits.device)
        return cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels.flatten(), ignore_index=_IGNORED)

    @torch.no_grad()
    def answers(self, inputs: Sequence[Tensor]) -> list[str]:
        """Return the greedy first line after each embedded prompt."""
        self.model.eval()
        ends = sorted({self.tokenizer.eos_token_id, self.tokenizer.pad_token_id, *self.ids("\n")} - {None})
        texts: list[str] = []
        for at in range(0, len(inputs), _BATCH):
            rows = inputs[at : at + _BATCH]
            logits, cache, mask = self._prefill(rows, count_shared(rows), 1)
            tokens = logits[:, -1].argmax(-1, keepdim=True)
            while tokens.shape[1] < _ANSWER_TOKENS and not torch.isin(tokens, tokens.new_tensor(ends)).any(1).all():
                mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
                logits = self._forward(cache, self.model.get_input_embeddings()(tokens[:, -1:]), mask, 1)
                tokens = torch.cat([tokens, logits[:, -1].argmax(-1, keepdim=True)], 1)
            lines = [list(takewhile(lambda token: token not in ends, row)) for row in tokens.tolist()]
            decoded = self.tokenizer.batch_decode(lines, skip_special_tokens=True)
            texts += [next(iter(text.strip().splitlines()), "").strip() for text in decoded]
        return texts

    def _prefill(self, rows: Sequence[Tensor], shared: int, kept: int) -> tuple[Tensor, Any, Tensor]:
        """Read embedded rows, the first `shared` places once for all, and the others padded on the left.

        Returns: the logits of the last `kept` places, (rows, kept, vocabulary); the cache; the mask, (rows, places).
        """
        cache = transformers.DynamicCache()
        if shared:
            start = rows[0][None, :shared]
            self._forward(cache, start, torch.ones(1, shared, dtype=torch.long, device=start.device), 1)
            cache.batch_repeat_interleave(len(rows))
        tails = pad_sequence([row[shared:] for row in rows], batch_first=True, padding_side="left")
        gaps = [shared + tails.shape[1] - len(row) for row in rows]
        mask = [[1] * shared + [0] * gap + [1] * (len(row) - shared) for row, gap in zip(rows, gaps, strict=True)]
        tensor = torch.tensor(mask, device=tails.device)
        return self._forward(cache, tails, tensor, kept), cache, tensor

    def _forward(self, cache: Any, embedded: Tensor, mask: Tensor, kept: int) -> Tensor:
        """Read further places, (rows, places, width), after those in the cache; return the logits of the last ones."""
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -embedded.shape[1] :]
        # As places: for a number of them, torch would copy the head for each row.
        places = torch.arange(embedded.shape[1] - kept, embedded.shape[1])
        logits: Tensor = self.model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=positions, use_cache=True, cache=cache,
            logits_to_keep=places,
        ).logits  # fmt: skip
        return logits


def count_shared(rows: Sequence[Tensor]) -> int:
    """Return how many first places all rows have in common; 0 if they are few. Each row keeps a place of its own."""
    least = min(map(len, rows)) - 1
    same = torch.stack([(row[:least] == rows[0][:least]).all(-1) for row in rows]).all(0)
    number = int(same.long().cumprod(0).sum())
    return number if len(rows) > 1 and number >= _SHARED else 0


# -- prompts -----------------------------------------------------------------------------------------------------------

#: The background of a prompt that a vector is injected into.
PLACEHOLDER = "{background}"


def write_prompt(
    question: str,
    background: str | None = None,
    examples: Sequence[tuple[str, str, str]] = (),
    *,
    document: bool = False,
) -> str:
    """Return the prompt of a question, behind answered examples.

    The background comes last: the vectors of all numbers are trained behind one question, which is computed once.

    Args: background: a text, or the mark where a vector is injected. examples: question, document and answer of each,
        which have backgrounds if the question has: answers, or documents.
    """
    prompt = ""
    for asked, text, answer in examples:
        known = None if background is None else text if document else answer
        prompt += f"{write_prompt(asked, known)} {answer}\n\n"
    shown = "" if background is None else f"Background: {background}\n"
    return f"{prompt}{question}\n{shown}Answer:"


# -- the codebook ------------------------------------------------------------------------------------------------------


class Codebook(nn.Module):
    """A vector for each number, with a length of its own: the base says the number that it gets as its background.

    At first it is the mean embedding of its digits.
    """

    def __init__(self, numbers: Sequence[str], base: LanguageModel) -> None:
        super().__init__()
        self._numbers = [int(number) for number in numbers]
        embeddings = base.model.get_input_embeddings().weight.detach().float()
        starts = torch.stack([embeddings[base.ids(number)].mean(0) for number in numbers])
        self._length = float(embeddings.norm(dim=1).mean())
        self.scale = nn.Parameter(torch.zeros(len(numbers), 1, device=embeddings.device))
        self.free = nn.Parameter(normalize(starts, dim=-1) * embeddings.shape[1] ** 0.5)

    def forward(self, numbers: Sequence[str]) -> Tensor:
        """Return the vectors of these numbers, or of the nearest that have one, (numbers, width)."""
        known = self._numbers
        at = [min(range(len(known)), key=lambda at: abs(known[at] - int(number))) for number in numbers]
        return normalize(self.free[at], dim=-1) * self._length * (self.scale[at] / 10).exp()


# -- the router --------------------------------------------------------------------------------------------------------

_ROUNDS = 50  # of k-means
_WIDTH = 512  # of the vectors of tokens


def encode(base: LanguageModel, texts: Sequence[str]) -> Tensor:
    """Return the mean vectors of the tokens of questions, (questions, width); each token's is random and fixed."""
    # A fixed seed: a token has the same vector when prototypes are built and when questions are routed.
    vectors = torch.randn(len(base.tokenizer), _WIDTH, generator=torch.Generator().manual_seed(0))
    return torch.stack([vectors[base.ids(text)].mean(0) for text in texts])


def cluster_states(states: Tensor, number: int, seed: int) -> Tensor:
    """Return prototypes: k-means centers of L2-normalized states, each of length 1.

    Args: states: (questions, width). Returns: (at most number, width), float32; depends only on these states.
    """
    points = normalize(states.double(), dim=-1).numpy()
    starts = np.random.default_rng(seed).permutation(np.unique(points, axis=0))[:number]
    with warnings.catch_warnings(action="ignore"):  # a center that is nearest to no point stays where it is
        centers, _ = kmeans2(points, starts, iter=_ROUNDS, minit="matrix")
    return normalize(torch.from_numpy(centers), dim=-1).float()


def compare(states: Tensor, prototypes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the largest cosine of each state with a prototype of each domain, by domain in the order of their names.

    Args: states: (questions, width). prototypes: by domain, including `general`; a further entry adds a domain.
    """
    points = normalize(states.double(), dim=-1)
    return {domain: (points @ normalize(own.double(), dim=-1).T).amax(1) for domain, own in sorted(prototypes.items())}


def route(cosines: Mapping[str, Tensor], least: float = -1.0) -> list[str]:
    """Return the domain of each question: the one with the largest cosine, the first among equal ones; general if that
    is below `least`. Args: cosines: of `compare`."""
    domains = list(cosines)
    largest, at = torch.stack(list(cosines.values()), 1).max(1)
    pairs = zip(at.tolist(), largest.tolist(), strict=True)
    return [domains[best] if cosine >= least else GENERAL for best, cosine in pairs]


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
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), training.rate, (0.9, 0.98), weight_decay=training.decay)
    # In the cache: the folder of a stage is complete or absent.
    checkpoint = cache_folder("experts") / f"{key}.pt"
    losses: list[float] = []
    # A checkpoint that is missing or damaged, or fits another model, only costs time.
    with contextlib.suppress(OSError, RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError):
        kept = torch.load(checkpoint, weights_only=True)
        for name, parameter in trained.items():
            parameter.detach().copy_(kept["module"][name])
        optimizer.load_state_dict(kept["optimizer"])
        losses = [float(loss) for loss in kept["losses"]]
    last, warm = time.monotonic(), max(1, round(_WARM * training.steps))
    with progress(label, training.steps - len(losses), "steps") as advance:
        for step in range(len(losses), training.steps):
            factor = min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * step / training.steps))
            for group in optimizer.param_groups:
                group["lr"] = training.rate * factor
            loss = compute_loss(random.Random(f"{seed} {step}"))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(trained.values(), _CLIP)
            optimizer.step()
            losses.append(float(loss.detach()))
            advance(1)
            if time.monotonic() - last > _KEEP_SECONDS:
                # Of the parameters that are trained: with `rank`, most of a model stays as it is.
                weights = {name: parameter.detach() for name, parameter in trained.items()}
                with atomic_file(checkpoint) as part:
                    torch.save({"module": weights, "optimizer": optimizer.state_dict(), "losses": losses}, part)
                last = time.monotonic()
    module.eval()
    remove_path(checkpoint)
    tail = losses[-max(1, training.steps // 20) :]
    return sum(tail) / max(1, len(tail))


class LowRank(nn.Module):
    """LoRA: a frozen weight plus a product of two small trained matrices, which is 0 at first (arXiv:2106.09685)."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.down = nn.Parameter(weight.new_empty(rank, columns).normal_(std=columns**-0.5))
        self.up = nn.Parameter(weight.new_zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the sum."""
        return weight + 2 * self.up @ self.down


def add_low_rank(model: Any, rank: int, seed: int) -> list[nn.Module]:
    """Freeze a language model but for low-rank matrices, drawn from a seed, in each layer between embeddings and head.

    Returns: these layers, whose `weight` is parametrized.
    """
    torch.manual_seed(seed)
    model.requires_grad_(requires_grad=False)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | transformers.pytorch_utils.Conv1D)]
    layers.remove(model.get_output_embeddings())
    for layer in layers:
        register_parametrization(layer, "weight", LowRank(layer.weight, rank))
    return layers


# -- the stages --------------------------------------------------------------------------------------------------------

SETTINGS, ANSWERS = "settings.json", "answers.parquet"
_FACTS, _VECTORS, _CENTERS = "facts.parquet", "vectors.safetensors", "prototypes.safetensors"


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
            self.make_evaluation()
            write_text(self.settings.out / SETTINGS, self.settings.model_dump_json(indent=1) + "\n")
        return self.settings.out / "evaluation"

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
            write_table(folder / _FACTS, arrow_schema(ExpertFact), (fact.model_dump() for fact in facts))
            return count_facts(facts)

        self._build("data", DATA, data.model_dump(mode="json", exclude={"libraries"}), data.libraries, fill)

    def make_expert(self, domain: str) -> None:
        """Stage I: adapt a model to all facts of a domain, in the training wordings."""
        training, rank = self.settings.expert.training, self.settings.expert.rank
        name = self.settings.expert.model or self.settings.base.model

        def fill(folder: Path, key: str) -> Json:
            expert = self._open(name, "expert.model")
            pairs = [(text, fact.answer) for fact in self.asked(domain) for text in list_questions(fact, held=False)]

            def compute_loss(rng: random.Random) -> Tensor:
                texts, answers = zip(*(rng.choice(pairs) for _ in range(training.batch)), strict=True)
                return expert.loss(expert.embed_prompts(list(map(write_prompt, texts))), answers)

            layers = add_low_rank(expert.model, rank, self.settings.seed) if rank else []
            loss = fit(expert.model, compute_loss, training, label=domain, key=key, seed=self.settings.seed)
            for layer in layers:
                remove_parametrizations(layer, "weight")  # the weight stays as it is now
            expert.model.save_pretrained(folder / "model")
            expert.tokenizer.save_pretrained(folder / "model")
            size = sum(parameter.numel() for parameter in expert.model.parameters())
            return {"questions": len(pairs), "loss": round(loss, 6), "parameters": size}

        parameters: Json = {"domain": domain, "start": digest_model(name), "dtype": self.settings.base.dtype}
        parameters |= {"rank": rank, "training": training.model_dump()}
        self._build(f"domains/{domain}/expert", EXPERT, parameters, [self.settings.out / "data"], fill)

    def make_codebook(self) -> None:
        """Stage II: train the vectors of all numbers on questions of the general set, with the base frozen."""
        training, seed, base = self.settings.codebook.training, self.settings.seed, self.settings.base

        def fill(folder: Path, key: str) -> Json:
            language, numbers, texts = self.base, self.numbers, self.training_questions(GENERAL)
            codebook = self.codebook = Codebook(numbers, language)

            def compute_loss(rng: random.Random) -> Tensor:
                # Whatever is asked: so it is learned once, and serves all domains.
                answers = rng.sample(numbers, min(training.batch, len(numbers)))
                return language.loss(self.inject([rng.choice(texts)] * len(answers), answers), answers)

            loss = fit(codebook, compute_loss, training, label="codebook", key=key, seed=seed)
            save_file(codebook.state_dict(), folder / _VECTORS)
            held = [held_question(fact) for fact in self.asked(GENERAL) if fact.held]
            with torch.no_grad():
                answers = language.answers(self.inject(random.Random(seed).choices(held, k=len(numbers)), numbers))
            repeated = sum(read_number(answer) == number for answer, number in zip(answers, numbers, strict=True))
            return {"numbers": len(numbers), "repeated": repeated, "loss": round(loss, 6)}

        parameters: Json = {"base": digest_model(base.model), "dtype": base.dtype, "shots": base.shots}
        parameters |= {"training": training.model_dump()}
        self._build("codebook", CODEBOOK, parameters, [self.settings.out / "data"], fill)

    def make_prototypes(self, domain: str) -> None:
        """Build the prototypes of a domain or the general set from the training questions, without held-out blocks."""
        number = self.settings.router.prototypes

        def fill(folder: Path, _key: str) -> Json:
            texts = self.training_questions(domain)
            prototypes = cluster_states(encode(self.base, texts), number, self.settings.seed)
            save_file({"prototypes": prototypes}, folder / _CENTERS)
            return {"questions": len(texts), "prototypes": len(prototypes)}

        parameters = {"prototypes": number, "domain": domain, "encoder": digest_model(self.settings.base.model)}
        self._build(f"domains/{domain}/prototypes", PROTOTYPES, parameters, [self.settings.out / "data"], fill)

    def make_evaluation(self) -> None:
        """Ask all domains that are there; what is already there about other ones is replaced."""
        out = self.settings.out
        data = [describe_parent(out / "data")]
        parents = [out / "data", out / "codebook", out / "domains" / GENERAL / "prototypes"]
        domains = []
        for domain in self.settings.data.domains:
            stages = [out / "domains" / domain / stage for stage in ("expert", "prototypes")]
            if all((stage / FILE_NAME).is_file() and read_manifest(stage).parents == data for stage in stages):
                domains.append(domain)
                parents += stages

        def fill(folder: Path, _key: str) -> Json:
            answers, elsewhere = evaluate(self, domains)
            write_table(folder / ANSWERS, arrow_schema(ExpertAnswer), (answer.model_dump() for answer in answers))
            return score_answers(answers) | {"elsewhere": elsewhere}

        parameters = {"domains": domains, "least": self.settings.router.least}
        self._build("evaluation", EVALUATION, parameters, parents, fill, force=True)

    def _build(
        self, name: str, kind: Kind, parameters: Json, parents: Sequence[Path],
        fill: Callable[[Path, str], Json], *, force: bool = False,
    ) -> None:  # fmt: skip
        """Build one stage, unless it exists with the same inputs.

        Args: parameters: all that it depends on besides seed and parents; digests of models instead of their paths.
            fill: writes the files, with a cache key for checkpoints of an unfinished run, and returns the counts.
        Raises: UserError if it exists with other inputs, and may not be replaced.
        """
        out, stated = self.settings.out / name, [describe_parent(folder) for folder in parents]
        parameters = parameters | {"seed": self.settings.seed}
        force = force or self.force
        if (out / FILE_NAME).is_file():
            older = read_manifest(out)
            if (older.kind, older.parameters, older.parents) == (kind.name, parameters, stated):
                note(f"{out}: up to date")
                return
            if not force:
                raise UserError(
                    f"{out}: was built with other settings or from other folders; add --force to replace it"
                )
        watch = Stopwatch()
        versions = package_versions() | {"torch": torch.__version__}
        # With the versions: another torch trains other weights, so its checkpoints are not continued.
        identity = json.dumps([kind.name, parameters, [parent.sha256 for parent in stated], versions], sort_keys=True)
        with atomic_folder(out, force=force) as folder:
            counts = fill(folder, hashlib.sha256(identity.encode()).hexdigest()[:32])
            kind.finish(folder, watch, versions=versions, parameters=parameters, parents=stated, counts=counts)
        note(f"{out}: built in {watch.measure().seconds:.1f} s")

    # What the stages read of each other. Raises: UserError if a stage has not been built.

    def find(self, stage: str) -> Path:
        """Return the folder of a stage that was built."""
        folder = self.settings.out / stage
        read_manifest(folder)
        return folder

    @cached_property
    def facts(self) -> list[ExpertFact]:
        """The facts of all domains."""
        folder = self.find("data")
        with DATA.reading(folder):
            return list(DATA.rows(folder, ExpertFact))

    def asked(self, domain: str) -> list[ExpertFact]:
        """Return the facts of a domain that are used in questions."""
        return [fact for fact in self.facts if fact.domain == domain and fact.asked]

    def training_questions(self, domain: str) -> list[str]:
        """Return the questions about blocks of a domain that are not held out, in the training wordings."""
        return [text for fact in self.asked(domain) if not fact.held for text in list_questions(fact, held=False)]

    @cached_property
    def numbers(self) -> list[str]:
        """All answers of all questions."""
        return sorted({fact.answer for fact in self.facts if fact.asked}, key=int)

    @cached_property
    def base(self) -> LanguageModel:
        """The frozen base."""
        language = self._open(self.settings.base.model, "base.model")
        language.model.requires_grad_(requires_grad=False)
        return language

    @cached_property
    def examples(self) -> list[tuple[str, str, str]]:
        """The examples before each prompt of the base: general facts in training wordings."""
        rng = random.Random(self.settings.seed)
        general = [fact for fact in self.facts if fact.domain == GENERAL and not fact.held]
        texts = write_documents(general)
        candidates = [fact for fact in general if fact.asked]
        chosen = rng.sample(candidates, min(self.settings.base.shots, len(candidates)))
        return [(rng.choice(list_questions(fact, held=False)), texts[fact.block], fact.answer) for fact in chosen]

    def prompt(self, question: str, background: str | None = None, *, document: bool = False) -> str:
        """Return a prompt of the base; see `write_prompt`."""
        return write_prompt(question, background, self.examples, document=document)

    @cached_property
    def codebook(self) -> Codebook:
        """The trained codebook."""
        codebook = Codebook(self.numbers, self.base)
        codebook.load_state_dict(load_file(self.find("codebook") / _VECTORS))
        return codebook.requires_grad_(requires_grad=False)

    def prototypes(self, domains: Sequence[str]) -> dict[str, Tensor]:
        """Return the prototypes of these domains and of the general set."""
        folders = {domain: self.find(f"domains/{domain}/prototypes") for domain in (*domains, GENERAL)}
        return {domain: load_file(folder / _CENTERS)["prototypes"] for domain, folder in folders.items()}

    def ask_experts(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Return the answers of experts. Args: pairs: of a question and the domain that is asked; general has none."""
        answers: dict[tuple[str, str], str] = {}
        for domain in {domain for _, domain in pairs} - {GENERAL}:
            expert = self._open(str(self.find(f"domains/{domain}/expert") / "model"), "expert.model")
            asked = list(dict.fromkeys(pair for pair in pairs if pair[1] == domain))
            inputs = expert.embed_prompts([write_prompt(question) for question, _ in asked])
            answers |= dict(zip(asked, expert.answers(inputs), strict=True))
        return answers

    def inject(self, questions: Sequence[str], numbers: Sequence[str | None]) -> list[Tensor]:
        """Embed questions, each with the vector of the number that is known of its answer; plain ones without any."""
        inputs: list[Tensor] = []
        for question, number in zip(questions, numbers, strict=True):
            if number is None:
                inputs += self.base.embed_prompts([self.prompt(question)])
            else:
                (vector,) = self.codebook([read_number(number) or "0"])
                inputs.append(self.base.inject(self.prompt(question, PLACEHOLDER), vector))
        return inputs

    def _open(self, name: str, option: str) -> LanguageModel:
        settings = self.settings.base
        tokenizer, model = load_model(name, option)
        try:
            return LanguageModel(model.to(settings.device, getattr(torch, settings.dtype)), tokenizer)
        except RuntimeError as error:
            raise UserError(f"base.device {settings.device}: {str(error).splitlines()[0]}; use cpu") from error


# -- the evaluation, and questions of one's own ------------------------------------------------------------------------


def evaluate(workspace: Workspace, domains: Sequence[str]) -> tuple[list[ExpertAnswer], int]:
    """Have the held-out questions of domains, and those of the general set, answered in every way (`ARMS`).

    Returns: all answers; and how many questions of no domain (`ELSEWHERE`) the router sends to general.
    Raises: UserError if a stage has not been built.
    """
    base, prompt, least = workspace.base, workspace.prompt, workspace.settings.router.least
    prototypes, known = workspace.prototypes(domains), write_documents(workspace.facts)
    # Prototypes saw none of these blocks.
    facts = {name: [fact for fact in workspace.asked(name) if fact.held] for name in (*domains, GENERAL)}
    questions = {name: list(map(held_question, own)) for name, own in facts.items()}
    routed = {name: route(compare(encode(base, texts), prototypes), least) for name, texts in questions.items()}
    # Each expert is loaded once, for the questions of its domain and for those that are routed to it.
    pairs = [(text, name) for name, texts in questions.items() for text in texts]
    pairs += [pair for name, texts in questions.items() for pair in zip(texts, routed[name], strict=True)]
    numbers = workspace.ask_experts(pairs)
    rows: list[ExpertAnswer] = []

    def record(
        arm: str, domain: str, inputs: Sequence[Tensor], injected: Sequence[str] = (), answers: Sequence[str] = ()
    ) -> None:
        """Add the answers to the questions of a domain, by default the base's to these inputs.

        Args: injected: the domain of each injected vector.
        """
        answers = answers or base.answers(inputs)
        for at, fact in enumerate(facts[domain]):
            row = ExpertAnswer(
                **fact.model_dump(include={"id", "domain", "block", "relation", "code_sha256"}),
                arm=arm,
                question=questions[domain][at],
                routed=injected[at] if injected and injected[at] != GENERAL else None,
                expected=fact.answer,
                answer=answers[at],
                correct=read_number(answers[at]) == fact.answer,
                tokens=len(inputs[at]) if inputs else 0,
            )
            rows.append(row)

    for domain, texts in questions.items():
        record("closed", domain, base.embed_prompts(list(map(prompt, texts))))
    for domain in domains:
        texts, own = questions[domain], [numbers[text, domain] for text in questions[domain]]
        record("oracle", domain, workspace.inject(texts, own), [domain] * len(own))
        if len(own) > 1:
            # Never by 0: each question gets the token of another one.
            turn = random.Random(f"{workspace.settings.seed} {domain}").randrange(1, len(own))
            record("shuffled", domain, workspace.inject(texts, own[-turn:] + own[:-turn]), [domain] * len(own))
        shown = [known[fact.block] for fact in facts[domain]]
        prompts = [prompt(text, document, document=True) for text, document in zip(texts, shown, strict=True)]
        record("told", domain, base.embed_prompts(prompts))
        record("expert", domain, (), answers=own)
        record("expert as text", domain, base.embed_prompts(list(map(prompt, texts, own))))
    for domain, texts in questions.items():
        injected = [numbers.get(pair) for pair in zip(texts, routed[domain], strict=True)]
        record("routed", domain, workspace.inject(texts, injected), routed[domain])
    return rows, route(compare(encode(base, ELSEWHERE), prototypes), least).count(GENERAL)


def answer_questions(folder: Path, questions: Sequence[str]) -> list[Json]:
    """Answer questions by a finished folder: the domain of each, by the router, its cosine with all of them, and the
    base's answer with and without the injected token.

    Raises: UserError if the folder is not finished.
    """
    path = folder / SETTINGS
    try:
        settings = Settings.model_validate_json(path.read_text(encoding="utf-8"))
    except READ_ERRORS as error:
        raise UserError(f"{path}: {describe(error, path)}; pass a folder of `lemur experts train`") from error
    workspace = Workspace(settings.model_copy(update={"out": folder}))
    domains: list[str] = read_manifest(folder / "evaluation").parameters["domains"]
    with workspace.alone():
        base = workspace.base
        cosines = compare(encode(base, questions), workspace.prototypes(domains))
        pairs = list(zip(questions, route(cosines, settings.router.least), strict=True))
        numbers = workspace.ask_experts(pairs)
        answers = base.answers(workspace.inject(questions, list(map(numbers.get, pairs))))
        without = base.answers(base.embed_prompts(list(map(workspace.prompt, questions))))
    return [
        {
            "question": question,
            "routed": domain,
            "cosines": {name: round(float(values[at]), 4) for name, values in cosines.items()},
            "answer": answers[at],
            "without": without[at],
        }
        for at, (question, domain) in enumerate(pairs)
    ]
