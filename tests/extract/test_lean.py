"""Lean forms: which code is cut or kept, that cut code is never mistaken for other code, and the folder's report."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from extract.folder.verify import verify
from extract.minimize.header import LeanFile, lean_columns, lean_file, requires_of
from extract.minimize.stage import Leaned, Running, lean_all, list_sizes
from extract.model.blocks import load_block, show_block
from extract.model.results import Result
from extract.proofs.trace import trace_all
from extract.proofs.validate import Pair
from extract.resolve.index import Index
from manifests.publish.staged import staged
from tests.builders import extractions

FULL = '''# Gate, from alpha@1.0
#
# Block:   alpha@1.0::alpha.blocks.Gate
# Licence: MIT
# With definitions from:
#   alpha@1.0 alpha/parts.py (MIT)
#   beta@1.0 beta/parts.py (GPL-3.0-only)
# Changed: imports resolved and definitions brought together; also:
#   renamed swish -> swish_2

from typing import Optional, overload

import networkx
import torch
from torch import nn

# Named by annotations only.
Config = object


# Never made.
class Swish(nn.Module):
    """Swish."""

    def __init__(self, inplace=False):
        super().__init__()

    def forward(self, x):
        return swish_2(x)


def swish_2(x):
    return x * torch.sigmoid(x)


class Hard(nn.Module):
    slope = 6

    def __init__(self):
        super().__init__()

    def forward(self, x):
        return x.clamp(0, 6)


class Soft(nn.Module):
    def forward(self, x):
        """Softly."""
        return torch.tanh(x)


_NORMS = {"batch": nn.BatchNorm2d, "swish": Swish}
_ACTS = dict(
    soft=Soft,
    swish=Swish,
    relu=nn.ReLU,
)
_RARE = dict(
    hard=Hard,
    swish=Swish,
)
_CURVED = {
    Soft,
    Swish,
    Hard,
}


def rare(name):
    if name in _RARE:
        return _RARE[name]()
    return _ACTS[name]()


@overload
def double(x: int) -> int: ...
@overload
def double(x: float) -> float: ...
def double(x):
    return x + x


def by_graph(x):
    """With another package."""
    x = networkx.Graph(x)
    x = networkx.to_dict_of_dicts(x)
    return x


def guarded(x, fail):
    try:
        if fail:
            x = by_graph(x)
            x = x + 1
            x = x + 2
        return x
    except Exception:
        return x * 0


class Gate(nn.Module):
    """A gate."""

    def __init__(self, width: int, config: Optional[Config] = None, act="soft", deep=False, hard=None, fail=False):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 1)
        self.drop = nn.Dropout(0.5)
        self.act = rare(act)
        self.fail = fail
        self.hard = hard
        if isinstance(self.act, Hard):
            self.limit = Hard.slope
        if deep:
            # Three of them.
            self.more = nn.Sequential(
                nn.Conv2d(width, width, 1),
                nn.Conv2d(width, width, 1),
            )
        elif hard == 1:
            self.more = Hard()
        else:
            self.more = nn.Identity()

    def extra_repr(self):
        return f"fail={self.fail}"

    def __len__(self):
        n = 3
        n = n + 1
        n = n + 1
        return n

    def reset_classifier(self, n):
        self.n = n
        self.m = n
        self.k = n

    @torch.jit.ignore
    def named(self):
        a = 1
        b = 2
        return a + b

    def forward(self, x):
        if not hasattr(self, "named"):
            raise ValueError("no")
        x = self.drop(self.more(self.act(self.conv(x))))
        x = -x if type(self.act) in _CURVED else x
        if x.dim() == 3:
            raise ValueError("three dimensions")
        return double(guarded(x, self.fail))


torch.set_printoptions(precision=4)
'''
LEAN = '''from typing import Optional

import torch
from torch import nn

# Named by annotations only.
Config = object


class Hard(nn.Module):
    slope = 6

    def __init__(self, *_, **__):
        raise NotImplementedError("left out of the lean form: Hard")


class Soft(nn.Module):
    def forward(self, x):
        return torch.tanh(x)


_ACTS = dict(
    soft=Soft,
    relu=nn.ReLU,
)
_RARE = dict(
    hard=...,
    swish=...,
)
_CURVED = {
    Soft,
    Hard,
}


def rare(name):
    if name in _RARE:
        raise NotImplementedError("left out of the lean form: rare, if name in _RARE")
    return _ACTS[name]()


def double(x):
    return x + x


def guarded(x, fail):
    try:
        if fail:
            raise NotImplementedError("left out of the lean form: guarded, if fail")
        return x
    except Exception:
        raise NotImplementedError("left out of the lean form: guarded, except")


class Gate(nn.Module):
    """A gate."""

    def __init__(self, width: int, config: Optional[Config] = None, act="soft", deep=False, hard=None, fail=False):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 1)
        self.drop = nn.Dropout(0.5)
        self.act = rare(act)
        self.fail = fail
        self.hard = hard
        if isinstance(self.act, Hard):
            self.limit = Hard.slope
        if deep:
            raise NotImplementedError("left out of the lean form: Gate.__init__, if deep")
        elif hard == 1:
            self.more = Hard()
        else:
            self.more = nn.Identity()

    def extra_repr(self):
        return f"fail={self.fail}"

    def __len__(self):
        raise NotImplementedError("left out of the lean form: Gate.__len__")

    @torch.jit.ignore
    def named(self):
        raise NotImplementedError("left out of the lean form: Gate.named")

    def forward(self, x):
        if not hasattr(self, "named"):
            raise ValueError("no")
        x = self.drop(self.more(self.act(self.conv(x))))
        x = -x if type(self.act) in _CURVED else x
        if x.dim() == 3:
            raise ValueError("three dimensions")
        return double(guarded(x, self.fail))


torch.set_printoptions(precision=4)
'''
ARGUMENTS = {
    "init": {"args": ["8"], "kwargs": {}},
    "forward": {"args": ["torch.randn(2, 8, 6, 6)"], "kwargs": {}},
}
OBSERVED = {"cases": [{"inputs": {"*0": "float32 2x8x6x6"}}, {"inputs": {"*0": "float32 3x8x12x12"}}]}
#: Draws from memory that nobody wrote to, in every run anew.
CHANGES = """import os

