"""Do curated data teach a model more? One small decoder, trained from scratch for equal tokens on each selection.

    python -m benchmarks.teaching --out FOLDER [--library EXTRACTION]

Arms: LEMUR as released, the selection of nn-dup, our snapshot without and with graphs, and that with the lean blocks
of an extraction. Groups of records are held out with all their neighbors. On them every model is judged: bits a byte;
and what it writes after their headers: does it parse, construct, run in the sandbox, is it new, is it copied? Snapshots
that are not given are made. Every arm and seed is a folder of its own: a study that is interrupted goes on when it is
called again, and several calls may work on one folder. Each model lies there as `transformers` loads it.
"""

import argparse
import contextlib
import fcntl
import importlib.util
import itertools
import json
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
from benchmarks.teaching_judge import TASK, Learned, copied, counts, header_of, run_all, windows
from benchmarks.teaching_model import (
    TRAINED,
    Shape,
    bits,
    encode,
    load_model,
    make_stream,
    make_tokenizer,
    train,
    write,
)
from extract.model.results import wilson
from lemur_core.files.atomic import own, write_text
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import percent, table
from lemur_core.files.progress import note
from train.runs.process import choose_context
from train.studies.ablation import Difference, mean_difference

_PACKAGES = ("transformers~=5.23.0",)
_HERE = "LEMUR_TEACHING_HERE"  # set for the second process, whose environment has these packages
_CURATE = {"nndup": ("--profile", "nn-dup"), "plain": ("--graph", "off"), "graphs": ()}
_JUDGED, _SAMPLES = "judged.json", "samples.jsonl"


def main() -> None:
    """Train and judge what is not known yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    for name in _CURATE:
        parser.add_argument(f"--{name}", type=Path, metavar="SNAPSHOT", help="default: made, under --out")
    parser.add_argument("--library", type=Path, metavar="EXTRACTION", help="without it there is no such arm")
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="default: all")
    parser.add_argument("--seeds", type=int, default=3, help="so many, from 0 on")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then stop; the next call goes on")
    parser.add_argument("--held", type=int, default=100, help="records to hold out")
    parser.add_argument("--draw", type=int, default=0, help="the seed that draws them")
    parser.add_argument("--samples", type=int, default=64, help="an arm and seed")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--longest", type=int, default=2048, help="tokens of a sample")
    parser.add_argument("--threads", type=int, default=1)
    for name, value in asdict(Shape()).items():
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
    corpus = read_corpus(_folders(given), given.held, given.draw)
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
    for seed in range(given.seeds):
        for arm in arms:
            if time.monotonic() < until:
                try:
                    _run(given, corpus, arm, seed, shape, tokenizer, until)
                except UserError as error:
                    note(str(error))  # another call is at it
    return report(given.out, corpus, given)


@contextlib.contextmanager
def _in_turn(folder: Path) -> Iterator[None]:
    """The folder for this process alone, as soon as no other has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _folders(given: argparse.Namespace) -> dict[str, Path]:
    folders = {"library": given.library} if given.library else {}
    for name, options in _CURATE.items():
        folder = getattr(given, name) or given.out / "snapshots" / name
        if getattr(given, name) is None and not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            lemur = str(Path(sys.executable).with_name("lemur"))
            subprocess.run([lemur, "curate", "lemur", *options, "--out", str(folder)], stdout=sys.stderr, check=True)
        folders[name] = folder
    return folders


def _check_settings(given: argparse.Namespace, corpus: Corpus, shape: Shape) -> None:
    """One folder holds runs of one kind; the library may be given later. Raises: UserError."""
    names = ("held", "draw", "samples", "temperature", "longest")
    settings = {**asdict(shape), **{name: getattr(given, name) for name in names}}
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
    if "samples" in _read(file):
        return
    with own(folder, ".lock", "another call is at it"):
        stream = make_stream([text.code for text in corpus.arms[arm]], tokenizer, shape, seed)
        place = choose_context("cpu")
        if train(folder, shape, stream, tokenizer, seed, place, until, f"{arm} {seed}") is None:
            return
        model = load_model(folder)
        learned = np.unique(windows(stream.rows))
        judged = _read(file)
        if not judged:
            codes = [text.code for text in corpus.held]
            needed = bits(model, tokenizer, codes, shape, place)
            judged = {
                "bits": {text.id: value for text, value in zip(corpus.held, needed, strict=True)},
                "held_copied": copied([encode(tokenizer, code)[1:] for code in codes], learned),
            }
            write_text(file, json.dumps(judged))
            print(f"{arm} {seed}: {sum(needed) / _size(corpus.held):.3f} bits a byte", flush=True)
        if not (folder / _SAMPLES).is_file():
            _keep(folder, _samples(given, corpus, seed, shape, tokenizer, model))
        rows = [json.loads(line) for line in (folder / _SAMPLES).read_text(encoding="utf-8").splitlines()]
        known = Learned(corpus, corpus.arms[arm])
        for row, outcome in zip(rows, run_all([row["code"] for row in rows]), strict=True):
            row |= outcome | {"nearest": known.nearest(row["code"]) if outcome["parses"] else None}
        share = copied([encode(tokenizer, row["code"][row["given"] :])[1:] for row in rows], learned)
        _keep(folder, rows)
        write_text(file, json.dumps({**judged, "copied": share, **counts(rows)}))
        print(f"{arm} {seed}: {len(rows)} samples tried", flush=True)


