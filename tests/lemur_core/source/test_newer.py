"""Files for a newer Python than the running one: their other statements are read as ever."""

import sys

import pytest

from lemur_core.source.facts import NewerSyntax
from lemur_core.source.newer import remove_newer_syntax
from lemur_core.source.parse import parse_file

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 12), reason="the running Python knows the syntax")

CASES = {
    "class A[T: int, *Ts](B[T]):\n    x: T\n": "class A             (B[T]):\n    x: T\n",
    "def f[\n    T = int\n](x: T): pass\n": "def f\\\n          \\\n (x: T): pass\n",
    "type Act[T] = list[T]\n": "Act         = list[T]\n",
    'x = f"{a["b"]}"\n': 'x =  "        "\n',
    "x = f'{\n    a  # first\n}'\n": "x =  '\\\n             \\\n '\n",
    "x = f'''{a['''b''']}\n\nend'''\n": "x =  '''            \n\n   '''\n",
    "x = t'{a}'\n": "x =  '   '\n",
    "try: pass\nexcept A, b.B: pass\nexcept (C, D): pass\n": "try: pass\nexcept A     : pass\nexcept (C, D): pass\n",
    "try: pass\nexcept* A, B: pass\n": "try: pass\nexcept* A   : pass\n",
}


@pytest.mark.parametrize("text", CASES)
def test_offsets_and_lines_stay(text: str) -> None:
    older, newer = remove_newer_syntax(text.encode())
    assert older.decode() == CASES[text]
    assert len(older) == len(text)
    compile(older, "", "exec")
    assert parse_file(text.encode()).newer == newer


def test_what_is_newer_says_where_and_since_when() -> None:
    facts = parse_file(b"class Old(nn.Module): pass\nclass New[T = int](Old): pass\ntype A = New\n")
    assert facts.newer == (
        NewerSyntax(36, "Python 3.13 (type parameters)"),
        NewerSyntax(57, "Python 3.12 (type statement)"),
    )
    assert [(item.name, item.bases) for item in facts.classes] == [("Old", (("nn", "Module"),)), ("New", (("Old",),))]


@pytest.mark.parametrize("text", ["print 'a'\n", "x = = 1\n", "class A[T]: pass\nx = = 1\n"])
def test_what_no_version_knows_stays_an_error(text: str) -> None:
    with pytest.raises(SyntaxError):
        parse_file(text.encode())
