"""Names that a file reads as globals and never binds, read off its compiled code."""

import builtins
import dis
import warnings
from collections.abc import Iterator
from types import CodeType

_LOADS = {dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME")}
_STORES = {dis.opmap[name] for name in ("STORE_GLOBAL", "STORE_NAME")}
_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_EXTENDED = dis.EXTENDED_ARG
_GIVEN = frozenset(dir(builtins)) | {"__file__", "__name__", "__doc__", "__spec__", "__annotations__", "WindowsError"}


def undefined_names(code: str) -> tuple[str, ...]:
    """Global names that a file reads and never binds. Compiles it, and so finds what does not compile.

    Names inside annotations that are not evaluated are not seen.

    Raises: SyntaxError if the code does not compile.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler thinks of other people's code is not ours to print
        module = compile(code, "block.py", "exec", dont_inherit=True)
    bound: set[str] = set()
    read: set[str] = set()
    for block in _blocks(module):
        top = block is module
        own: set[str] = set()
        for opcode, name in _names(block):
            if opcode in _LOADS:
                if opcode == _GLOBAL or top or name not in own:
                    read.add(name)
            elif top or opcode == dis.opmap["STORE_GLOBAL"]:
                bound.add(name)
            else:
                own.add(name)
    return tuple(sorted(read - bound - _GIVEN - _CLASS_GIVEN))


_CLASS_GIVEN = frozenset({"__module__", "__qualname__", "__class__"})


def _blocks(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _blocks(constant)


def _names(code: CodeType) -> Iterator[tuple[int, str]]:
    """The opcodes that read or bind global or class-level names, with the names."""
    raw = code.co_code
    extended = 0
    for at in range(0, len(raw), 2):
        opcode = raw[at]
        if opcode == _EXTENDED:
            extended = (extended | raw[at + 1]) << 8
            continue
        if opcode in _LOADS or opcode in _STORES:
            index = extended | raw[at + 1]
            yield opcode, code.co_names[index >> 1 if opcode == _GLOBAL else index]
        extended = 0
