"""The options of a curation, and prefixes of names."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from lemur_core.files import Json
from lemur_core.files.errors import UsageError
from lemur_core.similarity import Detail
from manifests.options import MAX_TOKENS, RUNTIME, Option

_ROWS, _BALANCE, _RUNS = "Which rows", "Preferences and minimums", "Running networks"
_NN_DUP_ONLY = "Profile nn-dup only"

Names = tuple[str, ...]
Profile = Literal["strict", "nn-dup"]

#: The graphs to compare: those of the codes that survive the comparison by text, or of all codes; with keep-different,
#: codes with near texts are not near-duplicates if their graphs differ in more than widths.
Graphs = Literal["survivors", "all", "keep-different", "off"]

#: Records with at least this Jaccard similarity are in the same split.
LEAK_THRESHOLD = 0.70

SPLIT_RATIOS = {"train": 0.80, "validation": 0.10, "test": 0.10}


def _read_license(text: str) -> str:
    from manifests.provenance.licenses import parse_expression  # its patterns would slow down every --help

    return parse_expression(text)


def _read_prm(text: str) -> str:
    from manifests.records.networks import drop_outcomes  # the records would slow down every --help

    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UsageError(f"--prm {text[:40]}: must be a JSON object, for example '{{\"lr\": 0.01}}'")
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
    """The options of `lemur curate`; None means the profile's default.

    Example:
        ```python
        from curate import CurateOptions

        loose = CurateOptions(lexical_threshold=0.8, tokens="literal", graph="off")
        print(loose.structural)  # 0.95, the default of the profile
        ```
    """

    profile: Annotated[Profile, Option("strict: the guarantees; nn-dup: the decisions of nn-dup 2.2.4.")] = "strict"
    task: Annotated[
        Names,
        Option("Only rows of this task (repeatable); a single one is assigned to files.", metavar="T", panel=_ROWS),
    ] = ()
    dataset: Annotated[Names, Option("Only rows of this data set (see --task).", metavar="D", panel=_ROWS)] = ()
    metric: Annotated[Names, Option("Only rows of this metric (see --task).", metavar="M", panel=_ROWS)] = ()
    prm: Annotated[
        str | None, Option("Hyperparameters for a folder's files.", metavar="JSON", panel=_ROWS, read=_read_prm)
    ] = None
    include: Annotated[Names, Option("Only names with this prefix (repeatable).", metavar="PREFIX", panel=_ROWS)] = ()
    nn_prefixes: Names = ()  # whole prefixes in both profiles; with profile nn-dup, `include` matches like nn-dup
    prefer: Annotated[
        Names, Option("Rank this prefix before others (repeatable, in order).", metavar="PREFIX", panel=_BALANCE)
    ] = ()
    lexical_threshold: Annotated[float, Option("Token Jaccard from which two codes are duplicates.")] = 0.90
    structural_threshold: Annotated[
        float | None, Option("Fingerprint Jaccard from which two codes are duplicates; default 0.95, nn-dup 0.90.")
    ] = None
    min_per_prefix: Annotated[
        int | None, Option("Keep at least N of each prefix; default 0, nn-dup 1.", metavar="N", panel=_BALANCE)
    ] = None
    topup_prefix: Annotated[
        Names, Option("Raise this prefix to the top-up number (repeatable).", metavar="P", panel=_BALANCE)
    ] = ()
    topup_family: Annotated[
        Names, Option("Raise this architecture family to the top-up number (repeatable).", metavar="F", panel=_BALANCE)
    ] = ()
    topup_per_prefix: Annotated[int, Option("The top-up number.", metavar="N", panel=_BALANCE)] = 10
    upweight: Annotated[
        tuple[tuple[str, float], ...],
        Option("Sampling weight of a prefix (repeatable).", metavar="P:FACTOR", panel=_BALANCE, read=parse_upweight),
    ] = ()
    per_group: Annotated[
        int,
        Option(
            "Keep up to K different computations of each group of near texts, far apart; traces all of a group.",
            metavar="K",
            panel=_BALANCE,
        ),
    ] = 1
    max_parameters: Annotated[
        int | None, Option("Only networks with at most N parameters, by their graphs.", metavar="N", panel=_ROWS)
    ] = None
    min_score: Annotated[
        float | None, Option("Only codes with at least this score, 0 to 1.", metavar="S", panel=_ROWS)
    ] = None
    from_scratch: Annotated[bool, Option("Leave out codes that load weights.", panel=_ROWS)] = False
    tokens: Annotated[Detail, Option("abstract: as published; literal: names and numbers count too.")] = "abstract"
    graph: Annotated[
        Graphs | None,
        Option("Codes whose computations to compare, in a sandbox; default survivors, nn-dup off.", panel=_RUNS),
    ] = None
    seed: Annotated[
        int, Option("The seed of the splits and, with --chat, of the requests.", after="license", least=0)
    ] = 42
    check_runs: Annotated[bool, Option("Run every kept network once, in a sandbox: column runs.", panel=_RUNS)] = False
    require_runs: Annotated[bool, Option("Keep only networks that run.", panel=_RUNS)] = False  # implies check_runs
    runtime: Annotated[Names, RUNTIME] = ()
    namespace: Annotated[
        Literal["torch"] | None,
        Option("Run codes without imports as if they imported torch, nn, F, optim, Tensor, math, np.", panel=_RUNS),
    ] = None
    unsafe_no_sandbox: Annotated[
        bool, Option("Run networks without a sandbox. Only for code you trust.", panel=_RUNS, after="runtime")
    ] = False
    predict: Annotated[bool, Option("Write all results, with splits, to predict accuracies from.", after="seed")] = (
        False
    )
    chat: Annotated[bool, Option("Make fine-tuning conversations; runs kept networks in a sandbox.", panel=_RUNS)] = (
        False
    )
    chat_max_tokens: Annotated[
        int, Option("Drop conversations with more tokens (words, numbers and signs).", metavar="N", panel=_RUNS)
    ] = MAX_TOKENS
    pairs_per_band: Annotated[
        int | None,
        Option(
            "Near pairs to list for each token set, in each band of similarity; 0: no table. Default: 10, and 0 for"
            " more than 50,000 sets.",
            metavar="K",
        ),
    ] = None
    license: Annotated[
        str | None,
        Option("The license of codes whose source states none: MIT, ...", metavar="SPDX", read=_read_license),
    ] = None
    keep_per_family: Annotated[
        int, Option("Records to keep of each family in a duplicate group.", metavar="K", panel=_NN_DUP_ONLY)
    ] = 5
    fractal_threshold: Annotated[float, Option("Token Jaccard for FractalNet.", panel=_NN_DUP_ONLY)] = 0.97
    topup_lexical_max: Annotated[float, Option("Token Jaccard that a top-up may reach.", panel=_NN_DUP_ONLY)] = 0.85
    topup_structural_max: Annotated[float, Option("The same for fingerprints.", panel=_NN_DUP_ONLY)] = 0.60

    def __post_init__(self) -> None:
        for option, value, low in (
            ("lexical-threshold", self.lexical_threshold, 0.5),
            ("structural-threshold", self.structural, 0.5),
            ("fractal-threshold", self.fractal_threshold, 0),
            ("topup-lexical-max", self.topup_lexical_max, 0),
            ("topup-structural-max", self.topup_structural_max, 0),
        ):
            if not low <= value <= 1:
                raise UsageError(f"--{option} {value}: must lie between {low} and 1")
        if self.min_prefix < 0 or self.topup_per_prefix < 0:
            raise UsageError("--min-per-prefix and --topup-per-prefix: must not be negative")
        for option, is_set in (
            ("--unsafe-no-sandbox", self.unsafe_no_sandbox),
            ("--runtime", bool(self.runtime)),
            ("--namespace", self.namespace is not None),
        ):
            if is_set and not self.runs_code:
                raise UsageError(
                    f"{option}: nothing is run with --graph off and no --check-runs, --require-runs or --chat;"
                    " leave it out"
                )
        if self.profile == "nn-dup" and self.graphs != "off":
            raise UsageError(f"--graph {self.graph}: profile nn-dup compares no graphs; leave it out or switch")
        self._check_choice()
        if (self.pairs_per_band or 0) < 0:
            raise UsageError(f"--pairs-per-band {self.pairs_per_band}: must not be negative")
        if self.keep_per_family < 1:
            raise UsageError(f"--keep-per-family {self.keep_per_family}: must be at least 1")
        if self.chat_max_tokens < 1:
            raise UsageError(f"--chat-max-tokens {self.chat_max_tokens}: must be at least 1")
        if self.chat_max_tokens != MAX_TOKENS and not self.chat:
            raise UsageError("--chat-max-tokens: no conversations are made without --chat; add it, or leave this out")
        self._refuse_foreign()

    def _check_choice(self) -> None:
        """Raise UsageError for filters and groups that cannot be met."""
        if self.per_group < 1 or (self.max_parameters is not None and self.max_parameters < 0):
            raise UsageError("--per-group and --max-parameters: must be at least 1 and 0")
        if self.min_score is not None and not 0 <= self.min_score <= 1:
            raise UsageError(f"--min-score {self.min_score}: must lie between 0 and 1")
        if self.reads_graphs and self.profile == "strict" and self.graphs == "off":
            raise UsageError("--per-group and --max-parameters: need graphs; leave out --graph off")
        if self.per_group > 1 and self.graphs == "keep-different":
            raise UsageError("--per-group: --graph keep-different keeps all different computations; choose one of them")

    def _refuse_foreign(self) -> None:
        """Refuse options of the other profile, since ignoring them silently would mislead."""
        strict_only = (
            "per_group",
            "max_parameters",
            "min_score",
            "topup_family",
            "from_scratch",
            "tokens",
            "require_runs",
        )
        nn_dup_only = ("keep_per_family", "fractal_threshold", "topup_lexical_max", "topup_structural_max")
        foreign, owner = (nn_dup_only, "nn-dup") if self.profile == "strict" else (strict_only, "strict")
        defaults = {item.name: item.default for item in fields(self)}
        for name in foreign:
            if getattr(self, name) != defaults[name]:
                raise UsageError(f"--{name.replace('_', '-')}: only profile {owner} knows it; leave it out or switch")

    @property
    def of_files(self) -> dict[str, str]:
        """The columns of a folder's files, which do not state them: those with a single value in the options."""
        columns = {"task": self.task, "dataset": self.dataset, "metric": self.metric}
        own = {} if self.prm is None else {"prm": self.prm}
        return {name: values[0] for name, values in columns.items() if len(values) == 1} | own

    @property
    def in_sandbox(self) -> Json:
        """The arguments for running networks."""
        return {"unsafe": self.unsafe_no_sandbox, "runtime": self.runtime, "namespace": self.namespace}

    @property
    def checks_runs(self) -> bool:
        """True if kept networks are run."""
        return self.check_runs or self.require_runs

    @property
    def runs_code(self) -> bool:
        """True if any network is run or traced."""
        return self.checks_runs or self.chat or self.graphs != "off"

    @property
    def reads_graphs(self) -> bool:
        """True if the selection needs the graphs themselves, not only what tells computations apart."""
        return self.per_group > 1 or self.max_parameters is not None

    @property
    def graphs(self) -> Graphs:
        """The graphs to compare."""
        return self.graph or ("survivors" if self.profile == "strict" else "off")

    @property
    def structural(self) -> float:
        """The effective structural threshold."""
        if self.structural_threshold is not None:
            return self.structural_threshold
        return 0.95 if self.profile == "strict" else 0.90

    @property
    def min_prefix(self) -> int:
        """The minimum number of kept records per prefix."""
        if self.min_per_prefix is not None:
            return self.min_per_prefix
        return 0 if self.profile == "strict" else 1


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
