"""Which global names a statement reads, when it reads them, and which it binds."""

import pytest

from lemur_core.source.facts import AT_CALL, AT_DEFINITION, IN_ANNOTATION, FileFacts, Use
from lemur_core.source.parse import parse_file


def facts_of(text: str) -> FileFacts:
    return parse_file(text.encode())


def uses_of(text: str, local: bool = False) -> list[Use]:
    facts = facts_of(text)
    found = [use for part in (*facts.statements, *facts.blocks) for use in part.uses]
    return [use for use in found if (use.local >= 0) == local]


def read(text: str, when: int) -> str:
    return " ".join(sorted({use.name for use in uses_of(text) if use.when == when}))


# text: read as it runs | read when called | read by annotations
READS: dict[str, tuple[str, str, str]] = {
    # functions
    "def f(a, /, b=x, *c, d=y, **e): return a, b, c, d, e, g": ("x y", "g", ""),
    "def f(x: A, *y: B, z: C = d, **w: D) -> E: return x": ("d", "", "A B C D E"),
    "f = lambda a, b=x: a + b + c": ("x", "c", ""),
    "@deco(x)\ndef f(): return f": ("deco x", "f", ""),
    "async def f():\n    async with a as b: await b\n    async for c in d: yield c\n    return [e async for e in g]": (
        "",
        "a d g",
        "",
    ),
    "def f():\n    x = 1\n    def g(): return x, y\n    return g": ("", "y", ""),
    "def f():\n    def g(): return x\n    x = 1": ("", "", ""),
    "def f():\n    print(x)\n    x = 1": ("", "", ""),
    "def f():\n    del x": ("", "", ""),
    "def f():\n    x: int\n    return x": ("", "", ""),
    "def f():\n    x.y: A = z": ("", "x z", "A"),
    "def f():\n    for i in n: pass\n    else: i\n    while i: i += k": ("", "k n", ""),
    "def f():\n    with a as (b, *c), d as e[g]: b, c": ("", "a d e g", ""),
    "def f():\n    try: a\n    except E as e: e\n    else: b\n    finally: c\n    e": ("", "E a b c", ""),
    "def f():\n    try: pass\n    except* E as e: e": ("", "E", ""),
    "def f():\n    import a.b, c as d\n    from e import g as h, i\n    return a, d, h, i, c, e, g": ("", "c e g", ""),
    "def f(x):\n    def g():\n        nonlocal x\n        x = y\n    return g": ("", "y", ""),
    # global
    "def f():\n    global x\n    x = y\n    def g(): return x\n    return g": ("", "x y", ""),
    "def f():\n    x = 1\n    def g():\n        global x\n        return x": ("", "x", ""),
    "def f():\n    x = 1\n    class C:\n        global x\n        y = x": ("", "x", ""),
    "class C:\n    global x\n    x = 1": ("", "", ""),
    # classes
    "class A(B, metaclass=M, k=v): c = d": ("B M d v", "", ""),
    "class A:\n    x = 1\n    y = x\n    def f(self, z=x): return x": ("", "x", ""),
    "class A:\n    x = 1\n    class B:\n        y = x": ("x", "", ""),
    "class A:\n    y = x\n    x = 1": ("x", "", ""),
    "class A:\n    x = 1\n    y = [x for _ in x if x]": ("x", "", ""),
    "class A:\n    x = 1\n    y = lambda: x": ("", "x", ""),
    "class A:\n    x: B = c\n    def f(self) -> A: return __class__, super()": ("c", "", "A B"),
    "class A:\n    @p\n    def f(self): return A\n    g = f": ("p", "A", ""),
    "def o(x):\n    class A:\n        y = x\n        x = z\n    return A": ("", "x z", ""),
    "def f():\n    class A:\n        y = x\n    return A": ("", "x", ""),
    # comprehensions
    "x = [a for a in b if c for d in a if e]": ("b c e", "", ""),
    "x = {a: b for a, *c in d}": ("b d", "", ""),
    "x = (i for i in i)": ("i", "", ""),
    "x = [[i for i in j] for j in k]": ("k", "", ""),
    "x = [y := f(i) for i in n]": ("f n", "", ""),
    "def f(): return [y := i for i in n], y": ("", "n", ""),
    "def f(): return [lambda: (i, j) for i in n]": ("", "j n", ""),
    "x = (lambda a: [a + b for b in c])(d)": ("d", "c", ""),
    # match
    "def f(x):\n    match x:\n        case [a, *b] if c: a, b\n        case {k.v: d, **e}: d, e\n        case P(q=r) | P(r): r\n        case M.N: pass\n        case s: s": (
        "",
        "M P c k",
        "",
    ),
    # f-strings and strings
    "x = f'{a} {b!r:>{c}} {d.e[g]}'": ("a b c d g", "", ""),
    "def f(y): return f'{y} {z=}'": ("", "z", ""),
    "x = 'a'": ("", "", ""),
    # annotations
    "x: 'A[B]' = 'C'": ("", "", "A B"),
    "x: List['A']": ("", "", "A List"),
    "x: Literal['A', 'B']": ("", "", "Literal"),
    "x: t.Literal['A']": ("", "", "t"),
    "x: Annotated[A, b]": ("b", "", "A Annotated"),
    "x = cast('A', y)": ("cast y", "", "A"),
    "T = TypeVar('T', bound='A')": ("TypeVar", "", "A"),
    "x: 'not valid ('": ("", "", ""),
    # statements
    "x += 1": ("x", "", ""),
    "x.y = z": ("x z", "", ""),
    "x[y] = z": ("x y z", "", ""),
    "del x[y], z.w": ("x y z", "", ""),
    "for x in y: z": ("y z", "", ""),
    "with a as b: b": ("a b", "", ""),
    "if a: b = c\nelse: b = d": ("a c d", "", ""),
    "assert a, b": ("a b", "", ""),
    "raise_ = a if b else c": ("a b c", "", ""),
    "print(len(x), __file__, True)": ("x", "", ""),
    "def len(x): return x\ny = len(1)": ("len", "", ""),
    "x = a.b.c(d).e": ("a d", "", ""),
}
CLASS_READS = {
    "class A:\n    x = x": "x",
    "class A:\n    for x in x: pass": "x",
    "class A:\n    x = [x]\n    y = x": "x",
    "class A:\n    x += 1": "x",
    "class A:\n    with x as x: pass": "x",
    "class A:\n    x, y = y, x": "x y",
    "class A:\n    x: B = x": "x",
    "class A:\n    def x(self, y=x): pass": "x",
    "class A:\n    @x\n    def x(self): pass": "x",
    "class A:\n    class x(x): pass": "x",
    "class A:\n    x = 1\n    x = x + 1": "",
}


