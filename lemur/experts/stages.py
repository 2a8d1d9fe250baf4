"""What is made for domains, each in a folder of its own that is whole or absent: data, base, and of a domain its
expert, its projector and its prototypes. A stage that is there as it would be made again is left as it is.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from pydantic import BaseModel
from torch import Tensor

from lemur.experts.domains.facts import NAMES, RELATIONS, ask, counts_of, document, questions, read_facts, wordings
from lemur.experts.domains.settings import GENERAL, Settings, Training
from lemur.experts.models.language import (
    Language,
    draw_tiny,
    learn_tokenizer,
    open_language,
    plain_prompt,
    prompt_with,
)
from lemur.experts.models.loop import fit
from lemur.experts.models.projector import Projector
from lemur.experts.models.router import PrototypeRouter, centres
from lemur_core.files.atomic import atomic_folder, own, sha256_file
from lemur_core.files.errors import UserError
from lemur_core.files.progress import note
from manifests.folders.manifest import (
    FILE_NAME,
    Manifest,
    Stopwatch,
    list_outputs,
    package_versions,
    parent_of,
    read_manifest,
    write_manifest,
)
from manifests.folders.tables import write_table
from manifests.records import ExpertFact, arrow_schema

FACTS, PROJECTOR, BACKGROUNDS, PROTOTYPES = (
    *("facts.parquet", "projector.safetensors", "backgrounds.safetensors", "prototypes.safetensors"),
)
DATA, BASE, EXPERT, ALIGNED, ROUTED, TUNED = (
    *("experts-data", "experts-base", "experts-expert", "experts-projector", "experts-prototypes", "experts-tuned"),
)
#: One prompt and its answer, drawn.
Draw = Callable[[random.Random], tuple[str, str]]
_TEXTS = 20_000  # that the tokenizer of a tiny base is learned from
_ALONE, _TOLD = 0.25, 0.5  # parts of what a base reads: questions alone, then with the answer, then with a document


_ONSETS = (*"bcdfghjklmnpqrstvwxyz", "tr", "st", "ch", "gr", "pl", "")
_ENDS = ("", "", "n", "m", "r", "t", "s", "x", "l", "rm", "ck")


@dataclass(frozen=True, slots=True)
class House:
    """The stages of one file of settings. `force`: what is there but was made otherwise is made again."""

    settings: Settings
    force: bool = False

    @property
    def data_folder(self) -> Path:
        """Of the facts."""
        return self.settings.out / "data"

    @property
    def base_folder(self) -> Path:
        """Of the tiny base."""
        return self.settings.out / "base"

    @property
    def tuned_folder(self) -> Path:
        """Of the base that is fully tuned, to compare with."""
        return self.settings.out / "tuned"

    def domain_folder(self, domain: str, stage: str) -> Path:
        """Of one stage of a domain: `expert`, `projector` or `prototypes`."""
        return self.settings.out / "domains" / domain / stage

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The right to make stages, and one thread: sums are then the same on any number of cores."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with own(self.settings.out, ".lock", "another run works there"):
                yield
        finally:
            torch.set_num_threads(threads)

    def make_data(self) -> None:
        """Facts from the libraries."""
        data = self.settings.data

        def fill(folder: Path, _key: str) -> dict[str, Any]:
            facts = read_facts(data, self.settings.seed)
            rows = (fact.model_dump() for fact in facts)
            write_table(folder / FACTS, arrow_schema(ExpertFact), rows)
            return counts_of(facts)

        asked = self._asked(data)
        del asked["libraries"]  # its parents
        self.make(self.data_folder, DATA, asked, data.libraries, fill)

    def facts(self) -> list[ExpertFact]:
        """The facts. Raises: UserError if they are not made yet."""
        return facts_in(self.data_folder)

    def asked(self, domain: str) -> list[ExpertFact]:
        """Of a domain those that are asked for."""
        return [fact for fact in self.facts() if fact.domain == domain and fact.asked]

    def base(self) -> Language:
        """The frozen base. Raises: UserError if it is not made yet, or cannot be loaded."""
        if self.settings.base.model is not None:
            language = open_language(self.settings.base.model)
        else:
            read_manifest(self.base_folder)
            language = open_language(str(self.base_folder / "model"))
        language.model.requires_grad_(requires_grad=False)
        return language

    def make_base(self) -> None:
        """The tiny base, trained on the general set; nothing where the settings name a real one."""
        settings = self.settings.base
        if settings.model is not None:
            return

        def fill(folder: Path, key: str) -> dict[str, Any]:
            draw = _reading(self.facts())
            rng = random.Random(self.settings.seed)
            texts = [f"{prompt} {answer}" for prompt, answer in (draw(rng) for _ in range(_TEXTS))]
            tokenizer = learn_tokenizer(texts, settings.vocabulary)
            language = draw_tiny("base", settings.tiny, tokenizer, self.settings.seed)
            return self._trained(folder, language, draw, settings.training, "base", key)

        self.make(self.base_folder, BASE, self._asked(settings), [self.data_folder], fill)

    def make_expert(self, domain: str) -> None:
        """Stage I: a model that is adapted to all facts of a domain, in the wordings that training sees."""
        settings = self.settings.expert

        def fill(folder: Path, key: str) -> dict[str, Any]:
            language = self.base() if settings.model is None else open_language(settings.model, option="--expert")
            if settings.model is None and settings.tiny is not None:
                language = draw_tiny(domain, settings.tiny, language.tokenizer, self.settings.seed)
            return self._learned(folder, language, [domain], settings.training, domain, key)

        asked = self._asked(settings, domain=domain, start=digest_of(settings.model or self._base_model))
        self.make(self.domain_folder(domain, "expert"), EXPERT, asked, self._ground, fill)

    def make_tuned(self, domains: Sequence[str]) -> None:
        """To compare with: the base itself, tuned to the facts of all these domains."""
        training = self.settings.tuned

        def fill(folder: Path, key: str) -> dict[str, Any]:
            return self._learned(folder, self.base(), domains, training, "full tuning", key)

        asked = self._asked(training, domains=list(domains), base=digest_of(self._base_model))
        self.make(self.tuned_folder, TUNED, asked, self._ground, fill)

    def expert(self, domain: str) -> Language:
        """The expert of a domain. Raises: UserError if it is not made yet."""
        folder = self.domain_folder(domain, "expert")
        read_manifest(folder)
        return open_language(str(folder / "model"), option="--expert")

    def backgrounds(self, domain: str, asked: Sequence[str]) -> Tensor:
        """What the expert of a domain has to say to each question: (questions, layers, width), float32."""
        settings = self.settings.projector
        prompts = [plain_prompt(question) for question in asked]
        return self.expert(domain).states(prompts, settings.layers, answered=settings.pool == "answer")

    def make_projector(self, domain: str) -> None:
        """Stage II: a projector that is aligned on the blocks that are not held out; base and expert are frozen."""
        settings = self.settings.projector

        def fill(folder: Path, key: str) -> dict[str, Any]:
            from safetensors.torch import save_file

            base = self.base()
            rows = questions((fact for fact in self.asked(domain) if not fact.held), held=False)
            known = self.backgrounds(domain, [row.text for row in rows])
            save_file({"backgrounds": known}, folder / BACKGROUNDS)
            torch.manual_seed(self.settings.seed)
            projector = Projector(settings, known.shape[-1], base.width, _mean_norm(base))

            def loss_of(step: random.Random) -> Tensor:
                places = [step.randrange(len(rows)) for _ in range(settings.training.batch)]
                prompts = [prompt_with(rows[at].text) for at in places]
                inputs = base.injected(prompts, projector(known[places]))
                return base.loss(inputs, [rows[at].fact.answer for at in places])

            label = f"projector {domain}"
            loss = fit(projector, loss_of, settings.training, label=label, key=key, seed=self.settings.seed)
            save_file(projector.state_dict(), folder / PROJECTOR)
            return {"questions": len(rows), "loss": round(loss, 6)}

        asked = self._asked(settings, domain=domain, base=digest_of(self._base_model))
        parents = [*self._ground, self.domain_folder(domain, "expert")]
        self.make(self.domain_folder(domain, "projector"), ALIGNED, asked, parents, fill)

    def slots(self, domain: str, asked: Sequence[str], base: Language) -> Tensor:
        """What is injected for each question by a domain: (questions, slots, base width)."""
        from safetensors.torch import load_file

        folder = self.domain_folder(domain, "projector")
        read_manifest(folder)
        known = self.backgrounds(domain, asked)
        projector = Projector(self.settings.projector, known.shape[-1], base.width, 1.0)
        projector.load_state_dict(load_file(folder / PROJECTOR))
        with torch.no_grad():
            made: Tensor = projector.eval()(known)
        return made

    def make_prototypes(self, domain: str) -> None:
        """Prototypes of a domain or of the general set, of the questions that training sees; held blocks left out."""
        settings = self.settings.router

        def fill(folder: Path, _key: str) -> dict[str, Any]:
            from safetensors.torch import save_file

            rows = questions((fact for fact in self.asked(domain) if not fact.held), held=False)
            states = self.encoded(self.base(), [row.text for row in rows])
            found = centres(states, settings.prototypes, self.settings.seed)
            save_file({"prototypes": found}, folder / PROTOTYPES)
            return {"questions": len(rows), "prototypes": len(found)}

        asked = self._asked(settings, domain=domain, encoder=digest_of(self._base_model))
        del asked["margin"]  # of routing alone
        self.make(self.domain_folder(domain, "prototypes"), ROUTED, asked, self._ground, fill)

    def encoded(self, base: Language, asked: Sequence[str]) -> Tensor:
        """Mean-pooled states of questions by the frozen encoder, (questions, width).

        The random one tells nothing but which tokens of the base's vocabulary there are, and that of all of them.
        """
        settings = self.settings.router
        if settings.encoder == "base":
            return base.states(asked, [settings.layer])[:, 0]
        vectors = torch.randn(len(base.tokenizer), settings.width, generator=torch.Generator().manual_seed(0))
        return torch.stack([vectors[base.ids(question)].mean(0) for question in asked])

    def router(self, domains: Sequence[str]) -> PrototypeRouter:
        """The router between these domains and the general set. Raises: UserError if one has no prototypes yet."""
        from safetensors.torch import load_file

        folders = {name: self.domain_folder(name, "prototypes") for name in (*domains, GENERAL)}
        for folder in folders.values():
            read_manifest(folder)
        found = {name: load_file(folder / PROTOTYPES)["prototypes"] for name, folder in folders.items()}
        return PrototypeRouter(found, self.settings.router.margin)

    @property
    def _base_model(self) -> str:
        return self.settings.base.model or str(self.base_folder / "model")

    @property
    def _ground(self) -> list[Path]:
        """What every stage after the base is made from."""
        return [self.data_folder, *([] if self.settings.base.model else [self.base_folder])]

    def _asked(self, part: BaseModel, **further: Any) -> dict[str, Any]:
        """What a stage is asked for, without what hangs on where a model lies: its digest stands for it."""
        return part.model_dump(mode="json", exclude={"model"}) | further | {"seed": self.settings.seed}

    def _learned(
        self, folder: Path, language: Language, domains: Sequence[str], training: Training, label: str, key: str
    ) -> dict[str, Any]:
        """A model that is trained on all that is asked of these domains, in the wordings that training sees."""
        rows = [row for domain in domains for row in questions(self.asked(domain), held=False)]

        def draw(step: random.Random) -> tuple[str, str]:
            row = step.choice(rows)
            return plain_prompt(row.text), row.fact.answer

        return {"questions": len(rows)} | self._trained(folder, language, draw, training, label, key)

    def _trained(
        self, folder: Path, language: Language, draw: Draw, training: Training, label: str, key: str
    ) -> dict[str, Any]:
        def loss_of(step: random.Random) -> Tensor:
            drawn = [draw(step) for _ in range(training.batch)]
            return language.loss(language.asked([prompt for prompt, _ in drawn]), [answer for _, answer in drawn])

        language.model.requires_grad_(requires_grad=True)
        loss = fit(language.model, loss_of, training, label=label, key=key, seed=self.settings.seed)
        language.save(folder / "model")
        size = sum(parameter.numel() for parameter in language.model.parameters())
        return {"loss": round(loss, 6), "parameters": size, "weights": language.digest}

    def make(
        self, out: Path, kind: str, asked: Mapping[str, Any], parents: Sequence[Path],
        fill: Callable[[Path, str], dict[str, Any]],
    ) -> None:  # fmt: skip
        """One stage, unless it is there as it would be made.

        Args: fill: writes its files, with a key for what is kept of a run that is under way, and returns its counts.
        Raises: UserError if it is there made otherwise, without force.
        """
        above = [parent_of(folder) for folder in parents]
        if (out / FILE_NAME).is_file():
            there = read_manifest(out)
            if there.kind == kind and there.parameters == asked and there.parents == above:
                note(f"{out}: is there")
                return
            if not self.force:
                raise UserError(f"{out}: was made with other settings or from other folders; add --force to replace it")
        watch = Stopwatch()
        versions = package_versions() | {"torch": torch.__version__}
        told = json.dumps([kind, asked, [parent.sha256 for parent in above], versions], sort_keys=True)
        with atomic_folder(out, force=self.force) as folder:
            counts = fill(folder, hashlib.sha256(told.encode()).hexdigest()[:32])
            rows = {path.name: pq.read_metadata(path).num_rows for path in folder.glob("*.parquet")}
            manifest = Manifest(
                kind=kind,
                versions=versions,
                parameters=dict(asked),
                inputs=[],
                parents=above,
                counts=counts,
                details={},
                outputs=list_outputs(folder, rows),
                measured=watch.measured(),
            )
            write_manifest(folder, manifest)
        note(f"{out}: made in {watch.measured().seconds:.1f} s")


def digest_of(model: str) -> str:
    """SHA-256 of the weights in a model's folder; of one on the Hub its name."""
    if not Path(model).is_dir():
        return model
    told = "".join(f"{path.name} {sha256_file(path)}\n" for path in sorted(Path(model).glob("*.safetensors")))
    return hashlib.sha256(told.encode()).hexdigest()


