"""The evaluation: the same held-out questions answered in every way, and what each way costs and leaves as it was."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lemur.experts.domains.facts import Asked, documents, questions
from lemur.experts.domains.settings import GENERAL
from lemur.experts.models.language import Language, open_language, plain_prompt, prompt_with
from lemur.experts.retrieval import Bm25
from lemur.experts.stages import House
from manifests.records import ExpertAnswer

#: The ways to answer, and what each is.
ARMS = {
    "closed": "nothing injected",
    "oracle": "the token of the question's own domain",
    "routed": "the token of the domain that the router picks; nothing for general",
    "shuffled": "the token that another question of the same domain would get",
    "other domain": "the token that another domain makes of the question",
    "retrieved": "the document that BM25 finds, as text",
    "told": "the right document, as text",
    "expert": "the expert of the domain alone",
    "tuned": "the base, fully tuned to all domains' facts",
}
_ENTITY = "{name} ?"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All answers, and the findings that are no answers."""

    answers: list[ExpertAnswer]
    found: dict[str, Any]


def evaluate(house: House, domains: Sequence[str]) -> Evaluation:
    """Answer the questions of all domains that no projector saw, and those of the general set, in every way.

    Raises: UserError if a stage of a domain is not made yet.
    """
    return _Asking(house, domains).run()


class _Asking:
    def __init__(self, house: House, domains: Sequence[str]) -> None:
        self._house, self._domains = house, domains
        self._base = house.base()
        self._facts = house.facts()
        self._tuned = open_language(str(house.tuned_folder / "model"))
        self._rows: dict[str, list[Asked]] = {}
        for domain in (*domains, GENERAL):
            asked = [fact for fact in self._facts if fact.domain == domain and fact.asked]
            # of the general set nothing is held out: the base was trained on these facts, in other words
            self._rows[domain] = questions([f for f in asked if f.held or domain == GENERAL], held=True)
        self._answers: list[ExpertAnswer] = []
        self._slots: dict[tuple[str, str], Tensor] = {}

    def run(self) -> Evaluation:
        before = self._base.digest
        plain = {domain: self._plain("closed", domain, self._base) for domain in self._rows}
        found: dict[str, Any] = {"digest_before": before, "closed_scores": plain[GENERAL]}
        routes = self._growth(found)
        self._injected(routes)
        self._in_context()
        for domain in self._domains:
            self._plain("expert", domain, self._house.expert(domain))
        for domain in self._rows:
            self._plain("tuned", domain, self._tuned)
        found["digest_after"] = self._base.digest
        again = self._base.answers(self._base.asked([plain_prompt(row.text) for row in self._rows[GENERAL]]))[1]
        found["closed_scores_after"] = again
        found["general_exact"] = before == found["digest_after"] and again == found["closed_scores"]
        found["slots"] = self._house.settings.projector.slots
        return Evaluation(self._answers, found)

    def _plain(self, arm: str, domain: str, language: Language) -> str:
        rows = self._rows[domain]
        prompts = [language.ids(plain_prompt(row.text)) for row in rows]
        texts, scores = language.answers(language.embed(prompts))
        self._book(arm, domain, rows, texts, [None] * len(rows), list(map(len, prompts)))
        return scores

    def _growth(self, found: dict[str, Any]) -> dict[str, list[str]]:
        """Add the domains one by one: routing, what is rerouted, and whether oracle answers stay bit-equal."""
        house = self._house
        states = {name: house.encoded(self._base, [row.text for row in rows]) for name, rows in self._rows.items()}
        bare = {
            name: house.encoded(self._base, [_ENTITY.format(name=row.fact.name) for row in rows])
            for name, rows in self._rows.items()
        }
        steps: list[dict[str, Any]] = []
        scores: dict[str, str] = {}
        routes: dict[str, list[str]] = {}
        for number in range(1, len(self._domains) + 1):
            there = self._domains[:number]
            router = house.router(there)
            now = {name: router.route(states[name]) for name in (*there, GENERAL)}
            told = {domain: self._oracle(domain)[1] for domain in there}
            steps.append(
                {
                    "added": there[-1],
                    "accuracy": {name: _share(routed, name) for name, routed in now.items()},
                    "rerouted": sum(
                        one != other
                        for name, routed in now.items()
                        for one, other in zip(routes.get(name, routed), routed, strict=True)
                    ),
                    "oracle_equal": all(told[name] == scores.get(name, told[name]) for name in told),
                }
            )
            routes, scores = now, told
        found["growth"] = steps
        found["routing"] = steps[-1]["accuracy"]
        router = house.router(self._domains)
        found["routing_by_name_alone"] = {name: _share(router.route(bare[name]), name) for name in self._rows}
        return routes

    def _slots_of(self, domain: str, by: str) -> Tensor:
        """What `by` injects for the questions of a domain."""
        if (domain, by) not in self._slots:
            self._slots[domain, by] = self._house.slots(by, [row.text for row in self._rows[domain]], self._base)
        return self._slots[domain, by]

    def _oracle(self, domain: str) -> tuple[list[str], str]:
        """Answers by the domain's own folders as they are now, and the digest of their scores."""
        slots = self._house.slots(domain, [row.text for row in self._rows[domain]], self._base)
        self._slots[domain, domain] = slots
        return self._base.answers(self._base.injected([prompt_with(row.text) for row in self._rows[domain]], slots))

    def _injected(self, routes: Mapping[str, Sequence[str]]) -> None:
        seed = self._house.settings.seed
        for at, domain in enumerate(self._domains):
            rows = self._rows[domain]
            own = self._slots_of(domain, domain)
            self._book_injected("oracle", domain, own, [domain] * len(rows))
            if len(rows) > 1:
                turn = random.Random(f"{seed} {domain}").randrange(1, len(rows))
                self._book_injected("shuffled", domain, own.roll(turn, 0), [domain] * len(rows))
            if len(self._domains) > 1:
                other = self._domains[(at + 1) % len(self._domains)]
                self._book_injected("other domain", domain, self._slots_of(domain, other), [other] * len(rows))
        for domain, routed in routes.items():
            self._routed(domain, routed)

    def _routed(self, domain: str, routed: Sequence[str]) -> None:
        rows = self._rows[domain]
        inputs = self._base.asked([plain_prompt(row.text) for row in rows])
        for by in sorted(set(routed) - {GENERAL}):
            places = [at for at, name in enumerate(routed) if name == by]
            slots = self._slots_of(domain, by)[places]
            made = self._base.injected([prompt_with(rows[at].text) for at in places], slots)
            for at, given in zip(places, made, strict=True):
                inputs[at] = given
        texts, _ = self._base.answers(inputs)
        self._book(
            "routed", domain, rows, texts, [None if by == GENERAL else by for by in routed], list(map(len, inputs))
        )

    def _book_injected(self, arm: str, domain: str, slots: Tensor, by: Sequence[str]) -> None:
        rows = self._rows[domain]
        inputs = self._base.injected([prompt_with(row.text) for row in rows], slots)
        texts, _ = self._base.answers(inputs)
        self._book(arm, domain, rows, texts, list(by), list(map(len, inputs)))

    def _in_context(self) -> None:
        held = documents([fact for fact in self._facts if fact.domain in self._domains])
        texts = list(held.values())
        index = Bm25(texts)
        for domain in self._domains:
            rows = self._rows[domain]
            for arm, given in (
                ("retrieved", [texts[index.best(row.text)] for row in rows]),
                ("told", [held[row.fact.block] for row in rows]),
            ):
                inputs = self._base.asked([prompt_with(row.text, text) for row, text in zip(rows, given, strict=True)])
                said, _ = self._base.answers(inputs)
                self._book(arm, domain, rows, said, [None] * len(rows), list(map(len, inputs)))

    def _book(
        self, arm: str, domain: str, rows: Sequence[Asked], said: Sequence[str], routed: Sequence[str | None],
        tokens: Sequence[int],
    ) -> None:  # fmt: skip
        for row, answer, by, number in zip(rows, said, routed, tokens, strict=True):
            fact = row.fact
            self._answers.append(
                ExpertAnswer(
                    id=fact.id,
                    arm=arm,
                    domain=domain,
                    block=fact.block,
                    relation=fact.relation,
                    question=row.text,
                    routed=by,
                    expected=fact.answer,
                    answer=answer,
                    correct=answer == fact.answer,
                    tokens=number,
                    code_sha256=fact.code_sha256,
                )
            )


