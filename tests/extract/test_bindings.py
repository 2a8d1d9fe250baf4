"""Bound names: which bindings count as the same, on small pairs of files, and on closed files and their packages."""

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extract.model.results import _count_names
from extract.proofs.name_resolution import BoundNames, compare_bindings, section, to_columns
from extract.proofs.name_resolution_guest import Bindings, instructions
from extract.proofs.validate import BoundFile, MissingOriginal
from extract.resolve.index import FactsIndex
from lemur_core.sandbox import Failure
from manifests.records import Block

HEAD = "import torch\nfrom torch import nn\nimport math\n\n\n"
HELPER = "def helper(x, scale=2.0):\n    return x * scale\n\n\n"
NET = """class Net(nn.Module):
    def forward(self, x):
        return helper(x) + math.sqrt(LIMIT)
"""
LIMIT = "LIMIT = 4.0\n\n\n"
ORIGINAL = HEAD + LIMIT + HELPER + NET


def module_of(code: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    exec(compile(code, f"{name}.py", "exec"), vars(module))
    return module


def bindings(original: str, copy: str, standins: frozenset[str] = frozenset()) -> dict[str, Any]:
    theirs, ours = module_of(original, "lib.net"), module_of(copy, "block")
    return Bindings(standins).compare(theirs.Net, ours.Net)


def test_the_same_text_binds_the_same() -> None:
    """Three names: attributes that a function reads from a module count separately; `x` and `range` do not count."""
    told = "# " + ORIGINAL.replace("\n\n\n", "\n\n").replace("x * scale", "(x * scale)  # told otherwise")
    assert bindings(ORIGINAL, told) == {"compared": 3, "same": 3, "standin": 0, "others": []}


def test_the_number_that_torch_gives_a_function_is_no_part_of_it() -> None:
    """Definitions of an autograd function always count, whatever their contents."""
    square = (
        "class Square(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return x * x\n\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        return grad\n\n\n"
    )
    original = HEAD + square + "class Net(nn.Module):\n    def forward(self, x):\n        return Square.apply(x)\n"
    assert bindings(original, original)["others"] == []
    assert bindings(original, original.replace("x * x", "x + x"))["others"] == [
        "lib.net: Square: forward: another text"
    ]


CASES: dict[str, tuple[str, list[str]]] = {
    "another function": (
        ORIGINAL.replace("x * scale", "x + scale"),
        ["lib.net: helper: another text"],
    ),
    "another default": (
        ORIGINAL.replace("scale=2.0", "scale=2"),
        ["lib.net: helper: defaults: of type int, not float"],
    ),
    "another constant": (ORIGINAL.replace("LIMIT = 4.0", "LIMIT = 4.5"), ["lib.net: LIMIT: another value"]),
    "another type of constant": (ORIGINAL.replace("LIMIT = 4.0", "LIMIT = 4"), ["lib.net: LIMIT: of type int, not float"]),
    "not bound at all": (HEAD + HELPER + NET, ["lib.net: LIMIT: LIMIT is not bound"]),
    "a class in its place": (
        ORIGINAL.replace(HELPER, "class helper:\n    pass\n\n\n"),
        ["lib.net: helper: a type, not a function: builtins.type, not builtins.function"],
    ),
    "renamed, and the same": (ORIGINAL.replace("helper", "helper_2"), []),
    "taken out of its module, and the same": (
        ORIGINAL.replace("import math\n", "from math import sqrt\n").replace("math.sqrt", "sqrt"),
        [],
    ),
    "a namespace for a module": (
        ORIGINAL.replace("import math\n", "import types\nfrom math import sqrt\nmath = types.SimpleNamespace(sqrt=sqrt)\n"),
        [],
    ),
    "another function of the module": (
        ORIGINAL.replace("import math\n", "from math import cbrt\n").replace("math.sqrt", "cbrt"),
        ["lib.net: math.sqrt: None.cbrt, not None.sqrt"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_the_same(case: str) -> None:
    copy, others = CASES[case]
    found = bindings(ORIGINAL, copy)
    others = [other.replace("None.", "math.") for other in others]
    assert found["others"] == others
    assert found["compared"] == 3
    assert found["same"] == 3 - len(others)


def test_what_a_function_of_the_file_reads_is_followed() -> None:
    """A difference two calls away is attributed to the name read there; the function that reads it is the same."""
    inner = "DEEP = [1, 2]\n\n\ndef inner():\n    return DEEP\n\n\n"
    original = HEAD + LIMIT + inner + HELPER.replace("return x", "return inner() and x") + NET
    found = bindings(original, original.replace("[1, 2]", "[1, 3]"))
    assert found == {"compared": 5, "same": 4, "standin": 0, "others": ["lib.net: DEEP: another value"]}


def test_classes_are_what_they_define() -> None:
    part = "class Part(nn.Module):\n    kind = 'a'\n\n    @property\n    def size(self):\n        return LIMIT\n\n\n"
    uses = "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.part = Part()\n"
    original = HEAD + LIMIT + part + uses
    assert bindings(original, original) == {"compared": 2, "same": 2, "standin": 0, "others": []}
    for old, new, why in (
        ("'a'", "'b'", "kind: another value"),
        ("return LIMIT", "return -LIMIT", "size: another text"),
        ("Part(nn.Module)", "Part(nn.Identity)", "base Module: torch.nn.modules.linear.Identity"),
        ("    kind = 'a'\n", "", "kind is lacking"),
        ("    kind = 'a'\n", "    kind = 'a'\n    other = 1\n", "other is new"),
    ):
        (other,) = bindings(original, original.replace(old, new))["others"]
        assert other.startswith("lib.net: Part: "), other
        assert why in other, other


def test_tables_of_classes_are_compared_entry_by_entry() -> None:
    text = (
        HEAD + "class A(nn.Module):\n    pass\n\n\nclass B(nn.Module):\n    x = 1\n\n\nTABLE = {'a': A, 'b': B}\n\n\n"
    )
    original = text + "class Net(nn.Module):\n    def forward(self, x):\n        return TABLE\n"
    assert bindings(original, original)["others"] == []
    fewer = original.replace(", 'b': B}", "}")
    assert bindings(original, fewer)["others"] == ["lib.net: TABLE: 1 entries, not 2"]
    swapped = original.replace("{'a': A, 'b': B}", "{'a': B, 'b': A}")
    assert bindings(original, swapped)["others"] == ["lib.net: TABLE: an entry: x is new"]


def test_a_stand_in_is_told_apart() -> None:
    copy = ORIGINAL.replace("x * scale", "x + scale")
    found = bindings(ORIGINAL, copy, frozenset({"helper"}))
    assert found == {"compared": 3, "same": 2, "standin": 1, "others": ["lib.net: helper: a stand-in"]}


def test_what_cannot_be_told_is_not_counted() -> None:
    original = HEAD + "TOKEN = object()\n\n\n" + NET.replace("helper(x) + math.sqrt(LIMIT)", "TOKEN, __name__, lost")
    assert bindings(original, original) == {"compared": 0, "same": 0, "standin": 0, "others": []}


def test_what_refers_to_itself_comes_to_an_end() -> None:
    text = HEAD + "LOOP = [1]\nLOOP.append(LOOP)\n\n\ndef again(n):\n    return again(n - 1) if n else LOOP\n\n\n"
    original = text + "class Net(nn.Module):\n    def forward(self, x):\n        return again(x)\n"
    assert bindings(original, original) == {"compared": 2, "same": 2, "standin": 0, "others": []}


def test_decorators_are_seen_by_what_they_made() -> None:
    text = (
        "import functools\n"
        + HEAD
        + "def twice(f):\n    @functools.wraps(f)\n    def run(*a):\n        return f(*a) * 2\n    return run\n\n\n"
    )
    original = text + LIMIT + HELPER.replace("def helper", "@twice\ndef helper") + NET
    assert bindings(original, original)["same"] == 3
    found = bindings(original, original.replace("@twice\n", ""))
    assert found["others"] == ["lib.net: helper: another text"]


def test_instructions_leave_out_names_of_globals_and_places() -> None:
    one = module_of(
        f"import math\n\n\n\ndef f(a):\n    if a:\n        return math.pi\n    return {'{'}3, 1, 2{'}'}\n", "one"
    )
    other = module_of("from math import pi as p\ndef f(a):\n    if a: return p\n    return {3, 1, 2}\n", "other")
    third = module_of("from math import pi as p\ndef f(a):\n    if not a: return p\n    return {3, 1, 2}\n", "third")
    assert instructions(one.f) == instructions(other.f)
    assert instructions(one.f) != instructions(third.f)


def test_a_name_that_the_file_imports_is_called_by_other_instructions() -> None:
    """Python resolves attributes through import bindings, everything else through methods."""
    call = "def f(a):\n    return absent.run(a)\n"
    imported = module_of(f"try:\n    import absent\nexcept ImportError:\n    absent = 1\n{call}", "imported")
    bound = module_of(f"absent = 1\n{call}", "bound")
    assert instructions(imported.f) == instructions(bound.f)
    assert instructions(bound.f) != instructions(module_of(f"absent = 1\n{call.replace('run', 'go')}", "other").f)


def test_members_of_sets_and_enums_are_found_in_any_order() -> None:
    """Sets of classes have a different order in each file; a member of an enum may also be a string."""
    classes = "".join(f"class {name}(nn.Module):\n    kind = {name!r}\n\n\n" for name in ("A", "B", "C", "D"))
    kinds = "from enum import Enum\n\n\nclass Kind(str, Enum):\n    ONE = 'one'\n    TWO = 'two'\n\n\n"
    uses = "class Net(nn.Module):\n    def forward(self, x):\n        return KINDS, Kind.ONE\n"
    original = HEAD + classes + kinds + "KINDS = {A, B, C, D}\nUSED = Kind.ONE\n\n\n" + uses
    assert bindings(original, original) == {"compared": 2, "same": 2, "standin": 0, "others": []}
    other = original.replace("{A, B, C, D}", "{A, B, C}")
    assert bindings(original, other)["others"] == ["lib.net: KINDS: another member"]
    (wrong,) = bindings(original, original.replace("TWO = 'two'", "TWO = '2'"))["others"]
    assert wrong.startswith("lib.net: Kind: ")


# --- in the sandbox ---------------------------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path) -> Iterator[FactsIndex]:
    with FactsIndex(tmp_path / "facts.sqlite") as opened:
        yield opened


@pytest.mark.slow
def test_files_against_their_package(tmp_path: Path, index: FactsIndex) -> None:
    """Each in isolation: a block that cannot be imported, fails, or exits reports nothing and affects no other."""
    site = tmp_path / "site"
    for path, text in {
        "__init__": "",
        "net": ORIGINAL,
        "dies": "import os\nos.abort()\n",
        "gone": "import nope\n",
    }.items():
        (site / "lib").mkdir(parents=True, exist_ok=True)
        (site / "lib" / f"{path}.py").write_text(text)
    files = {
        "same": (ORIGINAL, "lib.net"),
        "other": (ORIGINAL.replace("4.0", "5.0"), "lib.net"),
        "fails": ("1 / 0\n", "lib.net"),
        "dies": (ORIGINAL, "lib.dies"),
        "gone": (ORIGINAL, "lib.gone"),
    }
    bound = [BoundFile(key, "Net", code, module, (site,), "0" * 64, ()) for key, (code, module) in files.items()]
    found = dict(compare_bindings(bound, index, jobs=1))
    assert set(found) == set(files)
    assert found["same"] == to_columns(BoundNames(3, 3, 0, ()))
    assert found["other"]["names_other"] == ("lib.net: LIMIT: another value",)
    assert (found["fails"], found["dies"], found["gone"]) == ({}, {}, {})
    assert not [name for name in sys.modules if name.partition(".")[0] == "lib"]


def test_nothing_compared_is_no_section() -> None:
    assert section([], _count_names([])) == []
    assert to_columns(MissingOriginal("x")) == to_columns(Failure("x")) == {}
    assert {"names_compared", "names_same", "names_standin", "names_other"} <= Block.model_fields.keys()


def test_reasons_hold_no_text_of_the_source() -> None:
    """They appear in a report that is redistributed, whatever the license of the source."""
    original = ORIGINAL.replace("LIMIT = 4.0", "LIMIT = {'a key': ['words of the author', 'b']}")
    found = bindings(original, original.replace("words of the author", "other words"))
    assert found["others"] == ["lib.net: LIMIT: an entry: another value"]
