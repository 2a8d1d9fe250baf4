"""Find what must not be published in a text as it is written: access tokens, keys, passwords, absolute paths.

Each pattern has a short prefix that rules out almost all texts quickly. Searching for the prefixes is ten times as fast
as one regular expression for all of them: `re` tries every branch at every position.

Formats that a service has given its tokens are those of the rules of `kingfisher_sdk`, which follow the services. The
patterns here find what those rules leave out: older and shorter tokens, keys that count there only with their other
half, headers, URLs, and any value that looks random where a name such as `api_key` is given it.
"""

import base64
import binascii
import functools
import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from kingfisher_sdk import DetectionPolicy, Rules, Scanner

from lemur_core.files.cache import cache_folder


@dataclass(frozen=True, slots=True)
class Hit:
    """One match in a text."""

    kind: str
    at: int
    text: bytes
    secret: bool
    ours: bool  # a path on this machine


@dataclass(frozen=True, slots=True)
class Shape:
    """One pattern to look for: every text that it matches contains `head`; of a group `secret`, that counts."""

    kind: str
    head: bytes
    pattern: re.Pattern[bytes]
    holds: Callable[[bytes, re.Match[bytes]], bool]  # whether a match counts, by its text and the one around it
    secret: bool
    ours: Callable[[bytes], bool] | None = None

    def find(self, data: bytes) -> Iterator[Hit]:
        """Yield the matches, in order."""
        if self.head in data:
            group = "secret" if "secret" in self.pattern.groupindex else 0
            for match in self.pattern.finditer(data):
                if self.holds(data, match):
                    ours = self.ours is not None and self.ours(match[0])
                    yield Hit(self.kind, match.start(group), match[group], self.secret, ours)


#: A character as escaped in JSON and string literals: the text after it does not continue its letters.
_ESCAPE = re.compile(rb"\\(?:[nrtbfv\"'0]|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2})\Z")


def after_escape(data: bytes, at: int) -> bool:
    """Return whether an escaped character ends just before a position."""
    return _ESCAPE.search(data[max(0, at - 6) : at]) is not None


KIND = "absolute path"

#: Many machines have these, and folders like /data and /workspace; a path below is ours only if it exists here.
_COMMON = frozenset({"/root", "/tmp", "/var/tmp"})  # noqa: S108 (nothing is written there)
_REST = r"[^\s\"'`<>|,;:()\[\]{}\\]*"
_SEGMENT = r"(?:[^\s/\"'`<>|,;:()\[\]{}\\]|\\u[0-9a-fA-F]{4})+"
_NAME = rf"{_SEGMENT}(?:(?: {_SEGMENT})?/|\b)"  # of a user; two words only if a path continues after it
_HOMES = (
    ("/home/", rf"/home/{_NAME}"),
    ("/Users/", rf"(?:\b[A-Za-z]:)?/Users/{_NAME}"),
    *((f"\\{users}\\", rf"\b[A-Za-z]:\\{{1,4}}{users}\\{{1,4}}[^\\/:*?\"<>|\r\n]+\\") for users in ("Users", "users")),
    ("/root/", "/root/"),
)
#: Every machine may have these: a process that runs in one of them reveals nothing about its owner.
_SYSTEM = frozenset({"/", "/bin", "/dev", "/etc", "/home", "/lib", "/opt", "/proc", "/sys", "/usr", "/Users", "/var"})
_RELATIVE = re.compile(rb"[\w.~/-]")
_PATH_FLAG = re.compile(rb"(?:^|[\s\"'=])-[A-Za-z]\Z")  # as in -I/home/jane/include


def own_folders(*more: Path) -> tuple[str, ...]:
    """Return the home, working and temporary folder of this process, and `more`: as named, and with links resolved."""
    named = {path.absolute() for path in (Path.home(), Path.cwd(), Path(tempfile.gettempdir()), *more)}
    folders = {str(path) for path in named | {path.resolve() for path in named}}
    return tuple(sorted(folders - _SYSTEM))


def path_shapes(folders: tuple[str, ...]) -> tuple[Shape, ...]:
    """Return patterns for paths below this machine's folders, then for those below anybody's home."""
    own = [
        Shape(
            KIND,
            written.encode(),
            re.compile(rf"{re.escape(written)}(?![\w-]){_REST}".encode()),
            _is_absolute,
            False,
            _judge(folder, written),
        )
        for folder in folders
        for written in dict.fromkeys((folder, json.dumps(folder)[1:-1]))
    ]
    homes = [
        Shape(KIND, head.encode(), re.compile(f"{rest}{_REST}".encode()), _is_absolute, False) for head, rest in _HOMES
    ]
    return (*own, *homes)


