"""Build the conversations of all kept records, and count the records without one."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from curate.chat.design import design
from curate.chat.network import ChatNetwork, Lab, NetworkFacts, best_results, read_code
from curate.chat.repair import repairs
from curate.compute.runs import build_case, read_parameters
from curate.model.corpus import LoadedRecords
from curate.model.options import CurateOptions
from curate.model.residue import find_note, strip_residue
from curate.published.outcome import CurationOutcome
from manifests.conversations.conversation import Chat, Comparison, Draft, Sampler, Skipped, Subject, finish
from manifests.records import CHAT_KINDS, ChatKind

_VIEW, _SIZED = re.compile(r"reshaped to \d"), re.compile("resized to")
#: Requests are compared: the files in them may be similar, as long as the records are not near-duplicates.
COMPARISON = Comparison(lambda draft: draft.user, "prompts", "its request is nearly that about {label} in {split}")


def build_chat(
    corpus: LoadedRecords, outcome: CurationOutcome, options: CurateOptions, *, jobs: int | None = None
) -> Chat:
    """Build the conversations of all kept records, in their order, without code that is withheld from publishing.

    Raises: UserError if no sandbox is available.
    """
    rights = outcome.rights
    none = {code: Skipped("license", rights.get_license(code)) for code in outcome.kept if rights.is_blocked(code)}
    notes = {code: note for code in outcome.kept if (note := find_note(corpus.codes[code])) is not None}
    none = {code: Skipped("residue", f"its file holds the line: {note}") for code, note in notes.items()} | none
    codes = [code for code in outcome.kept if code not in none]
    with Lab(jobs=jobs, unsafe=options.unsafe_no_sandbox, runtime=options.runtime) as lab:
        networks = _networks(corpus, outcome, codes, lab)
        stripped = [network.code != corpus.codes[code] for network, code in zip(networks, codes, strict=True)]
        outcome.details["chat_residue"] = sum(stripped)
        drafts: dict[ChatKind, list[Draft | Skipped]] = {
            "design": [design(network, Sampler(options.seed, network.id, "design")) for network in networks],
            "repair": repairs(networks, [Sampler(options.seed, network.id, "repair") for network in networks], lab),
        }
    subjects = {}
    for code in outcome.kept:
        id_, nn = corpus.ids[code], corpus.rows.column("nn")[outcome.representatives[code]].as_py() or ""
        named = {"record": id_, "nn": nn}
        columns = {**named, "license": rights.get_license(code)}
        subjects[code] = Subject(id_, f"{nn} ({id_[:12]})", outcome.splits[code], columns, named)
    unread = [(subjects[code], kind, none[code]) for code in outcome.kept if code in none for kind in CHAT_KINDS]
    read = [(subjects[code], kind, drafts[kind][index]) for index, code in enumerate(codes) for kind in CHAT_KINDS]
    return finish([*unread, *read], CHAT_KINDS, COMPARISON, options.chat_max_tokens)


def _networks(corpus: LoadedRecords, outcome: CurationOutcome, codes: Sequence[int], lab: Lab) -> list[ChatNetwork]:
    """Return the records of these kept codes, each measured once."""
    numbers = [outcome.representatives[code] for code in codes]
    shown = corpus.rows.take(pa.array(numbers, pa.int64())).select(["nn", "task", "dataset", "prm"]).to_pylist()
    networks: list[ChatNetwork] = []
    for code, row, reached in zip(codes, shown, best_results(corpus, codes, numbers), strict=True):
        prm, text = read_parameters(row["prm"]), strip_residue(corpus.codes[code])
        case = build_case(row["task"], row["dataset"], prm.get("transform"))
        networks.append(
            ChatNetwork(
                id=corpus.ids[code],
                nn=row["nn"] or "",
                split=outcome.splits[code],
                code=text,
                reading=read_code(text),
                task=row["task"],
                dataset=row["dataset"],
                pretrained=code in corpus.features.pretrained,
                # a network may read LEMUR's batch size from either place
                prm=prm if isinstance(case, str) else prm | {"batch": case.in_shape[0]},
                case=None if isinstance(case, str) else case,
                facts=None,
                fault=f"unknown_input: {case}" if isinstance(case, str) else "",
                reached=reached,
            )
        )
    return _measure_records(networks, lab)


def _measure_records(networks: list[ChatNetwork], lab: Lab) -> list[ChatNetwork]:
    """Return the networks with their facts, or the reason why there are none."""
    indices = [index for index, network in enumerate(networks) if network.case is not None]
    experiments = [networks[index].experiment(networks[index].code) for index in indices]
    for index, answer in zip(indices, lab.make(experiments, "chat facts"), strict=True):
        if isinstance(answer, NetworkFacts):
            networks[index] = replace(networks[index], facts=answer)
        else:
            networks[index] = replace(networks[index], fault=answer.fault)
    return networks
