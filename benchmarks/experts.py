"""What one injected token carries, by seed: `python -m benchmarks.experts --settings FILE --out DIR [--seeds N]`.

Runs `lemur experts train` for each seed, which draws the blocks that are held out and all training, over one frozen
base, and puts the evaluations side by side: means and 95 % intervals over the seeds (Student's t). What is there is not
made again, so a run that was ended goes on; `--only N` makes one seed alone, for several at a time.

Claim (docs/experts.md): on held-out blocks in unseen wordings the injected token answers what the base alone does not,
and the token of another question does not. The control that decides what the injection is worth is `expert as text`:
the same expert's answer in the prompt, at the same cost.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import t

from lemur.experts.facts import load_settings
from lemur.experts.injection import Workspace
from lemur_core.files.atomic import write_text
from lemur_core.files.markdown import table
from manifests.folders.manifest import read_manifest


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean over seeds, and half of its 95 % interval (Student's t); 0 for a single seed."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return mean, float(t.ppf(0.975, len(values) - 1)) * deviation / len(values) ** 0.5


def tables(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the evaluations side by side. Args: runs: the counts of each seed's evaluation."""

    def told(values: Iterable[float]) -> str:
        mean, half = spread(list(values))
        return f"{mean:.1%} ± {half:.1%}"

    scores, domains = runs[0]["scores"], list(runs[0]["routing"])
    rows = []
    for arm, own in scores.items():
        row = [arm]
        for name in ("all", *domains):
            figures = [run["scores"][arm][name] for run in runs if name in own]
            row.append(told(one["correct"] / one["questions"] for one in figures) if figures else "")
        rows.append([*row, f"{sum(run['scores'][arm]['all']['tokens'] for run in runs) / len(runs):.1f}"])
    routing = [[run["routing"][name] for run in runs] for name in domains]
    routed = ["routed right", "", *(told(right / number for right, number in own) for own in routing), ""]
    number = sum(run["scores"]["closed"]["all"]["questions"] for run in runs)
    return [
        *table(["answered by", "all domains", *domains, "tokens"], [*rows, routed]),
        f"{number} held-out questions in {len(runs)} seeds.",
    ]


def main() -> None:
    """Make what is not there, and print the table of what is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=Path, required=True, help="as for lemur experts")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", type=int, help="this seed alone")
    given = parser.parse_args()
    settings = load_settings(given.settings)
    folders = []
    for seed in range(given.seeds) if given.only is None else [given.only]:
        own = settings.model_copy(update={"out": given.out / f"seed-{seed}", "seed": seed})
        folders.append(Workspace(own).train())
    if given.only is None:
        text = "\n".join(tables([read_manifest(folder).counts for folder in folders]))
        write_text(given.out / "table.md", text + "\n")
        print(text)


if __name__ == "__main__":
    main()
