"""Where one injected token loses an answer: `python -m benchmarks.experts_bounds --settings FILE --out DIR STEP...`.

The steps between a fact and the frozen base's answer, each measured alone, in a folder where `lemur experts data`,
`adapt` and `align` have run; findings that are there are not made again:

- `reading`: the fact as text in the prompt, with 0, 1, 4 and 8 answered examples: can the base say what it reads?
- `codebook`: the vectors of the right numbers, and of other questions': can the base say what it is given?
- `layers`: what a linear map reads in the expert's states, by layer, of the question and of the answer: anything that
  its answer as text does not tell?
- `routing`: by the number of prototypes, and for questions about nothing of the kind.

Claim (docs/experts-explained.md): each of these figures, with a real base.
"""

import argparse
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from extract.model.results import wilson
from lemur.experts.facts import Question, ask, documents, questions, wordings
from lemur.experts.folder import read_number
from lemur.experts.language import Language, last_places, open_language, pad_rows, plain_prompt
from lemur.experts.parts import PrototypeRouter, centres
from lemur.experts.settings import GENERAL, load_settings
from lemur.experts.stages import Workspace
from lemur_core.files import Json
from lemur_core.files.atomic import write_text
from manifests.records import ExpertFact

_SHOTS = (0, 1, 4, 8)
_PROTOTYPES = (1, 4, 16, 32, 128)  # by domain
_READ = 96  # questions
_TURN = 7  # questions, to shuffle
_WORDINGS = 4  # of fifteen of a fact
_FOLDS = 4
_BATCH = 96
_RIDGE = 0.1  # of the number of rows
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
    """A workspace, and the domains that are measured."""

    workspace: Workspace
    domains: tuple[str, ...]

    @cached_property
    def base(self) -> Language:
        """The frozen base."""
        return self.workspace.base()

    def held(self, domain: str) -> list[Question]:
        """Questions about the blocks that no map sees, in wordings that no training saw."""
        return questions([fact for fact in self.workspace.question_facts(domain) if fact.held], held=True)

    def seen(self, domain: str) -> list[Question]:
        """Questions about the other blocks, in some of the training wordings of each."""
        found = []
        for fact in self.workspace.question_facts(domain):
            if not fact.held:
                drawn = random.Random(fact.id).sample(wordings(fact.relation, held=False), _WORDINGS)
                found += [ask(fact, wording) for wording in drawn]
        return found

    def _all_held(self) -> list[Question]:
        return [row for domain in self.domains for row in self.held(domain)]

    # The steps

    def reading(self) -> Json:
        """The fact as text."""
        rows = random.Random(self.workspace.settings.seed).sample(self._all_held(), min(_READ, len(self._all_held())))
        texts, settings = documents(self.workspace.facts()), self.workspace.settings
        found: Json = {}
        for shots in _SHOTS:
            base = settings.base.model_copy(update={"shots": shots})
            frame = Workspace(settings.model_copy(update={"base": base})).frame()
            arms = {
                "closed": [frame.plain(row.text) for row in rows],
                "document": [frame.with_document(row.text, texts[row.fact.block]) for row in rows],
                "answer": [frame.with_answer(row.text, row.fact.answer) for row in rows],
            }
            for arm, prompts in arms.items():
                said, _ = self.base.answers(self.base.embed_prompts(prompts))
                found[f"{arm}, {shots} shots"] = report(tell(said, rows), arm, shots)
        return found

    def codebook(self) -> Json:
        """Vectors of the right numbers, and of those of other questions."""
        rows, frame = self._all_held(), self.workspace.frame()
        right = [row.fact.answer for row in rows]
        prompts = [frame.with_answer(row.text) for row in rows]
        codebook = self.workspace.codebook(self.base)
        found: Json = {"majority": majority(rows)}
        for arm, answers in {"own": right, "shuffled": right[_TURN:] + right[:_TURN]}.items():
            with torch.no_grad():
                said, _ = self.base.answers(self.base.embed_injected(prompts, codebook(answers)))
            found[arm] = report(tell(said, rows), arm)
        return found

    def layers(self) -> Json:
        """What a linear map, fitted on the other blocks, reads: by layer, of the question alone and of the answer."""
        return {domain: self._read(domain) for domain in self.domains}

    def _read(self, domain: str) -> Json:
        model = self.workspace.folder("domains", domain, "expert") / "model"
        expert = open_language(str(model), self.workspace.settings.base)
        held, seen = self.held(domain), self.seen(domain)
        said, _ = expert.answers(expert.embed_prompts([plain_prompt(row.text) for row in held]))
        numbers = self.workspace.numbers()
        put = random.Random(self.workspace.settings.seed).choices(numbers, k=len(seen))
        right = [row.fact.answer for row in seen]
        pools = {
            "question": (read_states(expert, seen), read_states(expert, held), right),
            # Of numbers that are put into its mouth, so all are seen, and what is said, not what is right.
            "answer": (read_states(expert, seen, put), read_states(expert, held, said), put),
        }
        found: Json = {"expert": report(tell(said, held), "expert")}
        for pool, (states, own, answers) in pools.items():
            places = torch.tensor([numbers.index(answer) for answer in answers])
            for layer in range(states.shape[1]):
                fitted = fit_map(states[:, layer], places, len(numbers))
                texts = [numbers[at] for at in apply_map(fitted, own[:, layer])]
                same = sum(one == read_number(other) for one, other in zip(texts, said, strict=True))
                found[f"{pool}, layer {layer}"] = report(tell(texts, held) | {"as said": same}, pool, layer)
        return found

    def routing(self) -> Json:
        """Route by the number of prototypes; `other blocks`: those seen, a quarter left out at a time, to choose it."""
        names, seed = (*self.workspace.settings.data.domains, GENERAL), self.workspace.settings.seed
        facts = {name: self.workspace.question_facts(name) for name in names}
        parts: list[dict[str, set[str]]] = [{} for _ in range(_FOLDS)]
        for name, own in facts.items():
            blocks = sorted({fact.block for fact in own if not fact.held})
            random.Random(seed).shuffle(blocks)
            for at, part in enumerate(parts):
                part[name] = set(blocks[at::_FOLDS])
        held = {name: {fact.block for fact in own if fact.held} for name, own in facts.items()}
        found: Json = {}
        for number in _PROTOTYPES:
            counted = [self._route(facts, held, part, number)["all"] for part in parts]
            found[f"{number} prototypes"] = report(
                self._route(facts, held, held, number)
                | {"other blocks": [sum(own[0] for own in counted), sum(own[1] for own in counted)]},
                number,
            )
        return found

    def _route(
        self,
        facts: Mapping[str, list[ExpertFact]],
        held: Mapping[str, set[str]],
        asked: Mapping[str, set[str]],
        number: int,
    ) -> Json:
        """Ask about some blocks, with prototypes of those that are neither asked about nor held out."""
        prototypes, right, total, of = {}, {}, 0, 0
        for name, own in facts.items():
            known = [fact for fact in own if fact.block not in held[name] | asked[name]]
            prototypes[name] = centres(self._encode([row.text for row in questions(known, held=False)]), number, 0)
        router = PrototypeRouter(prototypes)
        for name, own in facts.items():
            rows = questions([fact for fact in own if fact.block in asked[name]], held=True)
            routed = router.route(self._encode([row.text for row in rows]))
            right[name] = f"{sum(by == name for by in routed)}/{len(rows)}"
            total, of = total + sum(by == name for by in routed), of + len(rows)
        elsewhere = router.cosines(self._encode(ELSEWHERE))
        return {
            "right": right,
            "all": [total, of, *(round(end, 3) for end in wilson(total, of))],
            "elsewhere to general": router.route(self._encode(ELSEWHERE)).count(GENERAL),
            "elsewhere, largest cosine": round(float(torch.stack([*elsewhere.values()]).max()), 3),
        }

    def _encode(self, texts: Sequence[str]) -> Tensor:
        return self.workspace.encode(self.base, texts)


