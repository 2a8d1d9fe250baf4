"""Environment variables that a block reads: the values that its source assigns to them.

    # net.py                                          # train.py
    SIZE = int(os.environ["ACME_SIZE"])               os.environ["ACME_SIZE"] = "64"

The file of a class of net.py gets `os.environ.setdefault("ACME_SIZE", "64")`, so that it can be imported alone, and a
variable that is set keeps its value. Only literal values count; of several, the first in the order of the files.
"""

import ast
import re
from collections.abc import Mapping, Sequence

from extract.resolve.modules import Module
from lemur_core.source.facts import Statement

_READ = re.compile(rb"environ\[\s*(?P<quote>['\"])(\w+)(?P=quote)\s*\](?!\s*=[^=])")
_SET = re.compile(
    rb"environ(?:\[\s*(?P<quote>['\"])(?P<name>\w+)(?P=quote)\s*\]\s*=|\.setdefault\(\s*(?P<other>['\"])(?P<key>\w+)(?P=other)\s*,)"
    rb"\s*(?P<value>'[^'\\\n]*'|\"[^\"\\\n]*\")\s*[)#;\r\n]"
)


def list_settings(statements: Sequence[tuple[Module, Statement]]) -> Mapping[str, tuple[str, str]]:
    """Return the variables that these statements need, with the value and the file that assigns it, where one does."""
    wanted: dict[str, Module] = {}
    for module, statement in statements:
        for match in _READ.finditer(module.text, statement.start, statement.end):
            wanted.setdefault(match[2].decode(), module)
    settings: dict[str, tuple[str, str]] = {}
    for name, module in sorted(wanted.items()):
        for file in module.source.files:
            value = _find_value(module.source.read(file), name.encode())
            if value is not None:
                settings[name] = value, file.path
                break
    return settings


def _find_value(text: bytes, name: bytes) -> str | None:
    for match in _SET.finditer(text) if name in text else ():
        if name in (match["name"], match["key"]):
            return str(ast.literal_eval(match["value"].decode("utf-8", "replace")))
    return None
