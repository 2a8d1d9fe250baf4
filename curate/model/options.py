"""The options of a curation, and prefixes of names."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from lemur_core.files.errors import UsageError
from lemur_core.sandbox.runtime import expand_sets
from lemur_core.similarity.features.tokens import Detail

Profile = Literal["strict", "nn-dup"]

#: Which graphs are compared: those of the networks that survive by their text, or of all codes; with keep-different,
#: near texts whose graphs differ beyond widths are not near-duplicates.
Graphs = Literal["survivors", "all", "keep-different", "off"]

#: Records with at least this Jaccard stay in one split.
LEAK_THRESHOLD = 0.70

#: Longer conversations are dropped; counted as in `manifests.conversations.conversation.count_tokens`.
CHAT_MAX_TOKENS = 8_192

SPLIT_RATIOS = {"train": 0.80, "validation": 0.10, "test": 0.10}


@dataclass(frozen=True, slots=True)
class CurateOptions:
    """The options of `lemur curate`; None means the default of the profile."""

    profile: Profile = "strict"
    task: tuple[str, ...] = ()  # this and the next two: of the rows, empty for any
    dataset: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    nn_prefixes: tuple[str, ...] = ()  # whole ones in both profiles; `include` of profile nn-dup matches as nn-dup does
    prefer: tuple[str, ...] = ()
    lexical_threshold: float = 0.90
    structural_threshold: float | None = None  # strict 0.95, nn-dup 0.90
    min_per_prefix: int | None = None  # strict 0, nn-dup 1
    topup_prefix: tuple[str, ...] = ()
    topup_family: tuple[str, ...] = ()
    topup_per_prefix: int = 10
    upweight: tuple[tuple[str, float], ...] = ()
    from_scratch: bool = False
    tokens: Detail = "abstract"
    graph: Graphs | None = None  # strict survivors, nn-dup off
    seed: int = 42
    check_runs: bool = False
    require_runs: bool = False  # implies check_runs
    runtime: tuple[str, ...] = ()  # what networks can import besides the declared runtime: packages, or named sets
    unsafe_no_sandbox: bool = False
    chat: bool = False
    chat_max_tokens: int = CHAT_MAX_TOKENS
    license: str | None = None  # SPDX expression for sources that state none
    keep_per_family: int = 5  # this and the next three: profile nn-dup only
    fractal_threshold: float = 0.97
    topup_lexical_max: float = 0.85
    topup_structural_max: float = 0.60

    def __post_init__(self) -> None:
        for name, value in (("lexical", self.lexical_threshold), ("structural", self.structural)):
            if not 0.5 <= value <= 1.0:
                raise UsageError(f"--{name}-threshold {value}: must lie between 0.5 and 1.0")
        if self.min_prefix < 0 or self.topup_per_prefix < 0:
            raise UsageError("--min-per-prefix and --topup-per-prefix: must not be negative")
        for option, chosen in (("--unsafe-no-sandbox", self.unsafe_no_sandbox), ("--runtime", bool(self.runtime))):
            if chosen and not self.runs_code:
                raise UsageError(
                    f"{option}: nothing is run with --graph off and no --check-runs, --require-runs or --chat;"
                    " leave it out"
                )
        if self.profile == "nn-dup" and self.graphs != "off":
            raise UsageError(f"--graph {self.graph}: profile nn-dup compares no graphs; leave it out or switch")
        if self.keep_per_family < 1:
            raise UsageError(f"--keep-per-family {self.keep_per_family}: must be at least 1")
        for name in ("fractal_threshold", "topup_lexical_max", "topup_structural_max"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name)}: must lie between 0 and 1")
        if self.chat_max_tokens < 1:
            raise UsageError(f"--chat-max-tokens {self.chat_max_tokens}: must be at least 1")
        if self.chat_max_tokens != CHAT_MAX_TOKENS and not self.chat:
            raise UsageError("--chat-max-tokens: no conversations are made without --chat; add it, or leave this out")
        self._refuse_foreign()

    def _refuse_foreign(self) -> None:
        """Refuse options of the other profile, since ignoring them silently would mislead."""
        strict_only = ("topup_family", "from_scratch", "tokens", "require_runs")
        nn_dup_only = ("keep_per_family", "fractal_threshold", "topup_lexical_max", "topup_structural_max")
        foreign, home = (nn_dup_only, "nn-dup") if self.profile == "strict" else (strict_only, "strict")
        defaults = {item.name: item.default for item in fields(self)}
        for name in foreign:
            if getattr(self, name) != defaults[name]:
                raise UsageError(f"--{name.replace('_', '-')}: only profile {home} knows it; leave it out or switch")

    def recorded(self) -> dict[str, Any]:
        """Return the options as they are written down: with the packages of a named set, which may change."""
        return asdict(self) | {"runtime": expand_sets(self.runtime)}

    @property
    def checks_runs(self) -> bool:
        """True if kept networks are run."""
        return self.check_runs or self.require_runs

    @property
    def runs_code(self) -> bool:
        """True if any network is run or traced."""
        return self.checks_runs or self.chat or self.graphs != "off"

    @property
    def graphs(self) -> Graphs:
        """Which graphs are compared."""
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
    """Return the index of the first of `prefixes` that the name starts with, by whole `-` segments, ignoring case.

    A prefix may end in its `-`: `ga-` is `ga`, and neither is the beginning of `GAN`.
    """
    name = nn.casefold()
    for place, prefix in enumerate(prefixes):
        wanted = prefix.casefold()
        wanted = wanted.rstrip("-") or wanted
        if name == wanted or name.startswith(f"{wanted}-"):
            return place
    return None


def parse_upweight(text: str) -> tuple[str, float]:
    """Parse `PREFIX:FACTOR` into a pair.

    Raises: UsageError if it is not of that form, or the factor is not a positive number.
    """
    prefix, colon, factor = text.rpartition(":")
    try:
        value = float(factor)
    except ValueError:
        value = 0.0
    if not colon or not prefix or not 0 < value < float("inf"):
        raise UsageError(f"--upweight {text}: must be PREFIX:FACTOR with a factor above 0, for example FractalNet:3")
    return prefix, value
