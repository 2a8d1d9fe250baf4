"""`lemur search`: an extraction folder's specs by names, layers and shape behaviour, ranked by SQLite's FTS5.

Columns and their weights are in `COLUMNS`; tokens are words without endings (Porter's stemmer over unicode61).
"""

import difflib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any

from extract.categories import words_of
from lemur_core.files.atomic import write_text
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import article, plural, shown
from manifests.provenance import SPECS

#: Of the index's columns, by how much a hit in each counts.
COLUMNS = {"names": 10.0, "category": 4.0, "place": 3.0, "shape": 3.0, "layers": 2.0, "about": 1.0}

_SHOWN = 10
_NEAR = 5
_SHOWN = 10
_OF_LAYOUT = {
    "N×C": "vectors features",
    "N×C×L": "sequence signal 1d channels first",
    "N×L×C": "sequence tokens channels last",
    "N×C×H×W": "image feature map 2d channels first",
    "N×H×W×C": "image feature map 2d channels last",
    "N×C×D×H×W": "volume video 3d channels first",
    "N×D×H×W×C": "volume video 3d channels last",
}

#: Phrases that stand for each other in a query. Plurals and endings are the index's matter (Porter's stemmer).
SYNONYMS: tuple[tuple[str, ...], ...] = (
    ("se", "squeeze excitation", "squeeze excite", "squeeze and excitation"),
    ("eca", "efficient channel attention"),
    ("cbam", "convolutional block attention"),
    ("attn", "att", "attention"),
    ("mha", "mhsa", "multi head attention", "multihead attention", "multi head self attention"),
    ("conv", "convolution"),
    ("dw", "depthwise", "depth wise"),
    ("pw", "pointwise", "point wise"),
    ("dcn", "deform conv", "deformable conv", "deformable convolution"),
    ("deconv", "conv transpose", "transposed conv", "transposed convolution"),
    ("atrous", "dilated"),
    ("norm", "normalization", "normalisation"),
    ("bn", "batch norm", "batch normalization"),
    ("ln", "layer norm", "layer normalization"),
    ("gn", "group norm", "group normalization"),
    ("act", "activation"),
    ("glu", "gated linear unit"),
    ("mlp", "multi layer perceptron", "ffn", "feed forward"),
    ("moe", "mixture of experts"),
    ("lora", "low rank adaptation"),
    ("fpn", "feature pyramid"),
    ("spp", "spatial pyramid"),
    ("avg", "average"),
    ("pos", "position", "positional"),
    ("rope", "rotary"),
    ("drop path", "stochastic depth"),
    ("residual", "skip connection", "shortcut"),
    ("vit", "vision transformer"),
    ("rnn", "recurrent"),
    ("ssm", "state space"),
    ("gnn", "graph network", "graph neural network"),
    ("gcn", "graph conv", "graph convolution"),
    ("gat", "graph attention"),
    ("roi", "region of interest"),
    ("rpn", "region proposal"),
    ("bbox", "bounding box"),
    ("cls", "classification"),
    ("seg", "segmentation"),
    ("keep", "keeps", "preserve", "preserves", "preserving"),
    ("downsample", "downsampling", "halves", "shrinks", "reduction"),
    ("upsample", "upsampling", "doubles", "grows"),
)

_GROUPS = {phrase: group for group in SYNONYMS for phrase in group}
_LONGEST = max(len(phrase.split()) for phrase in _GROUPS)
_IDLE = frozenset(("a", "an", "and", "by", "for", "in", "is", "its", "of", "on", "or", "that", "the", "to", "with"))
_QUERY_WORD = re.compile(r"\w+")

Spec = dict[str, Any]  # a line of specs.jsonl


@dataclass(frozen=True, slots=True)
class Filters:
    """What hits must have; several values of one kind are alternatives."""

    categories: tuple[str, ...] = ()
    level: str | None = None  # or higher
    licenses: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()  # with or without version


@dataclass(frozen=True, slots=True)
class Found:
    """The best hits, how many there are in all, and whether they have all words of the query."""

    hits: list[Spec]
    matched: int
    complete: bool = True


