"""Git repositories: one commit, code only, nothing executed; branches followed, commits pinned."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from extract.proofs.runtime import original_folders
from extract.proofs.sdists import fetch_tests
from extract.sources import open_source
from extract.sources.contents import store_folder
from extract.sources.git import GitError, GitSpec, _explain, others_of, parse_git  # noqa: F401 (the page names them)
from lemur_core.files.errors import RetryableError, UserError
from tests.builders.suites import read_table, table

MIT = "Permission is hereby granted, free of charge, to any person obtaining a copy\nto deal in the Software without restriction\nThe above copyright notice and this permission notice shall be"
FILES = read_table(__file__, "git.md", "Files", globals())


def test_a_commit(repository: Any) -> None:
    commit = repository.commit(FILES)
    source = open_source(f"git+{repository.url}@{commit}")
    assert (source.name, source.kind, source.version) == (f"origin@{commit[:12]}", "git", commit[:12])
    assert (source.origin, source.license, source.requires) == (repository.url, "MIT", ("torch>=1.5",))
    assert source.swhid == f"swh:1:rev:{commit}"
    assert [(file.path, file.module) for file in source.files] == [
        ("models/__init__.py", "models"),
        ("models/detr.py", "models.detr"),
    ]
    assert [file.blob for file in source.files] == [
        repository.git("rev-parse", f"{commit}:{file.path}") for file in source.files
    ]
    assert source.read(source.files[1]) == b"class DETR: ...\n"
    others = others_of(source)
    assert {path.relative_to(others).as_posix(): path.read_text() for path in others.rglob("*.*")} == {
        "tests/test_detr.py": "",
        "configs/small.yaml": "width: 8\n",
    }
    assert open_source(f"git+{repository.url}@{commit}", name="detr").name == f"detr@{commit[:12]}"


def test_a_warm_commit_needs_no_git_unless_it_lost_its_tests(repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = f"git+{repository.url}@{repository.commit(FILES)}"
    first = open_source(spec, digest=None)
    shutil.rmtree(others_of(first))
    assert (others_of(open_source(spec)) / "configs" / "small.yaml").is_file()
    with pytest.raises(UserError, match=rf"have the digest [0-9a-f]{{64}}, not the pinned {'0' * 64}"):
        open_source(spec, digest="0" * 64)
    monkeypatch.setattr(subprocess, "run", None)
    assert open_source(spec, digest=first.digest) == first


def test_weights_and_history_are_not_transferred(repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.commit({**FILES, "old.py": "x = 1\n"})
    (repository.folder / "old.py").unlink()
    commit = repository.commit({"new.py": "x = 2\n", "models/big.bin": os.urandom(100_000)})
    fetched: list[str] = []
    run = subprocess.run

    def watch(command: list[str], **more: Any) -> Any:
        done = run(command, **more)
        if "--batch" in command:
            folder = command[command.index("--git-dir") + 1]
            listed = run(
                ["git", "--git-dir", folder, "cat-file", "--batch-check=%(objecttype) %(objectsize)", "--batch-all-objects"],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            fetched.extend(listed.stdout.splitlines())
        return done

    monkeypatch.setattr(subprocess, "run", watch)
    source = open_source(f"git+{repository.url}@{commit}")
    assert [file.path for file in source.files] == ["models/__init__.py", "models/detr.py", "new.py"]
    kinds = [line.split()[0] for line in fetched]
    assert kinds.count("commit") == 1
    texts = ("", "class DETR: ...\n", "x = 2\n", MIT, "torch>=1.5\n", "width: 8\n")
    assert kinds.count("blob") == len(set(texts))
    assert max(int(line.split()[1]) for line in fetched) < 10_000


def test_a_server_that_cannot_leave_files_out(repository: Any) -> None:
    older, newer = repository.commit(FILES), repository.commit({"new.py": "x = 1\n"})
    repository.git("config", "uploadpack.allowFilter", "false")
    for commit, more in ((older, []), (newer, ["new.py"])):
        source = open_source(f"git+{repository.url}@{commit}")
        assert [file.path for file in source.files] == ["models/__init__.py", "models/detr.py", *more]


def test_branches_are_followed(repository: Any) -> None:
    first = repository.commit(FILES)
    repository.git("tag", "-a", "v1", "-m", "one")
    repository.git("tag", "light")
    repository.git("branch", "feature/x")
    revisions = ("", "@main", "@v1", "@light", "@feature/x")

    def opened() -> list[str]:
        return [open_source(f"git+{repository.url}{revision}").name for revision in revisions]

    assert opened() == [f"origin@{first[:12]}"] * 5
    second = repository.commit({"models/new.py": ""})
    assert opened() == [f"origin@{commit[:12]}" for commit in (second, second, first, first, first)]


def test_offline_the_last_known_commit_is_used(
    repository: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = repository.commit(FILES)
    spec = f"git+{repository.url}@main"
    open_source(spec)

    def unreachable(*arguments: Any, **more: Any) -> bytes:
        raise RetryableError("cannot be reached")

    monkeypatch.setattr("extract.sources.git.run_git", unreachable)
    assert open_source(spec).name == f"origin@{commit[:12]}"
    assert f"using main as of its last fetch, {commit[:12]}" in capsys.readouterr().err
    with pytest.raises(RetryableError):
        open_source(f"git+{repository.url}@other")


def test_nothing_of_a_repository_runs(repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "it-ran"
    hook = f"#!/bin/sh\ntouch {marker}\n"
    for name in ("post-checkout", "post-merge", "pre-auto-gc", "reference-transaction"):
        path = tmp_path / "template" / "hooks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(hook)
        path.chmod(0o755)
    configuration = tmp_path / "gitconfig"
    configuration.write_text(
        f"[init]\n templateDir = {tmp_path}/template\n[core]\n hooksPath = {tmp_path}/template/hooks\n"
        f'[filter "evil"]\n smudge = touch {marker}\n clean = touch {marker}\n'
    )
    commit = repository.commit({**FILES, ".gitattributes": "*.py filter=evil\n"})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    assert not marker.exists()
    assert open_source(f"git+{repository.url}@{commit}").files
    assert not marker.exists()


def test_links_and_submodules_are_not_there(repository: Any, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("secret\n")
    (repository.folder / "link.py").symlink_to(tmp_path / "secret.py")
    (repository.folder / "folder").symlink_to(tmp_path)
    commit = repository.commit(FILES)
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},sub.py")
    repository.git("commit", "-q", "-m", "submodule")
    source = open_source(f"git+{repository.url}")
    assert [file.path for file in source.files] == ["models/__init__.py", "models/detr.py"]


def test_what_is_unknown(repository: Any) -> None:
    with pytest.raises(UserError, match="no branch or tag 'HEAD'; branches: none"):
        open_source(f"git+{repository.url}")
    repository.commit(FILES)
    repository.git("branch", "dev")
    with pytest.raises(UserError, match=r"no branch or tag 'nope'; branches: dev, main$"):
        open_source(f"git+{repository.url}@nope")
    with pytest.raises(UserError, match=r"no branch or tag 'abc1234' \(a commit must be given with all 40 digits\)"):
        open_source(f"git+{repository.url}@abc1234")
    with pytest.raises(UserError, match=rf"no commit {'1' * 40} can be fetched; check the revision$"):
        open_source(f"git+{repository.url}@{'1' * 40}")
    with pytest.raises(UserError, match=r"nowhere: .*check the address"):
        open_source(f"git+{repository.url}/nowhere")
    assert not list(store_folder("work").iterdir())


def test_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="git is not installed; install it"):
        open_source("git+https://example.org/a/b")


def test_inside_a_hook_of_another_repository(repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = repository.commit(FILES)
    for key in ("GIT_DIR", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"):
        monkeypatch.setenv(key, str(tmp_path / "elsewhere"))
    assert open_source(f"git+{repository.url}@{commit}").files
    assert not (tmp_path / "elsewhere").exists()


@table(__file__, "git.md", "Specs", globals())
def test_specs(spec: str, expected: GitSpec) -> None:
    assert parse_git(spec) == expected


def test_a_token_is_neither_recorded_nor_shown() -> None:
    spec = GitSpec("https://user:token@host/o/n", "")
    assert spec.origin == "https://host/o/n"
    assert spec.name == "n"
    assert "token" not in str(_explain("x", "fatal: unable to access 'https://user:token@host/o/n/': timed out"))


@table(__file__, "git.md", "Not a spec", globals())
def test_not_a_spec(spec: str) -> None:
    with pytest.raises(UserError, match=r"git\+") as raised:
        open_source(spec)
    assert "write" in str(raised.value)


@table(__file__, "git.md", "What may work later", globals())
def test_what_may_work_later(stderr: str, kind: type[UserError]) -> None:
    assert type(_explain("https://h/o/n", stderr)) is kind


SDIST_WITHOUT_TESTS = {
    "tiny.egg-info/top_level.txt": "tiny", "tiny/__init__.py": "", "README.md": "Hi", "setup.py": ""
}  # fmt: skip


def redirect(monkeypatch: pytest.MonkeyPatch, folder: Path, of: str, to: str) -> None:
    """Have git take another address for one of the web."""
    (folder / "gitconfig").write_text(f'[url "{to}"]\n\tinsteadOf = {of}\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(folder / "gitconfig"))


def test_the_tests_of_a_release_come_from_the_repository_that_its_metadata_states(
    repository: Any, make_wheel: Any, make_sdist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redirect(monkeypatch, tmp_path, "https://github.com/o/tiny.git", repository.url)
    for version, tag in (("1.1", "v1.1.9"), ("1.2", "v1.2.0"), ("1.2", "1.2.1rc1"), ("1.2", "nightly"), ("1.3", "1.3")):
        repository.commit({"test/nn/test_x.py": f"# {tag}\n", "test/data.json": "[]", "tiny.py": f"# {version}\n"})
        repository.git("tag", "-a", "-m", "release", tag)
    stated = "Project-URL: homepage, https://tiny.example\nProject-URL: repository, https://github.com/o/tiny.git\n"
    make_wheel("tiny", "1.2.1", {"tiny/__init__.py": ""}, stated)
    make_sdist("tiny", "1.2.1", SDIST_WITHOUT_TESTS)
    source = open_source("tiny@1.2.1")
    for _ in range(2):
        folder = fetch_tests(source, original_folders(source))
        assert folder is not None
        files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
        assert files == {"test/nn/test_x.py": "# 1.2.1rc1\n", "test/data.json": "[]"}
        repository.folder.rename(tmp_path / "moved") if repository.folder.exists() else None  # the second is cached


@pytest.mark.slow
def test_tests_come_from_the_newest_commit_where_no_tag_is_near(
    repository: Any, make_wheel: Any, make_sdist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redirect(monkeypatch, tmp_path, "https://github.com/o/tiny_net", repository.url)
    repository.commit({"tests/test_x.py": "# old\n"})
    repository.git("tag", "v1.0")
    repository.commit({"tests/test_x.py": "# new\n"})
    stated = "Project-URL: issues, https://github.com/o/tiny_net/issues\n"
    make_wheel("tiny_net", "2.0", {"tiny_net/__init__.py": ""}, stated)
    # One test, whose helpers are elsewhere.
    make_sdist("tiny-net", "2.0", {**SDIST_WITHOUT_TESTS, "tests/inner/test_y.py": "from ..utils import check\n"})
    source = open_source("tiny-net@2.0")
    folder = fetch_tests(source, original_folders(source))
    assert folder is not None
    assert (folder / "tests/test_x.py").read_text() == "# new\n"


@pytest.mark.slow
def test_tests_whose_repository_is_out_of_reach_are_asked_for_again(
    make_wheel: Any, make_sdist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redirect(monkeypatch, tmp_path, "https://github.com/", "http://127.0.0.1:1/")
    make_wheel("tiny", "1.0", {"tiny/__init__.py": ""}, "Home-page: https://github.com/o/tiny\n")
    make_sdist("tiny", "1.0", SDIST_WITHOUT_TESTS)
    source = open_source("tiny@1.0")
    told: list[str] = []
    for _ in range(2):
        folder = fetch_tests(source, original_folders(source), told.append)
        assert folder is not None
        assert (folder / "README.md").read_text() == "Hi"
    start = (
        "tiny@1.0: few or no tests in its sdist, and without those of its repository: https://github.com/o/tiny: cannot"
    )
    assert [line[: len(start)] for line in told] == [start, start]
