"""Whoever changes a finished folder and makes all digests fit is found out: any cell, any file, any stated value.

Tried is every column of every table, and every value of every manifest, of a small folder of each kind. What only a
source or a measurement could contradict stands in `GIVEN`, with the reason; nothing else passes.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lemur.folders import verify_folder
from lemur_core.files.atomic import sha256_file
from lemur_core.files.errors import UserError
from manifests.folders.cards import restate_croissant
from manifests.folders.manifest import list_outputs, read_manifest, write_manifest
from manifests.publishing.staged import stage_files
from tests.builders.finished import write_all
from tests.manifests.publishing.test_staged import copied

#: What nothing else in a folder states: measurements, and statements about what lies outside. By kind, a pattern of
#: `TABLE COLUMN`, or of the path of a value in the manifest.
GIVEN = {
    "extraction": (
        *(f"parameters.{name}" for name in ("seed", "unsafe_no_sandbox", "limit", "start_from", "chat.max_tokens")),
        *("inputs.*.bytes", *(f"details.sources.*.{name}" for name in ("kind", "priority", "files"))),
    ),
    "experts-data": (
        *(f"facts.parquet {name}" for name in ("id", "name", "package", "relation", "value", "answer", "code_sha256")),
        "parameters.*",  # of the settings
    ),
    "experts-evaluation": (
        *(f"answers.parquet {name}" for name in ("id", "block", "relation", "question", "routed", "code_sha256")),
        *("answers.parquet expected", "answers.parquet answer"),  # where the answer is as wrong as before
        "parameters.*",
    ),
    "synthesis": (
        "attempts.parquet *",  # what a model was asked and said
        *(f"data/records/* {name}" for name in ("block_code", "graph", "graph_widths")),
    ),
    "run": ("inputs.*.bytes", "parameters.held_out"),  # how many images; whether any, its accuracy says
    "ablation": ("inputs.*.bytes",),
    "snapshot": (
        *(
            f"graphs.parquet {name}"
            for name in ("train_error", "in_shape", "reads_values", "prm_read", "initial", "glue", "behavior_eval")
        ),
        *(f"data/stats/* {name}" for name in ("duration", "prm", "outcomes")),  # of results that are not shown
        *("data/records/* arch_uid", "chat_drops.parquet detail"),
        "decisions.parquet id",  # of a row without usable code
        *("inputs.*.bytes", "parameters.*_per_prefix"),
        # Of files and conversations, which this folder does not have, and of codes that state a license.
        *("parameters.prm", "parameters.license", "details.chat_residue"),
    ),
}
_OUTSIDE = ("versions.*", "measured.*", "parents.*")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("changed") / "all")


def refit(folder: Path) -> None:
    """Make all digests fit: those of the manifest, and of `croissant.json`."""
    manifest = read_manifest(folder)
    if (folder / "croissant.json").is_file():
        restate_croissant(folder / "croissant.json", folder / "croissant.json", list_outputs(folder))
    write_manifest(folder, manifest.model_copy(update={"outputs": list_outputs(folder)}))


def other(value: Any, kind: pa.DataType) -> Any:
    """Return another value of the same type; nothing where the type is not changed alone."""
    if pa.types.is_boolean(kind):
        return not value
    if pa.types.is_integer(kind):
        return 1 if value is None else value + 1
    if pa.types.is_floating(kind):
        return 0.25 if value is None else 1.0 - value if 0 <= value <= 1 and value != 0.5 else value / 2 + 0.01
    if pa.types.is_string(kind):
        return "x" if value is None else value[:-1] + ("0" if value[-1:] != "0" else "1")
    if pa.types.is_list(kind):
        return [*(value or ()), other(value[-1] if value else None, kind.value_type)]
    return {field.name: other((value or {}).get(field.name), field.type) for field in kind}


def change_cell(name: str, column: str, row: int, folder: Path) -> None:
    path = folder / name
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[row] = other(values[row], table.schema.field(column).type)
    index = table.schema.get_field_index(column)
    changed = table.set_column(index, table.schema.field(column), pa.array(values, table.schema.field(column).type))
    pq.write_table(changed, path, compression="zstd")
    refit(folder)


def list_cells(folder: Path) -> Iterator[tuple[str, str, int]]:
    for path in sorted(folder.rglob("*.parquet")):
        table = pq.read_metadata(path)
        for place, column in enumerate(pq.read_schema(path).names if table.num_rows else ()):
            yield path.relative_to(folder).as_posix(), column, place % 2 * (table.num_rows - 1)


def is_found(folder: Path) -> str | None:
    """Return what `verify` says; nothing if it passes."""
    wrong = [check for check in verify_folder(folder, jobs=1) if not check.ok]
    return "; ".join(f"{check.name}: {check.detail}" for check in wrong) or None


def is_given(kind: str, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in (*GIVEN.get(kind, ()), *_OUTSIDE))


def list_values(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of all values in a manifest that are not lists or objects."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, dict | list):
        yield path
    for key, item in items:
        yield from list_values(item, (*path, key))


def change_value(path: tuple[str | int, ...], folder: Path) -> None:
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8"))
    at = manifest
    for key in path[:-1]:
        at = at[key]
    value = at[path[-1]]
    types = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    at[path[-1]] = other(value, types.get(type(value), pa.string()))
    file.write_text(json.dumps(manifest), encoding="utf-8")


NAMES = ("blocks", "snapshot", "run", "ablation", "synthesis", "facts", "evaluation")


def list_changes(folder: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yield the name of each change of a folder, and the function that makes it."""
    kind = read_manifest(folder).kind
    for path, column, row in list_cells(folder):
        if not is_given(kind, f"{path} {column}"):
            yield f"{path} {column} {row}", partial(change_cell, path, column, row)
    for at in list_values(json.loads((folder / "manifest.json").read_text(encoding="utf-8"))):
        name = ".".join(map(str, at))
        if not is_given(kind, name) and at[0] != "outputs":
            yield f"manifest {name}", partial(change_value, at)
    for item in read_manifest(folder).outputs:
        if item.rows and not is_given(kind, f"{item.path} rows"):
            yield f"{item.path} has a row less", partial(_change_rows, item.path, -1)
            yield f"{item.path} has a row twice", partial(_change_rows, item.path, 1)
    if (folder / "croissant.json").is_file():
        yield "croissant.json name", partial(_describe_otherwise, "name", "Another")
        yield "croissant.json tables", partial(_describe_otherwise, "recordSet", [])
    for file in sorted(folder.rglob("*")):
        if (
            file.is_file()
            and file.suffix in (".py", ".md", ".json", ".jsonl")
            and file.name not in ("manifest.json", "croissant.json")
        ):
            yield file.relative_to(folder).as_posix(), partial(_append, file.relative_to(folder))


