"""Where one injected token loses an answer: `python -m benchmarks.experts_bounds --settings FILE --out DIR STEP...`.

The steps between a fact and the frozen base's answer, each measured alone; what is in the folder is not made again:

- `reading`: the fact as text in the prompt, with 0, 1, 4 and 8 answered examples: can the base say what it reads?
- `codebook`: vectors for each number, trained on made-up facts of the general set: can the base say what it is given?
- `expert`: each domain's expert alone, while it learns, on what it was trained on and in other wordings.
- `projector`: the answer read from the expert's states, and injected as the codebook's vector, with all controls.
- `routing`: prototypes of the base's own states of the bare question, and questions about nothing of the kind.

Claim (docs/experts-explained.md): each of these figures, with a real base. All arms have the same examples before the
prompt, whose states are computed once.
"""

import argparse
import copy
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from benchmarks.experts_framed import LAYERS, Framed, Vectors, probe, read_states
from extract.model.results import wilson
from lemur.experts.evaluate import Bm25, next_alike
from lemur.experts.facts import Question, ask, documents, questions, read_facts, wordings
from lemur.experts.folder import read_number
from lemur.experts.language import Frame, Language, add_adapters, open_language, plain_prompt, prompt_with
from lemur.experts.parts import Projector, PrototypeRouter, centres, fit
from lemur.experts.settings import GENERAL, MixtureSettings, TuningSettings, load_settings
from lemur_core.files import Json
from lemur_core.files.atomic import write_text

_SHOTS = (0, 1, 4, 8)
_ENCODERS = (0, 2, 4, 6, 8, 10, 12, 15, -1)  # layers of the base whose states a router compares
_READ = 96  # questions
_RATE = 0.1  # of free vectors
_ASKED = 40  # steps between two tests of an expert and of vectors
_IMITATED = 400  # steps of a projector
_TURN = 7  # questions, to shuffle
_CODEBOOK = "codebook-{}.pt"  # by slots
_WORDINGS = 4  # of fifteen of a fact, for vectors, projectors and prototypes
#: Questions that no domain is about.
ELSEWHERE = (
    "What is the capital of France ?", "Who wrote Hamlet ?", "How many legs has a spider ?", "When did Rome fall ?",
    "What is the boiling point of water ?", "Translate good morning into Spanish .", "Name a prime above 50 .",
    "Which planet is the largest ?", "How do I boil an egg ?", "What causes the tides ?", "Who painted the Mona Lisa ?",
    "What is 17 times 4 ?", "Give me a word that rhymes with tree .", "How tall is Mount Everest ?",
    "What do bees eat ?", "Write a haiku about rain .", "What is a contract ?", "How many days has February ?",
    "Why is the sky blue ?", "Which language is spoken in Brazil ?", "What is inflation ?", "Who was Ada Lovelace ?",
    "How do vaccines work ?", "Is a tomato a fruit ?",
)  # fmt: skip


def tell(texts: Sequence[str], rows: Sequence[Question]) -> Json:
    """Return how many answers are right, with the 95 % Wilson interval, by relation and by the digits of the answer."""
    right = [read_number(text) == row.fact.answer for text, row in zip(texts, rows, strict=True)]
    groups: dict[str, list[bool]] = defaultdict(list)
    for one, row in zip(right, rows, strict=True):
        groups[row.fact.relation].append(one)
        groups[f"{len(row.fact.answer)} digits"].append(one)
    low, high = wilson(sum(right), len(right))
    found = {"right": sum(right), "of": len(right), "share": round(sum(right) / len(right), 3)}
    return found | {
        "interval": [round(low, 3), round(high, 3)],
        "groups": {name: f"{sum(own)}/{len(own)}" for name, own in sorted(groups.items())},
        "first": list(texts[:4]),
    }


