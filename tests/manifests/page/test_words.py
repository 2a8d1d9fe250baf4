"""The full-text index of a page: every word of its texts and its code, and no word of what is compared or left out."""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.describe.picture import Box
from manifests.folders import frame, shards
from manifests.folders.frame import code, facts, graph, note, results, sentences, table, versions, write_page
from manifests.folders.shards import WordIndex
from tests.manifests.page.test_frame import many, page_of, read_page, read_shards


def read_index(files: list[Any]) -> dict[str, tuple[list[int], list[int]]]:
    """Words with their entries, decoded bit by bit, unlike the page's script."""
    index = {}
    for terms, *kinds in files:
        for word, *lists in zip(terms, *kinds, strict=True):
            index[word] = tuple(map(decode, lists))
    return index  # type: ignore[return-value]


def decode(text: str) -> list[int]:
    entries, bits = [], ""
    for character in text:
        number = ord(character) - 48
        bits = f"{number & 31:05b}" + bits
        if number < 32:
            entries.append((entries[-1] if entries else -1) + int(bits, 2))
            bits = ""
    return entries


def unpack(packed: list[str]) -> list[Any]:
    return [json.loads(zlib.decompress(base64.b64decode(part))) for part in packed]


@given(st.lists(st.sets(st.sampled_from(["Conv2d", "gate", "x_1", "_y"])), max_size=120), st.integers(1, 3_000))
def test_the_entries_of_a_word_come_back(entries: list[set[str]], step: int) -> None:
    index = WordIndex()
    for at, its in enumerate(entries):
        index.add(at * step, sorted(its), [code("C", " + ".join(sorted(its)))])
    _, packed = index.pack(10**9)
    numbers = {
        word.lower(): [at * step for at, its in enumerate(entries) if word in its] for its in entries for word in its
    }
    assert read_index(unpack(packed)) == {word: (at, at) for word, at in numbers.items()}


def test_which_words_are_found() -> None:
    index = WordIndex()
    index.add(0, ["a note"], [
        facts("Heading", [("label", "squeeze-and-excite"), ("two", ["first", {"text": "linked", "path": "hidden"}])]),
        table("Heading", ["head"], [["cell", 3]]),
        note("Heading", "paragraph"),
        results("Heading", [("img-classification", "cifar-10", "acc", [(1, 0.5)])]),
        sentences("Heading", ["a softmax over 1,000"]),
        graph("Heading", [Box("conv2d", ("3×3",), (), "learned")]),
        code("Heading", "self.attn = nn.MultiheadAttention(dim)  # Größe", "hidden.py"),
        versions("Heading", "kept_name", [("caption", "removed_name")]),
    ])  # fmt: skip
    found = read_index(unpack(index.pack(10**9)[1]))
    text = {word for word, (of_text, _) in found.items() if of_text}
    assert text == {"a", "note", "squeeze-and-excite", "first", "linked", "cell", "paragraph", "img-classification",
                    "cifar-10", "acc", "softmax", "over", "conv2d"}  # fmt: skip
    assert set(found) - text == {"self", "attn", "nn", "multiheadattention", "dim", "größe", "kept_name"}


def test_rare_words_go_first_where_space_is_short() -> None:
    index = WordIndex()
    for at in range(64):
        index.add(at, [f"only_{at}", *(["pair"] if at < 2 else []), *(["half"] if at % 2 else []), "everywhere"], [])
    least, packed = index.pack(10**9)
    assert (least, len(read_index(unpack(packed)))) == (1, 67)
    sizes = [len("".join(WordIndex.pack(index, limit)[1])) for limit in (10**9, 300, 120, 10)]
    assert sizes == sorted(sizes, reverse=True)
    least, packed = index.pack(120)
    assert least > 1
    assert set(read_index(unpack(packed))) == {
        word for word, n in {"pair": 2, "half": 32, "everywhere": 64}.items() if n >= least
    }
    assert index.pack(10) == (0, [])


def test_a_large_index_has_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_FILE_CHARACTERS", 200)
    monkeypatch.setattr(frame, "LEAST", 10**7)
    write_page(tmp_path, page_of(many(100)))
    about = read_page(tmp_path)[0]["library"]["words"]
    assert about["files"] > 1
    files = read_shards(tmp_path)
    assert len(files) == about["first"] + about["files"]
    assert read_index(files[about["first"] :])["line"] == ([], list(range(100)))