class Index:
    """The specs of a folder and the words in them; of their lines, the text of each column is indexed."""

    def __init__(self, specs: Sequence[Spec], texts: Iterable[Mapping[str, str]]) -> None:
        """Raises: UserError if this Python's SQLite has no FTS5."""
        self.specs = specs
        self.words = Counter[str]()
        self._database = sqlite3.connect(":memory:")
        try:
            columns = f"{', '.join(COLUMNS)}, content = '', tokenize = 'porter unicode61'"
            self._database.execute(f"CREATE VIRTUAL TABLE words USING fts5({columns})")
        except sqlite3.OperationalError as error:
            raise UserError(f"search needs SQLite with FTS5, which this Python has not: {error}") from error
        marks = ", ".join("?" for _ in COLUMNS)
        for number, text in enumerate(texts):
            self.words.update({word for column in ("names", "place", "layers") for word in text[column].split()})
            values = (number, *(text[column] for column in COLUMNS))
            self._database.execute(f"INSERT INTO words(rowid, {', '.join(COLUMNS)}) VALUES(?, {marks})", values)

    def ranked(self, match: str) -> list[int]:
        """The numbers of the specs that match, best first."""
        weights = ", ".join(str(weight) for weight in COLUMNS.values())
        rows = self._database.execute(
            f"SELECT rowid FROM words WHERE words MATCH ? ORDER BY bm25(words, {weights}), rowid", (match,)
        )
        return [number for (number,) in rows]