import torch


class Gate(torch.nn.Module):
    def forward(self, x):
        return x + int.from_bytes(os.urandom(2), "big")
"""
#: Binds a local name, which is a global one too, in a branch that is never taken; and is a generator by one.
LOCAL = """import torch
from torch import nn

scale = 3


def scaled(x, twice, thrice):
    if twice:
        scale = 2
        x = x + 1
        x = x - 1
    if thrice:
        return x * scale
    return x


def parts(x, more):
    if more:
        x = x + 1
        x = x + 1
        yield x
    return


class Gate(nn.Module):
    def __init__(self, twice=False, thrice=False):
        super().__init__()
        self.flags = twice, thrice
        self.width = scale

    def forward(self, x):
        return scaled(x, *self.flags) + len(list(parts(x, False)))
"""
#: Looks for a class by a computed name, and takes its lack for an answer.
ASKS = """import torch
from torch import nn


class Extra(nn.Module):
    def forward(self, x):
        return x + 1


class Gate(nn.Module):
    def __init__(self, name="ex"):
        super().__init__()
        found = globals().get(name.title())
        self.more = nn.Identity() if found is None else found()

    def forward(self, x):
        return self.more(x)
"""
#: Asks whether a module is loaded, which tells nothing of its own names.
LOADS = """import sys
from torch import nn


class Extra(nn.Module):
    def forward(self, x):
        return x + 1


class Gate(nn.Module):
    def __init__(self, name="absent"):
        super().__init__()
        self.more = nn.ReLU() if name in sys.modules else nn.Identity()

    def forward(self, x):
        return self.more(x)
