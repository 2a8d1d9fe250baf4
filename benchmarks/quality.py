"""What stays and what leaks, in both profiles, by the exact join: `python -m benchmarks.quality [SOURCE]`.

Claims: strict leaves no near-duplicate pair, removes nothing without a kept near-duplicate, and gives no test record a
twin in train. Profile nn-dup decides as the released nn-dup does (`benchmarks.versus_nndup` checks that row by row), so
its column is the peer's. Both are measured with the same shingles, those of the strict profile.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from curate.model.corpus import CodeFile, LoadedRecords, read_corpus
from curate.model.options import CurateOptions
from curate.published.outcome import CurationOutcome
from curate.run.pipeline import decide
from curate.sources import open_source
from lemur_core.files.cache import cache_folder
from lemur_core.similarity.join import exact_pairs

_TWIN = 0.80


def main(source: str) -> None:
    """Measure both profiles on a source and print a table."""
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch, CodeFile(Path(scratch) / "codes") as codes:
        corpus = read_corpus(open_source(source), codes, "abstract", None)
        columns = {
            profile: quality(corpus, decide(corpus, CurateOptions(profile=profile, graph="off"), None))
            for profile in ("nn-dup", "strict")
        }
    print(f"{'':<52}{'nn-dup':>10}{'strict':>10}")
    for name in columns["strict"]:
        print(f"{name:<52}{columns['nn-dup'][name]:>10}{columns['strict'][name]:>10}")


def quality(corpus: LoadedRecords, outcome: CurationOutcome) -> dict[str, str]:
    """Counts over kept and removed codes, from all pairs with a token Jaccard of at least 0.80."""
    features = corpus.features
    pairs = exact_pairs(features, np.unique(features.shingle_set[features.shingle_set >= 0]), _TWIN)
    codes_of: dict[int, list[int]] = {}
    for code, shingle_set in enumerate(features.shingle_set.tolist()):
        codes_of.setdefault(shingle_set, []).append(code)
    kept = set(outcome.kept)
    close = 0
    covered: set[int] = set()
    twins: set[int] = set()
    joined = [(a, b, value) for a, b, value in zip(pairs.a.tolist(), pairs.b.tolist(), pairs.jaccard, strict=True)]
    joined += [(number, number, 1.0) for number in codes_of if number >= 0]
    for a, b, value in joined:
        left, right = [c for c in codes_of[a] if c in kept], [c for c in codes_of[b] if c in kept]
        if value >= 0.90:
            close += len(left) * len(right) if a != b else len(left) * (len(left) - 1) // 2
            covered.update(codes_of[a] if right else (), codes_of[b] if left else ())
        for one, other in ((left, right), (right, left)):
            if any(outcome.splits[code] == "train" for code in other):
                twins.update(code for code in one if outcome.splits[code] == "test")
    lexical = {int(corpus.code_of_row[row]) for row, d in enumerate(outcome.decisions) if d.stage == "lexical"}
    test = sum(split == "test" for split in outcome.splits.values())
    return {
        "kept": f"{len(kept):,}",
        "kept pairs with a Jaccard of at least 0.90": f"{close:,}",
        "lexically removed": f"{len(lexical):,}",
        "of those, no kept record with a Jaccard >= 0.90": f"{len(lexical - covered):,}",
        "test records": f"{test:,}",
        "of those, with a twin in train (Jaccard >= 0.80)": f"{len(twins):,}",
    }


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "lemur")
