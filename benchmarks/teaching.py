"""Do curated data teach a model more? One small decoder, trained from scratch for equal tokens on each selection.

    python -m benchmarks.teaching --out FOLDER [--library EXTRACTION]

Arms: LEMUR as released, a random part of it, the selection of nn-dup, our snapshot without and with graphs, and that
with the lean blocks of an extraction. Groups of records are held out with all their neighbors, and networks of the
release without theirs. On both every model is judged, by bits a byte. Snapshots that are not given are made. Every arm
and seed is a folder of its own: a study that is interrupted goes on when it is called again, and several calls may work
on one folder. `--pack` writes the runs for a machine with an accelerator and torch alone, `--unpack` takes in what it
gave (`benchmarks.teaching_packed`).
"""

import argparse
import contextlib
import fcntl
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import make_environment
from benchmarks.teaching_corpus import ARMS, LIBRARY, Corpus, Text, read_corpus
from benchmarks.teaching_judge import COPIED, copied, windows
from benchmarks.teaching_model import (
    TRAINED,
    Shape,
    Stream,
    bits,
    encode,
    load_decoder,
    make_stream,
    make_tokenizer,
    train,
)
from benchmarks.teaching_packed import Pack
from lemur_core.files.atomic import own, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import percent, table
from lemur_core.files.progress import note
from train.runs.process import choose_context
from train.studies.ablation import Difference

_PACKAGES = ("transformers~=5.23.0",)
_HERE = "LEMUR_TEACHING_HERE"  # set for the second process, whose environment has these packages
_CURATE = {"plain": ("--graph", "off"), "graphs": ()}
_SNAPSHOTS = ("nndup", "plain", "graphs")
_CONTAINED = 0.8  # share of a held-out file's windows that occur in the texts of an arm
_JUDGED = "judged.json"


