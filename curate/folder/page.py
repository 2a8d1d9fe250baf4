"""What people see of a snapshot: report, dataset card and page. All numbers are those of the folder."""

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from curate.compute.outcome import AGREEMENTS, REMOVED, STAGES
from curate.folder.chat import snapshot_chat_card
from curate.folder.explain import RECORD_FIELDS
from curate.model.options import LEAK_THRESHOLD, describe_purpose
from curate.model.rights import is_withheld
from lemur_core.describe.facts import Facts
from lemur_core.describe.picture import Box, boxes
from lemur_core.files import Json
from lemur_core.files.markdown import count, percent, plural, ratio
from lemur_core.graphs.graph import Graph
from lemur_core.sandbox.runtime import option_for
from manifests.conversations import read_chat
from manifests.folders import frame
from manifests.folders.cards import SNAPSHOT_DISCLOSURE, Card
from manifests.folders.kinds import SNAPSHOT, list_fields
from manifests.folders.manifest import Manifest
from manifests.folders.tables import read_table
from manifests.provenance.licenses import is_permissive
from manifests.records import CHAT_KINDS, SPLITS, Decision, GraphRow, LemurRecord, NetworkRow, Stat

#: The sources that are LEMUR itself.
_LEMUR = ("lemur", "lemur-db")
#: A part of a manifest.
Stated = Mapping[str, Any]
_END = (
    "## Single networks\n\n`decisions.parquet` has one row for every input row: its outcome, the kept record that"
    " represents it, how similar the two are, and why. `lemur show NAME --in DIR` shows one of them with its code."
)


def overview(folder: Path, manifest: Manifest) -> frame.Page:
    """Return title, lead and views of a snapshot, from its tables and its manifest."""
    parameters, counts, details = manifest.parameters, manifest.counts, manifest.details
    kept, codes, rows = counts["rows"]["kept"], counts["codes"], counts["rows"]["input"]
    splits = ", ".join(f"{count(number)} {split}" for split, number in counts["splits"].items())
    lead = (
        f"{count(kept)} of {plural(codes, 'distinct code')} kept ({percent(kept, codes)}): {splits}. The source has"
        f" {plural(rows, 'row')}, evaluations of {plural(counts['networks'], 'network')} (a name with a code)."
    )
    networks = read_table(SNAPSHOT.files(folder, "networks"), NetworkRow, ("prefix", "stage", "split", "graph"))
    decisions = read_table(
        SNAPSHOT.files(folder, "decisions"), Decision, ("row", "id", "nn", "stage", "reason", "agreement")
    )
    views = [
        _funnel(counts, decisions, describe_purpose(parameters["graph"])),
        _prefixes(networks),
        _splits(read_table(SNAPSHOT.files(folder, "records"), LemurRecord, ("split", "cluster"))),
        *_reasons(counts, details),
        _invalid(decisions),
        frame.settings(parameters),
    ]
    title = f"Curated snapshot of {parameters['source']}"
    return frame.Page(title, "snapshot", lead, [view for view in views if view["rows"]])


def _funnel(counts: Stated, decisions: pa.Table, purpose: str) -> frame.View:
    """Return the rows and codes by outcome; each column adds up. Args: purpose: what the selection is for."""
    rows, codes, whole = counts["rows"], counts["stages"], counts["codes"]
    lines: list[list[frame.Cell]] = [["in", rows["input"], whole, percent(whole, whole)]]
    for stage, label in {**STAGES, "kept": "kept"}.items():
        if rows[stage] or stage == "kept":
            number = codes.get(stage)
            lines.append([label, rows[stage], number, None if number is None else percent(number, whole)])
    intro = (
        "Rows are evaluations; a further row of a network is no duplicate. No two kept records are near-duplicates,"
        " every removed one names a kept record that it is near, and nothing close crosses the splits."
    )
    compared = "No two of them compute the same, as far as they run." if "graphs" in counts else NOT_COMPARED
    by_text = {"lexical", "structural"} & {stage for stage, number in codes.items() if number}
    parts = [SAMPLED, _agreements(decisions)] if by_text else []
    text = " ".join(filter(None, (purpose, intro, compared, *parts)))
    return frame.table("From rows to records", ["", "rows", "codes", "% of codes"], lines, text)


