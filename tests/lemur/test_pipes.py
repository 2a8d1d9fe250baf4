"""Pipes and devices where a command reads or writes a file: refused in one line, before anything waits for them."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extract.extractor import read_names
from extract.migrate.network import read_target_network
from lemur.experts.settings import load_settings
from lemur.synthesis.attempts.plan import read_block_names
from lemur_core.files.errors import SpecialFileError
from manifests.folders.reading import read_bytes
from manifests.records.corpus import load_corpus
from tests.builders.suites import read_table, table
from train.model.recipe import load_recipe, read_code, read_prm

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    return tmp_path / "pipe.py"


@table(__file__, "pipes.md", "A command refuses pipes and devices", globals())
def test_a_command_refuses_pipes_and_devices(line: str, pipe: Path, lemur_here: Command) -> None:
    done = lemur_here(*line.replace("PIPE", "pipe.py").split(), cwd=pipe.parent)
    assert (done.returncode, done.stdout) == (1, "")
    name = "/dev/zero" if "/dev/zero" in line else "pipe.py"
    assert done.stderr == f"lemur: {name}: is a pipe, a socket or a device, not a file; name a file\n"


READERS: dict[str, Callable[[Path], Any]] = read_table(
    __file__,
    "pipes.md",
    "Readers",
    globals()
    | {
        "load_corpus": load_corpus,
        "load_recipe": load_recipe,
        "load_settings": load_settings,
        "read_block_names": read_block_names,
        "read_bytes": read_bytes,
        "read_code": read_code,
        "read_names": read_names,
        "read_prm": read_prm,
        "read_target_network": read_target_network,
    },
)


@pytest.mark.parametrize("reader", READERS)
def test_a_function_refuses_pipes(reader: str, pipe: Path) -> None:
    with pytest.raises(SpecialFileError, match=r"pipe\.py: is a pipe, a socket or a device, not a file"):
        READERS[reader](pipe)
