"""Metrics of the NN-RAG paper, counted over an extraction: its Tables 2 and 3, and its classes of failure.

    python -m benchmarks.paper DIR

The paper's figures are shown next to each. It neither defines its code quality score, nor states a figure for it or
for its resolution accuracy: both are in the report of the extraction.

Source: https://arxiv.org/abs/2512.04329, version 1, section 5 and Tables 2 and 3
"""

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.model.blocks import read_blocks
from extract.model.results import at_least, wilson
from lemur_core.files.markdown import code_span, count, percent, plural, table
from manifests.folders.kinds import EXTRACTION
from manifests.folders.manifest import Manifest
from manifests.records import Block

if TYPE_CHECKING:
    pass

#: The paper's categories with its counts, "about", and our categories in each. Its own examples decide where
#: possible: `PatchEmbed` and `DropPath` are utilities; resampling belongs to pooling; layers of graph networks
#: are convolutions; heads, necks, detectors and segmentors are architectures.
CATEGORIES: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "Attention mechanisms": (180, ("Attention",)),
    "Convolutional layers": (220, ("Convolution", "Graph")),
    "Transformer blocks": (150, ("Transformer",)),
    "Pooling operations": (110, ("Pooling", "Resampling")),
    "Normalization techniques": (100, ("Normalization",)),
    "Loss functions": (90, ("Loss",)),
    "Network architectures": (150, ("Network", "Head", "Neck", "Detection", "Segmentation")),
    "Utility modules": (
        289,
        ("Activation", "Augmentation", "Embedding", "MLP", "Quantization", "Recurrent", "Regularization", "Other"),
    ),
}
_OF_OURS = {ours: name for name, (_, all_ours) in CATEGORIES.items() for ours in all_ours}

#: The paper's classes of blocks that are not validated, with its counts, "about", and our reasons in each.
#: Other reasons fall in its last, utilities and configuration of a repository: the file lacks something.
FAILURES: Mapping[str, tuple[int, frozenset[str]]] = {
    "External C++/CUDA operators": (87, frozenset({"native_op"})),
    "Complex or circular dependencies": (
        70,
        frozenset({"unresolved_name", "unresolved_import", "undefined_name", "too_large", "name_error", "import_error"})
        | {"unbound_local_error", "recursion_error"},
    ),
    "Dynamic metaprogramming": (
        52,
        frozenset({"dynamic_module", "nested_class", "attribute_error", "type_error", "not_defined", "not_a_module"}),
    ),
    "Utilities and configuration of a repository": (139, frozenset()),
}
*_, _LAST = FAILURES
#: Reasons unrelated to the source: the generated text, the running Python, or the limits of the sandbox.
NEITHER = "None of these: the text as written, or a limit of the sandbox"
_OURS = frozenset(
    {"syntax_error", "compile_error", "newer_python", "timeout", "crashed", "out_of_memory", "over_limit", "denied"}
    | {"error"}
)


#: What the tables and figures read of a block.
COLUMNS = ("block", "source", "category", "level", "error_kind", "n_lines")


def to_paper_category(category: str) -> str:
    """Return the paper's category for one of ours; a category that the paper lacks is a utility."""
    return _OF_OURS.get(category, "Utility modules")


def to_paper_failure(kind: str) -> str:
    """Return the paper's class of failure for the reason why a block is not executed."""
    if kind in _OURS:
        return NEITHER
    return next((name for name, (_, kinds) in FAILURES.items() if kind in kinds), _LAST)


# --- counts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Headline:
    """Counts of the paper's Table 3."""

    targeted: int  # classes, and names that match no class
    extracted: int
    validated: int
    lines: int

    @classmethod
    def of(cls, counts: Mapping[str, Any]) -> "Headline":
        """Select the counts from the result of `extract.model.results.count_rows`."""
        missing = len(counts["targets"]["missing"]) if "targets" in counts else 0
        reached = counts["reached"]
        return cls(counts["blocks"] + missing, reached["emitted"], reached["executed"], counts["lines"])


def count_categories(rows: Iterable[Block]) -> dict[str, tuple[int, int]]:
    """Count, by category of the paper, in its order: classes, and executed classes."""
    whole: Counter[str] = Counter()
    executed: Counter[str] = Counter()
    for row in rows:
        name = to_paper_category(row.category)
        whole[name] += 1
        executed[name] += at_least(row.level, "executed")
    return {name: (whole[name], executed[name]) for name in CATEGORIES}


