"""The stages of `lemur experts train`, its evaluation, and `lemur experts ask`.

A stage is a folder that is complete or absent: the facts, the base, the codebook, and for each domain an expert and
prototypes. What has not changed is not built again, and a domain is built from the first three alone.
"""

import contextlib
import copy
import hashlib
import importlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

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
from lemur.experts.injection import (
    Codebook,
    Frame,
    Language,
    Router,
    centers,
    draw_tiny,
    encode,
    fit,
    learn_tokenizer,
    open_language,
    prompt_of,
)
from lemur.experts.local_models import find_model
from lemur_core.files import Json
from lemur_core.files.atomic import atomic_folder, own, write_text
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
from manifests.records import ExpertAnswer, ExpertFact, arrow_schema

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
