"""One snapshot with conversations of small networks, made once in the real sandbox."""

import io
import json
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from curate.model.options import CurateOptions
from curate.run.pipeline import curate
from tests.builders.suites import read_files
from tests.curate.conftest import MemorySource

Row = dict[str, Any]

PRM = {"lr": 0.1, "momentum": 0.9, "transform": "norm_32", "batch": 64}
NETWORKS = read_files(__file__, "networks.md")
NETWORKS["long"] = NETWORKS["long"].replace("...", ", ".join(map(str, range(900))), 1)
MAX_TOKENS = 1_500


def chat_rows() -> list[Row]:
    """Three rows of each network: two epochs, and a second benchmark."""
    rows = []
    for place, (name, code) in enumerate(NETWORKS.items()):
        prm = PRM if name != "unknown" else {"lr": 0.1}
        task, dataset = ("img-captioning", "coco") if name == "captions" else ("img-classification", "cifar-10")
        base = {"nn": f"net-{name}", "nn_code": code, "metric": "acc", "duration": 1.0, "prm": json.dumps(prm)}
        base |= {"task": None if name == "blocks" else task, "dataset": dataset}  # run as the usual task
        value = 0.5 + place / 64
        rows += [base | {"epoch": 1, "accuracy": value}, base | {"epoch": 3, "accuracy": value + 1 / 1024}]
        rows.append(base | {"epoch": 1, "accuracy": 0.75, "metric": "iou"})
    return rows


def make_chat(out: Path, rows: list[Row], **changed: Any) -> Path:
    options = CurateOptions(**({"chat": True} | changed))
    with redirect_stderr(io.StringIO()), pytest.MonkeyPatch.context() as patch:  # lines of progress
        patch.setattr("curate.folder.chat.MAX_TOKENS", MAX_TOKENS)
        curate(MemorySource(rows), out, options, jobs=1)
    return out


@pytest.fixture(scope="session")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snapshot of all networks; not to be changed."""
    return make_chat(tmp_path_factory.mktemp("chat") / "snapshot", chat_rows())


def read_chat(folder: Path) -> dict[tuple[str, str], Row]:
    """The conversations of a folder by network and kind; their contents also as system, user, assistant."""
    found = {}
    for path in sorted(folder.glob("data/chat/*.parquet")):
        for row in pq.read_table(path).to_pylist():
            contents = {message["role"]: message["content"] for message in row["messages"]}
            key = row["nn"].removeprefix("net-"), row["task"]
            found[key] = row | contents | {"split": path.name.partition("-")[0]}
    return found


@pytest.fixture(scope="session")
def chat(snapshot: Path) -> dict[tuple[str, str], Row]:
    return read_chat(snapshot)
