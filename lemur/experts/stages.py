"""The stages: data, base, codebook, and per domain an expert and prototypes, each in its own folder.

A folder is complete or absent. A stage whose inputs have not changed is not rebuilt.
"""

import copy
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from pydantic import BaseModel
from torch import Tensor

from lemur.experts.facts import NAMES, RELATIONS, ask, count_facts, document, documents, questions, read_facts, wordings
from lemur.experts.folder import BASE, CODEBOOK, DATA, EXPERT, FACTS, ROUTED, facts_in, read_number
from lemur.experts.language import (
    Frame,
    Language,
    add_adapters,
    draw_tiny,
    learn_tokenizer,
    open_language,
    plain_prompt,
    prompt_with,
)
from lemur.experts.local_models import find_model
from lemur.experts.parts import Codebook, PrototypeRouter, centres, fit
from lemur.experts.settings import GENERAL, BaseSettings, MixtureSettings, TuningSettings
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder, own
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
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
from manifests.records import ExpertFact, arrow_schema

VECTORS, PROTOTYPES = "vectors.safetensors", "prototypes.safetensors"
#: Draws one prompt and its answer.
Draw = Callable[[random.Random], tuple[str, str]]
_TEXTS = 20_000  # for training the tokenizer of a tiny base
_WIDTH = 512  # of the vectors of tokens, for the router
_ALONE, _WITH_ANSWER = 0.25, 0.5  # cumulative shares of prompts: question alone, with the answer; rest: with a document


_ONSETS = (*"bcdfghjklmnpqrstvwxyz", "tr", "st", "ch", "gr", "pl", "")
_ENDS = ("", "", "n", "m", "r", "t", "s", "x", "l", "rm", "ck")


