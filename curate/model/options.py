"""The options of a curation, and prefixes of names."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from lemur_core.files.errors import UsageError
from lemur_core.files.markdown import make_visible
from manifests.options import RUNTIME, Option, check_options

_ROWS, _BALANCE, _RUNS = "Which rows", "Preferences and minimums", "Running networks"

Names = tuple[str, ...]

#: The graphs to compare: those of the codes that survive the comparison by text, or of all codes; with keep-different,
#: codes with near texts are not near-duplicates if their graphs differ in more than widths.
Graphs = Literal["survivors", "all", "keep-different", "off"]

#: Records with at least this Jaccard similarity are in the same split.
LEAK_THRESHOLD = 0.70

SPLIT_RATIOS = {"train": 0.80, "validation": 0.10, "test": 0.10}


def _read_license(text: str) -> str:
    from manifests.provenance.licenses import parse_expression  # its patterns would slow down every --help

    return parse_expression(text)


def read_prm(text: str) -> str:
    """Return hyperparameters as a JSON object with sorted keys. Raises: UsageError for another text."""
    from manifests.records import drop_outcomes  # the records would slow down every --help

    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UsageError(f"--prm {make_visible(text, 40)}: must be a JSON object, for example '{{\"lr\": 0.01}}'")
    return json.dumps(drop_outcomes(values), sort_keys=True)


def parse_upweight(text: str) -> tuple[str, float]:
    """Parse `PREFIX:FACTOR` into a pair.

    Raises: UsageError if the text has another form, or the factor is not a positive number.
    """
    prefix, colon, factor = text.rpartition(":")
    try:
        value = float(factor)
    except ValueError:
        value = 0.0
    if not colon or not prefix or not 0 < value < float("inf"):
        raise UsageError(f"--upweight {text}: must be PREFIX:FACTOR with a factor above 0, for example FractalNet:3")
    return prefix, value


@dataclass(frozen=True, slots=True)
class CurateOptions:
    """The options of `lemur curate`.

    Example:
        ```python
        from curate import CurateOptions

        loose = CurateOptions(lexical_threshold=0.8, graph="off")
        print(loose.structural_threshold)  # 0.95, the default
        ```
    """

    task: Annotated[
        Names,
        Option("Only rows of this task (repeatable); a single one is assigned to files.", metavar="T", panel=_ROWS),
    ] = ()
    dataset: Annotated[Names, Option("Only rows of this data set (see --task).", metavar="D", panel=_ROWS)] = ()
    metric: Annotated[Names, Option("Only rows of this metric (see --task).", metavar="M", panel=_ROWS)] = ()
    prm: Annotated[
        str | None, Option("Hyperparameters for a folder's files.", metavar="JSON", panel=_ROWS, read=read_prm)
    ] = None
    include: Annotated[Names, Option("Only names with this prefix (repeatable).", metavar="PREFIX", panel=_ROWS)] = ()
    prefer: Annotated[
        Names, Option("Rank this prefix before others (repeatable, in order).", metavar="PREFIX", panel=_BALANCE)
    ] = ()
    lexical_threshold: Annotated[float, Option("Token Jaccard from which two codes are duplicates.")] = 0.90
    structural_threshold: Annotated[float, Option("Fingerprint Jaccard from which two codes are duplicates.")] = 0.95
    min_per_prefix: Annotated[int, Option("Keep at least N of each prefix.", least=0, panel=_BALANCE)] = 0
    topup_prefix: Annotated[
        Names, Option("Raise this prefix to the top-up number (repeatable).", metavar="P", panel=_BALANCE)
    ] = ()
    topup_per_prefix: Annotated[int, Option("The top-up number.", least=0, panel=_BALANCE)] = 10
    upweight: Annotated[
        tuple[tuple[str, float], ...],
        Option("Sampling weight of a prefix (repeatable).", metavar="P:FACTOR", panel=_BALANCE, read=parse_upweight),
    ] = ()
    graph: Annotated[
        Graphs | None, Option("Codes whose computations to compare, in a sandbox; default survivors.", panel=_RUNS)
    ] = None
    seed: Annotated[int, Option("The seed of the splits and, with --chat, of the faults.", least=0)] = 42
    require_runs: Annotated[bool, Option("Keep only networks that run.", panel=_RUNS)] = False
    runtime: Annotated[Names, RUNTIME] = ()
    unsafe_no_sandbox: Annotated[
        bool, Option("Run networks without a sandbox. Only for code you trust.", panel=_RUNS)
    ] = False
    chat: Annotated[bool, Option("Make fine-tuning conversations; runs kept codes in a sandbox.", panel=_RUNS)] = False
    license: Annotated[
        str | None,
        Option("The license of codes whose source states none: MIT, ...", metavar="SPDX", read=_read_license),
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        for option, value in (("lexical", self.lexical_threshold), ("structural", self.structural_threshold)):
            if not 0.5 <= value <= 1:
                raise UsageError(f"--{option}-threshold {value}: must lie between 0.5 and 1")
        for option, is_set in (("--unsafe-no-sandbox", self.unsafe_no_sandbox), ("--runtime", bool(self.runtime))):
            if is_set and self.graphs == "off" and not self.chat:
                raise UsageError(f"{option}: nothing is run with --graph off and no --chat; leave it out")
        if self.require_runs and self.graphs == "off":
            raise UsageError("--require-runs: a trace says what runs, and nothing is traced with --graph off")

    @property
    def of_files(self) -> dict[str, str]:
        """The columns of a folder's files, which do not state them: those with a single value in the options."""
        columns = {"task": self.task, "dataset": self.dataset, "metric": self.metric}
        own = {} if self.prm is None else {"prm": self.prm}
        return {name: values[0] for name, values in columns.items() if len(values) == 1} | own

    @property
    def graphs(self) -> Graphs:
        """The graphs to compare."""
        return self.graph or "survivors"


def describe_purpose(graphs: Graphs) -> str:
    """Return what a selection is for, in one paragraph; the counts are those of docs/graphs.md."""
    texts = "fine-tuning on code, where similar texts teach the same, so one of them is kept"
    computations = "architecture search and performance prediction, where similar texts stay if their graphs differ"
    which, other = (computations, texts) if graphs == "keep-different" else (texts, computations)
    how = "the default `--graph survivors`" if graphs == "keep-different" else "`--graph keep-different`"
    return (
        f"What is it for? This one for {which}. For {other}, {how} selects. Of LEMUR 2.1.0's 10,321 codes the default"
        " keeps 964, `keep-different` 6,231."
    )


def get_prefix(nn: str) -> str:
    """Return the text of a network's name before its first `-`."""
    return nn.split("-", 1)[0]


def matching_prefix(nn: str, prefixes: Sequence[str]) -> int | None:
    """Return the index of the first prefix that the name starts with, in whole `-` segments, ignoring case.

    A prefix may end in `-`: `ga-` means `ga`, and neither matches `GAN`.
    """
    name = nn.casefold()
    for index, prefix in enumerate(prefixes):
        start = prefix.casefold()
        start = start.rstrip("-") or start
        if name == start or name.startswith(f"{start}-"):
            return index
    return None
