"""The evaluation: answer the same held-out questions with every method; report accuracy, cost and side effects."""

import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

from lemur.experts.facts import Question, documents, questions
from lemur.experts.folder import read_number
from lemur.experts.settings import GENERAL
from lemur.experts.stages import Workspace
from lemur_core.files import Json
from manifests.records import ExpertAnswer

_ENTITY = "{name} ?"
_K1, _B = 1.2, 0.75
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class ModelEvaluator:
    """Answers the held-out questions of all domains, and those of the general set, with every method."""

    def __init__(self, workspace: Workspace, domains: Sequence[str]) -> None:
        self._workspace, self._domains = workspace, domains
        self._base, self._frame = workspace.base(), workspace.frame()
        self._facts = workspace.facts()
        self._rows: dict[str, list[Question]] = {}
        for domain in (*domains, GENERAL):
            # The base was trained on all general facts, in other wordings; prototypes saw none of these blocks.
            facts = [fact for fact in self._facts if fact.domain == domain and fact.asked and fact.held]
            self._rows[domain] = questions(facts, held=True)
        self._answers: list[ExpertAnswer] = []

    def run(self) -> tuple[list[ExpertAnswer], Json]:
        """Return all answers, and further findings. Raises: UserError if a stage of a domain has not been built."""
        # At both ends: nothing that the methods do may change the base.
        before = self._base.digest
        plain = {domain: self._book("closed", domain, self._embed_plain(domain)) for domain in self._rows}
        routes, growth = self._add_domains()
        self._run_injected(routes)
        self._run_in_context()
        for domain in self._domains:
            rows = self._rows[domain]
            answers, tokens = self._workspace.ask_expert(domain, [row.text for row in rows])
            self._record("expert", domain, answers, tokens)
            prompts = [self._frame.with_answer(row.text, answer) for row, answer in zip(rows, answers, strict=True)]
            self._book("expert as text", domain, self._base.embed_prompts(prompts))
        after = self._base.digest
        again = self._base.answers(self._embed_plain(GENERAL))[1]
        return self._answers, {
            "digest_before": before,
            "closed_scores": plain[GENERAL],
            "growth": growth,
            "routing": growth[-1]["accuracy"],
            "routing_by_name_alone": self._route_names(),
            "digest_after": after,
            "closed_scores_after": again,
            "general_exact": before == after and again == plain[GENERAL],
            "slots": self._workspace.settings.codebook.slots,
        }

    def _embed_plain(self, domain: str) -> list[Tensor]:
        return self._base.embed_prompts([self._frame.plain(row.text) for row in self._rows[domain]])

    def _add_domains(self) -> tuple[dict[str, list[str]], list[Json]]:
        """Add the domains one by one.

        Returns: the routes with all of them; for each step the shares that are routed right, the number of questions
            that it rerouted, and whether the answers of earlier domains stayed equal.
        """
        workspace = self._workspace
        states = {name: workspace.encode(self._base, [row.text for row in rows]) for name, rows in self._rows.items()}
        steps: list[Json] = []
        scores: dict[str, str] = {}
        routes: dict[str, list[str]] = {}
        for number in range(1, len(self._domains) + 1):
            domains = self._domains[:number]
            router = workspace.router(domains)
            now = {name: router.route(states[name]) for name in (*domains, GENERAL)}
            digests = {domain: self._answer_oracle(domain) for domain in domains}
            pairs = [zip(routes.get(name, routed), routed, strict=True) for name, routed in now.items()]
            steps.append(
                {
                    "added": domains[-1],
                    "accuracy": {name: _share(routed, name) for name, routed in now.items()},
                    "rerouted": sum(one != other for pair in pairs for one, other in pair),
                    "oracle_equal": all(digests[name] == scores.get(name, digests[name]) for name in digests),
                }
            )
            routes, scores = now, digests
        return routes, steps

    def _route_names(self) -> dict[str, float]:
        """Return the share of questions that are routed right by the name of their class alone, by domain."""
        router = self._workspace.router(self._domains)
        names = {domain: [_ENTITY.format(name=row.fact.name) for row in rows] for domain, rows in self._rows.items()}
        return {
            domain: _share(router.route(self._workspace.encode(self._base, texts)), domain)
            for domain, texts in names.items()
        }

    def _load_slots(self, domain: str, by: str) -> Tensor:
        """Return the vectors that the domain `by` injects for the questions of a domain."""
        return self._workspace.slots(by, [row.text for row in self._rows[domain]], self._base)

    def _answer_oracle(self, domain: str) -> str:
        """Return the digest of the scores with the domain's current folders."""
        slots = self._load_slots(domain, domain)
        prompts = [self._frame.with_answer(row.text) for row in self._rows[domain]]
        return self._base.answers(self._base.embed_injected(prompts, slots))[1]

    def _run_injected(self, routes: Mapping[str, Sequence[str]]) -> None:
        seed = self._workspace.settings.seed
        for at, domain in enumerate(self._domains):
            count = len(self._rows[domain])
            own = self._load_slots(domain, domain)
            self._book_injected("oracle", domain, own, domain)
            if count > 1:
                # Never by 0: each question gets the token of another one.
                turn = random.Random(f"{seed} {domain}").randrange(1, count)
                self._book_injected("shuffled", domain, own.roll(turn, 0), domain)
            relations = [row.fact.relation for row in self._rows[domain]]
            same = [next_alike(relations, at) for at in range(count)]
            self._book_injected("shuffled in relation", domain, own[same], domain)
            if len(self._domains) > 1:
                other = self._domains[(at + 1) % len(self._domains)]
                self._book_injected("other domain", domain, self._load_slots(domain, other), other)
        for domain, routed in routes.items():
            self._run_routed(domain, routed)

    def _run_routed(self, domain: str, routed: Sequence[str]) -> None:
        rows, inputs = self._rows[domain], self._embed_plain(domain)
        for by in sorted(set(routed) - {GENERAL}):
            # Questions that are routed to the general set keep their plain prompts.
            indices = [at for at, name in enumerate(routed) if name == by]
            slots = self._load_slots(domain, by)[indices]
            injected = self._base.embed_injected([self._frame.with_answer(rows[at].text) for at in indices], slots)
            for at, embedded in zip(indices, injected, strict=True):
                inputs[at] = embedded
        self._book("routed", domain, inputs, [None if by == GENERAL else by for by in routed])

    def _book_injected(self, arm: str, domain: str, slots: Tensor, by: str) -> None:
        rows = self._rows[domain]
        self._book(
            arm,
            domain,
            self._base.embed_injected([self._frame.with_answer(row.text) for row in rows], slots),
            [by] * len(rows),
        )

    def _run_in_context(self) -> None:
        held = documents([fact for fact in self._facts if fact.domain in self._domains])
        texts = list(held.values())
        index = Bm25(texts)
        for domain in self._domains:
            rows = self._rows[domain]
            for arm, backgrounds in (
                ("retrieved", [texts[index.best(row.text)] for row in rows]),
                ("told", [held[row.fact.block] for row in rows]),
            ):
                prompts = [
                    self._frame.with_document(row.text, text) for row, text in zip(rows, backgrounds, strict=True)
                ]
                self._book(arm, domain, self._base.embed_prompts(prompts))

    def _book(self, arm: str, domain: str, inputs: Sequence[Tensor], routed: Sequence[str | None] = ()) -> str:
        """Let the base answer the questions of a domain, record it, and return the digest of its scores."""
        answers, scores = self._base.answers(inputs)
        self._record(arm, domain, answers, [len(embedded) for embedded in inputs], routed)
        return scores

    def _record(
        self, arm: str, domain: str, answers: Sequence[str], tokens: Sequence[int], routed: Sequence[str | None] = ()
    ) -> None:
        rows = self._rows[domain]
        for row, answer, by, number in zip(rows, answers, routed or [None] * len(rows), tokens, strict=True):
            fact = row.fact
            self._answers.append(
                ExpertAnswer(
                    **{name: getattr(fact, name) for name in ("id", "block", "relation", "code_sha256")},
                    arm=arm,
                    domain=domain,
                    question=row.text,
                    routed=by,
                    expected=fact.answer,
                    answer=answer,
                    correct=read_number(answer) == fact.answer,
                    tokens=number,
                )
            )