@pytest.mark.parametrize("text", READS)
def test_reads(text: str) -> None:
    assert tuple(read(text, when) for when in (AT_DEFINITION, AT_CALL, IN_ANNOTATION)) == READS[text]


@pytest.mark.parametrize("text", CLASS_READS)
def test_a_class_body_reads_the_outer_name_until_it_has_its_own(text: str) -> None:
    assert read(text, AT_DEFINITION) == CLASS_READS[text]


# text: bound as it runs | bound later through `global` | changed
BINDS: dict[str, tuple[str, str, str]] = {
    "a = b.c = d[e] = 1": ("a", "", "b d"),
    "(a, [b, *c]), d = 1, 2": ("a b c d", "", ""),
    "for a, b in c: d = 1": ("a b d", "", ""),
    "with a as b, c as (d, e): pass": ("b d e", "", ""),
    "x = (y := 1)": ("x y", "", ""),
    "x = [y := i for i in n]": ("x y", "", ""),
    "x: int = 1": ("x", "", ""),
    "x: int": ("", "", ""),
    "import a.b, c.d as e": ("a e", "", ""),
    "from a import b as c, d": ("c d", "", ""),
    "def f():\n    global x, y\n    x = 1": ("f", "x y", ""),
    "class C:\n    global x\n    x = 1": ("C", "x", ""),
    "async def f(): pass": ("f", "", ""),
    "match a:\n    case [b, *c]: pass\n    case {'k': d, **e}: pass\n    case g as h: pass": ("b c d e g h", "", ""),
    "while x: y = 1": ("y", "", ""),
    "X.append(1)": ("", "", "X"),
    "X.y.z(1)": ("", "", "X"),
    "del X['a']": ("", "", "X"),
    "X[0][1] = 1": ("", "", "X"),
    "X.a += 1": ("", "", "X"),
    "def f(): X.append(1)": ("f", "", ""),
}