def main() -> None:
    """Train and judge what is not known yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    for name in _SNAPSHOTS:
        default = "made, under --out" if name in _CURATE else "no such arm"
        parser.add_argument(f"--{name}", type=Path, metavar="SNAPSHOT", help=f"default: {default}")
    parser.add_argument("--library", type=Path, metavar="EXTRACTION", help="without it there is no such arm")
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="default: all")
    parser.add_argument("--seeds", type=int, default=3, help="so many, from 0 on")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then stop; the next call goes on")
    parser.add_argument("--held", type=int, default=100, help="records to hold out")
    parser.add_argument("--draw", type=int, default=0, help="the seed that draws them")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write what another machine trains on")
    parser.add_argument(
        "--length", type=int, action="append", default=[], help="with --pack: also so many tokens, first"
    )
    parser.add_argument("--unpack", type=Path, metavar="FILE", help="what another machine gave")
    shape = asdict(Shape())
    parser.add_argument("--tokens", type=int, default=shape.pop("tokens"), help="to train on")
    for name, value in shape.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    given = parser.parse_args()
    if importlib.util.find_spec("transformers") is None:
        assert _HERE not in os.environ, f"{_PACKAGES} cannot be imported"
        python = make_environment("teaching", [_PACKAGES], ", ".join(_PACKAGES))
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), _HERE: "1"}
        command = [str(python), "-P", "-m", "benchmarks.teaching", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=env, check=False).returncode)
    os.environ.update({"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
    try:
        print("\n".join(study(given)))
    except UserError as error:
        sys.exit(str(error))


def study(given: argparse.Namespace) -> list[str]:
    """All runs that the time allows, and the table of those that are judged. Raises: UserError."""
    import torch

    until = time.monotonic() + 60 * given.minutes
    torch.set_num_threads(given.threads)
    folders = make_snapshots(given, _SNAPSHOTS) | ({LIBRARY: given.library} if given.library else {})
    corpus = read_corpus(folders, given.held, given.draw)
    shape = Shape(**{name: getattr(given, name) for name in asdict(Shape())})
    _check_settings(given, corpus, shape)
    for arm, texts in corpus.arms.items():
        note(f"{arm}: {len(texts):,} of {corpus.before[arm]:,} texts, {_size(texts) / 1e6:.1f} MB")
    note(f"held out: {len(corpus.held)} records of {len({text.group for text in corpus.held})} groups")
    with _in_turn(given.out / "tokenizer"):
        distinct = {text.id: text.code for arm in _lemur(corpus) for text in corpus.arms[arm]}
        tokenizer = make_tokenizer(
            [distinct[id_] for id_ in sorted(distinct)], shape.vocabulary, given.out / "tokenizer"
        )
    arms = [arm for arm in corpus.arms if not given.arm or arm in given.arm]
    if given.pack is not None:
        runs = [
            (tokens, arm, seed)
            for tokens in (*given.length, shape.tokens)
            for seed in range(given.seeds)
            for arm in arms
        ]
        _pack(corpus, tokenizer, shape, runs).write(given.pack)
        return [f"{given.pack}: {len(runs)} runs, {given.pack.stat().st_size / 2**20:.1f} MiB"]
    if given.unpack is not None:
        for name, found in _read(given.unpack).items():
            arm, number, tokens = name.split("-")
            if int(tokens) == shape.tokens and arm in arms:
                _unpack(given.out / "runs" / f"{arm}-{number}", found)
        return report(given.out, corpus, given, tokenizer)
    for seed in range(given.seeds):
        for arm in arms:
            if time.monotonic() < until:
                try:
                    _run(given, corpus, arm, seed, shape, tokenizer, until)
                except UserError as error:
                    note(str(error))  # another call is at it
    return report(given.out, corpus, given, tokenizer)


def _pack(corpus: Corpus, tokenizer: Any, shape: Shape, runs: Sequence[tuple[int, str, int]]) -> Pack:
    held = [*corpus.held, *corpus.common]
    # By name: near-copies close to each other take least room.
    texts = {text.id: text for arm in corpus.arms.values() for text in sorted(arm, key=lambda text: text.name)}
    texts |= {text.id: text for text in held}
    place = {id_: at for at, id_ in enumerate(texts)}
    tokens = [encode(tokenizer, text.code) for text in texts.values()]
    return Pack(
        np.concatenate([np.array(ids, np.uint16) for ids in tokens]),
        np.cumsum([len(ids) for ids in tokens]),
        np.array([len(text.code.encode()) for text in texts.values()]),
        {name: [place[text.id] for text in arm] for name, arm in corpus.arms.items()},
        [place[text.id] for text in held],
        [text.id for text in held],
        shape,
        list(runs),
    )


def _unpack(folder: Path, found: Mapping[str, Any]) -> None:
    """A run of another machine, as if it had been made here, but without what needs its weights."""
    if not _read(folder / _JUDGED):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / TRAINED, json.dumps(found["training"]))
        write_text(folder / _JUDGED, json.dumps({"bits": found["bits"]}))


def _stream(texts: Sequence[Text], tokenizer: Any, shape: Shape, seed: int) -> Stream:
    sizes = [len(text.code.encode()) for text in texts]
    return make_stream(sizes, lambda at: encode(tokenizer, texts[at].code), shape, seed)


@contextlib.contextmanager
def _in_turn(folder: Path) -> Iterator[None]:
    """The folder for this process alone, as soon as no other has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_snapshots(given: argparse.Namespace, names: Sequence[str]) -> dict[str, Path]:
    """The snapshots of some arms: where the options say so, else made under `--out` if this release can make them."""
    folders = {}
    for name in (name for name in names if name in _CURATE or getattr(given, name)):
        folder = getattr(given, name) or given.out / "snapshots" / name
        if getattr(given, name) is None and not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            command = [
                sys.executable,
                "-P",
                "-m",
                "lemur.start",
                "curate",
                "lemur",
                *_CURATE[name],
                "--out",
                str(folder),
            ]
            subprocess.run(command, stdout=sys.stderr, check=True)
        folders[name] = folder
    return folders