def _agreements(decisions: pa.Table) -> str:
    """Return what the graphs say of the removals by text, where both codes were traced."""
    by_text = decisions.filter(pc.is_in(decisions["stage"], pa.array(["lexical", "structural"])))
    agree = Counter(dict(zip(by_text["id"].to_pylist(), by_text["agreement"].to_pylist(), strict=True)).values())
    known = agree.total() - agree[None]
    text = (
        f"Of {plural(known, 'removal')} by text here with a graph on both sides, {count(agree['same'])} compute the"
        f" same as the kept code, {count(agree['widths'])} the same up to widths, {count(agree['different'])} another"
        " architecture."
    )
    return text if known else ""


def _prefixes(networks: pa.Table) -> frame.View:
    """Return the codes of each prefix, which is what one generator wrote: those that came in, were removed at each
    stage, and are kept, and how many computations the traced ones are.
    """
    rows = networks.select(["prefix", "stage", "split", "graph"]).to_pylist()
    members: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        members.setdefault(row["prefix"], []).append(row)
    every = Counter(row["stage"] for row in rows)
    removed = [stage for stage in ("filter", *REMOVED) if every[stage]]

    def cells(name: str, own: Sequence[Mapping[str, Any]]) -> list[frame.Cell]:
        stages, splits = Counter(row["stage"] for row in own), Counter(row["split"] for row in own if not row["stage"])
        kept, dropped = stages[None], sum(stages[stage] for stage in REMOVED)
        graphs = [row["graph"] for row in own if row["graph"]]
        traced = f"{count(len(set(graphs)))} of {count(len(graphs))}" if graphs else None
        of_stages, share = [stages[stage] for stage in removed], percent(dropped, kept + dropped)
        return [name, len(own), traced, *of_stages, kept, share, *(splits[split] for split in SPLITS)]

    taken = {name: sum(row["stage"] != "filter" for row in own) for name, own in members.items()}
    ranked = sorted(members, key=lambda name: (-taken[name], name))
    listed = [name for name in ranked if taken[name]]
    listed = listed if len(listed) <= frame.LONGEST + 1 else listed[: frame.LONGEST]
    lines = [cells(name or "(none)", members[name]) for name in listed]
    if rest := [name for name in ranked if name not in listed]:
        lines.append(cells(plural(len(rest), "other"), [row for name in rest for row in members[name]]))
    head = ["prefix", "codes in", "computations of the traced", *removed, "kept", "% dropped", *SPLITS]
    return frame.table("By prefix", head, lines)


def _splits(records: pa.Table) -> frame.View:
    sizes = Counter(zip(records["split"].to_pylist(), records["cluster"].to_pylist(), strict=True))
    rows: list[list[frame.Cell]] = []
    for split in SPLITS:
        own = [number for (of, _), number in sizes.items() if of == split]
        rows.append([split, sum(own), percent(sum(own), len(records)), len(own), max(own, default=0)])
    crossing = sum(number > 1 for number in Counter(cluster for _, cluster in sizes).values())
    intro = (
        f"Records that are alike (a lexical Jaccard of {LEAK_THRESHOLD:.2f} or more, an equal fingerprint, an equal"
        f" computation) form a group, which is in one split: {plural(crossing, 'group')} in more than one. Test and"
        " validation get their share of each prefix and family if its groups allow that: a group that is larger than"
        " half of such a split is in train."
    )
    return frame.table("Splits", ["split", "records", "%", "groups", "largest group"], rows, intro)


