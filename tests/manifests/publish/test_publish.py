"""A finished folder goes to the Hub in one commit, and again only where it changed."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lemur.folders import verify_folder
from lemur_core.files.errors import UserError
from manifests.publish import Hub, Published, pull
from manifests.publish import publish as publish_checked

publish = partial(publish_checked, verify=verify_folder)

REPO = "owner/data"
pytestmark = pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")  # of the client, about itself


@pytest.fixture
def repo(server: Any, hub: Hub, sample: Path) -> Any:
    """A repository that holds the sample."""
    publish(sample, REPO, hub=hub)
    server.requests.clear()
    server.uploaded.clear()
    return server.repos[REPO]


def test_there_and_back(server: Any, hub: Hub, sample: Path, tmp_path: Path, read: Callable[..., Any]) -> None:
    done = publish(sample, REPO, hub=hub)
    repo = server.repos[REPO]
    assert done.created
    assert done.commit == repo.branches["main"]
    assert repo.files() == read(sample)
    assert not repo.private
    assert len(repo.log) == 2  # the Hub's own first commit, and ours
    assert sorted(server.uploaded.values()) == [1, 1, 1]  # two tables and a figure
    fetched = pull(REPO, tmp_path / "out", hub=hub)
    assert read(tmp_path / "out") == read(sample)
    assert (fetched.commit, fetched.files) == (done.commit, 7)


def test_the_same_again_is_no_commit(server: Any, hub: Hub, sample: Path, repo: Any) -> None:
    done = publish(sample, REPO, hub=hub)
    assert not done.changes
    assert not done.created
    assert len(done.changes.same) == 7
    assert done.commit == repo.branches["main"]
    assert len(repo.log) == 2
    assert not {"preupload", "batch", "upload", "commit", "create"} & set(server.requests)


def change(sample: Path, finished: Callable[..., Path]) -> None:
    (sample / "report.md").write_text("# Report, the second\n")
    (sample / "figures" / "one.png").unlink()
    (sample / "figures" / "two.png").write_bytes(b"\x89PNG\0two")
    finished(sample)


def test_only_what_changed_is_sent(
    server: Any, hub: Hub, sample: Path, repo: Any, finished: Callable[..., Path], read: Callable[..., Any]
) -> None:
    change(sample, finished)
    done = publish(sample, REPO, hub=hub)
    assert done.changes.added == ("figures/two.png",)
    assert done.changes.changed == ("manifest.json", "report.md")
    assert done.changes.removed == ("figures/one.png",)
    assert len(done.changes.same) == 4
    assert repo.files() == read(sample)
    assert len(repo.log) == 3
    assert list(server.uploaded.values()) == [1]


def test_a_dry_run_changes_nothing(
    server: Any, hub: Hub, sample: Path, repo: Any, finished: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(sample, finished)
    before = repo.files()
    monkeypatch.delenv("HF_TOKEN")
    plan = publish(sample, REPO, hub=hub, dry_run=True)
    assert plan.commit is None
    assert str(plan.changes) == "1 added, 2 changed, 1 removed, 4 same"
    assert plan.sizes["figures/two.png"] == 8
    assert plan.sizes["figures/one.png"] == 10_249
    assert repo.files() == before
    new = publish(sample, "owner/new", hub=hub, dry_run=True, revision="next")
    assert new.created
    assert len(new.changes.added) == 7
    assert list(server.repos) == [REPO]


def test_what_is_shown_is_what_is_asked(server: Any, hub: Hub, sample: Path) -> None:
    shown: list[Published] = []

    def no(plan: Published) -> bool:
        shown.append(plan)
        return False

    done = publish(sample, REPO, hub=hub, confirm=no)
    assert shown == [done]
    assert done.commit is None
    assert not server.repos


def test_private(server: Any, hub: Hub, sample: Path) -> None:
    publish(sample, REPO, hub=hub, private=True)
    assert server.repos[REPO].private
    publish(sample, "owner/public", hub=hub)
    with pytest.raises(UserError, match="is public already; make it private on the Hub first, or leave --private out"):
        publish(sample, "owner/public", hub=hub, private=True)


def test_private_where_somebody_makes_it_public_first(server: Any, hub: Hub, sample: Path) -> None:
    server.faults = [server.Fault("create", lambda hub: hub.make(REPO))]
    with pytest.raises(UserError, match="is public already"):
        publish(sample, REPO, hub=hub, private=True)
    assert len(server.repos[REPO].log) == 1


def test_a_branch_is_made(
    server: Any, hub: Hub, sample: Path, repo: Any, finished: Callable[..., Path], read: Callable[..., Any]
) -> None:
    before = repo.files()
    change(sample, finished)
    publish(sample, REPO, hub=hub, revision="next")
    assert repo.files("next") == read(sample)
    assert repo.files("main") == before
    assert [branch for branch, _ in repo.log] == ["main", "main", "next"]


def test_a_branch_without_changes_is_made_too(hub: Hub, sample: Path, repo: Any) -> None:
    done = publish(sample, REPO, hub=hub, revision="same")
    assert repo.branches["same"] == repo.branches["main"] == done.commit


def test_a_new_branch_or_tag_is_asked_for_too(hub: Hub, sample: Path, repo: Any) -> None:
    shown: list[Published] = []

    def no(plan: Published) -> bool:
        shown.append(plan)
        return False

    assert publish(sample, REPO, hub=hub, revision="next", tag="v9", confirm=no).commit is None
    assert [(plan.branch_made, plan.tag, bool(plan.changes)) for plan in shown] == [(True, "v9", False)]
    assert (set(repo.branches), repo.tags) == ({"main"}, {})
    assert publish(sample, REPO, hub=hub, tag="v9").tag == "v9"
    assert not publish(sample, REPO, hub=hub, tag="v9", confirm=no).makes
    assert len(shown) == 1


@pytest.mark.parametrize(
    "name", ["", "a b", "x..y", "/x", "x/", "x.lock", "-x", "refs/pr/1", "a" * 40, "x~1", ".x", "@"]
)
@pytest.mark.parametrize("option", ["revision", "tag"])
def test_names_of_branches_and_tags(server: Any, hub: Hub, sample: Path, option: str, name: str) -> None:
    with pytest.raises(UserError, match=f"--{option} .*: not a name for a branch or tag"):
        publish(sample, REPO, hub=hub, **{option: name})  # type: ignore[arg-type]
    assert not server.requests


def test_a_tag_is_not_called_as_the_branch(server: Any, hub: Hub, sample: Path) -> None:
    with pytest.raises(UserError, match="--tag main: the branch is called so"):
        publish(sample, REPO, hub=hub, tag="main")
    assert not server.requests


def test_tags(hub: Hub, sample: Path, repo: Any, finished: Callable[..., Path]) -> None:
    done = publish(sample, REPO, hub=hub, tag="v1")
    assert repo.tags == {"v1": done.commit}
    publish(sample, REPO, hub=hub, tag="v1")
    change(sample, finished)
    with pytest.raises(UserError, match="tag v1 is on another commit"):
        publish(sample, REPO, hub=hub, tag="v1")
    assert len(repo.log) == 2, "a tag in the way is told before anything is sent"
    assert publish(sample, REPO, hub=hub, tag="v2").commit == repo.tags["v2"]
    with pytest.raises(UserError, match="v1 is a tag, which stays where it is; name a branch"):
        publish(sample, REPO, hub=hub, revision="v1")


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"README.md": b"mine"}, "README.md was changed"),
        ({"more.txt": b"x"}, "more.txt was added"),
        ({"report.md": None}, "report.md is missing"),
        ({"figures/one.png": b"other"}, "figures/one.png was changed"),
        ({"report.md": b"# Rep0rt\n"}, "report.md was changed"),  # as long as before
        ({"manifest.json": b"{}"}, "its manifest.json is not one of ours"),
        ({"manifest.json": None}, "it holds no manifest.json, but README.md"),
        ({f"{n}.txt": b"x" for n in "abcde"}, "a.txt was added; b.txt was added; c.txt was added (and 2 more);"),
    ],
)
def test_what_somebody_else_did_is_not_overwritten(
    hub: Hub,
    sample: Path,
    tmp_path: Path,
    repo: Any,
    edit: dict[str, bytes | None],
    told: str,
    read: Callable[..., Any],
) -> None:
    repo.edit(**edit)
    before, log = repo.files(), list(repo.log)
    for dry_run in (True, False):
        with pytest.raises(UserError) as caught:
            publish(sample, REPO, hub=hub, dry_run=dry_run)
        assert f"somebody else changed it: {told}" in str(caught.value)
        assert "--force" in str(caught.value)
    assert repo.files() == before
    assert repo.log == log
    publish(sample, REPO, hub=hub, force=True)
    assert repo.files() == read(sample)
    pull(REPO, tmp_path / "out", hub=hub)


def test_a_colleagues_publication_is_not_overwritten(
    hub: Hub, sample: Path, repo: Any, tmp_path: Path, finished: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole and as its manifest states, but not the one that we published last."""
    theirs = Path(shutil.copytree(sample, tmp_path / "theirs"))
    (theirs / "report.md").write_text("# Theirs\n")
    with monkeypatch.context() as patch:
        patch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "of a colleague"))
        newer = publish(finished(theirs), REPO, hub=hub).commit
    change(sample, finished)
    with pytest.raises(UserError, match=f"somebody else changed it: commit {str(newer)[:12]} came after yours"):
        publish(sample, REPO, hub=hub)
    assert repo.files()["report.md"] == b"# Theirs\n"
    pull(REPO, tmp_path / "looked at", hub=hub)
    assert publish(sample, REPO, hub=hub).commit == repo.branches["main"]