@dataclass(frozen=True)
class Bounds:
    """The facts, the base, and the folder of results. `steps`, `slots`: of the codebook."""

    settings: MixtureSettings
    out: Path
    only: tuple[str, ...]
    steps: int
    slots: tuple[int, ...]

    @cached_property
    def facts(self) -> list[Any]:
        """All facts, of all domains."""
        return read_facts(self.settings.data, self.settings.seed)

    @cached_property
    def base(self) -> Language:
        """The frozen base."""
        assert self.settings.base.model
        language = open_language(self.settings.base.model, self.settings.base)
        language.model.requires_grad_(requires_grad=False)
        return language

    @cached_property
    def documents(self) -> dict[str, str]:
        """The text of each block's facts."""
        return documents(self.facts)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains with an expert."""
        return self.only or tuple(self.settings.data.domains)

    def held(self, domain: str) -> list[Question]:
        """Questions about the blocks that no projector sees, in wordings that no training saw."""
        return questions([fact for fact in self.facts if fact.domain == domain and fact.asked and fact.held], held=True)

    def seen(self, domain: str) -> list[Question]:
        """Questions about the other blocks, in some of the training wordings of each."""
        found = []
        for fact in self.facts:
            if fact.domain == domain and fact.asked and not fact.held:
                drawn = random.Random(fact.id).sample(wordings(fact.relation, held=False), _WORDINGS)
                found += [ask(fact, wording) for wording in drawn]
        return found

    def frame(self, shots: int) -> Frame:
        """Answered examples of the general set, about blocks that are not held out."""
        rng = random.Random(self.settings.seed)
        chosen = rng.sample([f for f in self.facts if f.domain == GENERAL and f.asked and not f.held], shots)
        return Frame(
            [
                (ask(f, rng.choice(wordings(f.relation, held=False))).text, self.documents[f.block], f.answer)
                for f in chosen
            ]
        )

    def framed(self, *, background: bool, shots: int | None = None) -> Framed:
        """The base behind the settings' number of examples, with or without a background in each."""
        return Framed(
            self.base, self.frame(self.settings.base.shots if shots is None else shots), background=background
        )

    # The steps

    def reading(self) -> Json:
        """The fact as text."""
        rows = random.Random(self.settings.seed).sample(self._all_held(), min(_READ, len(self._all_held())))
        found: Json = {}
        for shots in _SHOTS:
            arms = {
                "closed": (False, [plain_prompt(row.text) for row in rows]),
                "document": (True, [prompt_with(row.text, self.documents[row.fact.block]) for row in rows]),
                "answer": (True, [prompt_with(row.text, row.fact.answer) for row in rows]),
            }
            for arm, (background, prompts) in arms.items():
                framed = self.framed(background=background, shots=shots)
                found[f"{arm}, {shots} shots"] = report(
                    tell(framed.answers(self.base.embed_prompts(prompts)), rows), arm, shots
                )
        return found

    @cached_property
    def numbers(self) -> list[str]:
        """All answers of all questions."""
        return sorted({fact.answer for fact in self.facts if fact.asked}, key=int)

    def codebook(self) -> Json:
        """Vectors for each number, which say it whatever is asked: none of the questions is of a domain."""
        framed = self.framed(background=True)
        return {f"{slots} slots": self._fit_vectors(slots, framed) for slots in self.slots}

    def _fit_vectors(self, slots: int, framed: Framed) -> Json:
        vectors, rows = Vectors(self.numbers, slots, self.base), self.seen(GENERAL)
        found: Json = {"numbers": len(self.numbers)}
        losses: list[float] = []

        def compute_loss(rng: random.Random) -> Tensor:
            if losses and len(losses) % _ASKED == 0:
                self._ask_numbers(found, len(losses), framed, vectors, slots)
            answers = rng.choices(self.numbers, k=training.batch)
            loss = framed.loss(self._inject(rng.choices(rows, k=training.batch), vectors(answers)), answers)
            losses.append(float(loss.detach()))
            return loss

        self._ask_numbers(found, 0, framed, vectors, slots)
        if self.steps:
            training = TuningSettings(steps=self.steps, rate=_RATE, decay=0, batch=32)
            key = f"bounds {self.out.name} codebook {slots} {self.steps}"
            fit(vectors, compute_loss, training, label="vectors", key=key, seed=self.settings.seed)
            self._ask_numbers(found, len(losses), framed, vectors, slots)
        torch.save(vectors.state_dict(), self.out / _CODEBOOK.format(slots))
        return found | {"losses": losses[::10] + losses[-1:]}

    def _inject(self, rows: Sequence[Question], slots: Tensor) -> list[Tensor]:
        return self.base.embed_injected([prompt_with(row.text) for row in rows], slots)

    @torch.no_grad()
    def _ask_numbers(self, found: Json, steps: int, framed: Framed, vectors: Vectors, slots: int) -> None:
        rows = self._all_held()
        right = [row.fact.answer for row in rows]
        for arm, answers in {"own": right, "shuffled": right[_TURN:] + right[:_TURN]}.items():
            texts = framed.answers(self._inject(rows, vectors(answers)))
            found[f"{arm}, {steps} steps"] = report(tell(texts, rows), slots, "slots", arm, steps)

    def _all_held(self) -> list[Question]:
        return [row for domain in self.domains for row in self.held(domain)]

    def expert(self) -> Json:
        """Train the experts, and ask them alone while they learn."""
        return {domain: self._adapt(domain) for domain in self.domains}

    def _adapt(self, domain: str) -> Json:
        training = self.settings.expert.training
        language = copy.deepcopy(self.base)
        language.model.requires_grad_(requires_grad=True)
        torch.manual_seed(self.settings.seed)
        trained = add_adapters(language.model, training.rank)
        alone = Framed(language, Frame(), background=False)
        facts = [fact for fact in self.facts if fact.domain == domain and fact.asked]
        held = self.held(domain)
        known = random.Random(0).sample(questions(facts, held=False), len(held))
        found: Json = {"facts": len(facts), "majority": majority(held)}
        losses: list[float] = []

        def ask_both() -> None:
            for name, rows in {"trained wordings": known, "other wordings": held}.items():
                texts = alone.answers(language.embed_prompts([plain_prompt(row.text) for row in rows]))
                found[f"{name}, {len(losses)} steps"] = report(tell(texts, rows), domain, name, len(losses))

        def compute_loss(rng: random.Random) -> Tensor:
            if losses and len(losses) % _ASKED == 0:
                ask_both()
            drawn = [rng.choice(facts) for _ in range(training.batch)]
            rows = [ask(fact, rng.choice(wordings(fact.relation, held=False))) for fact in drawn]
            inputs = language.embed_prompts([plain_prompt(row.text) for row in rows])
            loss = alone.loss(inputs, [row.fact.answer for row in rows])
            losses.append(float(loss.detach()))
            return loss

        fit(trained, compute_loss, training, label=domain, key=f"bounds {self.out.name} expert {domain}", seed=0)
        ask_both()
        trained.merge_and_unload()
        language.save(self.out / f"expert-{domain}")
        return found | {"losses": losses[::10] + losses[-1:]}

    def projector(self) -> Json:
        """Read the answer from the experts' states, and inject it, with all controls."""
        return {domain: self._align(domain) for domain in self.domains}

    def _align(self, domain: str) -> Json:
        expert = open_language(str(self.out / f"expert-{domain}"), self.settings.base)
        held, seen = self.held(domain), self.seen(domain)
        own, drawn = (
            [row.fact.answer for row in seen],
            random.Random(self.settings.seed).choices(self.numbers, k=len(seen)),
        )
        (known, _), (asked, said) = (read_states(expert, rows) for rows in (seen, held))
        forced, _ = read_states(expert, seen, drawn)
        found: Json = {"expert": report(tell(said, held), "expert"), "majority": majority(held)}
        for pool in known:
            for at, layer in enumerate(LAYERS):
                texts = probe(known[pool][:, at], own, asked[pool][:, at])
                found[f"linear, {pool}, layer {layer}"] = report(tell(texts, held), pool, layer)
        framed = self.framed(background=True)
        found |= self._ask_with_text(held, said, framed)
        read = probe(known["answer"][:, 0], own, asked["answer"][:, 0])
        relations = [row.fact.relation for row in held]
        arms = {
            "own": read,
            "shuffled": read[_TURN:] + read[:_TURN],
            "shuffled in relation": [read[next_alike(relations, at)] for at in range(len(held))],
        }
        for slots in self.slots:
            book = Vectors(self.numbers, slots, self.base)
            book.load_state_dict(torch.load(self.out / _CODEBOOK.format(slots), weights_only=True))
            for arm, numbers in arms.items():
                found[f"{slots} slots, {arm}"] = self._ask_injected(book(numbers), held, framed, slots, arm)
            for arm, states, wanted in (
                ("projector", known["answer"], own),
                ("projector, other answers too", torch.cat([known["answer"], forced["answer"]]), own + drawn),
            ):
                made = self._imitate(states, wanted, book, f"{slots} {arm}")
                found[f"{slots} slots, {arm}"] = self._ask_injected(made(asked["answer"]), held, framed, slots, arm)
        return found

    def _imitate(self, states: Tensor, wanted: Sequence[str], book: Vectors, arm: str) -> Projector:
        """Return a projector that finds the codebook's vectors of each answer; the base takes no part."""
        vectors = book(self.numbers).detach()
        norms, all_ = vectors.norm(dim=-1).mean(0), normalize(vectors.flatten(1), dim=-1)
        torch.manual_seed(self.settings.seed)
        settings = self.settings.projector.model_copy(update={"slots": len(norms), "layers": LAYERS})
        made = Projector(settings, states.shape[-1], self.base.width, 1.0)
        made.scale.data = norms[:, None]
        made.scale.requires_grad = False
        places = torch.tensor([self.numbers.index(answer) for answer in wanted])

        def compute_loss(rng: random.Random) -> Tensor:
            at = [rng.randrange(len(states)) for _ in range(128)]
            near = normalize(made(states[at]).flatten(1), dim=-1) @ all_.T
            return nn.functional.cross_entropy(near / 0.05, places[at]) + (1 - near[range(128), places[at]]).mean()

        training = TuningSettings(steps=_IMITATED, rate=1e-3, decay=0.1)
        fit(made, compute_loss, training, label="projector", key=f"bounds {self.out.name} {arm}", seed=0)
        return made.eval()

    def _ask_injected(self, slots: Tensor, rows: Sequence[Question], framed: Framed, *names: object) -> Json:
        return report(tell(framed.answers(self._inject(rows, slots.detach())), rows), *names)

    def _ask_with_text(self, rows: Sequence[Question], said: Sequence[str], framed: Framed) -> Json:
        texts = list(self.documents.values())
        index = Bm25(texts)
        backgrounds = {
            "expert as text": said,
            "told": [self.documents[row.fact.block] for row in rows],
            "retrieved": [texts[index.best(row.text)] for row in rows],
        }
        found: Json = {}
        for arm, own in backgrounds.items():
            prompts = [prompt_with(row.text, text) for row, text in zip(rows, own, strict=True)]
            found[arm] = report(tell(framed.answers(self.base.embed_prompts(prompts)), rows), arm)
        plain = self.framed(background=False)
        inputs = self.base.embed_prompts([plain_prompt(row.text) for row in rows])
        return found | {"closed": report(tell(plain.answers(inputs), rows), "closed")}

    def routing(self) -> Json:
        """Prototypes of mean states of the bare question, by layer."""
        names = (*self.settings.data.domains, GENERAL)

        def encode(texts: Sequence[str]) -> Tensor:
            return self.base.states([self.base.bare_ids(text) for text in texts], _ENCODERS)

        seen = {name: encode([row.text for row in self.seen(name)[::2]]) for name in names}
        asked = {name: encode([row.text for row in self.held(name)]) for name in names}
        nothing = encode(ELSEWHERE)
        found: Json = {}
        for at, layer in enumerate(_ENCODERS):
            made = {name: centres(own[:, at], self.settings.router.prototypes, 0) for name, own in seen.items()}
            router = PrototypeRouter(made)
            right = {name: sum(by == name for by in router.route(own[:, at])) for name, own in asked.items()}
            near = torch.cat([torch.stack([*router.cosines(own[:, at]).values()]).amax(0) for own in asked.values()])
            least = float(near.quantile(0.01))
            strange = {limit: PrototypeRouter(made, least=limit).route(nothing[:, at]) for limit in (-1.0, least)}
            total, of = sum(right.values()), sum(map(len, asked.values()))
            found[f"layer {layer}"] = report(
                {
                    "right": {name: f"{number}/{len(asked[name])}" for name, number in right.items()},
                    "all": [total, of, *(round(end, 3) for end in wilson(total, of))],
                    "least": round(least, 4),
                    "elsewhere to general": [sum(by == GENERAL for by in own) for own in strange.values()],
                },
                layer,
            )
        return found