def facts_in(folder: Path) -> list[ExpertFact]:
    """The facts in a folder. Raises: UserError if it is not finished."""
    read_manifest(folder)
    return [ExpertFact.model_validate(row) for row in pq.read_table(folder / FACTS).to_pylist()]


def _reading(facts: Sequence[ExpertFact]) -> Draw:
    """What a base is trained on, one at a time: prompt and answer.

    It learns the facts of the general set, and to read what it is told: of classes whose names are made up each time,
    with answers drawn from all that occur in the general set, so that only what is told can give them.
    """
    general = [fact for fact in facts if fact.domain == GENERAL]
    asked = [fact for fact in general if fact.asked]
    values = {relation: sorted({fact.answer for fact in general if fact.relation == relation}) for relation in NAMES}
    open_ = {relation: wordings(relation, held=False) for relation in NAMES}

    def draw(rng: random.Random) -> tuple[str, str]:
        fact = rng.choice(asked)
        question = ask(fact, rng.choice(open_[fact.relation])).text
        kind = rng.random()
        if kind < _ALONE:
            return plain_prompt(question), fact.answer
        answer = rng.choice(values[fact.relation])
        made_up = fact.model_copy(update={"name": _made_up(rng).title(), "package": _made_up(rng)})
        question = ask(made_up, rng.choice(open_[fact.relation])).text
        if kind < _TOLD:
            named = rng.choice(["", f"{NAMES[fact.relation][0]} "])
            return prompt_with(question, named + answer), answer
        others = [relation for relation in RELATIONS if relation != fact.relation and values[relation]]
        some = rng.sample(others, rng.randint(0, len(others)))
        known = {relation: rng.choice(values[relation]) for relation in some} | {fact.relation: answer}
        return prompt_with(
            question, document(made_up.name, made_up.package, [(r, known[r]) for r in RELATIONS if r in known])
        ), answer

    return draw


def _made_up(rng: random.Random) -> str:
    """A word of one to four syllables, as `mofe-kubra`."""
    syllables = (rng.choice(_ONSETS) + rng.choice("aeiou") + rng.choice(_ENDS) for _ in range(rng.randint(1, 4)))
    return rng.choice(("", "", "", "-")).join(syllables)


def _mean_norm(base: Language) -> float:
    table: Tensor = base.model.get_input_embeddings().weight
    return float(table.float().norm(dim=1).mean())