def _check_settings(given: argparse.Namespace, corpus: Corpus, shape: Shape) -> None:
    """One folder holds runs of one kind; the library may be given later. Raises: UserError."""
    settings = {**asdict(shape), "held": given.held, "draw": given.draw}
    settings["corpus"] = corpus.digest(_lemur(corpus))
    if LIBRARY in corpus.arms:
        settings[LIBRARY] = corpus.digest([LIBRARY])
    file = given.out / "settings.json"
    known = _read(file)
    differ = [
        f"{name} {known[name]}, now {value}" for name, value in settings.items() if known.get(name, value) != value
    ]
    if differ:
        raise UserError(f"{given.out}: made with {'; '.join(differ)}; choose another --out")
    given.out.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(known | settings, indent=1))


def _lemur(corpus: Corpus) -> list[str]:
    """The arms that learn LEMUR alone."""
    return [arm for arm in corpus.arms if arm != LIBRARY]


def _run(
    given: argparse.Namespace, corpus: Corpus, arm: str, seed: int, shape: Shape, tokenizer: Any, until: float
) -> None:
    """Train and judge one arm with one seed, as far as that is not done."""
    folder = given.out / "runs" / f"{arm}-{seed}"
    file = folder / _JUDGED
    if _read(file):
        return
    with own(folder, ".lock", "another call is at it"):
        stream = _stream(corpus.arms[arm], tokenizer, shape, seed)
        place = choose_context("cpu")
        if train(folder, shape, stream, seed, place, until, f"{arm} {seed}") is None:
            return
        held = [*corpus.held, *corpus.common]
        tokens = [encode(tokenizer, text.code) for text in held]
        needed = bits(load_decoder(folder, shape, place), tokens, shape, place)
        judged = {
            "bits": {text.id: value for text, value in zip(held, needed, strict=True)},
            "held_copied": copied([ids[1:] for ids in tokens[: len(corpus.held)]], np.unique(windows(stream.rows))),
        }
        write_text(file, json.dumps(judged))
        print(f"{arm} {seed}: {sum(needed) / _size(held):.3f} bits a byte", flush=True)