def _change_rows(name: str, more: int, folder: Path) -> None:
    """Leave out the last row of a table or of lines of JSON, or put it twice."""
    path = folder / name
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        end = table.slice(len(table) - 1)
        pq.write_table(table.slice(0, len(table) - 1) if more < 0 else pa.concat_tables([table, end]), path)
    else:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:-1] if more < 0 else [*lines, lines[-1]]), encoding="utf-8")
    refit(folder)


def _append(name: Path, folder: Path) -> None:
    text = (folder / name).read_text(encoding="utf-8")
    (folder / name).write_text(f"{text}\n# more\n", encoding="utf-8")
    refit(folder)


def _describe_otherwise(key: str, value: object, folder: Path) -> None:
    path = folder / "croissant.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {key: value}, indent=2) + "\n")
    refit(folder)


def find_missed(folder: Path, place: Path, changes: Sequence[tuple[str, Callable[[Path], None]]]) -> list[str]:
    """Return the changes that `verify` does not find."""
    missed = []
    for number, (name, change) in enumerate(changes):
        copy = Path(shutil.copytree(folder, place / str(number)))
        change(copy)
        if is_found(copy) is None:
            missed.append(name)
        shutil.rmtree(copy)
    return missed


@pytest.mark.parametrize("name", NAMES)
def test_a_sound_folder_passes(whole: dict[str, Path], name: str) -> None:
    assert is_found(whole[name]) is None


def test_builds_of_one_torch_are_one_torch(whole: dict[str, Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole["snapshot"], tmp_path / "copy"))
    manifest = read_manifest(copy)
    build = {"torch": f"{manifest.versions['torch']}+cu132"}
    write_manifest(copy, manifest.model_copy(update={"versions": manifest.versions | build}))
    assert is_found(copy) is None


@pytest.mark.parametrize("name", NAMES)
def test_some_changes_are_found(whole: dict[str, Path], tmp_path: Path, name: str) -> None:
    changes = list(list_changes(whole[name]))
    step = max(1, len(changes) // 8)
    assert find_missed(whole[name], tmp_path, changes[step // 2 :: step]) == []


@pytest.mark.slow
def test_every_change_is_found(whole: dict[str, Path], tmp_path: Path) -> None:
    changes = {name: list(list_changes(whole[name])) for name in NAMES}
    assert sum(map(len, changes.values())) >= 400
    assert {name: find_missed(whole[name], tmp_path, changes[name]) for name in NAMES} == {name: [] for name in NAMES}


@pytest.mark.parametrize(
    "name", ["HEAD", "config", "conftest.py", ".git/config", "data/records/x.py", "blocks/conftest.py"]
)
def test_files_that_no_kind_has_are_foreign(whole: dict[str, Path], tmp_path: Path, name: str) -> None:
    for kind in ("snapshot", "blocks"):
        copy = Path(shutil.copytree(whole[kind], tmp_path / kind))
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("[core]\n", encoding="utf-8")
        manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
        file = {"path": name, "sha256": sha256_file(copy / name), "bytes": 7, "rows": None}
        manifest["outputs"].append(file)
        (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        if name.startswith("."):  # a manifest cannot even state it
            with pytest.raises(UserError, match="is hidden, or not a plain name"):
                verify_folder(copy, jobs=1)
        else:
            assert f"{name} is no file of this kind of folder" in (is_found(copy) or "")


#: What the card could be made to say: another table, license, claim.
CARDS = {
    "path: networks.parquet": "path: https://example.org/x",
    "license: mit": "license: apache-2.0",
    "name: attempts": "name: other",
    "Nothing was annotated by hand": "All was annotated by hand",
    "OWNER/NAME": "ANOTHER/NAME",
    "# ": "## ",
}


@pytest.mark.parametrize("name", ["snapshot", "blocks", "synthesis"])
def test_what_was_published_states_what_is_there(whole: dict[str, Path], tmp_path: Path, name: str) -> None:
    """The card and the report of a published copy are made again, too."""
    with stage_files(whole[name]) as ready:
        copy = copied(ready, tmp_path / "copy")
    assert is_found(copy) is None
    for file in ("README.md", "report.md"):
        text = (copy / file).read_text(encoding="utf-8")
        tried = {before: after for before, after in CARDS.items() if before in text}
        assert len(tried) > (3 if file == "README.md" else 0)
        for before, after in tried.items():
            (copy / file).write_text(text.replace(before, after, 1), encoding="utf-8")
            refit(copy)
            assert f"derived: {file}, line" in (is_found(copy) or "")
        (copy / file).write_text(text, encoding="utf-8")