@torch.no_grad()
def read_states(expert: Language, rows: Sequence[Question], answers: Sequence[str] = ()) -> Tensor:
    """Return the mean states of questions, or of the answers after them, (rows, layers, width)."""
    prompts = [expert.ids(plain_prompt(row.text)) for row in rows]
    tails = [expert.bare_ids(f" {answer}") for answer in answers] or [[]] * len(rows)
    pooled = []
    for start in range(0, len(rows), _BATCH):
        own = prompts[start : start + _BATCH]
        whole = [[*row, *tail] for row, tail in zip(own, tails[start : start + _BATCH], strict=True)]
        embedded, mask, positions = pad_rows(expert.embed(whole))
        states = expert.model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=positions, output_hidden_states=True,
            use_cache=False, logits_to_keep=last_places(embedded.shape[1], 1),
        ).hidden_states  # fmt: skip
        # The last token of a prompt already predicts the answer.
        starts = torch.tensor([len(row) - 1 if answers else 0 for row in own])
        wanted = (mask.bool() & (positions >= starts[:, None]))[..., None]
        pooled += [torch.stack([(layer.float() * wanted).sum(1) / wanted.sum(1) for layer in states], 1)]
    return torch.cat(pooled)


def fit_map(states: Tensor, places: Tensor, number: int) -> Tensor:
    """Fit a linear map (ridge regression) from states to which of a number of answers they are of.

    Args: states: (rows, width); places: (rows,). Returns: (width + 1, number); its last row is added.
    """
    mean, deviation = states.mean(0), states.std(0) + 1e-6
    known = (states - mean) / deviation
    wanted = nn.functional.one_hot(places, number).float()
    penalty = _RIDGE * len(known) * torch.eye(known.shape[1])
    weights = torch.linalg.solve(known.T @ known + penalty, known.T @ wanted) / deviation[:, None]
    return torch.cat([weights, -mean[None] @ weights])


def apply_map(fitted: Tensor, states: Tensor) -> Tensor:
    """Return the place of the answer that each state is of."""
    return (states @ fitted[:-1] + fitted[-1]).argmax(-1)


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
    """Make the findings that are not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", default=["reading", "codebook", "layers", "routing"])
    parser.add_argument("--settings", type=Path, required=True, help="as for lemur experts, with a real base")
    parser.add_argument(
        "--out", type=Path, required=True, help="of the commands; findings are put into its folder bounds"
    )
    parser.add_argument("--domain", action="append", default=[], help="only these (repeatable; default: all)")
    given = parser.parse_args()
    workspace = Workspace(load_settings(given.settings).model_copy(update={"out": given.out}))
    bounds = Bounds(workspace, tuple(given.domain) or tuple(workspace.settings.data.domains))
    for name in given.steps:
        path = given.out / "bounds" / f"{name}.json"
        if path.is_file():
            continue
        step: Callable[[], Json] = getattr(bounds, name)
        watch = time.process_time()
        with workspace.alone():
            found = step()
        path.parent.mkdir(exist_ok=True)
        write_text(path, json.dumps(found | {"CPU s": round(time.process_time() - watch, 1)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
