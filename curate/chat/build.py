"""Conversations for all kept records: measured, asked, answered, and counted where there are none."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from curate.chat.change import change_all
from curate.chat.complete import completions
from curate.chat.conversation import No, Talk, finish
from curate.chat.design import design
from curate.chat.explain import explain
from curate.chat.facts import read_facts
from curate.chat.lab import Experiment, Lab
from curate.chat.reading import read_code
from curate.chat.repair import repairs
from curate.chat.result import Chat, Conversation, Drop
from curate.chat.results import best_results
from curate.chat.similar import held_by_another, near_prompts
from curate.chat.subject import Subject
from curate.chat.text import Source
from curate.corpus import Corpus
from curate.options import CurateOptions
from curate.outcome import Outcome
from curate.runs.check import read_parameters
from curate.runs.contract import case_of
from manifests.conversations.draw import Draw
from manifests.records import CHAT_KINDS, ChatKind


def build_chat(
    corpus: Corpus, outcome: Outcome, options: CurateOptions, license_: str, *, jobs: int | None = None
) -> Chat:
    """The conversations of all kept records, in their order.

    Args:
        license_: what the source states of its records.

    Raises: UserError if no sandbox can be had.
    """
    broken = corpus.features.problems  # profile nn-dup keeps also code that is no Python
    with Lab(jobs=jobs, unsafe=options.unsafe_no_sandbox) as lab:
        subjects = _subjects(corpus, outcome, [code for code in outcome.kept if code not in broken], lab)
        said: dict[ChatKind, list[Talk | No]] = {}
        for kind in CHAT_KINDS:
            draws = [Draw(options.seed, subject.id, kind) for subject in subjects]
            said[kind] = _say(kind, subjects, draws, lab)
    names = corpus.rows.column("nn")
    drops = [
        Drop(corpus.ids[code], names[outcome.shown[code]].as_py() or "", kind, "not_python", broken[code])
        for code in outcome.kept
        if code in broken
        for kind in CHAT_KINDS
    ]
    made = [
        (subject, kind, _finished(subject, kind, said[kind][place], options.chat_max_tokens))
        for place, subject in enumerate(subjects)
        for kind in CHAT_KINDS
    ]
    elsewhere = held_by_another([item for *_, item in made if isinstance(item, Conversation)])
    conversations: list[Conversation] = []
    for subject, kind, item in made:
        if isinstance(item, No):
            drops.append(Drop(subject.id, subject.nn, kind, item.reason, item.detail))
        elif item.id in elsewhere:
            other = elsewhere[item.id]
            detail = f"its request is nearly that about {other.nn} ({other.record[:12]}) in {other.split}"
            drops.append(Drop(subject.id, subject.nn, kind, "near_split", detail))
        else:
            conversations.append(item)
    return Chat(conversations, drops, license_, near_prompts(conversations))


def _finished(subject: Subject, kind: ChatKind, talk: Talk | No, max_tokens: int) -> Conversation | No:
    if isinstance(talk, No):
        return talk
    made = finish(subject, kind, talk)
    if made.tokens > max_tokens:
        return No("too_long", f"{made.tokens:,} tokens; the limit is {max_tokens:,}")
    return made


def _say(kind: ChatKind, subjects: list[Subject], draws: list[Draw], lab: Lab) -> list[Talk | No]:
    if kind == "repair":
        return repairs(subjects, draws, lab)
    if kind == "change":
        return change_all(subjects, draws, lab)
    if kind == "complete":
        return completions(subjects, draws)
    ask = {"design": design, "explain": explain}[kind]
    return [ask(subject, draw) for subject, draw in zip(subjects, draws, strict=True)]


def _subjects(corpus: Corpus, outcome: Outcome, codes: Sequence[int], lab: Lab) -> list[Subject]:
    """The records of these kept codes, each measured once."""
    columns = ["nn", "task", "dataset", "prm"]
    numbers = [outcome.shown[code] for code in codes]
    shown = corpus.rows.take(pa.array(numbers, pa.int64())).select(columns).to_pylist()
    results = best_results(corpus, codes, numbers)
    subjects: list[Subject] = []
    faults = []
    for code, row, (best, reached) in zip(codes, shown, results, strict=True):
        source = Source(corpus.codes[code])
        prm = read_parameters(row["prm"])
        case = case_of(row["task"], row["dataset"], prm.get("transform"))
        faults.append(f"unknown_input: {case}" if isinstance(case, str) else "")
        subjects.append(
            Subject(
                id=corpus.ids[code],
                nn=row["nn"] or "",
                split=outcome.splits[code],
                source=source,
                reading=read_code(source),
                task=row["task"],
                dataset=row["dataset"],
                pretrained=code in corpus.features.pretrained,
                # LEMUR's batch size is in both places, and a network may read either.
                prm=prm if isinstance(case, str) else prm | {"batch": case.in_shape[0]},
                case=None if isinstance(case, str) else case,
                facts=None,
                fault="",
                results=best,
                reached=reached,
            )
        )
    return _measured(subjects, faults, lab)


def _measured(subjects: Sequence[Subject], faults: Sequence[str], lab: Lab) -> list[Subject]:
    places = [place for place, subject in enumerate(subjects) if subject.case is not None]
    experiments: list[Experiment] = [subjects[place].experiment(subjects[place].code) for place in places]
    answers = dict(zip(places, lab.make(experiments, "chat facts"), strict=True))
    found = []
    for place, subject in enumerate(subjects):
        told = answers.get(place)
        if told is None:
            found.append(replace(subject, fault=faults[place]))
        elif told["runs"]:
            found.append(replace(subject, facts=read_facts(told)))
        else:
            found.append(replace(subject, fault=f"{told['category']}: {told['error']}"))
    return found