def _share(routed: Sequence[str], right: str) -> float:
    return round(sum(name == right for name in routed) / max(1, len(routed)), 6)


def scores_of(answers: Sequence[ExpertAnswer]) -> dict[str, dict[str, dict[str, float]]]:
    """By arm and domain: questions, how many were right, and mean tokens. `all` are the domains without general."""
    told: dict[str, dict[str, dict[str, float]]] = {}
    for arm in ARMS:
        own = [one for one in answers if one.arm == arm]
        groups = {
            domain: [one for one in own if one.domain == domain] for domain in dict.fromkeys(o.domain for o in own)
        }
        groups["all"] = [one for one in own if one.domain != GENERAL]
        told[arm] = {
            domain: {
                "questions": len(some),
                "correct": sum(one.correct for one in some),
                "tokens": round(sum(one.tokens for one in some) / len(some), 2),
            }
            for domain, some in groups.items()
            if some
        }
    return {arm: groups for arm, groups in told.items() if groups}


def majority_of(answers: Sequence[ExpertAnswer]) -> float:
    """The share of these questions that the commonest answer of each domain's relation would be right on."""
    own = [one for one in answers if one.arm == "closed" and one.domain != GENERAL]
    counted: dict[tuple[str, str], Counter[str]] = {}
    for one in own:
        counted.setdefault((one.domain, one.relation), Counter())[one.expected] += 1
    return sum(max(counts.values()) for counts in counted.values()) / max(1, len(own))
