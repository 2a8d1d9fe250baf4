"""Reading a code with what is known of its parts gives what reading all of it gives, whatever was read before."""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import fields

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lemur_core.similarity import parts
from lemur_core.similarity.outline import Outline, outline_tree
from lemur_core.similarity.parts import outline_code
from lemur_core.similarity.tokens import region_lines, region_tokens

METHOD = "    def forward(self, x):\n        '''Told.'''\n        return F.relu(self.a(x, 3))\n"
NET = "class Net(nn.Module):\n    def __init__(self):\n        self.a = nn.Conv2d(3, 8, 3)\n" + METHOD


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(parts, "_KNOWN", parts._Recent())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def told(code: str, outline: Outline | str) -> object:
    """All that is made of an outline."""
    if isinstance(outline, str):
        return outline
    plain = {item.name: getattr(outline, item.name) for item in fields(outline) if item.name not in {"text", "parts"}}
    plain["docstrings"] = sorted(outline.docstrings)
    return plain, outline.tree_digest, region_lines(outline), region_tokens(code, outline)


def whole(code: str) -> object:
    if not code.strip():
        return None
    try:
        return told(code, outline_tree(ast.parse(code)))
    except (SyntaxError, ValueError):
        return None


def check(code: str) -> int:
    """Both ways give the same. Returns: how many parts were read as such."""
    found = outline_code(code)
    expected = whole(code)
    if expected is None:
        assert isinstance(found, str)
        return 0
    assert not isinstance(found, str), (code, found)
    assert told(code, found) == expected, code
    return len(found.parts)


LINES = [
    *(
        "import torch",
        "x = 1",
        "x = \\",
        "foo \\",
        "'''",
        '"""',
        "f(",
        ")",
        "# comment",
        "",
        "    ",
        "@wrap",
        "    @wrap",
    ),
    *("if x:", "else:", "    if x:", "    else:", "    x = 1", "    'a string'", "'a string'", 'f"formatted"', "\x0c"),
    *(
        "class A:",
        "class Net(nn.Module):",
        "class B(Net):",
        "    class C(nn.Module):",
        "        x = C(2)",
        "(a, b) = 1, 2",
    ),
    *(
        "def help(x):",
        "def learn(self):",
        "    def learn(self):",
        "    def forward(self, x):",
        "async def forward(self):",
    ),
    *(
        "        return help(Conv2d(x, 3))",
        "    return Conv2d(3, x)",
        "        def inner(): pass",
        "    async def forward(x):",
    ),
    *(
        "    def g(): pass",
        "def g(): pass; y = 2",
        "    def h(x='''",
        "        y = '''",
        "try:",
        "finally:",
        "match x:",
    ),
    *(
        "    case 1: pass",
        "        '''Told.'''",
        "for x in y:",
        "    global x",
        "x = f'{a['b']}'",
        "    def forward(): pass",
    ),
    *(
        "x = 1; \\",
        "if 1: \\",
        "with a as b:",
        "        pass",
        "    pass",
        "    yield Linear(7)",
        "_left_out_",
        "é = 1",
    ),
]
blocks = st.one_of(st.sampled_from(LINES), st.just(NET.rstrip("\n")), st.just(METHOD.rstrip("\n")))
codes = st.lists(blocks, max_size=14).map(lambda lines: "\n".join(lines) + "\n")


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(codes, min_size=1, max_size=6))
def test_any_codes_one_after_another(several: list[str]) -> None:
    for code in (*several, *reversed(several), "".join(several)):
        check(code)


@pytest.mark.parametrize(
    "code",
    [
        NET,
        NET + METHOD.replace("forward", "other"),
        "class Other(Sequential):\n" + METHOD,  # that it has a `forward` is seen from the part
        "class Other(Sequential):\n    x = 1\n\n" + METHOD + "\n# end\n",
        "if x:\n" + METHOD,
        "def learn(self):\n" + METHOD + "    return Conv2d(1)\n",
        "class A:\n    async def f(self):\n        pass\n" + METHOD,
        "x = '''\n" + METHOD + "'''\nclass Net(nn.Module): pass\n",
        "x = (\n" + METHOD + ")\n",
        "x = 1; \\\n" + METHOD,
        "if 1: \\\n" + METHOD,
        "class Net(Module):\n    @staticmethod\n" + METHOD,
        "class Net(Module):\n" + METHOD + "(a, b) = 1, 2\n",
        "class Net(Module):\n" + METHOD + "    else:\n        pass\n",
        "class Net(Module):\n" + METHOD.replace("\n", "\r\n"),
        NET + "_left_out_ = 1\n",
        "class Net(Module):\n    def f(self, x):\n        g(\nx)\n        'told'\n",  # goes on at the margin
        "\n\n" + NET.removesuffix("\n"),
    ],
)
def test_a_known_method_in_other_surroundings(code: str) -> None:
    check(NET)
    check(NET + "\n# a comment\n")
    for _ in range(2):
        check(code)


def test_what_is_known_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def spy(code: str) -> ast.Module:
        seen.append(code)
        return compile(code, "", "exec", ast.PyCF_ONLY_AST)  # type: ignore[return-value]

    assert check(NET) == 2
    monkeypatch.setattr(ast, "parse", spy)
    outline_code("import torch\n\n\n" + NET)
    assert len(seen) == 1
    assert "relu" not in seen[0]
    assert len(seen[0].splitlines()) == len(("import torch\n\n\n" + NET).splitlines())


def test_few_parts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_CACHED_PARTS", 10)
    for number in range(100):
        outline_code(f"def f{number}():\n    pass\n")
    assert len(parts._KNOWN._young) + len(parts._KNOWN._old) <= 20
