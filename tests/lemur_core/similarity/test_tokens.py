"""The lexical view: the published tokens, against the released nn-dup where it is installed, and where it is mended."""

import ast
import hashlib
import importlib.metadata
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from lemur_core.similarity.outline import Outline, outline_tree
from lemur_core.similarity.tokens import (
    SHINGLE_TOKENS,
    _abstract,
    is_model_class,
    literal_digest,
    region_lines,
    region_tokens,
    shingle_hashes,
)
from tests.builders.suites import table

#: Runs in a process of its own: token streams and shingle counts of the codes in a file.
PEER = """import json, sys, types, warnings
warnings.simplefilter("ignore")
api, nn = types.ModuleType("ab.nn.api"), types.ModuleType("ab.nn")
nn.api, nn.__path__ = api, []
import ab
ab.nn = sys.modules["ab.nn"] = nn
sys.modules["ab.nn.api"] = api
from ab.dup.consts import NUMBER_PLACEHOLDER, SHINGLE_K, STRING_PLACEHOLDER
from ab.dup.utils import textproc
assert SHINGLE_K == 10
places = {NUMBER_PLACEHOLDER: "NUM", STRING_PLACEHOLDER: "STR"}
found = []
for code in json.load(open(sys.argv[1])):
    region = textproc.extract_model_region(code)
    declared = textproc.collect_declared_names(region)
    tokens = textproc.python_token_stream(textproc.strip_comments_and_docstrings(region), declared)
    found.append([[places.get(token, token) for token in tokens], len(textproc.shingles(tokens))])
json.dump(found, sys.stdout)
"""

GOLDEN = "45d5cdd5893282cb"
OLDER = pytest.mark.skipif(sys.version_info >= (3, 12), reason="the tokenizer splits f-strings there")


def outline_of(code: str) -> Outline:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return outline_tree(ast.parse(code))


def raw(code: str) -> list[str]:
    return region_tokens(code, outline_of(code))[0]


def stream(code: str) -> list[str]:
    tokens, declared = region_tokens(code, outline_of(code))
    return [token if token in declared else _abstract(token) for token in tokens]


def shingles(code: str) -> set[int]:
    found: list[int] = shingle_hashes(*region_tokens(code, outline_of(code))).tolist()
    return set(found)


