"""Requirements in the versions of a day, from an index that states upload times, and a block that needs one of then."""

import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from extract import ExtractOptions, extract
from extract.proofs.runtime import releases_of, runtime_for
from lemur_core.files.errors import UsageError
from lemur_core.files.pip import check_day
from tests.extract.sources.conftest import Files, wheel_files

DAY = "2021-03-01"
Release = Callable[..., None]


@pytest.fixture
def release(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Release]:
    """Upload a wheel to an index that answers with JSON, as PEP 691 and 700 define it."""
    pages: dict[str, list[dict[str, object]]] = {}
    files: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").rpartition("/")[2]
            page = {"meta": {"api-version": "1.1"}, "name": name, "versions": [], "files": pages.get(name)}
            self.send_response(200 if name in files or name in pages else 404)
            self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
            self.end_headers()
            self.wfile.write(files.get(name) or json.dumps(page).encode())

        def log_message(self, *_: object) -> None: ...

    def upload(name: str, version: str, uploaded: str | None, needs: str = "", tag: str = "py3", **more: str) -> None:
        tag = f"{tag}-none-any"
        contents: Files = {f"{name}.py": more.get("code", ""), **({more["library"]: ""} if "library" in more else {})}
        wheel = tmp_path / f"{name}-{version}-{tag}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            metadata = f"Requires-Dist: {needs}\n" if needs else ""
            for member, data in wheel_files(name, version, contents, metadata, tag).items():
                archive.writestr(member, data)
        files[wheel.name] = wheel.read_bytes()
        stated: dict[str, object] = {} if uploaded is None else {"upload-time": f"{uploaded}T23:59:59Z"}
        pages.setdefault(name, []).append({"filename": wheel.name, "url": f"/{wheel.name}", "hashes": {}, **stated})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    yield upload
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_block_runs_with_the_releases_of_its_day(release: Release, tmp_path: Path) -> None:
    release("acme", "1.0", "2020-01-01", code="def half(x):\n    return x / 2\n")
    release("acme", "1.1", DAY, code="def half(x):\n    return x / 2\n")
    release("acme", "2.0", "2021-03-02", code="RENAMED = True\n")
    source = tmp_path / "project"
    source.mkdir()
    (source / "pyproject.toml").write_text('[project]\nname = "proj"\nversion = "1"\ndependencies = ["acme"]\n')
    code = (
        "import torch\nfrom acme import half\nclass Half(torch.nn.Module):\n    def forward(self, x): return half(x)\n"
    )
    (source / "halves.py").write_text(code)
    today = extract(source, out=tmp_path / "today", options=ExtractOptions(level="forward"), jobs=1)
    assert today["Half"].level == "compiled"
    assert today.manifest.details["days"] == {}
    then = extract(source, out=tmp_path / "then", options=ExtractOptions(level="forward", as_of=DAY), jobs=1)
    assert then["Half"].level == "forward"
    assert then.manifest.parameters["as_of"] == DAY
    assert then.manifest.details["days"] == {"acme==1.1": DAY}
    report = (tmp_path / "then" / "report.md").read_text()
    assert f"## Requirements as of {DAY}\n\n| release | of |\n| :-- | :-- |\n| acme==1.1 | {DAY} |\n" in report
    assert [check for check in then.verify() if not check.ok] == []


def test_each_release_says_of_which_day_it_is(release: Release, make_wheel: Callable[..., Path]) -> None:
    release("python2", "1.0", "2020-01-01", tag="py2")
    release("python2", "2.0", "2023-01-01")
    release("later", "1.0", "2023-01-01")
    release("undated", "1.0", None)
    make_wheel("local", "1.0", {"local.py": ""})
    release("parent", "1.0", "2020-01-01", needs="absent")
    release("parent", "2.0", "2023-01-01", needs="child")
    release("child", "1.0", "2020-01-01")
    for linked, needs in (("linked", "numpy<2"), ("compiled", "child")):
        release(linked, "1.0", "2020-01-01", needs=needs, library=f"{linked}.so")
        release(linked, "2.0", "2023-01-01", needs=needs, library=f"{linked}.so")
    wanted = ["compiled", "later", "linked", "local", "parent", "python2", "undated"]
    none = "there is no wheel of it for this Python and platform"
    unknown = "date unknown, because its index states no upload times"
    with releases_of(DAY):
        runtime = runtime_for(wanted)
        assert runtime_for(wanted) == runtime  # from the cache
    assert dict(runtime.days) == {
        "child==1.0": DAY,
        "compiled==1.0": DAY,
        "later==1.0": f"today; of that day {none}",
        "linked==2.0": "today; that of the day is compiled for another numpy or torch",
        "local==1.0": f"today; of that day {unknown}",
        "parent==2.0": "today; that of the day needs absent, which cannot be had here",
        "python2==2.0": f"today; of that day {none}",
        "undated==1.0": f"today; of that day {unknown}",
    }
    assert runtime.unavailable == ()
    assert runtime_for(["child"]).days == ()


@pytest.mark.parametrize("day", ["", "2021", "20210301", "2021-02-30", "2021-W09-1", "9999-01-01", "2021-03-01T00:00Z"])
def test_what_is_no_past_day_is_refused(day: str) -> None:
    with pytest.raises(UsageError, match=r"is not a past day; write YYYY-MM-DD"):
        ExtractOptions(as_of=day)


@pytest.mark.parametrize("name", ["limit", "seed", "level", "index", "paths", "chat_max_tokens"])
def test_a_value_that_the_command_would_refuse_is_refused(name: str) -> None:
    for value in (-1, "zzz"):
        with pytest.raises(
            UsageError, match=f"^--{name.removesuffix('s').replace('_', '-')}s? {value}: input should be "
        ):
            ExtractOptions(**{name: value})


def test_an_older_pip_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip-25.3.dist-info").mkdir()
    (tmp_path / "pip-25.3.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: pip\nVersion: 25.3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    said = r"needs pip 26\.0 or later, and there is 25\.3 here; python -m pip install -U"
    with pytest.raises(UsageError, match=said):
        check_day(DAY)