def open_index(folder: Path) -> Index:
    """The index of a folder.

    Raises: UserError if the folder is no extraction, has no specs, or a line of them is broken.
    """
    path = folder / SPECS
    size = _stated_size(folder)
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; run `lemur verify`, or make the folder anew") from error
    if sum(map(len, lines)) != size:
        raise UserError(f"{path}: is not the file that the manifest states; run `lemur verify`, or make it anew")
    specs, texts = [], []
    for number, line in enumerate(lines, start=1):
        try:
            specs.append(json.loads(line))
            texts.append(_text(specs[-1]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            detail = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(f"{path}:{number}: not a spec: {detail}; run `lemur verify`, or make it anew") from error
    return Index(specs, texts)


def search(index: Index, query: str, filters: Filters, limit: int | None) -> Found:
    """The blocks that have all words of a query, best first; if none has, those that have some.

    Without a query, all that pass the filters, in the order of the table.

    Args: limit: hits at most; all when None.
    Raises: UserError if nothing is found, or a filter names what there is not.
    """
    passing = _passing(index.specs, filters)
    terms = terms_of(query)
    if query.strip() and not terms:
        raise UserError(f"{query.strip()[:80]!r}: no words to search for; give a name, a layer, or what a block does")
    if not terms:
        if not passing:
            what = (
                "no block passes these filters" if filters != Filters() else "the folder holds no block that has code"
            )
            raise UserError(what)
        return Found([index.specs[number] for number in passing[:limit]], len(passing))
    name, allowed = "".join(query.split()).lower(), set(passing)
    for complete, joined in ((True, " AND "), (False, " OR ")):
        ranked = index.ranked(joined.join(_either(term) for term in terms))
        hits = [index.specs[number] for number in ranked if number in allowed]
        if hits:
            hits.sort(key=lambda spec: spec["name"].lower() != name)
            return Found(hits[:limit], len(hits), complete)
    raise UserError(_nothing(index, query, terms, len(ranked)))


def terms_of(query: str) -> list[tuple[str, ...]]:
    """The terms of a query, each with the phrases that satisfy it; whatever the query holds, they are plain words."""
    words = [word for word in _QUERY_WORD.findall(query) if word.strip("_")]
    idle = _IDLE if any(word.lower() not in _IDLE for word in words) else ()
    terms: list[tuple[str, ...]] = []
    place = 0
    while place < len(words):
        taken = next((n for n in range(_LONGEST, 0, -1) if _phrase(words[place : place + n]) in _GROUPS), 1)
        phrase = _phrase(words[place : place + taken])
        if phrase in _GROUPS:
            terms.append(_GROUPS[phrase])
        elif phrase not in idle:
            terms.append(_spellings(words[place]))
        place += taken
    return list(dict.fromkeys(terms))


def _phrase(words: list[str]) -> str:
    return " ".join(word.lower() for word in words)


def _spellings(word: str) -> tuple[str, ...]:
    """One word as a user may write it: whole, and split where it is a name of several words."""
    parts = words_of(word)
    phrases = [word.lower(), *([parts] if parts else [])]
    if parts in _GROUPS:
        phrases += _GROUPS[parts]
    return tuple(dict.fromkeys(phrases))


def _either(phrases: Iterable[str]) -> str:
    """Phrases in FTS5's syntax: quoted, so that nothing in them is an operator."""
    return "(" + " OR ".join(f'"{phrase}"' for phrase in phrases) + ")"


def _passing(specs: Sequence[Spec], filters: Filters) -> list[int]:
    """The numbers of the specs that pass the filters.

    Raises: UserError for a value that no block has.
    """
    found = list(range(len(specs)))
    for name, option, wanted in (
        ("category", "--category", filters.categories),
        ("license", "--license", filters.licenses),
        ("source", "--source", filters.sources),
    ):
        if wanted:
            values = [{spec[name], spec[name].partition("@")[0] if name == "source" else spec[name]} for spec in specs]
            known = {_known(option, sorted(set().union(*values)), value) for value in wanted}
            found = [number for number in found if values[number] & known]
    if filters.level is not None:
        from extract.results import at_least  # heavy (pyarrow), and only needed here

        found = [number for number in found if at_least(specs[number]["level"], filters.level)]
    return found


def _known(option: str, values: Sequence[str], wanted: str) -> str:
    """The value as the folder spells it.

    Raises: UserError naming near ones if it has none.
    """
    folded = {value.casefold(): value for value in values}
    if wanted.casefold() in folded:
        return folded[wanted.casefold()]
    near = [folded[name] for name in difflib.get_close_matches(wanted.casefold(), folded, _NEAR, 0.5)]
    near += [value for value in values if wanted and wanted.casefold() in value.casefold() and value not in near]
    told = ", ".join(near[:_NEAR] or values[:_NEAR])
    hint = f"; {'near' if near else 'there are'}: {told}" if told else ""
    raise UserError(f"{option} {wanted}: no block of this folder has it{hint}")


def _nothing(index: Index, query: str, terms: Sequence[Sequence[str]], without: int) -> str:
    """What to say where nothing matches. Args: without: blocks that match, but for the filters."""
    told = query.strip()[:80]
    if without:
        return f"{told}: nothing passes these filters; {without:,} blocks match without them"
    words = sorted(index.words, key=lambda word: (-index.words[word], word))[:50_000]
    near = [word for term in terms for word in difflib.get_close_matches(term[0], words, _NEAR)]
    near += [word for term in terms for word in words if term[0] in word]
    unique = ", ".join(list(dict.fromkeys(near))[:_NEAR])
    return f"{told}: nothing matches; " + (f"near words: {unique}" if unique else "try a category or a layer")


def _stated_size(folder: Path) -> int:
    """The size of the specs in bytes, by the folder's manifest, which is read as plain JSON, since that is quick."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        kind, sizes = manifest["kind"], {item["path"]: int(item["bytes"]) for item in manifest["outputs"]}
    except FileNotFoundError:
        raise UserError(f"{folder}: no manifest.json; not a finished lemur folder") from None
    except NotADirectoryError:
        raise UserError(f"{folder}: is a file; give the folder that `lemur extract` wrote") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a valid manifest: {error}; make the folder anew") from error
    if kind != "extraction":
        raise UserError(
            f"{folder}: holds {article(kind)}, not an extraction; give the folder that `lemur extract` wrote"
        )
    if SPECS not in sizes:
        raise UserError(f"{folder}: has no {SPECS}: an earlier version wrote it; run `lemur extract` again")
    return sizes[SPECS]


def _text(spec: Mapping[str, Any]) -> dict[str, str]:
    """What each column of the index holds."""
    layers = {**spec["builds"], **(spec["layers"] or {})}
    module = spec["block"].partition("::")[2].split(".")[:-1]
    arguments = {item["name"] for group in ("constructor", "forward") for item in spec[group]}
    return {
        "names": split_name(spec["name"]),
        "category": spec["category"],
        "place": " ".join(dict.fromkeys(split_name(part) for part in module)),
        "shape": " ".join(shape_words(spec)),
        "layers": " ".join(split_name(name) for name in layers),
        "about": " ".join([spec["summary"], *sorted(arguments)]),
    }


@lru_cache(maxsize=20_000)
def split_name(name: str) -> str:
    """A name for the index: whole in lower case, then its words: `SEModule` is `semodule se module`."""
    whole, words = name.lower(), words_of(name)
    return whole if words in (whole, "") else f"{whole} {words}"


def shape_words(spec: Mapping[str, Any]) -> Iterator[str]:
    """What a spec says of shapes, as a searcher would put it; nothing when nothing was observed."""
    yield _OF_LAYOUT.get(spec["layout"], "")
    if spec["keeps_shape"]:
        yield "keeps shape same size shape preserving"
    factor = spec["downsampling"]
    if factor is not None and factor > 1:
        yield f"{'halves height width' if factor == 2 else ''} shrinks downsampling downsample by {factor:g}"
    elif factor is not None and factor < 1:
        yield f"{'doubles height width' if factor == 0.5 else ''} grows upsampling upsample by {1 / factor:g}"
    elif factor == 1:
        yield "keeps height width"
    if spec["changes_channels"] is not None:
        yield "changes channels" if spec["changes_channels"] else "keeps channels"
    if spec["parameters"] == 0:
        yield "no parameters parameter free"
    if spec["identity_in_eval"]:
        yield "identity in eval"
    if spec["train_differs"]:
        yield "train eval differ stochastic"
    if len(spec["cases"][:1] and spec["cases"][0]["outputs"]) > 1:
        yield "several outputs"


# --- the command ------------------------------------------------------------------------------------------------------


def search_folder(
    folder: Path,
    query: str,
    filters: Filters,
    *,
    count: int = _SHOWN,
    spec_file: Path | None = None,
    as_json: bool = False,
) -> None:
    """Search a folder and print the hits; with `spec_file`, write their specs there too.

    Raises: UserError if nothing is found, the folder has no specs, or the file cannot be written.
    """
    limit = None if spec_file is not None and not query.strip() else count
    index = open_index(folder)
    try:
        found = search(index, query, filters, limit)
    except UserError as error:
        raise UserError(shown(f"{folder}: {error}")) from None
    if spec_file is not None:
        write_candidates(spec_file, found.hits)
    if as_json:
        print(json.dumps(facts_of(found, folder, query), indent=2))
        return
    print("\n".join(lines_of(found, folder, count)))
    if spec_file is not None:
        print(shown(f"{spec_file}: {plural(len(found.hits), 'candidate')}"))


def lines_of(found: Found, folder: Path, count: int = _SHOWN) -> list[str]:
    """The hits as lines, and how the first of them is read and imported."""
    lines = [] if found.complete else ["no block has all of these words; nearest first:"]
    hits = found.hits[:count]
    for rank, hit in enumerate(hits, start=1):
        lines.append(f"{rank:>3}  {hit['block']}")
        lines.append(f"     {hit['category']}, {hit['level']}, {hit['license']}: {hit['summary'].partition(': ')[2]}")
        lines.append(f"     {folder / hit['file'] if hit['file'] else '(no file)'}")
    if found.matched > len(hits):
        lines.append(f"{len(hits)} of {found.matched:,}; -k shows more")
    best = hits[0]
    lines += [
        "",
        f"read it    lemur show {quote(best['block'])} --in {quote(str(folder))}",
        f"import it  {_loading(best, folder)}",
    ]
    return [shown(line) for line in lines]


def facts_of(found: Found, folder: Path, query: str) -> dict[str, Any]:
    """For JSON: the hits in order, with what finds them again."""
    names = ("block", "name", "category", "level", "license", "source", "summary", "file")
    hits = [
        {"rank": rank, **{name: hit[name] for name in names}, "load": _loading(hit, folder)}
        for rank, hit in enumerate(found.hits, start=1)
    ]
    return {"query": query, "matched": found.matched, "all_words": found.complete, "hits": hits}


def candidate_of(spec: Spec) -> dict[str, Any]:
    """A spec in the form of NN-RAG's `spec.json`: class, forward_args and summary, then everything else of it."""
    rest = {name: value for name, value in spec.items() if name not in ("name", "forward", "summary")}
    names = [item["name"] for item in spec["forward"]]
    return {"class": spec["name"], "forward_args": names, "summary": spec["summary"], **rest}


def write_candidates(path: Path, hits: Sequence[Spec]) -> None:
    """Write `{"candidates": […]}`, one a line, whole or not at all.

    Raises: UserError if it cannot be written there.
    """
    if path.is_dir():
        raise UserError(f"{path}: is a folder; give a file for --spec")
    try:
        lines = (json.dumps(candidate_of(spec), ensure_ascii=False) for spec in hits)
        write_text(path, '{"candidates": [\n' + ",\n".join(lines) + "\n]}\n")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; choose another --spec") from error


def _loading(hit: Spec, folder: Path) -> str:
    """Python that loads a block."""
    return f"from extract import load_block; {hit['name']} = load_block({str(folder)!r}, {hit['block']!r})"
