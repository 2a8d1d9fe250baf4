"""`Snapshot.novelty`: loaded once, asked by threads, with no torch for the text."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from curate import Snapshot
from curate.published.novel import novel
from lemur_core.files.errors import UsageError, UserError
from tests.builders.suites import read_files
from tests.curate.test_novel import ALL, snapshot_of

TEXTS = read_files(__file__, "novel.md")


@pytest.fixture(scope="module")
def codes(network: Callable[..., str]) -> dict[str, str]:
    return {"base": network(ALL), "copy": network((*ALL, 0)), "other": network((6, 8, 4))}


@pytest.fixture(scope="module")
def snapshot(codes: dict[str, str], warm: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    warm(codes.values())
    return Snapshot(snapshot_of(tmp_path_factory.mktemp("novelty"), codes, graph="off"))


def test_the_nearest_by_each_measure(snapshot: Snapshot, codes: dict[str, str], network: Callable[..., str]) -> None:
    novelty = snapshot.novelty(codes["base"])
    assert (novelty.verdict, novelty.known) == ("known", True)
    assert novelty.reason == "the same code, near by text, near by structure: base"
    for nearest in (novelty.text, novelty.structure):
        assert nearest is not None
        assert (nearest.name, nearest.similarity) == ("base", 1.0)
        assert nearest.id == novelty.id
    assert (novelty.graph, novelty.behavior) == (None, None)
    assert novelty.error == "not_traced: there are no graphs to compare with"
    with pytest.raises(FrozenInstanceError):
        novelty.verdict = "novel"  # type: ignore[misc]

    new = snapshot.novelty(network((9, 3, 1, 10)), graph=False)
    assert (new.verdict, new.error) == ("novel", "not_traced: graph=False")
    assert new.text is not None
    assert new.reason == f"nearest is {new.nearest[0].name}"
    assert 0 < new.text.similarity < 0.9


def test_a_removed_code_is_known(snapshot: Snapshot, codes: dict[str, str]) -> None:
    assert [*snapshot.decisions[~snapshot.decisions.kept].nn] == ["copy"]
    novelty = snapshot.novelty(codes["copy"])
    assert novelty.reason == "the same code, near by text, near by structure: copy"
    assert novelty.nearest[0].stands_for_it == "base"


def test_the_command_gives_the_same(snapshot: Snapshot, codes: dict[str, str], network: Callable[..., str]) -> None:
    for code in (*codes.values(), network((9, 3))):
        assert list(snapshot.novelty(code).nearest) == list(novel({"it": code}, [snapshot.folder]).nearest[0])


def test_threads_get_the_answers_of_one(snapshot: Snapshot, network: Callable[..., str]) -> None:
    asked = [network(tuple(range(number, 12))) for number in range(10)] * 4
    alone = [Snapshot(snapshot).novelty(code) for code in asked[:10]] * 4
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(Snapshot(snapshot).novelty, asked)) == alone


def test_what_cannot_be_compared_is_one_line(snapshot: Snapshot, codes: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"^network.py: not Python: line 1: "):
        snapshot.novelty("def (")
    with pytest.raises(UsageError, match=r"^task dreams: not known; one of img-classification, "):
        snapshot.novelty(codes["base"], task="dreams")
    assert pickle.loads(pickle.dumps(snapshot)).novelty(codes["base"]).known


def test_text_needs_no_torch(snapshot: Snapshot, codes: dict[str, str]) -> None:
    script = "import sys; from curate import Snapshot; n = Snapshot(sys.argv[1]).novelty(sys.argv[2], graph=False)"
    command = [sys.executable, "-P", "-c", f"{script}; print(n.verdict, 'torch' in sys.modules)"]
    ended = subprocess.run([*command, snapshot.folder, codes["base"]], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("known False\n", "")


@pytest.mark.slow
def test_graphs_and_numbers_are_compared_on_one_server(tmp_path: Path) -> None:
    plain, rewritten = TEXTS["PLAIN"], TEXTS["REWRITTEN"]
    # Two of one computation: both are measured, and the numbers of the kept one are in the snapshot.
    snapshot = Snapshot(snapshot_of(tmp_path, {"plain": plain, "again": rewritten}, graph="survivors"))
    (kept,) = snapshot.records.itertuples()
    assert kept.behavior is not None
    for text in (plain, rewritten):  # one of them was removed for its graph; its text leads to it where none is made
        assert snapshot.novelty(f"# again\n{text}", graph=False).known
    other = rewritten.replace("max_pool2d(found, 2)", "max_pool2d(found, 2, 2)") + "\n# it pools likewise\n"
    wider = rewritten.replace("WIDTH = 8", "WIDTH = 6")
    asked = [other, wider, wider.replace(".relu()", ".tanh()")] * 2
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(snapshot.novelty, asked))
    assert results[:3] == results[3:]
    same, widths, different = results[:3]
    assert same.known
    assert same.graph is not None
    assert same.graph.similarity == 1.0
    assert (widths.verdict, widths.nearest[0].agreement, widths.behavior) == ("novel", "widths", None)
    assert (different.verdict, different.nearest[0].agreement) == ("novel", "different")
    assert [result.error for result in results] == [None] * 6