def _reasons(counts: Stated, details: Stated) -> Iterator[frame.View]:
    """Yield what ran, why other codes did not, and where codes are from."""
    if graphs := counts.get("graphs"):
        numbers = {
            "codes with a graph": graphs["traced"],
            "codes whose numbers were compared": graphs["measured"],
            "kept records with a graph": graphs["kept"],
            "different computations of these": graphs["distinct"],
            "different up to widths": graphs["distinct_up_to_widths"],
        }
        facts: list[tuple[str, frame.Cell]] = [*numbers.items()]
        yield frame.facts(
            "What the networks compute",
            # A graph that several computations have is a fault of ours; none was removed for it.
            [*facts, ("faulty graphs", ", ".join(graph[:16] for graph in graphs["faults"]))],
        )
        intro = "Codes without a graph are decided by their text alone."
        failed = sum(graphs["not_traced"].values())
        yield frame.shares("Codes without a graph", ("reason", "codes"), graphs["not_traced"], failed, intro)
        packages = [
            [name, number, option_for(name) or "--runtime NAME"] for name, number in graphs["missing_packages"].items()
        ]
        yield frame.table("Packages outside the runtime", ["package", "codes", "the option that allows it"], packages)
    if left_out := counts.get("runs", {}).get("left_out"):
        intro = "Left out, since they do not run or could not be tried (--require-runs)."
        yield frame.shares("Networks that do not run", ("reason", "codes"), left_out, sum(left_out.values()), intro)
    if origins := counts.get("origins"):
        of_kept, of_removed = (origins[part]["licenses"] for part in ("kept", "removed"))
        rows = [[name, of_kept.get(name, 0), of_removed.get(name, 0)] for name in sorted({*of_kept, *of_removed})]
        stated = details["origins"]
        intro = (
            f"Compared with {plural(stated['blocks'], 'block')} of repositories, class by class (Jaccard ≥"
            f" {stated['threshold']:g}, classes of {stated['least_shingles']} shingles or more):"
            f" {plural(origins['kept']['codes'], 'kept record')} and"
            f" {plural(origins['removed']['codes'], 'removed code')} have a class of one of them. Publishing leaves"
            " out code whose license forbids redistribution."
        )
        yield frame.table("Where codes are from", ["license", "kept records", "removed codes"], frame.fold(rows), intro)