@dataclass(frozen=True, slots=True)
class Workspace:
    """The stages of one settings file. `force`: rebuild stages that were built with other settings."""

    settings: MixtureSettings
    force: bool = False

    def folder(self, *parts: str) -> Path:
        """Return the folder of a stage: `data`, `base`, `codebook`, or `domains`, a domain, and its stage."""
        return self.settings.out.joinpath(*parts)

    @contextmanager
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

        parameters = self._parameters(data)
        del parameters["libraries"], parameters["dtype"], parameters["shots"]  # its parents; of models alone
        self.make(self.folder("data"), DATA, parameters, data.libraries, fill)

    def facts(self) -> list[ExpertFact]:
        """Return the facts. Raises: UserError if they have not been built."""
        return facts_in(self.folder("data"))

    def question_facts(self, domain: str) -> list[ExpertFact]:
        """Return the facts of a domain that are used in questions."""
        return [fact for fact in self.facts() if fact.domain == domain and fact.asked]

    def base(self) -> Language:
        """Open the frozen base. Raises: UserError if it has not been built, or cannot be loaded."""
        if self.settings.base.model is None:
            read_manifest(self.folder("base"))
        return _open_frozen(self._base_model, digest_model(self._base_model), self.settings.base)

    def frame(self) -> Frame:
        """Return the examples before each prompt of the base: general facts in training wordings."""
        rng = random.Random(self.settings.seed)
        general = [fact for fact in self.facts() if fact.domain == GENERAL and not fact.held]
        texts = documents(general)
        candidates = [fact for fact in general if fact.asked]
        chosen = rng.sample(candidates, min(self.settings.base.shots, len(candidates)))
        questions_ = [ask(fact, rng.choice(wordings(fact.relation, held=False))).text for fact in chosen]
        return Frame([(text, texts[fact.block], fact.answer) for text, fact in zip(questions_, chosen, strict=True)])

    def make_base(self) -> None:
        """Train the tiny base on the general set; does nothing if the settings name a real base."""
        settings = self.settings.base
        if settings.model is not None:
            return

        def fill(folder: Path, key: str) -> Json:
            draw = _draw_reading(self.facts())
            rng = random.Random(self.settings.seed)
            # The tokenizer sees the same mixture of prompts as the training.
            texts = [f"{prompt} {answer}" for prompt, answer in (draw(rng) for _ in range(_TEXTS))]
            tokenizer = learn_tokenizer(texts, settings.vocabulary)
            language = draw_tiny(settings.tiny, tokenizer, self.settings.seed)
            return self._train(folder, language, draw, settings.training, "base", key)

        self.make(self.folder("base"), BASE, self._parameters(settings), [self.folder("data")], fill)

    def make_expert(self, domain: str) -> None:
        """Stage I: adapt a model to all facts of a domain, in the training wordings."""
        settings, base = self.settings.expert, self.settings.base

        def fill(folder: Path, key: str) -> Json:
            language = copy.deepcopy(self.base()) if settings.model is None else _open_expert(settings.model, base)
            rows = questions(self.question_facts(domain), held=False)

            def draw(step: random.Random) -> tuple[str, str]:
                row = step.choice(rows)
                return plain_prompt(row.text), row.fact.answer

            return {"questions": len(rows)} | self._train(folder, language, draw, settings.training, domain, key)

        parameters = self._parameters(settings, domain=domain, start=digest_model(settings.model or self._base_model))
        self.make(self.folder("domains", domain, "expert"), EXPERT, parameters, self.ground, fill)

    def ask_expert(self, domain: str, texts: Sequence[str]) -> tuple[list[str], list[int]]:
        """Return a domain's expert's answers, and the tokens of its prompts. Raises: UserError if it is not built."""
        folder = self.folder("domains", domain, "expert")
        read_manifest(folder)
        return _ask(str(folder / "model"), digest_model(str(folder / "model")), self.settings.base, tuple(texts))

    def numbers(self) -> list[str]:
        """Return all answers of all questions."""
        return sorted({fact.answer for fact in self.facts() if fact.asked}, key=int)

    def make_codebook(self) -> None:
        """Stage II: train the vectors of all numbers on questions of the general set, with the base frozen."""
        settings = self.settings.codebook

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

            seed = self.settings.seed
            loss = fit(codebook, compute_loss, settings.training, label="codebook", key=key, seed=seed)
            save_file(codebook.state_dict(), folder / VECTORS)
            others = questions((fact for fact in general if fact.held), held=True)
            prompts = [frame.with_answer(row.text) for row in random.Random(seed).choices(others, k=len(numbers))]
            with torch.no_grad():
                answers, _ = base.answers(base.embed_injected(prompts, codebook(numbers)))
            right = sum(read_number(text) == number for text, number in zip(answers, numbers, strict=True))
            return {"numbers": len(numbers), "repeated": right, "loss": round(loss, 6)}

        parameters = self._parameters(settings, base=digest_model(self._base_model))
        self.make(self.folder("codebook"), CODEBOOK, parameters, self.ground, fill)

    def codebook(self, base: Language) -> Codebook:
        """Open the vectors of all numbers. Raises: UserError if they have not been trained."""
        from safetensors.torch import load_file

        folder = self.folder("codebook")
        read_manifest(folder)
        codebook = Codebook(self.numbers(), self.settings.codebook.slots, base)
        codebook.load_state_dict(load_file(folder / VECTORS))
        return codebook

    def slots(self, domain: str, texts: Sequence[str], base: Language) -> Tensor:
        """Return the vectors that a domain injects for each question: (questions, slots, base width).

        They are those of the number that its expert says. A linear map reads nothing else from the expert's states
        (`benchmarks.experts_bounds layers`).
        """
        answers, _ = self.ask_expert(domain, texts)
        with torch.no_grad():
            slots: Tensor = self.codebook(base)([read_number(text) or "0" for text in answers])
        return slots

    def make_prototypes(self, domain: str) -> None:
        """Build the prototypes of a domain or the general set from the training questions, without held-out blocks."""
        settings = self.settings.router

        def fill(folder: Path, _key: str) -> Json:
            from safetensors.torch import save_file

            rows = questions((fact for fact in self.question_facts(domain) if not fact.held), held=False)
            if not rows:
                raise UserError(f"{domain}: no question about a block that is not held out; add blocks, or lower held")
            states = self.encode(self.base(), [row.text for row in rows])
            prototypes = centres(states, settings.prototypes, self.settings.seed)
            save_file({"prototypes": prototypes}, folder / PROTOTYPES)
            return {"questions": len(rows), "prototypes": len(prototypes)}

        parameters = self._parameters(settings, domain=domain, encoder=digest_model(self._base_model))
        del parameters["margin"], parameters["least"]  # of routing alone
        self.make(self.folder("domains", domain, "prototypes"), ROUTED, parameters, self.ground, fill)

    def encode(self, base: Language, texts: Sequence[str]) -> Tensor:
        """Return the mean vectors of the tokens of questions, (questions, width); each token's is random and fixed."""
        # A fixed seed: a token has the same vector when prototypes are built and when questions are routed.
        vectors = torch.randn(len(base.tokenizer), _WIDTH, generator=torch.Generator().manual_seed(0))
        return torch.stack([vectors[base.bare_ids(question)].mean(0) for question in texts])

    def router(self, domains: Sequence[str]) -> PrototypeRouter:
        """Open the router for these domains and the general set. Raises: UserError if one has no prototypes."""
        from safetensors.torch import load_file

        folders = {name: self.folder("domains", name, "prototypes") for name in (*domains, GENERAL)}
        for folder in folders.values():
            read_manifest(folder)
        prototypes = {name: load_file(folder / PROTOTYPES)["prototypes"] for name, folder in folders.items()}
        return PrototypeRouter(prototypes, self.settings.router.margin, self.settings.router.least)

    @property
    def _base_model(self) -> str:
        return self.settings.base.model or str(self.folder("base") / "model")

    @property
    def ground(self) -> list[Path]:
        """The parents of every stage after the base."""
        return [self.folder("data"), *([] if self.settings.base.model else [self.folder("base")])]

    def _parameters(self, part: BaseModel, **further: Any) -> dict[str, Any]:
        """Return the parameters of a stage; a model's digest replaces its path, so that they do not depend on it."""
        own = part.model_dump(mode="json", exclude={"model"}) | further | {"seed": self.settings.seed}
        return own | {"dtype": self.settings.base.dtype, "shots": self.settings.base.shots}

    def _train(
        self, folder: Path, language: Language, draw: Draw, training: TuningSettings, label: str, key: str
    ) -> Json:
        def compute_loss(step: random.Random) -> Tensor:
            drawn = [draw(step) for _ in range(training.batch)]
            return language.loss(
                language.embed_prompts([prompt for prompt, _ in drawn]), [answer for _, answer in drawn]
            )

        trained = language.model.requires_grad_(requires_grad=True)
        if training.rank:
            torch.manual_seed(self.settings.seed)
            trained = add_adapters(language.model, training.rank)
        loss = fit(trained, compute_loss, training, label=label, key=key, seed=self.settings.seed)
        if training.rank:
            trained.merge_and_unload()
        language.save(folder / "model")
        size = sum(parameter.numel() for parameter in language.model.parameters())
        return {"loss": round(loss, 6), "parameters": size, "weights": language.digest}

    def make(
        self, out: Path, kind: str, parameters: Mapping[str, object], parents: Sequence[Path],
        fill: Callable[[Path, str], Json],
    ) -> None:  # fmt: skip
        """Build one stage, unless it exists with the same inputs.

        Args: fill: writes the files, with a cache key for checkpoints of an unfinished run, and returns the counts.
        Raises: UserError if it exists with other inputs and `force` is not set.
        """
        above = [describe_parent(folder) for folder in parents]
        if (out / FILE_NAME).is_file():
            older = read_manifest(out)
            if older.kind == kind and older.parameters == parameters and older.parents == above:
                note(f"{out}: up to date")
                return
            if not self.force:
                raise UserError(
                    f"{out}: was built with other settings or from other folders; add --force to replace it"
                )
        watch = Stopwatch()
        versions = package_versions() | {"torch": torch.__version__}
        # With the versions: another torch trains other weights, so its checkpoints are not continued.
        identity = json.dumps([kind, parameters, [parent.sha256 for parent in above], versions], sort_keys=True)
        with atomic_folder(out, force=self.force) as folder:
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


