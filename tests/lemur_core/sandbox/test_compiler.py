"""torch's compiler stays away until something is compiled, and is then what it always is."""

import subprocess
import sys

import pytest

from tests.builders.suites import read_files, read_table

TEXTS = read_files(__file__, "compiler.md")


_THEN = read_table(__file__, "compiler.md", "Then", globals())


@pytest.mark.slow
@pytest.mark.parametrize("then", _THEN.values(), ids=_THEN)
def test_it_comes_when_it_is_asked_for(then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", TEXTS["_START"] + then + "\n" + TEXTS["_END"]], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
