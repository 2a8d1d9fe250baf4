"""Path patterns."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extract.sources.scope import compile_patterns


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("timm/layers", "timm/layers/se.py", True),
        ("timm/layers/", "timm/layers/deep/se.py", True),
        ("timm/layers", "timm/layers2/se.py", False),
        ("timm/layers", "timm/layers.py", True),
        ("timm/lay", "timm/layers/se.py", False),
        ("layers", "timm/layers/se.py", False),
        ("models_mae", "models_mae.py", True),
        ("models_mae", "models_mae_v2.py", False),
        ("models_mae.py", "models_mae.py", True),
        ("util", "util/misc.py", True),
        ("./util", "util/misc.py", True),
        (".", "util/misc.py", True),
        ("*.py", "a.py", True),
        ("*.py", "b/a.py", False),
        ("*", "b/a.py", True),
        ("**/a.py", "a.py", True),
        ("**/a.py", "b/c/a.py", True),
        ("**/a.py", "b/c/ba.py", False),
        ("a/**/c", "a/c/x.py", True),
        ("a/**/c", "a/b/b/c.py", True),
        ("a/**", "a/b/c.py", True),
        ("a/**", "b/c.py", False),
        ("**", "a/b.py", True),
        ("models/*/modeling_*.py", "models/bert/modeling_bert.py", True),
        ("models/*/modeling_*.py", "models/bert/deep/modeling_bert.py", False),
        ("models/*", "models/bert/deep/x.py", True),
        ("re?net", "resnet/x.py", True),
        ("re?net", "re/net/x.py", False),
        ("[ab]/x.py", "b/x.py", True),
        ("[!ab]/x.py", "b/x.py", False),
        ("[!ab]/x.py", "c/x.py", True),
        ("[ab", "[ab/x.py", True),
        ("a.b+c", "a.b+c/x.py", True),
        ("a.b", "axb/x.py", False),
    ],
)
def test_patterns(pattern: str, path: str, matches: bool) -> None:
    assert bool(compile_patterns((pattern,)).match(path)) is matches


def test_one_of_several_suffices() -> None:
    pattern = compile_patterns(("a", "b/*.py"))
    assert [bool(pattern.match(path)) for path in ("a/x.py", "b/x.py", "c/x.py", "b/c/x.py")] == [
        True,
        True,
        False,
        False,
    ]
    assert not compile_patterns(()).match("a.py")


names = st.text("ab*?[]!^-\\.+(|", min_size=1, max_size=5)


@given(
    names.filter(lambda name: "**" not in name and name.strip(".")), st.text("ab-^!\\.+(|[]", min_size=1, max_size=4)
)
def test_within_one_name_as_fnmatch(pattern: str, name: str) -> None:
    if pattern.startswith("./") or name.endswith(".py"):
        return
    try:
        expected = fnmatch.fnmatchcase(name, pattern)
    except Exception:  # noqa: BLE001 (a range such as [b-a], which some versions of Python refuse)
        return
    assert bool(compile_patterns((f"x/{pattern}",)).match(f"x/{name}/f.py")) is expected
