"""Records that come from no file: the installed LEMUR API, and datasets on the Hub."""

import hashlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from curate.rows import BATCH_ROWS, ROW_SCHEMA, Source
from curate.sources import open_source
from lemur_core.files.errors import RetryableError, UserError


def rows_of(source: Source) -> list[dict[str, Any]]:
    batches = list(source.batches())
    assert all(batch.schema == ROW_SCHEMA and 0 < batch.num_rows <= BATCH_ROWS for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def error_of(spec: str) -> str:
    with pytest.raises(UserError) as caught:
        rows_of(open_source(spec))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- installed --------------------------------------------------------------------------------------------------


def install(monkeypatch: pytest.MonkeyPatch, data: Any) -> None:
    for name in ("ab", "ab.nn", "ab.nn.api"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["ab.nn.api"].data = data  # type: ignore[attr-defined]


def test_installed_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame(
        {
            "task": ["t"] * 3,
            "nn": ["a", "b", None],
            "nn_code": ["x = 1", None, "y = 1"],
            "epoch": [1, 2, 3],
            "accuracy": [0.5, float("nan"), 1.0],
            "prm": [{"lr": 0.1, "batch": 8}, {}, None],
            "transform_code": ["…"] * 3,
        }
    )

    def data(only_best_accuracy: bool) -> pd.DataFrame:
        assert only_best_accuracy
        print("building the database")
        return frame

    install(monkeypatch, data)
    source = open_source("installed")
    found = rows_of(source)
    assert [row["nn"] for row in found] == ["a", "b", ""]
    assert [row["nn_code"] for row in found] == ["x = 1", None, "y = 1"]
    assert [row["problem"] for row in found] == [None, "nn_code is missing", None]
    assert [row["epoch"] for row in found] == [1, 2, 3]
    assert [row["accuracy"] for row in found] == [0.5, None, 1.0]
    assert [row["prm"] for row in found] == ['{"batch": 8, "lr": 0.1}', "{}", None]
    assert rows_of(source) == found
    assert source.inputs() == open_source("installed").inputs()
    assert capsys.readouterr().out == ""


def test_installed_not_there() -> None:
    told = error_of("installed").replace("'ab.nn'", "'ab'")  # `ab` itself may come with nn-dup
    assert told == (
        "installed: ab.nn.api cannot be imported: No module named 'ab'; pip install nn-dataset==2.1.0 in this "
        "environment, or curate the released corpus: lemur curate lemur"
    )


def test_installed_names_the_missing_dependency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ab/nn").mkdir(parents=True)
    (tmp_path / "ab/nn/api.py").write_text("import surely_not_a_module")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("ab", "ab.nn"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert error_of("installed").startswith("installed: ab.nn.api needs surely_not_a_module, which is not installed")
    for name in ("ab", "ab.nn"):
        sys.modules.pop(name, None)


def test_installed_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def data(only_best_accuracy: bool) -> None:
        raise OSError("disk is full\nat length")

    install(monkeypatch, data)
    assert error_of("installed").startswith("installed: ab.nn.api.data fails: disk is full; ")
    install(monkeypatch, lambda only_best_accuracy: None)
    assert "returned a NoneType, not a table" in error_of("installed")
    install(monkeypatch, lambda only_best_accuracy: pd.DataFrame({"nn": []}))
    assert "no column 'nn_code'; it has nn;" in error_of("installed")
    install(monkeypatch, lambda only_best_accuracy: pd.DataFrame({"nn": [], "nn_code": []}))
    assert error_of("installed").startswith("installed: holds no rows")


# --- the Hub ----------------------------------------------------------------------------------------------------


def serve(monkeypatch: pytest.MonkeyPatch, splits: dict[str, Any]) -> list[tuple[Any, ...]]:
    import datasets  # takes seconds: only where it is used

    calls: list[tuple[Any, ...]] = []

    def load_dataset(path: str, *, revision: str | None, streaming: bool) -> Any:
        calls.append((path, revision, streaming))
        return datasets.IterableDatasetDict(splits)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def stream(records: list[dict[str, Any]]) -> Any:
    import datasets

    return datasets.Dataset.from_list(records).to_iterable_dataset()


def test_hub_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    train = [{"nn": f"n{i}", "nn_code": f"x = {i}", "prm": {"lr": i}, "other": b"\xff"} for i in range(3)]
    test = [{"nn": "t", "nn_code": None, "accuracy": 0.5, "epoch": "7"}]
    calls = serve(monkeypatch, {"train": stream(train), "test": stream(test)})
    source = open_source("hf://datasets/owner/name@v1")
    found = rows_of(source)
    assert [(row["nn"], row["problem"], row["prm"], row["epoch"]) for row in found] == [
        ("t", "nn_code is missing", None, 7),
        ("n0", None, '{"lr": 0}', None),
        ("n1", None, '{"lr": 1}', None),
        ("n2", None, '{"lr": 2}', None),
    ]
    assert set(calls) == {("owner/name", "v1", True)}
    [given] = source.inputs()
    canonical = b"".join(json.dumps(row, sort_keys=True).encode() + b"\n" for row in found)
    assert (given.name, given.sha256, given.bytes) == (
        "hf://datasets/owner/name@v1",
        hashlib.sha256(canonical).hexdigest(),
        len(canonical),
    )


def test_hub_columns_known_only_from_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def make() -> Any:
        yield {"nn": "a", "nn_code": "x = 1"}

    serve(monkeypatch, {"train": datasets.IterableDataset.from_generator(make)})
    assert [row["nn_code"] for row in rows_of(open_source("hf://datasets/owner/name"))] == ["x = 1"]

    def make_others() -> Any:
        yield {"nn": "a", "code": "x = 1"}

    serve(monkeypatch, {"train": datasets.IterableDataset.from_generator(make_others)})
    assert error_of("hf://datasets/o/n").startswith("hf://datasets/o/n, split train: no column 'nn_code'; it has nn, ")


@pytest.mark.parametrize(
    "spec", ["hf://owner/name", "hf://datasets/name", "hf://datasets/owner/name/file.parquet", "hf://datasets/o/n@"]
)
def test_hub_spec(spec: str) -> None:
    assert error_of(spec).startswith(f"{spec}: not a dataset on the Hub; write hf://datasets/OWNER/NAME")


def test_hub_tables_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {"train": stream([{"nn": "a", "code": "x"}])})
    assert error_of("hf://datasets/o/n").startswith("hf://datasets/o/n, split train: no column 'nn_code'; it has nn, ")
    serve(monkeypatch, {})
    assert error_of("hf://datasets/o/n").startswith("hf://datasets/o/n: holds no rows")


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (ConnectionError("no route\nto host"), RetryableError, "the Hub cannot be read: no route; check the network"),
        (ValueError("Config name is missing."), UserError, "Config name is missing.; check the name"),
        (TimeoutError(), RetryableError, "the Hub cannot be read: TimeoutError; "),
    ],
)
def test_hub_fails(monkeypatch: pytest.MonkeyPatch, raised: Exception, kind: type[UserError], said: str) -> None:
    import datasets

    def load_dataset(*_: object, **__: object) -> None:
        raise raised

    def break_off() -> Any:
        yield {"nn": "a", "nn_code": "x = 1"}
        raise raised

    for loaded in (load_dataset, lambda *_, **__: {"train": datasets.IterableDataset.from_generator(break_off)}):
        monkeypatch.setattr(datasets, "load_dataset", loaded)
        with pytest.raises(UserError, match=f"^hf://datasets/o/n: {said}") as caught:
            rows_of(open_source("hf://datasets/o/n"))
        assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("status", "kind"), [(403, UserError), (404, UserError), (429, RetryableError), (503, RetryableError)]
)
def test_hub_answers_with_an_error(monkeypatch: pytest.MonkeyPatch, status: int, kind: type[UserError]) -> None:
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    def load_dataset(*_: object, **__: object) -> None:
        error = HfHubHTTPError.__new__(HfHubHTTPError)
        error.response = types.SimpleNamespace(status_code=status)
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UserError) as caught:
        rows_of(open_source("hf://datasets/o/n"))
    assert type(caught.value) is kind


def test_hub_connection_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    def load_dataset(*_: object, **__: object) -> None:
        raise HfHubHTTPError.__bases__[0]("connection reset")  # what the HTTP library itself raises

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(RetryableError, match=r"^hf://datasets/o/n: the Hub cannot be read: connection reset; "):
        rows_of(open_source("hf://datasets/o/n"))


def test_hub_has_no_such_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load_dataset(*_: object, **__: object) -> None:
        raise datasets.exceptions.DatasetNotFoundError("no such dataset")  # a FileNotFoundError too

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UserError, match=r"^hf://datasets/o/n: no such dataset; check the name") as caught:
        rows_of(open_source("hf://datasets/o/n"))
    assert type(caught.value) is UserError