def _keep(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_text(folder / _SAMPLES, "".join(json.dumps(row) + "\n" for row in rows))


def _read(file: Path) -> dict[str, Any]:
    """A file of a run; nothing where there is none yet."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def _samples(
    given: argparse.Namespace, corpus: Corpus, seed: int, shape: Shape, tokenizer: Any, model: Any
) -> list[dict[str, Any]]:
    """What the model writes after the headers of held-out networks; the same headers for every arm."""
    headers = [header for text in corpus.held if text.task == TASK and (header := header_of(text.code))]
    prompts = [f"{headers[number % len(headers)]}\n\n\n" for number in range(given.samples)]
    made = write(model, tokenizer, prompts, given.longest, given.temperature, seed, shape.context)
    return [{"code": f"{prompt}{text}", "given": len(prompt)} for prompt, text in zip(prompts, made, strict=True)]


# -- the table -------------------------------------------------------------------------------------------------------


Runs = Mapping[int, Mapping[str, Any]]  # by seed: what is told of the training, and what was judged


def report(out: Path, corpus: Corpus, given: argparse.Namespace) -> list[str]:
    """The runs that are judged, by arm; samples of those of which they are tried."""
    found = {arm: runs for arm in corpus.arms if (runs := _judged(out, arm))}
    if not found:
        return ["no run is judged; call again"]
    head = ["arm", "texts", "MB", "epochs", "seeds", "bits a byte", "minus released", "parse", "construct", "run"]
    rows = []
    for arm, runs in found.items():
        tried = [run for run in runs.values() if "samples" in run]
        sums = {name: sum(run[name] for run in tried) for name in ("samples", "parses", "constructs", "runs", "novel")}
        against = _paired(corpus, found["released"], runs) if "released" in found and arm != "released" else None
        rows.append(
            [
                ARMS[arm],
                f"{len(corpus.arms[arm]):,}",
                f"{_size(corpus.arms[arm]) / 1e6:.1f}",
                f"{statistics.fmean(run['epochs'] for run in runs.values()):.2f}",
                str(len(runs)),
                _bits(corpus, runs),
                _difference(against),
                *(_share(sums[name], sums["samples"]) for name in ("parses", "constructs", "runs")),
                _share(sums["novel"], sums["parses"]),
                percent(*(sum(run["copied"][at] for run in tried) for at in (0, 1))),
                percent(*(sum(run["held_copied"][at] for run in runs.values()) for at in (0, 1))),
            ]
        )
    trained = [run for runs in found.values() for run in runs.values()]
    lines = [
        f"\n{trained[0]['parameters']:,} parameters, {trained[0]['tokens']:,} tokens a run,"
        f" {trained[0]['flop']:.2e} FLOP; {trained[0]['place']};"
        f" {statistics.median(run['cpu_seconds'] for run in trained):.0f} CPU seconds in the median",
        f"held out: {len(corpus.held)} records of {len({text.group for text in corpus.held})} groups,"
        f" {_size(corpus.held):,} bytes, draw {given.draw}; {given.samples} samples a run at temperature"
        f" {given.temperature:g}, {given.longest:,} tokens at most\n",
        *table([*head, "novel of parsed", "copied", "of held-out code"], rows, 1),
    ]
    for base, other in itertools.pairwise(found):
        pair = _paired(corpus, found[base], found[other])
        lines.append(f"{other} - {base}: {_difference(pair)} bits a byte, {pair.n} groups")
    return lines


def _judged(out: Path, arm: str) -> Runs:
    folders = sorted((out / "runs").glob(f"{arm}-*"))
    runs = {
        int(folder.name.rpartition("-")[2]): _read(folder / TRAINED) | _read(folder / _JUDGED) for folder in folders
    }
    return {seed: run for seed, run in runs.items() if "bits" in run}


def _paired(corpus: Corpus, base: Runs, other: Runs) -> Difference:
    """The difference in bits a byte by held-out group, of the seeds that both have."""
    both = base.keys() & other.keys()
    return mean_difference(*(_by_group(corpus, [runs[seed]["bits"] for seed in both]) for runs in (base, other)))


def _by_group(corpus: Corpus, found: Sequence[Mapping[str, float]]) -> dict[int, float]:
    """Bits a byte of each held-out group, the mean over the seeds."""
    groups: dict[str, list[Text]] = {}
    for text in corpus.held:
        groups.setdefault(text.group, []).append(text)
    return {
        number: statistics.fmean(sum(needed[text.id] for text in texts) / _size(texts) for needed in found)
        for number, texts in enumerate(groups.values())
        if found
    }


def _bits(corpus: Corpus, runs: Runs) -> str:
    """Of all held-out bytes; the mean over the seeds, and the least and greatest."""
    values = [sum(run["bits"].values()) / _size(corpus.held) for run in runs.values()]
    mean = f"{statistics.fmean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def _difference(found: Difference | None) -> str:
    if found is None or found.mean is None or found.low is None or found.high is None:
        return "–"
    return f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def _share(part: int, whole: int) -> str:
    low, high = wilson(part, whole)
    return f"{percent(part, whole)} ({100 * low:.1f} to {100 * high:.1f})" if whole else "–"


def _size(texts: Sequence[Text]) -> int:
    return sum(len(text.code.encode()) for text in texts)


if __name__ == "__main__":
    main()
