"""Records that `lemur curate --graph off` keeps, by thresholds: `python -m benchmarks.sensitivity [SOURCE]`.

Down a column one sees what the text decides, along a row what the structure adds. Where neighboring counts differ
little, the snapshot depends little on the choice; where they jump, look at records between the two (`lemur show`).
"""

import sys
import tempfile

from curate import CurateOptions, curate
from lemur_core.files.markdown import count, percent, table

LEXICAL = (0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 1.00)
STRUCTURAL = (0.80, 0.85, 0.90, 0.95, 1.00)


def main(source: str = "lemur") -> None:
    """Curate a source at each pair of thresholds, and print the table; features are computed once."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for lexical in LEXICAL:
            cells = [f"{lexical:.2f}"]
            for structural in STRUCTURAL:
                options = CurateOptions(lexical_threshold=lexical, structural_threshold=structural, graph="off")
                counts = curate(source, out=f"{scratch}/snapshot", options=options, force=True).manifest.counts
                cells.append(f"{count(counts['rows']['kept'])} ({percent(counts['rows']['kept'], counts['codes'])})")
            rows.append(cells)
    print("\n".join(table(["lexical \\ structural", *(f"{value:.2f}" for value in STRUCTURAL)], rows)))


if __name__ == "__main__":
    main(*sys.argv[1:])