def peer(codes: list[str], folder: Path) -> list[tuple[list[str], int]]:
    try:
        importlib.metadata.version("nn-dup")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nn-dup is not installed: pip install --no-deps nn-dup==2.2.4")
    (folder / "codes.json").write_text(json.dumps(codes))
    command = [sys.executable, "-P", "-c", PEER, str(folder / "codes.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(tokens, count) for tokens, count in json.loads(done.stdout)]


MODEL = "import torch\n\nclass Net(nn.Module):\n"

#: Valid codes that both read alike.
BODIES = {
    "comments": "    # one\n    def forward(self, x):  # two\n        # three\n        return x\n",
    "docstrings": '    """Doc."""\n    def forward(self, x):\n        """More\n        of it."""\n        return x\n',
    "raw docstring": "    r'''Doc \\d.'''\n    def forward(self, x):\n        u'more'\n        return x\n",
    "string after a statement": "    a = 1\n    'dropped'\n    b = 'kept'\n",
    "string after an empty line": "    a = 1\n\n    'kept'\n    b = 1\n",
    "string after a comment": "    a = 1\n    # comment\n    'kept'\n    b = 1\n",
    "numbers": "    a = [0, 1.5, .5, 5., 1e-5, 1_000, 0xFF, 0b1, 0o7, 1j, 1.5e3j, 1E+5]\n",
    "strings": "    a = ['x', \"y\", b'z', r'\\d', rb'\\d', f'{a}', '''t\nu''', 'it\\'s', \"a'b\", 'a\"b', '']\n",
    "nested quotes": "    a = f\"{b['c']} {d!r:>{width}} {{}}\" + f'''{\"e\"}'''\n",
    "hash in a string": "    a = '# no comment'  # a comment\n    b = \"#\"\n",
    "operators": "    a = b ** c // d >> e << f | g & ~h ^ i @ j\n    a **= 1; b //= 2; c >>= 1; d <<= 2; e @= f; g |= h\n",
    "more operators": "    def f(a, *b, c: int = 1, **d) -> x:\n        return (y := a[..., 1:2]) != b <= c\n",
    "decorators": "    @property\n    @torch.no_grad()\n    def x(self):\n        return 1\n",
    "async": "    async def f(self):\n        async with a as b:\n            await c\n        async for d in e: pass\n",
    "unicode names": "    größe = 1\n    Größe = größE = 2\n    ñ = 'é'  # ü\n    名前 = 1\n",
    "lambda and comprehensions": "    f = lambda x, *y: {k: v for k, v in x if k} or [z for z in y]\n",
    "match": "    def f(self, x):\n        match x:\n            case [1, *rest] | {'a': 1}: pass\n            case _: pass\n",
    "continuation lines with blanks": "    a = 1 + \\\n        2\n    assert a, \\\n        'text'\n",
    "names that stay": "    Conv2d = Batch = layer = SElayer = SE = ReLU = Gelu = gELU = VGG = Dense_1 = _Dense = _ = A\n",
    "keywords": "    a = None if not True else False\n    global b\n    del c\n    raise D from e\n",
    "two networks": "    a = 1\n\n\nx = 5\n\n\nclass Other(torch.nn.Module):\n    b = 2\n",
    "adjacent networks": "    a = 1\nclass Other(Module):\n    b = 2\n",
    "no newline at the end": "    a = 1",
    "blank lines with blanks": "    a = 1\n      \n    b = 2\n   \n",
    "return annotation": "    def f(self) -> 'Net':\n        x: 'int' = 1\n",
    "type union": "    def f(self, a: int | None = None, /, *, b: 'X' = ...) -> None: ...\n",
}
ALIKE = {name: MODEL + body for name, body in BODIES.items()} | {
    "decorated class": "@register(name='Net')\nclass Net(nn.Module):\n    @staticmethod\n    def f(): pass\n",
    "helpers": "def helper(x):\n    return x\n\ndef other(x):\n    return x\n\n" + MODEL + "    y = helper(1)\n",
    "no network": "import os\n\nx = [os.getcwd(), 'text', 3]\n\n\ndef f():\n    '''Doc.'''\n    return 1\n",
    "module docstring": '"""Doc."""\nx = 1\n',
    "few tokens": "x = 1\n",
    "windows newlines": MODEL.replace("\n", "\r\n")
    + "    def f(self):\r\n        'doc'\r\n        return '''a\r\nb'''\r\n",
}


#: Valid codes that nn-dup misreads: what we read instead.
MENDED = {
    "a bare continuation line": (
        MODEL + "    def f(self, x):\n        return \\\nx\n",
        "class Net ( ID . Module ) : def f ( ID , ID ) : return ID",
    ),
    "a bare continuation line in an expression": (
        MODEL + "    def f(self, x):\n        if x and \\\ny: return 1\n",
        "class Net ( ID . Module ) : def f ( ID , ID ) : if ID and ID : return NUM",
    ),
    "a docstring in pieces": (
        MODEL + "    'one' 'two'\n    def forward(self, x):\n        return x\n",
        "class Net ( ID . Module ) : STR def forward ( ID , ID ) : return ID",
    ),
    "a docstring on the line of its function": (
        MODEL + "    def f(self): 'ä'; return 'ö'\n",
        "class Net ( ID . Module ) : def f ( ID ) : ; return STR",
    ),
    "names declared in a nested network": (
        "class Outer:\n    class inner(nn.Module):\n        a = 1\n    b = 2\n",
        "class inner ( ID . Module ) : ID = NUM",
    ),
    "tabs": (
        "class Net(nn.Module):\n\tdef f(self):\n\t\tif x:\n\t\t\treturn 1\n\t\treturn 2\n",
        "class Net ( ID . Module ) : def f ( ID ) : if ID : return NUM return NUM",
    ),
    "a base that is not called Module": (
        "class Net(nn.Sequential):\n    def forward(self, x):\n        return x\n\ndef outside():\n    return 1\n",
        "class Net ( ID . Sequential ) : def forward ( ID , ID ) : return ID",
    ),
    "a class derived from a network of the file": (
        "class A(nn.Module):\n    a = 1\n\nx = 1\n\nclass B(A):\n    b = 2\n\nclass C(B):\n    c = 3\n\nclass D:\n    d = 4\n",
        "class A ( ID . Module ) : ID = NUM class B ( A ) : ID = NUM class C ( B ) : ID = NUM",
    ),
}


@pytest.mark.parametrize("name", MENDED)
def test_mended(name: str) -> None:
    code, expected = MENDED[name]
    assert " ".join(stream(code)) == expected


@OLDER
def test_the_published_tokens_and_that_what_is_mended_was_broken(tmp_path: Path) -> None:
    codes = ALIKE | {name: code for name, (code, _) in MENDED.items()}
    found = dict(zip(codes, peer([*codes.values()], tmp_path), strict=True))
    ours = {name: (stream(code), len(shingles(code))) for name, code in ALIKE.items()}
    assert {name: found[name] for name in ALIKE} == ours
    for name, (_, expected) in MENDED.items():
        assert found[name][0] != expected.split(), f"nn-dup reads {name} alike: it belongs to ALIKE"


@table(__file__, "tokens.md", "Odd layout", globals())
@pytest.mark.filterwarnings("ignore")
def test_odd_layout(code: str, expected: str) -> None:
    assert " ".join(stream(code)) == expected


def test_raw_tokens_are_the_words_of_the_code() -> None:
    code = MODEL + "    def forward(self, x):\n        '''doc'''\n        return x * 1.50  # c\n"
    assert " ".join(raw(code)) == "class Net ( nn . Module ) : def forward ( self , x ) : return x * 1.50"


@table(__file__, "tokens.md", "Model classes", globals())
def test_model_classes(code: str, model: list[bool]) -> None:
    assert is_model_class(outline_of(code)) == model


@table(__file__, "tokens.md", "Region", globals())
def test_region(code: str, lines: list[tuple[int, int]]) -> None:
    assert region_lines(outline_of(code)) == lines


def test_shingles() -> None:
    eleven = ["ID", "=", "a", "+", "b", "+", "c", "+", "d", "+", "e"]
    none: frozenset[str] = frozenset()
    assert len(shingle_hashes(eleven, none)) == 11 - SHINGLE_TOKENS + 1
    assert len(shingle_hashes(eleven[:9], none)) == 1
    assert len(shingle_hashes([], none)) == 0
    found = shingle_hashes(eleven * 9, none)
    assert found.dtype == np.uint64
    assert (np.diff(found.astype(object)) > 0).all()
    # a short code is not a shingle of a longer one
    short, longer = (set(shingle_hashes(eleven[:n], none).tolist()) for n in (9, 10))
    assert not short & longer
    assert len(shingle_hashes(["x"] * 30, none)) == 1, "repeated shingles are one"
    # declared names keep their text
    assert shingle_hashes(["net"], none).tolist() == shingle_hashes(["other"], none).tolist()
    assert shingle_hashes(["net"], frozenset({"net"})).tolist() != (shingle_hashes(["net"], none).tolist())


def test_shingles_never_change() -> None:
    """They are cached and decide similarities: other values need another FEATURES_VERSION."""
    code = ALIKE["helpers"]
    found = shingle_hashes(*region_tokens(code, outline_of(code)))
    assert hashlib.sha256(found.astype("<u8").tobytes()).hexdigest()[:16] == GOLDEN


def test_literal_digest() -> None:
    assert literal_digest(["a", "b"]) == literal_digest(["a", "b"])
    assert len({literal_digest(t) for t in (["a", "b"], ["ab"], ["b", "a"], ["a"], [], ["a", "b", ""])}) == 6


def test_a_long_chain_of_classes_is_read_in_time() -> None:
    """Derived classes before their bases: a hostile order, but a valid code of 200 kB."""
    count = 5000
    code = "".join(f"class C{i}(C{i + 1}): x = 1\n" for i in range(count)) + f"class C{count}(Module): x = 1\n"
    found = outline_of(code)
    assert all(is_model_class(found))


def _alike(code: str) -> bool:
    """Whether nn-dup finds the same network classes, so that both read the same part of the file."""
    outline = outline_of(code)
    named = ["Module" in item.bases for item in outline.classes]
    return is_model_class(outline) == named


@pytest.mark.network
@pytest.mark.slow
@OLDER
def test_the_published_tokens_of_real_codes(real_codes: list[str], tmp_path: Path) -> None:
    codes = real_codes[::60]
    alike = mended = 0
    for code, (tokens, count) in zip(codes, peer(codes, tmp_path), strict=True):
        ours = stream(code)
        if tokens and _alike(code):
            alike += 1
            assert ours == tokens
            assert len(shingles(code)) == count
        else:
            mended += 1
            assert ours
    assert alike > 20 * max(1, mended), "most real codes are read as published"
