"""LEMUR's score of a file's code: what counts, and what its messages cost."""

import io
from pathlib import Path

import pytest

from lemur_core.files.errors import UserError
from lemur_core.source.quality import code_quality


def test_quality_by_pyflakes() -> None:
    untidy = f"import os\nimport torch\n\ndef f(x):\n    y = torch.ones(1)\n    return x + undefined\n# {'x' * 120}\n"
    found = code_quality(untidy, "net", python=None)
    assert found.by == "pyflakes"
    assert found.owner == "pyflakes; LEMUR's is by Pylint, which is not installed here, and usually lower"
    assert found.findings == {"error": 1, "warning": 2, "convention": 1}
    assert found.score == 0.90


def test_quality_counts_complexity() -> None:
    body = "".join(f"    if x == {i}:\n        return {i}\n" for i in range(10))
    simple, complicated = f"def f(x):\n{body}", f"def f(x):\n    assert x\n{body}    return x and 1 or 2\n"
    assert code_quality(simple, "net", python=None).score == 0.99  # 11 ways through it
    assert code_quality(simple.replace("    if x == 9:\n        return 9\n", ""), "n", python=None).score == 1.0
    assert code_quality(complicated, "net", python=None).findings == {"complexity": 1}
    whole = "class A:\n" + "".join(f"    {line}\n" for line in complicated.splitlines())
    assert code_quality(whole, "net", python=None).findings == {"complexity": 2}  # the class and its method


def test_quality_by_pylint_where_it_is(tmp_path: Path) -> None:
    """An interpreter whose Pylint is a script of ours: what counts is what its messages cost."""
    kinds = ["error", "warning", "convention", "refactor", "refactor", "fatal"]
    python = tmp_path / "python"
    report = io.StringIO()
    print("[" + ", ".join(f'{{"type": "{kind}"}}' for kind in kinds) + "]", file=report)
    python.write_text(
        f"#!/bin/sh\ncase \"$2\" in -c) echo 3.3.9;; *) cat <<'END'\n{report.getvalue()}END\nexit 30;; esac\n"
    )
    python.chmod(0o755)
    found = code_quality("x = 1\n", "net", python=str(python))
    assert (found.by, found.score) == ("pylint 3.3.9", 0.90)
    assert found.owner == "pylint 3.3.9, as LEMUR computes it"
    python.write_text("#!/bin/sh\ncase \"$2\" in -c) echo 3.3.9;; *) echo broken >&2; echo '{';; esac\n")
    with pytest.raises(UserError, match=r"-m pylint: returned no JSON: broken; repair or remove Pylint"):
        code_quality("x = 1\n", "net", python=str(python))
