"""The product speaks the field's language: words of a dialect that readers had to learn are found nowhere in it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))  # the benchmarks are not part of what is installed

from benchmarks.house import find_banned_words
from benchmarks.house_source import read_product

ROOT = Path(__file__).parents[1]


def test_no_banned_word_in_names_docstrings_and_messages() -> None:
    uses = [f"{use.path}: {use.word}: {use.text[:80]}" for use in find_banned_words(ROOT, read_product(ROOT))]
    assert uses == []


def test_the_words_are_seen(tmp_path: Path) -> None:
    package = tmp_path / "curate"
    package.mkdir()
    (package / "module.py").write_text(
        '"""What becomes of rows."""\n\n\n'
        "def told_rows(found: int) -> str:\n"
        '    """Return a row, given its number."""\n'
        "    donor = found  # the walls\n"
        '    return f"{donor}: nothing is told anew"\n',
        encoding="utf-8",
    )
    (tmp_path / "manifests" / "schemas").mkdir(parents=True)
    uses = set(find_banned_words(tmp_path, read_product(tmp_path, ["curate"])))
    assert {(use.kind, use.word) for use in uses} == {
        ("names", "told"),
        ("names", "found"),
        ("names", "donor"),
        ("docstrings and comments", '"What ..."'),
        ("docstrings and comments", "become of"),
        ("docstrings and comments", "walls"),
        ("strings", "told"),
        ("strings", "anew"),
    }
