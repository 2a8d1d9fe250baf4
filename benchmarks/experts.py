"""What one injected token carries, with three seeds: `python -m benchmarks.experts --settings FILE --out DIR`.

Makes every stage of `lemur experts` for each seed, which draws the blocks that are held out and all training, over one
frozen base, and puts the evaluations side by side: means and 95 % intervals over the seeds (Student's t). What is there
is not made again, so a run that was ended goes on; `--only N` makes one seed alone, for several at a time.

Claim (docs/experts.md): on held-out blocks in unseen wordings the injected token answers what the base alone does not,
the token of another question does not, and no domain's token changes by adding another. The control that decides what
the injection is worth is `expert as text`: the same expert's answer in the prompt, at the same cost.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import t

from lemur.experts.command import adapt, align, evaluate, make_data, route
from lemur.experts.settings import GENERAL, load_settings
from lemur.experts.stages import Workspace
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


def make_base(settings: Path, out: Path) -> str:
    """The base that all seeds share. Returns: the folder of its model."""
    house = Workspace(load_settings(settings, seed=0).model_copy(update={"out": out}))
    if house.settings.base.model is not None:
        return house.settings.base.model
    with house.alone():
        house.make_data()
        house.make_base()
    return str(house.folder("base") / "model")


def make_seed(settings: Path, out: Path, seed: int, base: str) -> None:
    """All stages of one seed."""
    loaded = load_settings(settings, seed=seed, base__model=base)
    house = Workspace(loaded.model_copy(update={"out": out / f"seed-{seed}"}))
    make_data(house)
    adapt(house, ())
    align(house)
    route(house, (), None)
    evaluate(house, ())


def tables(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The evaluations side by side. Args: runs: the counts of each seed's evaluation."""

    def told(values: Iterable[float]) -> str:
        mean, half = spread(list(values))
        return f"{mean:.1%} ± {half:.1%}"

    def shares(arm: str, name: str) -> str:
        own = [run["scores"][arm][name] for run in runs]
        return told(one["correct"] / one["questions"] for one in own)

    scores = runs[0]["scores"]
    domains = [*dict.fromkeys(name for own in scores.values() for name in own if name not in ("all", GENERAL)), GENERAL]
    rows = [
        [
            arm,
            shares(arm, "all"),
            *(shares(arm, name) if name in scores[arm] else "" for name in domains),
            f"{sum(run['scores'][arm]['all']['tokens'] for run in runs) / len(runs):.1f}",
        ]
        for arm in scores
    ]
    lines = table(["answered by", "all domains", *domains, "tokens"], rows)
    kinds = {"question as asked": "routing", "class name alone": "routing_by_name_alone"}
    routed = [
        [kind, *(told(run["found"][key][name] for run in runs) for name in domains)] for kind, key in kinds.items()
    ]
    lines += table(["routed right", *domains], routed)
    grown = []
    for steps in zip(*(run["found"]["growth"] for run in runs), strict=True):
        means = [sum(step["accuracy"].values()) / len(step["accuracy"]) for step in steps]
        equal = "bit-equal" if all(step["oracle_equal"] for step in steps) else "changed"
        grown.append([steps[0]["added"], told(means), ", ".join(str(step["rerouted"]) for step in steps), equal])
    lines += table(
        ["domain added", "routed right, mean of all there", "rerouted, by seed", "oracle answers before"], grown
    )
    stays = "bit-equal" if all(run["found"]["general_exact"] for run in runs) else "CHANGED"
    questions = sum(run["scores"]["closed"]["all"]["questions"] for run in runs)
    return [
        *lines,
        f"{questions} held-out questions in {len(runs)} seeds; majority answers"
        f" {told(run['majority'] for run in runs)}; weights of the base and its scores on the general set: {stays}.",
    ]


def main() -> None:
    """Make what is not there, and print the tables of what is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=Path, required=True, help="as for lemur experts")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", type=int, help="this seed alone")
    given = parser.parse_args()
    base = make_base(given.settings, given.out)
    for seed in range(given.seeds) if given.only is None else [given.only]:
        make_seed(given.settings, given.out, seed, base)
    if given.only is None:
        folders = [given.out / f"seed-{seed}" / "evaluation" for seed in range(given.seeds)]
        text = "\n".join(tables([read_manifest(folder).counts for folder in folders]))
        write_text(given.out / "table.md", text + "\n")
        print(text)


if __name__ == "__main__":
    main()