def test_a_folder_of_another_kind_is_not_replaced(
    hub: Hub, sample: Path, repo: Any, finished: Callable[..., Path]
) -> None:
    with pytest.raises(UserError, match=r"its manifest.json is of kind sample, this one of kind other"):
        publish(finished(sample, "other"), REPO, hub=hub)
    publish(sample, REPO, hub=hub, force=True)


def test_a_repository_of_something_else(server: Any, hub: Hub, sample: Path) -> None:
    server.make(REPO).edit(**{"train.csv": b"1,2\n", "README.md": b"theirs"})
    with pytest.raises(
        UserError, match=r"holds no manifest.json, but README.md; it holds no manifest.json, but train.csv"
    ):
        publish(sample, REPO, hub=hub)


def test_an_empty_repository_is_fine(server: Any, hub: Hub, sample: Path) -> None:
    server.make(REPO)
    assert not publish(sample, REPO, hub=hub).created
    assert len(server.repos[REPO].log) == 2


def test_a_file_takes_the_place_of_a_folder(
    hub: Hub, sample: Path, repo: Any, finished: Callable[..., Path], read: Callable[..., Any]
) -> None:
    shutil.rmtree(sample / "figures")
    (sample / "figures").write_text("none")
    (sample / "report.md").unlink()
    (sample / "report.md").mkdir()
    (sample / "report.md" / "page").write_text("1")
    publish(finished(sample), REPO, hub=hub)
    assert repo.files() == read(sample)


