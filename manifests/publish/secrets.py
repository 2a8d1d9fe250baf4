"""The shapes of access tokens, keys and passwords.

Source: https://docs.github.com/en/code-security/secret-scanning/introduction/supported-secret-scanning-patterns
"""

import re

from manifests.publish.shapes import Shape, after_escape

_WORD = re.compile(rb"[A-Za-z0-9_]")

#: Kind, how it begins, what follows. Lengths are the shortest that the services give out: `hf_model_name` and
#: `sk-learn` are none.
_TOKENS = (
    ("Hugging Face token", "hf_ api_org_", r"[A-Za-z0-9]{30,}"),
    ("GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9]{36,}"),
    ("GitHub token", "github_pat_", r"[A-Za-z0-9_]{36,}"),
    ("AWS key", "AKIA ASIA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("Google key", "AIza", r"[A-Za-z0-9_-]{35}"),
    ("OpenAI or Anthropic key", "sk-", r"(?:[A-Za-z0-9]{32,}|(?:ant|proj|svcacct|admin)-[A-Za-z0-9_-]{32,})"),
    ("GitLab token", "glpat-", r"[A-Za-z0-9_-]{20,}"),
    ("PyPI token", "pypi-AgEIcHlwaS5vcmc", r"[A-Za-z0-9_-]{50,}"),
    ("npm token", "npm_", r"[A-Za-z0-9]{36,}"),
    ("Slack token", "xox", r"[a-z]-(?=[A-Za-z-]*[0-9])[A-Za-z0-9-]{18,}"),
)
#: Braces, brackets, quotes and a leading `$` are left out: they mark where a program puts the password in.
_LOGIN = r"://[^\s/?#@:\"'`<>{}\[\]()$*\\|]+:(?!\$)[^\s/@\"'`<>{}\[\]()*\\|]+@[\w\[]"


def _no_word_before(data: bytes, at: int) -> bool:
    return not _WORD.match(data[at - 1 : at] if at else b"") or after_escape(data, at)


def _scheme_before(data: bytes, at: int) -> bool:
    return data[at - 1 : at].isalnum() if at else False


def _anywhere(_data: bytes, _at: int) -> bool:
    return True


SECRETS: tuple[Shape, ...] = (
    *(
        Shape(kind, head.encode(), re.compile((head + rest).encode()), _no_word_before, secret=True)
        for kind, heads, rest in _TOKENS
        for head in heads.split()
    ),
    Shape(
        "private key",
        b"PRIVATE KEY",
        re.compile(
            rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^-]{0,200}"
        ),  # with what tells it from others
        _anywhere,
        secret=True,
    ),
    Shape("URL with a password", b"://", re.compile(_LOGIN.encode()), _scheme_before, secret=True),
)