"""
#: Calls of the corpus: the block's own, two that work, one that does not, and one of a large module.
HINTS = {
    "init": [
        {"args": [width], "kwargs": kwargs, "way": "call"}
        for width, kwargs in (
            ("8", []),
            ("8", [["deep", "True"]]),
            ("'x'", []),
            ("4", [["act", "'relu'"], ["fail", "True"]]),
            ("4000", []),
        )
    ],
    "forward": [{"args": ["torch.randn(1, 4, 3, 3)"], "kwargs": [], "way": "example"}],
    "inputs": [],
}
FAILS = "from torch import nn\n\n\nclass Gate(nn.Module):\n    def forward(self, x):\n        raise ValueError('no')\n"


def pair(block: str, code: str, arguments: dict[str, Any], **more: Any) -> Running:
    return Running(Pair(block, "Gate", code, "", (), (), arguments), OBSERVED, **more)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Leaned]:
    plain = {"init": {"args": [], "kwargs": {}}, "forward": ARGUMENTS["forward"]}
    pairs = [
        pair("gate", FULL, ARGUMENTS),
        pair("sets", FULL, ARGUMENTS, hints=HINTS),
        pair("asks", ASKS, plain),
        pair("loads", LOADS, plain),
        pair("local", LOCAL, plain),
        pair("changes", CHANGES, plain),
        pair("unmade", FAILS, ARGUMENTS),
    ]
    with Index(tmp_path_factory.mktemp("index") / "facts.sqlite") as index:
        return {one.block: one for one in lean_all(pairs, index, jobs=1)}


def test_what_stays(found: dict[str, Leaned]) -> None:
    lean = found["gate"].lean
    assert lean is not None, found["gate"].error
    assert lean.text.strip() == LEAN.strip()
    assert lean.cut["method"] == ["Gate.reset_classifier"]
    assert set(lean.cut["definition"]) == {"Swish", "swish_2", "by_graph"}


def test_what_other_calls_of_the_corpus_reach_stays(found: dict[str, Leaned]) -> None:
    """Arguments that were tried and work are checked, too; if one raises an error, both forms raise it."""
    one = found["sets"]
    assert one.lean is not None, one.error
    given = [(arguments["init"], arguments["forward"]["args"]) for arguments in one.sets]
    assert given == [
        ({"args": ["8"], "kwargs": {"deep": "True"}}, ARGUMENTS["forward"]["args"]),
        ({"args": ["4"], "kwargs": {"act": "'relu'", "fail": "True"}}, ["torch.randn(1, 4, 3, 3)"]),
    ]
    assert "nn.Conv2d(width, width, 1),\n                nn.Conv2d(width, width, 1),\n" in one.lean.text
    assert "raise NotImplementedError" not in one.lean.text.partition("def guarded")[2].partition("class Gate")[0]
    assert 'if name in _RARE:\n        raise NotImplementedError("left out' in one.lean.text
    x = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(1))
    results = []
    for code in (FULL, one.lean.text):
        gate = run(code, 8, None, "soft", True)
        torch.manual_seed(2)
        results.append(gate(x))
    assert torch.equal(*results)
    head = lean_file(one, FULL, ARGUMENTS, ("a", "b"), {}, {"a": "MIT"}).code.partition("\n\n")[0]
    assert "with (8, deep=True) and forward(torch.randn(2, 8, 6, 6)), with (4, act='relu', fail=True)" in " ".join(
        head.replace("#  ", "").split()
    )


def test_what_is_asked_for_by_a_string_is_there(found: dict[str, Leaned]) -> None:
    lean = found["asks"].lean
    assert lean is not None
    with pytest.raises(NotImplementedError, match="left out of the lean form: Extra"):
        run(lean.text, "extra")


def test_what_is_loaded_tells_nothing_of_definitions(found: dict[str, Leaned]) -> None:
    lean = found["loads"].lean
    assert lean is not None, found["loads"].error
    assert "in sys.modules" in lean.text
    assert "Extra" not in lean.text


def test_scopes_stay_as_they_are(found: dict[str, Leaned]) -> None:
    lean = found["local"].lean
    assert lean is not None
    assert lean.text.split() == LOCAL.replace("import torch\n", "", 1).split()
    with pytest.raises(UnboundLocalError):
        run(lean.text, False, True)(torch.ones(1))


def test_no_lean_form_without_proof(found: dict[str, Leaned]) -> None:
    assert found["changes"].lean is None
    assert (found["changes"].error or "").startswith("not as the full form: eval")
    assert found["unmade"].lean is None
    assert (found["unmade"].error or "").startswith("does not run again: TypeError")


def run(code: str, *arguments: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    names: dict[str, Any] = {"__name__": "block"}
    exec(compile(code, "block.py", "exec"), names)
    torch.manual_seed(0)
    gate: Callable[[torch.Tensor], torch.Tensor] = names["Gate"](*arguments)
    return gate


@given(
    st.sampled_from(["soft", "swish", "relu", "hard"]),
    st.booleans(),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
    st.sampled_from([(2, 8, 6, 6), (8, 5, 5)]),
)
def test_never_another_result(act: str, deep: bool, hard: int | None, fail: bool, shape: tuple[int, ...]) -> None:
    """On any input, a lean form either does the same as the full one, or stops."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))

    def of(code: str) -> torch.Tensor | BaseException:
        try:
            gate = run(code, 8, None, act, deep, hard, fail)
            torch.manual_seed(2)
            return gate(x)
        except Exception as error:  # noqa: BLE001
            return error

    full, lean = of(FULL), of(LEAN)
    if isinstance(lean, NotImplementedError):
        assert "left out of the lean form" in str(lean)
    elif isinstance(lean, KeyError):
        assert act == "swish"
    elif isinstance(lean, BaseException):
        assert type(lean) is type(full)
    else:
        assert isinstance(full, torch.Tensor)
        assert torch.equal(full, lean)