@pytest.mark.parametrize("text", BINDS)
def test_binds(text: str) -> None:
    (statement,) = facts_of(text).statements
    found = (statement.binds, statement.late, statement.touches)
    assert tuple(" ".join(sorted(names)) for names in found) == BINDS[text]


CALLED: dict[str, str] = {
    "x = f()": "f",
    "x = a.b(c)": "a",
    "x = f": "",
    "x = a.b().c": "a",
    "@d\ndef f(): pass": "d",
    "@d.e\nclass C: pass": "d",
    "@d(x)\nclass C: pass": "d",
    "class C(B): pass": "",
    "def f(): return g(h)": "g",
    "x = [f(i) for i in g]": "f",
    "x = f(g)(h)": "f",
}


@pytest.mark.parametrize("text", CALLED)
def test_called(text: str) -> None:
    assert " ".join(use.name for use in uses_of(text) if use.called) == CALLED[text]


@pytest.mark.parametrize(
    "text",
    [
        "x = α + αβ.γ  # α",
        "y = f'{a}{b.c!r:>{d}}' f'{ e }'",
        "def f(x): return ( x , g . h . i , k )",
        "é = 'é'; z = w . v",
        "class A(a.b[c], k = d): e = [f for f in g]",
    ],
)
def test_offsets_are_those_of_the_text(text: str) -> None:
    """Where a use has an offset, the name and its attributes stand there."""
    data = (text + "\n").encode()
    for use in uses_of(text):
        assert data[use.start : use.ends[0]].decode() == use.name
        for attribute, end in zip(use.attributes, use.ends[1:], strict=True):
            assert data[:end].decode().endswith(attribute)


def test_reads_of_local_imports_name_their_import() -> None:
    text = "def f():\n    from a import b, c as d\n    def g(): return d\n    return b.x, g\n"
    (statement,) = facts_of(text).statements
    assert [(entry.alias.bound, entry.stand_alone, entry.guarded) for entry in statement.locals] == [
        ("b", True, False),
        ("d", True, False),
    ]
    assert {(use.name, statement.locals[use.local].alias.name) for use in uses_of(text, local=True)} == {
        ("b", "b"),
        ("d", "c"),
    }


def test_shadows_are_the_names_of_inner_scopes() -> None:
    (statement,) = facts_of("def f(a):\n    b = [c for c in a]\n    global d\n    d = lambda e: e\n").statements
    assert statement.shadows == ("a", "b", "c", "e")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__all__ = ['a', 'b']", ("a", "b")),
        ("__all__ = ('a',)", ("a",)),
        ("__all__: list = ['a']\n__all__ += ['b']", ("a", "b")),
        ("__all__ = sorted(x)", None),
        ("x = 1", None),
    ],
)
def test_exports(text: str, expected: tuple[str, ...] | None) -> None:
    assert facts_of(text).exports == expected


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"def f(:\n", "invalid syntax"),
        (b"x = '\xff'\n", "encoding"),
        (b"# coding: nothing\n", "unknown encoding"),
        (b"x = 1\0\n", "null bytes"),
    ],
)
def test_what_is_no_python(raw: bytes, message: str) -> None:
    with pytest.raises(SyntaxError, match=message):
        parse_file(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"# only\n",
        b"\xef\xbb\xbfx = 1\n",
        b"x = 1\r\ny = 2\r\n",
        "# coding: latin-1\nx = 'é'\n".encode("latin-1"),
    ],
)
def test_what_is_python(raw: bytes) -> None:
    assert len(parse_file(raw).statements) == raw.count(b"= ")
