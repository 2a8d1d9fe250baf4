"""What a pretrained model learns and is asked: nothing of what is held out, and equally much in each arm."""

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.teaching_corpus import Text
from benchmarks.teaching_pretrained import report, unfenced
from benchmarks.teaching_questions import Settings, ask, find_leaks, find_lineage

CODE = """import torch.nn as nn


def helper(size):
    return size


class Net(nn.Module):
    def __init__(self, in_shape, out_shape):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, {width}, 3), nn.ReLU(), nn.Conv2d({width}, 8, 3), nn.Flatten())

    def forward(self, x):
        return self.body(x)
"""


def text_of(code: str, group: str = "") -> Text:
    return Text(hashlib.sha256(code.encode()).hexdigest(), code, group=group)


def test_a_question_tells_what_a_file_defines_and_not_how() -> None:
    assert ask(CODE.format(width=64)) == (
        "Write a Python file with a PyTorch network. It defines\n- function helper(size)\n"
        "- class Net: __init__(in_shape, out_shape), forward(x)\nLayers of torch.nn: Sequential, Conv2d, ReLU, Flatten."
    )


def test_near_copies_of_what_is_held_out_are_found_whatever_their_comments_and_sizes() -> None:
    held, other = text_of(CODE.format(width=64)), text_of("import math\n\nprint(math.pi, math.e, math.tau)\n")
    near = text_of("# another head\n" + CODE.format(width=64).replace("\n\n", "\n# and more\n\n"))
    assert find_leaks([held], [near, other]) == {near.id}
    assert find_leaks([other], [near, held]) == set()
    half = text_of(CODE.format(width=64) + "\n".join(f"def f{at}(a, b):\n    return a + b * {at}" for at in range(9)))
    assert find_leaks([held], [half]) == set()


def test_what_was_removed_for_something_removed_for_a_held_one_is_of_its_lineage(tmp_path: Path) -> None:
    rows = [("a", "a"), ("b", "a"), ("c", "b"), ("e", "e"), ("f", "e")]
    table = [{"id": id_, "canonical": over} for id_, over in rows]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "decisions.parquet")
    assert find_lineage(tmp_path, {"a"}) == {"b", "c"}
    assert find_lineage(tmp_path, {"f"}) == set()


@pytest.mark.parametrize(
    ("answer", "code"), [("x = 1\n", "x = 1\n"), ("Here:\n```python\nx = 1\n```\nDone", "x = 1\n"), ("```\nx", "x")]
)
def test_code_is_taken_out_of_its_fence(answer: str, code: str) -> None:
    assert unfenced(answer) == code


def test_the_table_pairs_each_arm_with_the_untouched_model_by_group() -> None:
    held = [text_of(CODE.format(width=width), f"g{width}") for width in (8, 64, 128)]
    rows = [
        {"arm": arm, "seed": seed, "parameters": 100, "cpu": 1.0, "bits": {one.id: [bits, 100] for one in held}}
        | ({} if arm == "untouched" else {"train_cpu": 2.0})
        for arm, seed, bits in (("untouched", 0, 80.0), ("graphs", 0, 50.0), ("graphs", 1, 60.0))
    ]
    lines = report(rows, held, Settings(windows=2, context=10, rank=0))
    assert lines[0].startswith("\n3 codes of as many groups, 300 bytes; 20 tokens and 1.2e+04 FLOP a run, 2 to 2 CPU s")
    [row] = [line for line in lines if "our snapshot with graphs" in line]
    assert "0.550 (0.500 to 0.600)" in row
    assert "-0.250 (-0.250 to -0.250)" in row
    assert "-0.300 to -0.200" in row