def test_a_file_says_what_it_is_good_for(found: dict[str, Leaned]) -> None:
    lean = found["gate"].lean
    assert lean is not None
    root, parts, other = (
        ("alpha@1.0", "alpha/blocks.py"),
        ("alpha@1.0", "alpha/parts.py"),
        ("beta@1.0", "beta/parts.py"),
    )
    places = {"Gate": root, "rare": parts, "swish_2": other}
    file = lean_file(found["gate"], FULL, ARGUMENTS, root, places, {"alpha@1.0": "MIT", "beta@1.0": "GPL-3.0-only"})
    assert (file.license, file.requires) == ("MIT", ())
    head = file.code.partition("\n\n")[0]
    assert "#   alpha@1.0 alpha/parts.py (MIT)" in head
    assert "beta" not in head
    assert "swish_2 " not in head.partition("# Cut:")[0]
    assert "construction with (8) and forward(torch.randn(2, 8, 6, 6))" in " ".join(head.replace("#  ", "").split())
    assert "definitions Swish, swish_2, by_graph" in " ".join(head.replace("#  ", "").split())
    assert all(len(line) <= 120 for line in head.split("\n"))


def test_requirements_are_the_imports() -> None:
    assert requires_of("import os\nimport torch\n\n\ndef f():\n    from cv2 import x\n    import yaml\n") == (
        "PyYAML",
        "opencv-python",
    )


def test_sizes_are_those_that_were_seen_to_work() -> None:
    assert list_sizes(OBSERVED) == [[[3, 8, 12, 12]]]
    assert list_sizes({"cases": [{"inputs": {"x": "float32 2"}}, {"inputs": {"x": "3"}}]}) == []


def test_sizes_that_tracing_met_are_proved_too(tmp_path: Path) -> None:
    code = FULL.replace("import networkx\n", "").replace("x.dim() == 3", "x.dim() == 9")
    one = pair("gate", code, ARGUMENTS)
    with Index(tmp_path / "facts.sqlite") as index:
        (traced,) = trace_all([one.pair], index, jobs=1)
    assert traced.answer is not None, traced.error
    assert traced.answer["sizes"].keys() == {"B", "H", "W"}
    *seen, met = list_sizes(OBSERVED, traced.answer)
    assert seen == list_sizes(OBSERVED)
    ((batch, width, height, side),) = met
    assert width == 8
    assert (batch, height, side) != (2, 6, 6)
    assert {batch, height, side} <= {size for sizes in traced.answer["sizes"].values() for size in sizes}