def count_failures(rows: Iterable[Block]) -> dict[str, Counter[str]]:
    """Count, by the paper's class of failure, in its order, the reasons of blocks that are not executed."""
    reasons: dict[str, Counter[str]] = {name: Counter() for name in (*FAILURES, NEITHER)}
    for row in rows:
        if row.error_kind is not None and not at_least(row.level, "executed"):
            reasons[to_paper_failure(row.error_kind)][row.error_kind] += 1
    return reasons


# --- tables, each a list of Markdown lines ------------------------------------------------------------


def categories_section(rows: Sequence[Block]) -> list[str]:
    """Return the paper's Table 2: the number of classes in each of its categories."""
    if not rows:
        return []
    body = [
        [
            name,
            ", ".join(ours),
            count(whole),
            percent(whole, len(rows)),
            count(done),
            percent(done, whole),
            f"~{count(stated)}",
        ]
        for (name, (whole, done)), (stated, ours) in zip(
            count_categories(rows).items(), CATEGORIES.values(), strict=True
        )
    ]
    heads = ["category", "of ours", "classes", "%", "`executed`", "% `executed`", "paper"]
    intro = "NN-RAG's eight categories (its Table 2). Which of ours fall under which is our reading of its examples."
    return ["## By category of the paper", "", intro, "", *table(heads, body, 2)]


def failures_section(rows: Sequence[Block]) -> list[str]:
    """Return the section on the paper's classes of failure: why classes are not executed."""
    failures = count_failures(rows)
    whole = sum(kinds.total() for kinds in failures.values())
    if not whole:
        return []
    body = []
    for name, kinds in failures.items():
        stated = FAILURES[name][0] if name in FAILURES else 0
        if name == NEITHER and not kinds:
            continue
        reasons = ", ".join(f"{code_span(kind)} {count(number)}" for kind, number in _by_size(kinds))
        paper = f"~{stated} ({percent(stated, 348)})" if stated else ""
        body.append([name, reasons, count(kinds.total()), percent(kinds.total(), whole), paper])
    intro = (
        f"Of {plural(whole, 'class', 'classes')} that are not `executed`, by the four classes in which NN-RAG's paper"
        " puts its 348."
    )
    heads = ["class", "reasons", "classes", "%", "paper"]
    return ["## Failures by the paper's classes", "", intro, "", *table(heads, body, 2)]


def headline_section(manifest: Manifest) -> list[str]:
    """Return the paper's Table 3 as one table; its last line has no counterpart in the paper."""
    counts = manifest.counts
    headline = Headline.of(counts)
    if not headline.targeted:
        return []
    executed = at_least(manifest.parameters["level"], "executed")
    low, high = (f"{100 * end:.1f}" for end in wilson(headline.validated, headline.targeted))
    per_block = headline.lines / headline.extracted if headline.extracted else None
    body = [
        ["total blocks targeted", count(headline.targeted), "1,289"],
        ["successfully extracted", count(headline.extracted), "1,289"],
        ["extraction success rate", percent(headline.extracted, headline.targeted), "100 %"],
        ["validated and executable", count(headline.validated) if executed else "–", "941"],
        [
            "validation pass rate, 95 % Wilson interval",
            f"{percent(headline.validated, headline.targeted)}, {low}–{high}" if executed else "–",
            "73.0 %, 70.5–75.4",
        ],
        ["average lines per block", "–" if per_block is None else f"{per_block:,.0f}", "~180"],
        ["total generated code, lines", count(headline.lines), "~232,020"],
        ["seconds a block, all of that run", f"{manifest.measured.seconds / headline.targeted:,.2f}", "~2.5"],
    ]
    minimized = counts["lean"]
    if minimized["blocks"]:
        body.insert(6, ["average lines per lean form", f"{minimized['lines'] / minimized['blocks']:,.0f}", ""])
    intro = "All but the last line are the same in every run."
    return ["## Table 3 of NN-RAG's paper", "", intro, "", *table(["metric", "here", "paper"], body)]


def _by_size(kinds: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(kinds.items(), key=lambda item: (-item[1], item[0]))


def main() -> None:
    """Print the tables of one extraction."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a finished extraction")
    arguments = parser.parse_args()
    manifest = EXTRACTION.open(arguments.folder)
    rows = read_blocks(arguments.folder, COLUMNS)
    print("\n".join([*categories_section(rows), *failures_section(rows), *headline_section(manifest)]))


if __name__ == "__main__":
    main()
