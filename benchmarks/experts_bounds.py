"""Where one injected token loses an answer: `python -m benchmarks.experts_bounds --settings FILE --out DIR STEP...`.

The steps between a fact and the frozen base's answer, each measured alone; what is in the folder is not made again:

- `reading`: the fact as text in the prompt, with 0, 1, 4 and 8 answered examples: can the base say what it reads?
- `codebook`: one free vector per number, for all questions that have this answer: can the base say what it is given?
- `expert`: each domain's expert alone, on what it was trained on and in other wordings.
- `routing`: prototypes of the base's own states of the bare question, and questions about nothing of the kind.

Claim (docs/experts-explained.md): each of these figures, with a real base. All arms have the same examples before the
prompt, whose states are computed once.
"""

import argparse
import copy
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from extract.model.results import wilson
from lemur.experts.facts import Question, ask, documents, questions, read_facts, wordings
from lemur.experts.folder import read_number
from lemur.experts.language import (
    Frame,
    Language,
    add_adapters,
    last_places,
    open_language,
    pad_rows,
    plain_prompt,
    prompt_with,
)
from lemur.experts.parts import PrototypeRouter, centres, fit
from lemur.experts.settings import GENERAL, MixtureSettings, TuningSettings, load_settings
from lemur_core.files import Json
from lemur_core.files.atomic import write_text

_ROOM = 9  # tokens of an answer: a blank and the digits of the largest mark, and the end of the line
_BATCH = 96
_SHOTS = (0, 1, 4, 8)
_READ = 96  # questions
_ENCODERS = (0, 2, 4, 6, 8, 10, 12, 15, -1)  # layers of the base whose states a router compares
_RATE = 0.1  # of free vectors
_TURN = 7  # questions, to shuffle
_WORDINGS = 4  # of fifteen of a fact, for vectors and prototypes
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