def _invalid(decisions: pa.Table) -> frame.View:
    """Return why rows are unusable, with the first of each kind."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in decisions.filter(pc.equal(decisions["stage"], "invalid")).to_pylist():
        kinds.setdefault(re.sub(r"\d[\d,]*", "N", row["reason"]), []).append(row)
    rows: list[list[frame.Cell]] = []
    for kind, cases in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])):
        first = ", ".join(f"{row['row']}: {row['nn'] or '(none)'}" for row in cases[:3])
        reason = cases[0]["reason"] if len({row["reason"] for row in cases}) == 1 else kind
        rows.append([reason, first + (", …" if len(cases) > 3 else ""), len(cases)])
    return frame.table("Invalid rows", ["reason", "row: name", "rows"], frame.fold(rows))


# -- card ---------------------------------------------------------------------------------------------------------

_RESULTS = (
    "Accuracies of different benchmarks (task, dataset, metric, epoch) are not comparable. `accuracy` is that of the"
    " row whose percentile on its benchmark is best, often after one epoch; `best_accuracy`, after `best_epoch`, is the"
    " highest of all rows of the network on that data set. `score` ranks networks by the percentiles of all their"
    " results, drawn to 0.5 where these are few or their fields small. `stats` holds all results."
)
NOT_COMPARED = "Graphs were not compared: two of these networks may compute the same."
#: What removals at the stages lexical and structural are.
SAMPLED = (
    "Near-duplicates by tokens or structure are alike as texts, most of them not as networks: of a sample of 100 such"
    " removals from LEMUR 2.1.0, 2 computed the same as the kept network, 19 the same up to widths, 79 another"
    " architecture."
)
BY_TEXT = (
    f"{SAMPLED} That serves fine-tuning on code, where similar texts teach the same. For architecture search,"
    " performance prediction and changes between architectures, decide by computation: `--graph keep-different` keeps"
    " similar texts whose graphs differ beyond widths."
)

#: Options that leave out rows, so that a snapshot is one of a part of its source.
_FILTERS = ("task", "dataset", "metric", "include", "require_runs")


def snapshot_card(folder: Path, manifest: Manifest) -> Card:
    """Return the content of the dataset card of a snapshot, from its tables and its manifest."""
    counts, name = manifest.counts, manifest.parameters["source"]
    splits = ", ".join(f"{count(number)} {split}" for split, number in counts["splits"].items())
    sources = [part.partition("@") for part in name.split(" + ")]
    of_lemur = all(source in _LEMUR for source, _, _ in sources)
    scores, licenses = (
        set(column.to_pylist())
        for column in read_table(SNAPSHOT.files(folder, "networks"), NetworkRow, ("score", "license")).columns
    )
    shared = str(manifest.details["license"])
    published = {one for one in licenses if one is not None and not is_withheld(one, shared)}
    near = ", structure or computation" if "graphs" in counts else " or structure"
    ran = f" It ran networks {_where(manifest)}." if {"graphs", "chat"} & counts.keys() else ""
    limits = SNAPSHOT_DISCLOSURE.limits  # the first is about results
    part = ""
    if left_out := counts["rows"]["filter"]:
        asked = frame.settings({key: manifest.parameters[key] for key in _FILTERS})["rows"]
        part = f" ({'; '.join(': '.join(row) for row in asked)} left out {count(left_out)} others)"
    return Card(
        name=f"Curated snapshot of {'a part of ' * bool(part)}{name}",
        description=f"{plural(counts['rows']['kept'], 'distinct PyTorch network')} ({splits}), chosen from"
        f" {plural(counts['rows']['input'] - left_out, 'row')} of {name}{part}. Every row that is not among them"
        " has a reason in the table of decisions.",
        licenses=sorted({shared, *published}) if is_permissive(shared) else [shared],
        text="\n\n".join([*([_RESULTS] if scores - {None} else []), *_list_notes(folder, manifest, shared)]),
        sources=[(item.name, f"hash://sha256/{item.sha256}") for item in manifest.inputs],
        lemur=sources[0][2] if of_lemur else "",
        disclosure=replace(
            SNAPSHOT_DISCLOSURE,
            collection="A program read the rows of the source, and kept one of those that are near each other by"
            f" text{near}.{ran} Nothing was annotated by hand.",
            # LEMUR's networks were written by programs and language models, most of them.
            synthetic=of_lemur,
            limits=limits if scores - {None} else limits[1:],
        ),
    )


def _where(manifest: Manifest) -> str:
    """Return where the networks were run."""
    return "without a sandbox" if manifest.parameters["unsafe_no_sandbox"] else "in a sandbox"


def _list_notes(folder: Path, manifest: Manifest, shared: str) -> Iterator[str]:
    """Yield the paragraphs of the card that hold for some snapshots only. Args: shared: license of the source."""
    counts = manifest.counts
    if counts["rows"]["lexical"] or counts["rows"]["structural"]:
        yield BY_TEXT
    if (graphs := counts.get("graphs")) is None:
        yield NOT_COMPARED
    else:
        yield (
            f"{count(graphs['kept'])} of these networks were traced {_where(manifest)}, and no two of them compute the"
            " same, by their graphs or, where the sizes of their parameters leave it open, by numbers; what is the same"
            " up to widths is in one split (columns `graph`, `graph_widths`, `behavior`)."
        )
    licenses = read_table(SNAPSHOT.files(folder, "records"), LemurRecord, ("license",))["license"].to_pylist()
    if withheld := sum(is_withheld(license_ or shared, shared) for license_ in licenses):
        yield (
            f"The code of {plural(withheld, 'network')} has a license that does not permit redistribution (column"
            " `license`): a published copy has its row, and an empty `nn_code`."
        )
    if "chat" in counts:
        yield "\n".join(snapshot_chat_card(read_chat(folder, "record", CHAT_KINDS), _where(manifest)))


# -- page ---------------------------------------------------------------------------------------------------------

#: Graphs with more nodes than this are drawn with several operations in one box.
_BOXES = 40
#: At most so many records are listed, and so many removed codes compared with each.
_RECORDS, _COMPARED = 5_000, 100
#: The sizes of a network that results are compared over.
_SIZES = ("parameters", "multiply-adds")
#: Task, data set and metric, and the distinct results of a record there.
_Results = list[tuple[str, str, str, list[tuple[int | None, float]]]]
_RECORD_COLUMNS = tuple(name for name in LemurRecord.model_fields if name not in ("nn_code", "prm", "duration"))


def snapshot_page(folder: Path, manifest: Manifest) -> frame.Page:
    """Build the page of a snapshot from some columns of its tables, and from whole rows only of the listed records."""
    shared = str(manifest.details.get("license"))
    columns = ("id", "nn", "kept", "stage", "canonical", "similarity")
    networks = read_table(SNAPSHOT.files(folder, "networks"), NetworkRow, columns)
    removed = networks.filter(pc.and_(pc.invert(networks["kept"]), pc.is_valid(networks["canonical"])))
    numbers = Counter(removed["canonical"].to_pylist())
    ids = read_table(SNAPSHOT.files(folder, "records"), LemurRecord, ("id",))["id"].to_pylist()
    # Those with the most duplicates, similar texts next to each other.
    wanted = set(sorted(ids, key=lambda id_: (-numbers[id_], id_))[:_RECORDS])
    rows = SNAPSHOT.rows(folder, LemurRecord, _RECORD_COLUMNS, ids=wanted)
    listed = sorted(rows, key=lambda row: (row.prefix, row.cluster, row.nn, row.id))
    compared: dict[str, list[Json]] = {row.id: [] for row in listed}
    order = [("similarity", "descending"), ("nn", "ascending"), ("id", "ascending")]
    for batch in removed.sort_by(order).to_batches(max_chunksize=10_000):
        for row in batch.to_pylist():
            if len(compared.get(row["canonical"], range(_COMPARED))) < _COMPARED:
                compared[row["canonical"]].append(row)
    results = _read_results(folder, wanted)
    benchmarks: dict[tuple[str, str, str], dict[int, list[tuple[int | None, float]]]] = {}
    for number, record in enumerate(listed):
        for task, dataset, metric, pairs in results.get(record.id, ()):
            benchmarks.setdefault((task, dataset, metric), {})[number] = pairs
    measured = SNAPSHOT.rows(folder, NetworkRow, ("id", "parameters", "multiply_adds"), ids=wanted)
    sizes = {row.id: (row.parameters, row.multiply_adds) for row in measured}
    entries = [
        frame.Entry(
            name=row.nn or row.id[:16],
            note=f"{row.family}, {row.split}",
            facets=(
                row.split,
                row.prefix,
                row.family,
                "known" if row.graph else "not known",
                "pretrained" if row.pretrained else "from scratch",
            ),
            numbers=(numbers[row.id], row.score and round(row.score, 4), *sizes.get(row.id, (None, None))),
            further=tuple(duplicate["nn"] or duplicate["id"][:16] for duplicate in compared[row.id]),
        )
        for row in listed
    ]
    library = frame.EntryLibrary(
        title="Records",
        noun="records",
        facets=("split", "prefix", "family", "graph", "pretrained"),
        numbers=("represents", "score", *_SIZES),
        entries=entries,
        views=_list_views(folder, listed, compared, numbers, results, shared),
        total=len(ids),
        elsewhere="data/records",
        order="represents",
        by="represents",
        sizes=_SIZES,
        results=benchmarks,
    )
    page = overview(folder, manifest)
    about = [
        ("license", manifest.details.get("license")),
        ("made with", f"lemur-curator {manifest.versions.get('lemur-curator')}"),
        ("in words", [frame.link("report.md", "report.md"), frame.link("manifest.json", "manifest.json")]),
    ]
    lead = f"{page.lead} Click a record to compare it with the codes that it represents."
    return replace(page, lead=lead, views=[frame.facts("Overview", about), *page.views], library=library)


def _read_results(folder: Path, wanted: set[str]) -> dict[str, _Results]:
    """Return the distinct results of some records by task, data set and metric, as pairs of epochs and value."""
    values: dict[str, dict[tuple[str, str, str], set[tuple[int | None, float]]]] = {}
    for row in SNAPSHOT.rows(folder, Stat, ("id", "task", "dataset", "metric", "epoch", "accuracy"), ids=wanted):
        if row.accuracy is not None:
            key = row.task or "", row.dataset or "", row.metric or ""
            values.setdefault(row.id, {}).setdefault(key, set()).add((row.epoch, round(row.accuracy, 4)))
    return {
        id_: [(*key, sorted(of_key, key=lambda pair: (pair[0] or 0, pair[1]))) for key, of_key in sorted(of_id.items())]
        for id_, of_id in values.items()
    }


def _list_views(
    folder: Path,
    listed: Sequence[LemurRecord],
    compared: Mapping[str, Sequence[Json]],
    numbers: Mapping[str, int],
    results: Mapping[str, _Results],
    shared: str,
) -> Iterator[list[frame.View]]:
    """Yield the views of each record, without code that may not be published. Args: shared: license of the folder."""
    columns = ("id", "nn_code", "license")
    others = {row["id"] for rows in compared.values() for row in rows}
    texts = _pack_codes(SNAPSHOT.rows(folder, LemurRecord, columns, ids=set(compared)), shared)
    texts |= _pack_codes(SNAPSHOT.rows(folder, NetworkRow, columns, ids=others), shared)
    graphs = _read_graphs(folder, compared.keys() & texts.keys())
    decisions = read_table([folder / "decisions.parquet"], Decision, ("id", "agreement")).drop_null()
    told = {row["id"]: AGREEMENTS[row["agreement"]] for row in decisions.to_pylist()}
    for row in listed:
        number, removed = numbers[row.id], compared[row.id]
        text = _unpack(texts, row.id)
        described, drawn = graphs.get(row.id, ((), []))
        views = [frame.facts("Record", [("id", row.id), *list_fields(row, RECORD_FIELDS)])]
        if row.id in results:
            views.append(frame.results("Results", results[row.id], "All results by data set, without repeats."))
        if described:
            views.append(
                frame.operations("What it computes", described, "From its graph, without names of its source.")
            )
        if removed:
            some = f"; {count(len(removed))} of them here, all in networks.parquet" if len(removed) < number else ""
            intro = (
                f"{plural(number, 'code')} removed as duplicates of it, the most similar first{some}."
                " Left: the kept code; right: the removed one."
            )
            captions = (
                ", ".join([f"{one['stage']} {ratio(one['similarity'])}", *filter(None, [told.get(one["id"])])])
                for one in removed
            )
            pairs = [(caption, _unpack(texts, one["id"])) for caption, one in zip(captions, removed, strict=True)]
            views.append(frame.versions("Represents", text, pairs, intro))
        yield [*views, *([frame.graph("Graph", drawn)] if row.id in graphs else []), frame.code("Code", text)]


def _pack_codes(rows: Iterable[LemurRecord | NetworkRow], shared: str) -> dict[str, bytes]:
    """Return the publishable codes of some rows by id, compressed because there may be many."""
    return {
        row.id: zlib.compress(row.nn_code.encode("utf-8", "surrogatepass"), 1)
        for row in rows
        if not is_withheld(row.license or shared, shared)
    }


def _unpack(texts: Mapping[str, bytes], id_: str) -> str:
    return zlib.decompress(texts[id_]).decode("utf-8", "surrogatepass") if id_ in texts else ""


def _read_graphs(folder: Path, wanted: set[str]) -> dict[str, tuple[Sequence[str], list[Box]]]:
    """Return the operations of some codes, and their drawn graphs of eval mode; none if another torch recorded them."""
    described: dict[str, tuple[Sequence[str], list[Box]]] = {}
    for row in SNAPSHOT.rows(folder, GraphRow, ("id", "eval"), ids=wanted):
        if row.eval:
            try:
                recorded = Graph.from_json(json.loads(row.eval))
                described[row.id] = Facts(recorded).list_operations(), boxes(recorded, _BOXES)
            except ValueError:  # recorded by another release of torch
                return {}
    return described


FACED = replace(SNAPSHOT, overview=overview, ending=_END, card=snapshot_card, page=snapshot_page)