def _read(file: Path) -> dict[str, Any]:
    """A file of a run; nothing where there is none yet."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


# -- the table -------------------------------------------------------------------------------------------------------


Runs = Mapping[int, Mapping[str, Any]]  # by seed: what is told of the training, and what was judged


def report(out: Path, corpus: Corpus, given: argparse.Namespace, tokenizer: Any) -> list[str]:
    """The runs that are judged, by arm."""
    found = {arm: runs for arm in corpus.arms if (runs := _judged(out, arm))}
    if not found:
        return ["no run is judged; call again"]
    head = ["arm", "texts", "MB", "epochs", "seeds", "windows of held-out code that were learned"]
    rows = []
    for arm, runs in found.items():
        there = [run["held_copied"] for run in runs.values() if "held_copied" in run]
        rows.append(
            [
                ARMS[arm],
                f"{len(corpus.arms[arm]):,}",
                f"{_size(corpus.arms[arm]) / 1e6:.1f}",
                f"{statistics.fmean(run['epochs'] for run in runs.values()):.2f}",
                str(len(runs)),
                percent(*(sum(pair[at] for pair in there) for at in (0, 1))) if there else "–",
            ]
        )
    trained = [run for runs in found.values() for run in runs.values()]
    lines = [
        f"\n{trained[0]['parameters']:,} parameters, {trained[0]['tokens']:,} tokens a run,"
        f" {trained[0]['flop']:.2e} FLOP; {trained[0]['place']}, torch {trained[0]['torch']};"
        f" {statistics.median(run['cpu_seconds'] for run in trained):.0f} CPU seconds in the median;"
        f" digest {corpus.digest(corpus.arms)}; draw {given.draw}\n",
        *table(head, rows, 1),
    ]
    known = np.unique(np.concatenate([windows(encode(tokenizer, text.code)[1:]) for text in corpus.arms["released"]]))
    contained = {text.id: _is_contained(encode(tokenizer, text.code)[1:], known) for text in corpus.held}
    sets = {
        "records of our snapshot, their near ones in no arm": list(corpus.held),
        f"of these, with {_CONTAINED:.0%} of their windows of {COPIED} tokens in the release": [
            text for text in corpus.held if contained[text.id]
        ],
        "of these, the others": [text for text in corpus.held if not contained[text.id]],
        "networks of the release, their near ones in training": list(corpus.common),
    }
    for name, texts in sets.items():
        groups = len({text.group for text in texts})
        lines += [f"\nheld out: {name}: {len(texts)} of {groups} groups, {_size(texts):,} bytes\n"]
        lines += compare(found, texts) if texts else []
    return lines


def _is_contained(tokens: Sequence[int], known: Any) -> bool:
    """Whether most windows of a text are among others. Args: known: these, sorted; there are millions."""
    hashes = windows(tokens)
    there = known[np.minimum(np.searchsorted(known, hashes), len(known) - 1)] == hashes
    return int(there.sum()) >= _CONTAINED * max(1, len(hashes))


def compare(
    found: Mapping[str, Runs],
    texts: Sequence[Text],
    bases: Sequence[str] = ("graphs", "nndup"),
    names: Mapping[str, str] = ARMS,
) -> list[str]:
    """Bits a byte of each arm, and its difference to some of them; of the seeds that both have."""
    rows = []
    for arm, runs in found.items():
        row = [names[arm], str(len(runs)), _bits(texts, runs)]
        for base in bases:
            if base not in found or base == arm:
                row += ["–", "–"]
                continue
            both = sorted(runs.keys() & found[base].keys())
            each = [_mean(texts, found[base][seed], runs[seed]) for seed in both]
            row += [_difference(_paired(texts, found[base], runs)), f"{min(each):+.3f} to {max(each):+.3f}"]
        rows.append(row)
    heads = [head for base in bases for head in (f"minus {base}", "by seed")]
    return table(["arm", "seeds", "bits a byte", *heads], rows, 1)


def _judged(out: Path, arm: str) -> Runs:
    folders = sorted((out / "runs").glob(f"{arm}-*"))
    runs = {
        int(folder.name.rpartition("-")[2]): _read(folder / TRAINED) | _read(folder / _JUDGED) for folder in folders
    }
    return {seed: run for seed, run in runs.items() if "bits" in run}


def _paired(texts: Sequence[Text], base: Runs, other: Runs) -> Difference:
    """The mean difference of a file in bits a byte, of the seeds that both have; groups of near files vary as one.

    Source: https://en.wikipedia.org/wiki/Clustered_standard_errors
    """
    from scipy.stats import t

    both = sorted(base.keys() & other.keys())
    values = [
        statistics.fmean(other[seed]["bits"][text.id] - base[seed]["bits"][text.id] for seed in both) / _size([text])
        for text in texts
    ]
    mean = statistics.fmean(values)
    sums: dict[str, float] = {}
    for text, value in zip(texts, values, strict=True):
        sums[text.group] = sums.get(text.group, 0.0) + value - mean
    n = len(sums)
    if n < 2:
        return Difference(n, mean, None, None)
    error = math.sqrt(sum(part**2 for part in sums.values()) * n / (n - 1)) / len(texts)
    half = float(t.ppf(0.975, n - 1)) * error
    return Difference(n, mean, mean - half, mean + half)


def _mean(texts: Sequence[Text], base: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The mean difference of a file in bits a byte, of one seed."""
    return statistics.fmean((other["bits"][text.id] - base["bits"][text.id]) / _size([text]) for text in texts)


def _bits(texts: Sequence[Text], runs: Runs) -> str:
    """Of all held-out bytes; the mean over the seeds, and the least and greatest."""
    values = [sum(run["bits"][text.id] for text in texts) / _size(texts) for run in runs.values()]
    mean = f"{statistics.fmean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def _difference(found: Difference | None) -> str:
    if found is None or found.mean is None or found.low is None or found.high is None:
        return "–"
    return f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def _size(texts: Sequence[Text]) -> int:
    return sum(len(text.code.encode()) for text in texts)


if __name__ == "__main__":
    main()
