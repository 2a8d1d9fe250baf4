"""The comparison with the repository: what it tells, applied there, gives what is here."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.publish.repository import LocalFile, RemoteFile, compare, local_file
from manifests.swhid import blob_sha1

NAMES = st.sampled_from(["a", "b", "a/b", "a/c", "README.md", "data/x.parquet", "data/y.parquet"])
CONTENTS = st.sampled_from([b"", b"x", b"y", b"longer"])
LOCAL = st.dictionaries(NAMES, CONTENTS)
REMOTE = st.dictionaries(NAMES, st.tuples(CONTENTS, st.booleans()))


def here(data: bytes) -> LocalFile:
    return LocalFile(len(data), hashlib.sha256(data).hexdigest(), blob_sha1(data))


def there(data: bytes, large: bool) -> RemoteFile:
    """Of a large file, the repository's own blob is a pointer."""
    if large:
        return RemoteFile(len(data), blob_sha1(b"pointer to " + data), hashlib.sha256(data).hexdigest())
    return RemoteFile(len(data), blob_sha1(data))


@given(LOCAL, REMOTE)
def test_applied_the_changes_give_the_local_files(
    local: dict[str, bytes], remote: dict[str, tuple[bytes, bool]]
) -> None:
    found = compare({k: here(v) for k, v in local.items()}, {k: there(*v) for k, v in remote.items()})
    after = {name: data for name, (data, _) in remote.items()}
    for name in found.removed:
        del after[name]
    for name in found.added:
        assert name not in after
        after[name] = local[name]
    for name in found.changed:
        assert after[name] != local[name], "only what differs is sent"
        after[name] = local[name]
    assert after == local
    told = [*found.added, *found.changed, *found.removed, *found.same]
    assert sorted(told) == sorted(local.keys() | remote.keys()), "each file once"
    assert bool(found) == (local != {name: data for name, (data, _) in remote.items()})
    assert all(list(part) == sorted(part) for part in (found.added, found.changed, found.removed, found.same))


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 3])
def test_digests_of_a_file(tmp_path: Path, size: int) -> None:
    data = b"z" * size
    (tmp_path / "f").write_bytes(data)
    assert local_file(tmp_path / "f") == here(data)