# --- in a folder -----------------------------------------------------------------------------------------------------


def results(folder: Path, lean: LeanFile) -> list[Result]:
    of = extractions.source(folder, "beta@1.0")
    row = extractions.block(of, "Made", level="backward", error_kind=None, error=None, **lean_columns(lean))
    return [Result(row.model_copy(update={"lean_error": None}), ((of.name, "beta/blocks.py"),))]


def written(folder: Path, license_: str) -> Path:
    of = extractions.source(folder, "beta@1.0")
    code = extractions.code_of("beta@1.0::beta.blocks.Made", license_)
    rows = results(folder, LeanFile(code, (), license_))
    extractions.write(folder / "out", rows, [of], level="backward")
    return folder / "out"


def faults(folder: Path) -> str:
    return "\n".join(str(check) for check in verify(folder, jobs=1) if not check.ok)


def test_a_folder_with_lean_forms_is_verified(tmp_path: Path) -> None:
    out = written(tmp_path, "GPL-3.0-only")
    assert (out / "lean" / "beta@1.0" / "beta.blocks.Made.py").is_file()
    assert not faults(out)
    report = (out / "report.md").read_text()
    assert "1 of 1 block that run forward have a lean form" in report
    counts = json.loads((out / "manifest.json").read_text())["counts"]
    assert counts["lean"] == {"blocks": 1, "without": 0, "lines": 10, "full_lines": 10}
    (out / "lean" / "beta@1.0" / "beta.blocks.Made.py").write_text("import torch\n")
    assert "is not its lean form" in faults(out)


@pytest.mark.parametrize("license_", ["GPL-3.0-only", "MIT"])
def test_publishing_goes_by_the_lean_licence_where_the_full_code_stays_out(tmp_path: Path, license_: str) -> None:
    out = written(tmp_path, license_)
    with staged(out) as ready:
        (row,) = pq.read_table(ready.files["blocks.parquet"]).to_pylist()
        assert row["code"] is None
        assert (row["lean_code"] is not None) == (license_ == "MIT")
        assert ("lean/beta@1.0/beta.blocks.Made.py" in ready.files) == (license_ == "MIT")
        assert "blocks/beta@1.0/beta.blocks.Made.py" not in ready.files
        assert ready.withheld[0].license == "GPL-3.0-only"


def test_publishing_goes_by_the_full_licence_where_the_full_code_is_published(tmp_path: Path) -> None:
    """The source files of a lean form are a subset of those of its full form."""
    of = extractions.source(tmp_path, "alpha@1.0")
    row = extractions.block(of, "Made", level="backward", error_kind=None, error=None)
    lean = lean_columns(LeanFile(extractions.code_of(row.block, "MIT"), (), "MIT"))
    result = Result(row.model_copy(update={**lean, "lean_error": None}), ((of.name, "alpha/blocks.py"),))
    extractions.write(tmp_path / "out", [result], [of], level="backward")
    with staged(tmp_path / "out") as ready:
        (found,) = pq.read_table(ready.files["blocks.parquet"]).to_pylist()
        assert found["code"] is not None
        assert found["lean_code"] is not None
        assert not ready.withheld


def test_only_a_lean_form_is_shown_and_loaded_where_only_that_was_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = written(tmp_path, "MIT")
    with staged(out) as ready:
        for name, path in ready.files.items():
            (tmp_path / "pulled" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "pulled" / name).write_bytes(path.read_bytes())
    show_block(tmp_path / "pulled", "Made")
    told = capsys.readouterr().out
    assert "lean/beta@1.0/beta.blocks.Made.py (10 lines, MIT), requires nothing" in told
    assert "class Made(torch.nn.Module)" in told
    assert load_block(tmp_path / "pulled", "Made").__name__ == "Made"
    assert load_block(out, "Made", lean=True) is load_block(tmp_path / "pulled", "Made")
    assert load_block(out, "Made") is not load_block(out, "Made", lean=True)