def test_a_folder_that_fails_its_checks(server: Any, hub: Hub, sample: Path) -> None:
    (sample / "report.md").write_text("changed")
    with pytest.raises(UserError, match=r"digests: report.md differs from its digest; `lemur verify` tells more"):
        publish(sample, REPO, hub=hub)
    assert not server.requests


def test_what_is_written_while_it_is_asked_for_does_not_leave(
    server: Any, hub: Hub, sample: Path, finished: Callable[..., Path]
) -> None:
    def edit(plan: Published) -> bool:
        (sample / "report.md").write_text("# Rep0rt\n")
        return True

    with pytest.raises(UserError, match=r"report.md: was written anew while it was to be published"):
        publish(sample, REPO, hub=hub, confirm=edit)
    assert len(server.repos[REPO].log) == 1
    assert server.requests["commit"] == 0


def test_a_folder_that_is_replaced_while_it_is_checked(
    server: Any, hub: Hub, sample: Path, finished: Callable[..., Path]
) -> None:
    def verify_then_replace(folder: Path, *, jobs: int | None = None) -> list[Any]:
        checks = verify_folder(folder)
        change(sample, finished)
        return checks

    with pytest.raises(UserError, match=r"manifest.json was written anew meanwhile; run again"):
        publish_checked(sample, REPO, verify=verify_then_replace, hub=hub)
    assert not server.requests


@pytest.mark.parametrize("name", [".gitattributes", "a/.git/config", ".cache/x"])
def test_names_that_the_hub_does_not_take(
    server: Any, hub: Hub, sample: Path, finished: Callable[..., Path], name: str
) -> None:
    (sample / name).parent.mkdir(parents=True, exist_ok=True)
    (sample / name).write_text("x")
    with pytest.raises(UserError, match=f"takes no file named {name}"):
        publish(finished(sample), REPO, hub=hub)
    assert not server.requests


def test_a_file_by_which_the_hub_leaves_out_others(
    server: Any, hub: Hub, sample: Path, repo: Any, finished: Callable[..., Path]
) -> None:
    (sample / "figures" / ".gitignore").write_text("*.png")
    with pytest.raises(UserError, match=r"takes no file named figures/.gitignore"):
        publish(finished(sample), REPO, hub=hub)
    (sample / "figures" / ".gitignore").unlink()
    change(sample, finished)
    repo.edit(**{".gitignore": b"*.png"})
    for force in (True, False):
        with pytest.raises(UserError, match=r"holds .gitignore, by which the Hub leaves files out; remove it there"):
            publish(sample, REPO, hub=hub, force=force)
    assert len(repo.log) == 3


def test_what_the_hub_leaves_out_is_told(hub: Hub, sample: Path, server: Any, finished: Callable[..., Path]) -> None:
    (sample / "x.ignored").write_text("x")
    with pytest.raises(UserError, match=r"is not what was sent \(1 added.*x.ignored\); is there a .gitignore"):
        publish(finished(sample), REPO, hub=hub)


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (None, "the Hub does not know who you are; run `hf auth login`"),
        ("reader", "no permission to write: You don't have the rights to do this; run `hf auth login`"),
        ("hf_" + "x" * 34, "the Hub does not know who you are; run `hf auth login`"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_rights(
    server: Any, hub: Hub, sample: Path, monkeypatch: pytest.MonkeyPatch, token: str | None, told: str, there: bool
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", "hf_" + "R" * 34 if token == "reader" else token)
    if there:
        server.make(REPO)
    with pytest.raises(UserError) as caught:
        publish(sample, REPO, hub=hub)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(len(repo.log) == 1 for repo in server.repos.values())


@pytest.mark.parametrize("name", ["a b/c", "owner/data/more", "--x/y", "", "data"])
def test_names_of_repositories(server: Any, hub: Hub, sample: Path, name: str) -> None:
    with pytest.raises(UserError, match="not a repository name"):
        publish(sample, name, hub=hub)
    assert not server.requests
