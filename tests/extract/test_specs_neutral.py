"""Neutrality: no spec repeats eight tokens of its source, checked by independent code."""

import ast
import importlib.util
import io
import json
import keyword
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from extract.specs.make import LIMIT, find_repeat, make_spec, strip_header, to_line
from manifests.records import Block
from tests.builders import sample_blocks

_IDENTITY = ("block", "name", "class", "source", "path", "swhid", "license", "code_sha256", "file")


def grams(tokens: list[str]) -> set[tuple[str, ...]]:
    return {tuple(tokens[place : place + 8]) for place in range(len(tokens) - 7)}


def fine(text: str) -> list[str]:
    return re.findall(r"[A-Za-z_0-9]+|[^\sA-Za-z_0-9]", text)


def coarse(code: str) -> list[str]:
    """Return Python's own tokens, with comments and strings split into words."""
    found: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            found += token.string.strip("#\"' ").split()
        elif token.string.strip():
            found.append(token.string)
    return found


def passages(facts: dict[str, Any], code: str) -> list[tuple[str, ...]]:
    """Yield every token sequence that a spec shares with its source, with either way of counting tokens."""
    line = json.dumps({key: value for key, value in facts.items() if key not in _IDENTITY}, ensure_ascii=False)
    body = "\n".join(code.split("\n\n", 1)[1:]) if code.startswith("#") else code
    wrong = grams(fine(line)) & grams(fine(body))
    wrong |= grams(re.findall(r"[\w.+-]+|[^\w\s]", line)) & grams(coarse(body))
    return sorted(wrong)


def check(row: Block) -> None:
    spec = make_spec(row)
    facts = json.loads(to_line(spec))
    assert row.code is not None
    assert passages(facts, row.code) == [], row.block


def real_files() -> Iterator[Path]:
    """Find the packages without importing them, which takes seconds."""
    for package, folder in (("torch", "nn/modules"), ("torchvision", "models"), ("torchvision", "ops")):
        found = importlib.util.find_spec(package)
        assert found is not None
        assert found.origin is not None
        yield from sorted((Path(found.origin).parent / folder).glob("*.py"))[::8]


def test_the_checker_finds_what_is_there() -> None:
    facts = {"summary": "made with norm=dict(type='BN', eps=0.001)"}
    assert passages(facts, sample_blocks.TEXTS["SQUEEZE"])
    assert passages({"a": ["x", "y", "z"]}, 'A = ["x", "y", "z"]\n')
    assert not passages({"summary": "type BN; eps 0.001"}, sample_blocks.TEXTS["SQUEEZE"])
    assert LIMIT == 8
    assert strip_header(sample_blocks.TEXTS["SQUEEZE"]).lstrip().startswith("import torch")
    assert strip_header("# a\n# b") == "# b"


def test_real_code() -> None:
    """Three classes from each of an eighth of PyTorch's and torchvision's own files, and a block that was observed."""
    check(sample_blocks.block())
    check(sample_blocks.block(**sample_blocks.observed()))
    count = 0
    for file in real_files():
        code = file.read_text(encoding="utf-8")
        names = [node.name for node in ast.parse(code).body if isinstance(node, ast.ClassDef)]
        for name in names[:3]:
            check(sample_blocks.block(code, name, module=f"{file.parent.name}.{file.stem}"))
            count += 1
    assert count > 12


def test_what_repeats_its_source_is_withheld() -> None:
    """A docstring with the same text as the spec: the values are removed, and the spec says which."""
    spec = make_spec(sample_blocks.block(**sample_blocks.observed()))
    facts = spec.model_dump(mode="json")
    for text, withheld in (
        (spec.summary, "summary"),
        (json.dumps(facts["cases"], ensure_ascii=False), "cases"),
        (json.dumps(facts["layers"], sort_keys=True), "layers"),
        (json.dumps(facts["constructor"][0]), "constructor channels type"),
    ):
        row = sample_blocks.block(f"{sample_blocks.TEXTS['SQUEEZE']}\n\n# {text}\n", **sample_blocks.observed())
        found = make_spec(row)
        assert withheld in found.withheld
        check(row)
    assert spec.withheld == ()


@given(st.lists(st.sampled_from("abc"), max_size=24), st.lists(st.sampled_from("abc"), max_size=24), st.integers(1, 9))
def test_a_common_run_is_found_when_there_is_one(one: list[str], other: list[str], limit: int) -> None:
    runs = [{tuple(tokens[n : n + limit]) for n in range(len(tokens) - limit + 1)} for tokens in (one, other)]
    found = find_repeat(" ".join(one), other, limit)
    assert (found is None) == (not runs[0] & runs[1])
    assert found is None or tuple(found) in runs[0] & runs[1]


names = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda name: not keyword.iskeyword(name))
plain = st.one_of(
    st.integers(-9999, 9999),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.booleans(),
    st.none(),
    st.text(max_size=40),
    st.lists(st.sampled_from(["same", "valid", "a b", "x,y"]), min_size=1, max_size=3).map(" ".join),
).map(repr)


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    listed = st.lists(inner, max_size=12).map(", ".join)
    pairs = st.lists(st.tuples(names, inner), max_size=8, unique_by=lambda pair: pair[0])
    return st.one_of(
        listed.map(lambda text: f"[{text}]"),
        listed.map(lambda text: f"({text},)" if text else "()"),
        pairs.map(lambda items: "{" + ", ".join(f"{name!r}: {value}" for name, value in items) + "}"),
        pairs.map(lambda items: "dict(" + ", ".join(f"{name}={value}" for name, value in items) + ")"),
        st.tuples(names, pairs).map(
            lambda call: f"partial(nn.{call[0]}, " + ", ".join(f"{n}={v}" for n, v in call[1]) + ")"
        ),
    )


expressions = st.recursive(plain, grown, max_leaves=24)


@settings(max_examples=10)
@example([("a", "'0¡0¡0ª0¹'")], False)
@given(st.lists(st.tuples(names, expressions), min_size=1, max_size=8, unique_by=lambda pair: pair[0]), st.booleans())
def test_any_default_is_neutral(defaults: list[tuple[str, str]], as_text: bool) -> None:
    given = ", ".join(f"{name}={value}" for name, value in defaults)
    remark = f"    # Args: {' '.join(f'{name}: {value}' for name, value in defaults)}" if as_text else ""
    code = f"import torch\n\n\nclass A(torch.nn.Module):\n{remark}\n    def __init__(self, {given}): ...\n"
    code += "    def forward(self, x): ...\n"
    try:
        ast.parse(code)
    except SyntaxError:
        return  # a control character in a remark
    arguments = json.dumps({"init": {"args": [value for _, value in defaults], "kwargs": {}}})
    row = sample_blocks.block(code, "A", **{**sample_blocks.observed(), "arguments": arguments})
    check(row)
    assert len(make_spec(row).constructor) == len(defaults)
    assert max(len(item.default or "") for item in make_spec(row).constructor) <= 100