def next_alike(items: Sequence[str], at: int) -> int:
    """Return the place of the next equal item, in a circle; its own if there is no other."""
    order: list[int] = [*range(at + 1, len(items)), *range(at + 1)]
    return next(other for other in order if items[other] == items[at])


def _share(routed: Sequence[str], right: str) -> float:
    return round(sum(name == right for name in routed) / max(1, len(routed)), 6)


def split_words(text: str) -> list[str]:
    """Return names, whole and split into their parts, in lower case."""
    whole = re.findall(r"[\w-]+", text)
    return [word.lower() for word in whole] + [
        part.lower() for word in whole if len(parts := _WORD.findall(word)) > 1 for part in parts
    ]


class Bm25:
    """BM25 scores of documents for a query. Source: Robertson and Zaragoza, 2009, with k1 1.2 and b 0.75."""

    def __init__(self, documents: Sequence[str]) -> None:
        counted = [Counter(split_words(document)) for document in documents]
        lengths = [sum(counts.values()) for counts in counted]
        mean = sum(lengths) / max(1, len(lengths))
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for at, (counts, length) in enumerate(zip(counted, lengths, strict=True)):
            for word, number in counts.items():
                weight = number * (_K1 + 1) / (number + _K1 * (1 - _B + _B * length / mean))
                self._postings.setdefault(word, []).append((at, weight))
        self._documents = len(documents)

    def best(self, query: str) -> int:
        """Return the index of the document with the highest score; the first among equal ones."""
        scores: dict[int, float] = {}
        # A word that is repeated in a question says nothing more.
        for word in dict.fromkeys(split_words(query)):
            postings = self._postings.get(word, [])
            rarity = math.log(1 + (self._documents - len(postings) + 0.5) / (len(postings) + 0.5))
            for at, weight in postings:
                scores[at] = scores.get(at, 0.0) + rarity * weight
        return min(scores, key=lambda at: (-scores[at], at), default=0)