def _open_expert(model: str, settings: BaseSettings) -> Language:
    return open_language(model, settings, option="--expert")


@cache
def _ask(model: str, _digest: str, settings: BaseSettings, texts: tuple[str, ...]) -> tuple[list[str], list[int]]:
    """Ask an expert the same only once in a process; other weights have another digest."""
    expert = _open_expert(model, settings)
    inputs = expert.embed_prompts([plain_prompt(text) for text in texts])
    return expert.answers(inputs)[0], [len(row) for row in inputs]


def digest_model(model: str) -> str:
    """Return SHA-256 of the weights in a model's folder, or the name of a model on the Hub."""
    files = find_model(model, "--base")
    # By the weights alone: neither a path nor a date makes a stage look changed.
    return model if files.folder is None else files.digest(".safetensors")


def _draw_reading(facts: Sequence[ExpertFact]) -> Draw:
    """Return a function that draws one training example of a base: prompt and answer.

    The base learns the facts of the general set, and to read a background: about classes with invented names, with
    answers drawn from those of the general set, so that only the background can provide them.
    """
    general = [fact for fact in facts if fact.domain == GENERAL]
    facts_in_questions = [fact for fact in general if fact.asked]
    values = {relation: sorted({fact.answer for fact in general if fact.relation == relation}) for relation in NAMES}
    open_ = {relation: wordings(relation, held=False) for relation in NAMES}

    def draw(rng: random.Random) -> tuple[str, str]:
        fact = rng.choice(facts_in_questions)
        question = ask(fact, rng.choice(open_[fact.relation])).text
        kind = rng.random()
        if kind < _ALONE:
            return plain_prompt(question), fact.answer
        answer = rng.choice(values[fact.relation])
        # A name that no fact has, so that only the background can hold the answer.
        invented = fact.model_copy(update={"name": _invent_word(rng).title(), "package": _invent_word(rng)})
        question = ask(invented, rng.choice(open_[fact.relation])).text
        if kind < _WITH_ANSWER:
            named = rng.choice(["", f"{NAMES[fact.relation][0]} "])
            return prompt_with(question, named + answer), answer
        others = [relation for relation in RELATIONS if relation != fact.relation and values[relation]]
        some = rng.sample(others, rng.randint(0, len(others)))
        known = {relation: rng.choice(values[relation]) for relation in some} | {fact.relation: answer}
        return prompt_with(
            question, document(invented.name, invented.package, [(r, known[r]) for r in RELATIONS if r in known])
        ), answer

    return draw


def _invent_word(rng: random.Random) -> str:
    """Invent a word of one to four syllables, like `mofe-kubra`."""
    syllables = (rng.choice(_ONSETS) + rng.choice("aeiou") + rng.choice(_ENDS) for _ in range(rng.randint(1, 4)))
    return rng.choice(("", "", "", "-")).join(syllables)