def _judge(folder: str, written: str) -> Callable[[bytes], bool]:
    """Return a predicate for paths below a folder, possibly with escapes: whether they are on this machine."""
    shared = folder in _COMMON or folder.count("/") == 1

    def ours(text: bytes) -> bool:
        name = text.decode("utf-8", "replace")[len(written) :].strip("/").partition("/")[0]
        return not shared or (bool(name) and (Path(folder) / name).exists())

    return ours


def _is_absolute(data: bytes, match: re.Match[bytes]) -> bool:
    """Return whether a path is absolute, not the rest of a relative one or of a web address."""
    at = match.start()
    before = data[max(0, at - 7) : at]
    begins = before.endswith(b"file://") or not _RELATIVE.match(before[-1:])
    return begins or after_escape(data, at) or _PATH_FLAG.search(before) is not None


_WORD = re.compile(rb"[A-Za-z0-9_]")

#: Kind, how it begins, what follows. Lengths are the shortest that the services issue: `hf_model_name` and `sk-learn`
#: do not match.
_TOKENS = (
    ("Hugging Face token", "hf_ api_org_", r"[A-Za-z0-9]{30,}"),
    ("GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9]{36,}"),
    ("GitHub token", "github_pat_", r"[A-Za-z0-9_]{36,}"),
    ("AWS key", "AKIA ASIA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("Google key", "AIza", r"[A-Za-z0-9_-]{35}"),
    ("Google secret", "GOCSPX- ya29.", r"[A-Za-z0-9_-]{24,}"),
    ("OpenAI or Anthropic key", "sk-", r"(?:[A-Za-z0-9]{32,}|(?:ant|proj|svcacct|admin)-[A-Za-z0-9_-]{32,})"),
    ("GitLab token", "glpat- gldt- glrt- glft- glcbt- gloas- glsoat- glimt- glagent-", r"[A-Za-z0-9_-]{20,}"),
    ("Bitbucket token", "ATBB", r"[A-Za-z0-9]{28,}"),
    ("PyPI token", "pypi-AgEIcHlwaS5vcmc", r"[A-Za-z0-9_-]{50,}"),
    ("npm token", "npm_", r"[A-Za-z0-9]{36,}"),
    ("Slack token", "xox", r"[a-z]-(?=[A-Za-z-]*[0-9])[A-Za-z0-9-]{18,}"),
    ("Slack token", "xapp-", r"[0-9]-[A-Za-z0-9-]{30,}"),
    ("Slack webhook", "hooks.slack.com/", r"(?:services|workflows)/[A-Za-z0-9]+/[A-Za-z0-9/]{20,}"),
    ("Discord webhook", "discord.com/api/webhooks/ discordapp.com/api/webhooks/", r"[0-9]{17,20}/[\w-]{40,}"),
    ("Stripe key", "sk_live_ sk_test_ rk_live_ rk_test_ whsec_", r"[A-Za-z0-9+/]{24,}"),
    ("SendGrid key", "SG.", r"[\w-]{16,32}\.[\w-]{32,}"),
    ("Weights & Biases key", "wandb_v1_", r"\w{30,}"),
    ("Kaggle token", "KGAT_", r"[0-9a-f]{32}"),
    ("Fireworks key", "fw_", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{24}(?![A-Za-z0-9])"),
    ("New Relic key", "NRAK-", r"[A-Z0-9]{27}"),
    ("PlanetScale token", "pscale_tkn_ pscale_pw_ pscale_oauth_", r"[\w-]{32,}"),
    ("Tailscale key", "tskey-", r"[a-z]+-[A-Za-z0-9]+-[A-Za-z0-9]{16,}"),
    ("crates.io token", "cio", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{32}(?![A-Za-z0-9])"),
)
#: Braces, brackets, quotes and a leading `$` are excluded: they mark where a program inserts the password.
_LOGIN = r"://[^\s/?#@:\"'`<>{}\[\]()$*\\|]*:(?!\$)[^\s/@\"'`<>{}\[\]()*\\|]+@[\w\[]"
_SPACE = r"(?:\s|\\[nrt])"
_RANDOM_SIZE, _LONG, _LONGER = 16, 28, 40  # characters: what is longer shows its nature more surely
_NAME_WORD = 2.75  # characters; words in names of classes are longer
_WORDS = re.compile(rb"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_PLACEHOLDER = re.compile(
    rb"(?i)your|example|placeholder|change_?me|dummy|redacted|insert|xxxx|\*\*\*|\.\.\.|1234567|abcdef"
)
_HEX = re.compile(rb"[0-9a-fA-F]+")
_UUID = re.compile(rb"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CLASSES = bytes(1 * chr(at).islower() + 2 * chr(at).isupper() + 3 * chr(at).isdigit() for at in range(128)) + bytes(
    128
)


def looks_random(value: bytes, shortest: int = _RANDOM_SIZE) -> bool:
    """Return whether a text looks drawn at random: small letters, capitals and digits change often, and few recur.

    `backbone.layers.0.norm1.weight` changes 6 times in 32 characters, a random text of letters and digits 20 times.
    `Wav2Vec2BaseModelOutput` has words of 3 characters on average, a random text such of 2.
    """
    kinds = [kind for kind in value.translate(_CLASSES) if kind]
    if len(kinds) < shortest or _PLACEHOLDER.search(value):
        return False
    changes = sum(one != other for one, other in pairwise(kinds)) / (len(kinds) - 1)
    return (
        changes >= (0.24 if len(kinds) >= _LONG else 0.34)
        and _word_size(value) <= (4 if len(kinds) >= _LONGER else 3.2 if len(kinds) >= _LONG else _NAME_WORD)
        and -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values()) >= 3.0  # bits each
    )


def _word_size(value: bytes) -> float:
    """Return the average number of characters of the words in a text; capitals begin words."""
    words = _WORDS.findall(value)
    return sum(map(len, words)) / max(1, len(words))


#: A name that says that its value is secret, and the value: in an assignment, a dictionary, a call, a header, a URL.
_ASSIGNED = re.compile(
    rb"""(?P<word>key|token|secret|passw(?:or)?d|passphrase|pwd|credential|auth|_pat)(?P<rest>[\w.-]{0,24})
    \\{0,3}["'`]?\]?[ \t]{0,8}
    (?P<sign>={1,3}|=>|,\s*default\s*=|:=|:[ ]*(?:str|bytes|Final|Optional\[str\]|str[ ]\|[ ]None)[ ]*=|[ :,(])\s{0,8}
    [rbfu]{0,2}(?P<quote>\\{0,3}["'`])?(?P<secret>[^\s"'`\\<>{}()\[\],;&|\0]{6,300})""",
    re.VERBOSE | re.IGNORECASE,
)
_NAMES = (b"key", b"token", b"secret", b"passw", b"passphrase", b"pwd", b"credential", b"auth", b"_pat")
_QUALIFIED = re.compile(
    rb"(?i)(?:api|access|account|auth|client|private|secret|service|sign|encrypt|token|bot)[\w-]{0,9}\Z"
)
_OTHER_WORD = re.compile(rb"(?!orization|s\b|s_|word|phrase)[a-z]")  # after one of the names
_FLAG = re.compile(rb"(?:--|ENV |ARG )[\w-]*\Z")  # of a command; of a recipe for a container
_DIGIT = re.compile(rb"[0-9]")
_SIGN = re.compile(rb"[^A-Za-z_./-]")


Holds = Callable[[bytes, re.Match[bytes]], bool]


def _is_assigned(data: bytes, match: re.Match[bytes]) -> bool:
    """Return whether a value that is given to a name such as `token` is a secret, not a word of a program."""
    word, value, quote = match["word"].lower(), match["secret"], match["quote"] or b""
    before = data[max(0, match.start() - 24) : match.start()]
    if not data.startswith(quote, match.end()) or _OTHER_WORD.match(match["rest"]):
        return False  # a sentence; a tokenizer
    in_url, flag = before[-1:] in (b"?", b"&", b";"), _FLAG.search(before) is not None
    if match["sign"] == b" " and not flag:
        return False
    if word.startswith(b"pass") or word == b"pwd":
        setting = match["sign"] == b":" and data[match.end() : match.end() + 1] in (b"", b"\n", b"\r")
        return (quote != b"" or in_url or flag or setting or match["word"].isupper()) and _is_password(value)
    qualified = in_url or word in (b"secret", b"credential") or _QUALIFIED.search(before) is not None
    if _HEX.fullmatch(value):
        return len(value) >= _RANDOM_SIZE * 2 if qualified else len(value) in (32, 40)
    if _UUID.fullmatch(value):
        return qualified
    if not quote and (match["sign"] in b",(" or not _DIGIT.search(value)):
        return False  # a name
    if (not quote or match["sign"] == b",") and _word_size(value) > _NAME_WORD:
        return False  # a name of a class, perhaps in a list of several
    return looks_random(value, _RANDOM_SIZE if qualified else 20)


def _is_password(value: bytes) -> bool:
    return (_SIGN.search(value) is not None or looks_random(value, 8)) and not _PLACEHOLDER.search(value)


def _is_login(_data: bytes, match: re.Match[bytes]) -> bool:
    """Return whether a `Basic` header holds a name and a password."""
    try:
        return b":" in base64.b64decode(match["secret"] + b"==")
    except binascii.Error:
        return False


def _is_random(_data: bytes, match: re.Match[bytes]) -> bool:
    return looks_random(match["secret"])


def _continues_word(data: bytes, at: int) -> bool:
    return at > 0 and _WORD.match(data, at - 1) is not None and not after_escape(data, at)


def _secret(kind: str, head: str, pattern: str, holds: Holds = lambda _data, _match: True) -> Shape:
    return Shape(kind, head.encode(), re.compile(pattern.encode()), holds, secret=True)


SECRETS: tuple[Shape, ...] = (
    *(
        _secret(kind, head, re.escape(head) + rest, lambda data, match: not _continues_word(data, match.start()))
        for kind, heads, rest in _TOKENS
        for head in heads.split()
    ),
    _secret(
        "private key",  # each with its distinguishing prefix
        "PRIVATE KEY",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^-\0]{0,200}",
    ),
    _secret(
        "private key",
        "PuTTY-User-Key-File-",
        rf"PuTTY-User-Key-File-\d: [^\0]{{0,4000}}?Private-Lines: \d+{_SPACE}+[\w+/=]+",
    ),
    _secret("URL with a password", "://", _LOGIN, lambda data, at: data[at.start() - 1 : at.start()].isalnum()),
    _secret("URL with a token", "://", r"://(?P<secret>[A-Za-z0-9_-]{16,})@[\w\[]", _is_random),
    _secret("bearer token", "earer ", r"[Bb]earer (?P<secret>[\w.~+/-]{16,}=*)", _is_random),
    _secret("token of a header", "oken ", r"uthorization\W{1,9}[Tt]oken (?P<secret>[\w.~+/-]{16,}=*)", _is_random),
    _secret("login of a header", "asic ", r"[Bb]asic (?P<secret>[A-Za-z0-9+/]{8,}={0,2})", _is_login),
    _secret(
        "password",  # behind a name: `auth=("jane", "...")`, `login("jane", "...")`
        ",",
        r"(?:auth|login)[ ]?[=(][ ]?\(?[\"'][^\"'\s]+[\"'],\s?[\"'](?P<secret>[^\"'\s\\]{6,100})[\"']",
        lambda _data, match: _is_password(match["secret"]),
    ),
    _secret(
        "password of netrc",
        "machine ",
        rf"machine\s+\S+{_SPACE}+login\s+\S+{_SPACE}+password\s+(?P<secret>[^\s\\\"']+)",
    ),
    _secret("password of pgpass", ":5432:", r"[\w.*-]+:5432:[^:\s]+:[^:\s]+:(?P<secret>[^\s:\\\"']{4,})"),
    _secret("Weights & Biases key", "wandb", r"wandb[^\n\0]{0,80}?\b(?P<secret>[0-9a-f]{40})\b"),
    _secret("Azure secret", "Q~", r"(?P<secret>[\w~.-]{3}[0-9]Q~[\w~.-]{31,34})"),
    _secret("Azure signature", "sig=", r"[?&]sig=(?P<secret>[\w%/+-]{40,}=?)"),
    _secret("Discord token", ".", r"(?P<secret>[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,38})(?![\w.-])", _is_random),
)


@functools.cache
def _scanner() -> Scanner:
    rules = Rules(cache_dir=cache_folder() / "secrets")  # compiled once a machine: 7 s
    return Scanner(rules, policy=DetectionPolicy(inline_ignores=False, markup_context=False))


def find_secrets(data: bytes) -> Iterator[Hit]:
    """Yield the secrets in a text, of some perhaps several overlapping ones: the first says best what it is."""
    for shape in SECRETS:
        yield from shape.find(data)
    yield from _find_by_rules(data)
    yield from _find_by_names(data)


def _find_by_names(data: bytes) -> Iterator[Hit]:
    """Yield the values of names such as `api_key` that look random, and those of passwords."""
    lower = data.lower()  # ten times as fast as a pattern that ignores case
    for word in _NAMES:
        at = lower.find(word)
        while at >= 0:
            match = _ASSIGNED.match(data, at)
            if match and _is_assigned(data, match):
                yield Hit("secret", match.start("secret"), match["secret"], secret=True, ours=False)
            at = lower.find(word, at + 1)


def _find_by_rules(data: bytes) -> Iterator[Hit]:
    """Yield the secrets that the rules of `kingfisher_sdk` find, also below one or two layers of base64."""
    for finding in _scanner().scan(data.replace(b"\0", b"\n")):
        if finding.visible:
            at = finding.location["start_offset"]
            kind = finding.rule_id.rpartition("/")[2]
            if not _continues_word(data, at):
                yield Hit(kind.partition(".")[2] or kind, at, finding.secret.encode(), secret=True, ours=False)