class Framed:
    """The frozen base behind the same answered examples, whose states are computed once."""

    def __init__(self, base: Language, frame: Frame, *, background: bool) -> None:
        self.base = base
        start = frame.with_background("") if background else frame.plain("")
        own = prompt_with("") if background else plain_prompt("")
        (self._end,) = base.bare_ids("\n")
        self._ids = base.bare_ids(start.removesuffix(own))
        with torch.no_grad():
            self._cache = (
                base.model(input_ids=torch.tensor([self._ids]), use_cache=True).past_key_values if self._ids else None
            )

    def _run(self, rows: Sequence[Tensor], kept: int) -> Any:
        embedded, mask, positions = pad_rows(rows)
        cache, before = None, len(self._ids)
        if self._cache is not None:
            cache = copy.deepcopy(self._cache)
            cache.batch_repeat_interleave(len(rows))
            mask = torch.cat([mask.new_ones(len(rows), before), mask], 1)
        output = self.base.model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=positions + before, past_key_values=cache,
            use_cache=True, logits_to_keep=last_places(embedded.shape[1], kept),
        )  # fmt: skip
        return output, mask, positions[:, -1:] + before

    def loss(self, inputs: Sequence[Tensor], answers: Sequence[str]) -> Tensor:
        """Return the mean negative log-likelihood of the answers and the end of their lines, in nats a token."""
        ids = [self.base.bare_ids(f" {answer}\n") for answer in answers]
        kept = max(map(len, ids)) + 1
        rows = [torch.cat(pair) for pair in zip(inputs, self.base.embed(ids), strict=True)]
        scores = self._run(rows, kept)[0].logits[:, :-1]
        wanted = torch.tensor([[-100] * (kept - 1 - len(row)) + row for row in ids])
        return nn.functional.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten())

    @torch.no_grad()
    def answers(self, inputs: Sequence[Tensor]) -> list[str]:
        """Return the greedy first line after each embedded prompt."""
        texts: list[str] = []
        for start in range(0, len(inputs), _BATCH):
            output, mask, at = self._run(inputs[start : start + _BATCH], 1)
            tokens = [output.logits[:, -1].argmax(-1)]
            while len(tokens) < _ROOM and not all((torch.stack(tokens, 1) == self._end).any(1)):
                mask, at = torch.cat([mask, mask.new_ones(len(mask), 1)], 1), at + 1
                output = self.base.model(
                    input_ids=tokens[-1][:, None], attention_mask=mask, position_ids=at,
                    past_key_values=output.past_key_values, use_cache=True,
                )  # fmt: skip
                tokens.append(output.logits[:, -1].argmax(-1))
            decoded = self.base.tokenizer.batch_decode(torch.stack(tokens, 1), skip_special_tokens=True)
            texts += [next(iter(text.strip().splitlines()), "").strip() for text in decoded]
        return texts


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
    """The facts, the base, and the folder of results. `steps`: of the codebook."""

    settings: MixtureSettings
    out: Path
    only: tuple[str, ...]
    steps: int

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

    def codebook(self) -> Json:
        """One vector per number."""
        framed, seen = self.framed(background=True), [row for domain in self.domains for row in self.seen(domain)]
        numbers = sorted({row.fact.answer for row in seen}, key=int)
        vectors = Vectors(len(numbers), self.base)
        losses: list[float] = []

        def inject(rows: Sequence[Question], answers: Sequence[str]) -> list[Tensor]:
            slots = vectors()[[numbers.index(answer) for answer in answers]]
            return self.base.embed_injected([prompt_with(row.text) for row in rows], slots[:, None])

        def compute_loss(rng: random.Random) -> Tensor:
            drawn = rng.sample(seen, training.batch)
            answers = [row.fact.answer for row in drawn]
            loss = framed.loss(inject(drawn, answers), answers)
            losses.append(float(loss.detach()))
            return loss

        training = TuningSettings(steps=self.steps, rate=_RATE, decay=0, batch=32)
        fit(vectors, compute_loss, training, label="vectors", key=f"bounds {self.out.name} {self.steps}", seed=0)
        rows = [row for row in self._all_held() if row.fact.answer in numbers]
        own = [row.fact.answer for row in rows]
        found: Json = {"numbers": len(numbers), "losses": losses[::10] + losses[-1:]}
        with torch.no_grad():
            for arm, answers in {"own": own, "shuffled": own[_TURN:] + own[:_TURN]}.items():
                found[arm] = report(tell(framed.answers(inject(rows, answers)), rows), arm)
        return found

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

        def compute_loss(rng: random.Random) -> Tensor:
            drawn = [rng.choice(facts) for _ in range(training.batch)]
            rows = [ask(fact, rng.choice(wordings(fact.relation, held=False))) for fact in drawn]
            inputs = language.embed_prompts([plain_prompt(row.text) for row in rows])
            return alone.loss(inputs, [row.fact.answer for row in rows])

        key = f"bounds {self.out.name} {domain} {training.steps}"
        found: Json = {"facts": len(facts), "loss": fit(trained, compute_loss, training, label=domain, key=key, seed=0)}
        known = random.Random(0).sample(questions(facts, held=False), len(self.held(domain)))
        for name, rows in {"trained wordings": known, "other wordings": self.held(domain)}.items():
            texts = alone.answers(language.embed_prompts([plain_prompt(row.text) for row in rows]))
            found[name] = report(tell(texts, rows), domain, name)
        return found

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


class Vectors(nn.Module):
    """Free vectors of one learned length, at first the mean length of the base's embeddings, as a projector's are."""

    def __init__(self, number: int, base: Language) -> None:
        super().__init__()
        table = base.model.get_input_embeddings().weight.float()
        self.scale = nn.Parameter(torch.zeros(()))
        self._norm = float(table.norm(dim=1).mean())
        self.free = nn.Parameter(torch.randn(number, table.shape[1], generator=torch.Generator().manual_seed(0)))

    def forward(self) -> Tensor:
        """Return the vectors, (number, width)."""
        return normalize(self.free, dim=-1) * self._norm * self.scale.exp()


def report(found: Json, *names: object) -> Json:
    """Print one finding while the others are made, and return it."""
    shown = {key: value for key, value in found.items() if key not in ("groups", "losses", "first")}
    print(*names, json.dumps(shown), f"{time.process_time():.0f} CPU s", flush=True)
    return found


def main() -> None:
    """Make the steps that are not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", default=["reading", "codebook", "expert", "routing"])
    parser.add_argument("--settings", type=Path, required=True, help="as for lemur experts, with a real base")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--domain", action="append", default=[], help="only these (repeatable; default: all)")
    parser.add_argument("--steps", dest="number", type=int, default=40, help="of the codebook")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    bounds = Bounds(load_settings(given.settings), given.out, tuple(given.domain), given.number)
    for name in given.steps:
        path = given.out / f"{name}.json"
        if path.is_file():
            continue
        step: Callable[[], Json] = getattr(bounds, name)
        watch = time.process_time()
        found = step()
        write_text(path, json.dumps(found | {"CPU s": round(time.process_time() - watch, 1)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
