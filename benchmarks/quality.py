"""What nn-dup and `lemur curate` keep and leak, by the exact join: `python -m benchmarks.quality [SOURCE]`.

Claims: ours leaves no near-duplicate pair, removes nothing without a kept near-duplicate, and gives no test record a
twin in train. The released nn-dup runs on the same rows; both are measured with our shingles.
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.versus_nndup import read_peer, run_peer
from curate.model.corpus import CodeFile, LoadedRecords, read_corpus
from curate.model.options import CurateOptions
from curate.run.pipeline import decide
from curate.sources import open_source
from lemur_core.files.cache import cache_folder
from lemur_core.similarity.join import exact_pairs

_TWIN = 0.80


def main(source: str) -> None:
    """Measure both on a source and print a table."""
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch, CodeFile(Path(scratch) / "codes") as codes:
        rows, out = Path(scratch) / "rows.parquet", Path(scratch) / "peer"
        opened = open_source(source)
        corpus = read_corpus(opened, codes, None)
        pq.write_table(pa.Table.from_batches(list(opened.batches())).drop_columns(["problem"]), rows)
        run_peer(rows, out)
        peer = read_peer(out)
        code_of = corpus.code_of_row.tolist()
        outcome = decide(corpus, CurateOptions(graph="off"), None)
        lexical = {code_of[row] for row, decision in enumerate(outcome.decisions) if decision.stage == "lexical"}
        theirs = {code_of[row]: split for row, split in peer.splits.items()}
        columns = (
            quality(corpus, theirs, {code_of[row] for row, stage in peer.stages.items() if stage == "lexical"}),
            quality(corpus, outcome.splits, lexical),
        )
    print(f"{'':<52}{'nn-dup':>10}{'ours':>10}")
    for name in columns[0]:
        print(f"{name:<52}{columns[0][name]:>10}{columns[1][name]:>10}")


def quality(corpus: LoadedRecords, splits: Mapping[int, str], lexical: set[int]) -> dict[str, str]:
    """Counts over kept and removed codes, from all pairs with a token Jaccard of at least 0.80.

    Args: splits: by kept code. lexical: codes that were removed as near by text.
    """
    features = corpus.features
    pairs = exact_pairs(features, np.unique(features.shingle_set[features.shingle_set >= 0]), _TWIN)
    codes_of: dict[int, list[int]] = {}
    for code, shingle_set in enumerate(features.shingle_set.tolist()):
        codes_of.setdefault(shingle_set, []).append(code)
    kept = set(splits)
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
            if any(splits[code] == "train" for code in other):
                twins.update(code for code in one if splits[code] == "test")
    test = sum(split == "test" for split in splits.values())
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