def majority(rows: Sequence[Question]) -> float:
    """Return the share that the most frequent answer of each relation among these very questions is right."""
    counted = Counter((row.fact.relation, row.fact.answer) for row in rows)
    most = {relation: max(n for (other, _), n in counted.items() if other == relation) for relation, _ in counted}
    return round(sum(most.values()) / len(rows), 3)


def report(found: Json, *names: object) -> Json:
    """Print one finding while the others are made, and return it."""
    shown = {key: value for key, value in found.items() if key not in ("groups", "losses", "first")}
    print(*names, json.dumps(shown), f"{time.process_time():.0f} CPU s", flush=True)
    return found


def main() -> None:
    """Make the steps that are not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", default=["reading", "codebook", "expert", "projector", "routing"])
    parser.add_argument("--settings", type=Path, required=True, help="as for lemur experts, with a real base")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--domain", action="append", default=[], help="only these (repeatable; default: all)")
    parser.add_argument("--steps", dest="number", type=int, default=160, help="of the codebook")
    parser.add_argument(
        "--slots", type=int, action="append", default=[], help="injected vectors of an answer (repeatable; default: 1)"
    )
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    bounds = Bounds(
        load_settings(given.settings), given.out, tuple(given.domain), given.number, tuple(given.slots) or (1,)
    )
    for name in given.steps:
        path = given.out / f"{name}{''.join(f'-{slots}' for slots in given.slots)}.json"
        if path.is_file():
            continue
        step: Callable[[], Json] = getattr(bounds, name)
        watch = time.process_time()
        found = step()
        write_text(path, json.dumps(found | {"CPU s": round(time.process_time() - watch, 1)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
