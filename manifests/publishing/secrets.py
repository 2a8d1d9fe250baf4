"""Find what must not be published: tokens, keys and passwords, absolute paths, e-mail addresses.

The formats of services are those of Kingfisher's rules, which run on this machine alone: nothing is validated over the
network. Two rules are ours: a value that looks random, or is a password, under a telling name; and credentials in
addresses, headers and files such as `.netrc`. `_PATTERNS` holds the second, and formats that Kingfisher lacks.
"""

import functools
import hashlib
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from kingfisher_sdk import DetectionPolicy, Rules, Scanner

from lemur_core.files.cache import cache_folder
from lemur_core.files.errors import UsageError, UserError
from lemur_core.files.markdown import plural
from lemur_core.files.progress import note, show_item, show_steps
from manifests.provenance import FULL, MINIMIZED


@dataclass(frozen=True, slots=True)
class Hit:
    """One match in a text, at a byte of it."""

    kind: str
    at: int
    text: bytes
    secret: bool = True
    ours: bool = False  # a path on this machine
    line: int = 0  # from 1


# --- values that look random, under a telling name ----------------------------------------------------------------

_NAME_WORD = 2.75  # characters; words in names of classes are longer
_PLACEHOLDER = re.compile(
    rb"(?i)your|example|placeholder|change_?me|dummy|redacted|insert|xxxx|\*\*\*|\.\.\.|1234567|abcdef"
)
_CLASSES = bytes(1 * chr(at).islower() + 2 * chr(at).isupper() + 3 * chr(at).isdigit() for at in range(128)).ljust(256)


def looks_random(value: bytes, shortest: int = 16) -> bool:
    """Return whether a text looks drawn at random: small letters, capitals and digits change often, and few recur.

    `backbone.layers.0.norm1.weight` changes 6 times in 32 characters, a random text of letters and digits 20 times.
    `Wav2Vec2BaseModelOutput` has words of 3 characters on average, a random text such of 2.
    """
    kinds = [kind for kind in value.translate(_CLASSES) if kind in (1, 2, 3)]
    if len(kinds) < shortest or _PLACEHOLDER.search(value):
        return False
    changes = sum(one != other for one, other in pairwise(kinds)) / (len(kinds) - 1)
    most_word = 4 if len(kinds) >= 40 else 3.2 if len(kinds) >= 28 else _NAME_WORD  # longer texts show it more surely
    bits = -sum(n / len(value) * math.log2(n / len(value)) for n in Counter(value).values())  # each character
    return changes >= (0.24 if len(kinds) >= 28 else 0.34) and _word_size(value) <= most_word and bits >= 3.0


def _word_size(value: bytes) -> float:
    words = re.findall(rb"[A-Z]?[a-z]+|[A-Z]+|[0-9]+", value)
    return sum(map(len, words)) / max(1, len(words))


def _is_password(value: bytes) -> bool:
    signs = re.search(rb"[^A-Za-z_./-]", value) is not None
    return (signs or looks_random(value, 8)) and not _PLACEHOLDER.search(value)


_NAMES = (b"key", b"token", b"secret", b"passw", b"passphrase", b"pwd", b"credential", b"auth", b"_pat")
#: A name that says that its value is secret, and the value: in an assignment, a dictionary, a call, a header, a URL.
_ASSIGNED = re.compile(
    rb"""(?P<word>key|token|secret|passw(?:or)?d|passphrase|pwd|credential|auth|_pat)
    (?P<rest>(?!(?!orization|s\b|s_|word|phrase)[a-z])[\w.-]{0,24})  # no tokenizer
    ["'`]?\]?[ \t]{0,8}
    (?P<sign>={1,3}|=>|,\s*default\s*=|:=|:[ ]*(?:str|bytes|Final|Optional\[str\]|str[ ]\|[ ]None)[ ]*=|[ :,(])\s{0,8}
    (?:[\w.]{0,30}(?:fromhex|decode|unhexlify)\(\s{0,8})?
    [rbfu]{0,2}(?P<quote>["'`]?)(?P<secret>[^\s"'`\\<>{}()\[\],;&|\0]{6,300})(?P=quote)""",
    re.VERBOSE | re.IGNORECASE,
)
#: Before such a name: then its value is secret even if it is short, or hexadecimal.
_QUALIFIED = rb"(?i)(?:api|access|account|auth|client|private|secret|service|sign|encrypt|token|bot)[\w-]{0,9}\Z"


def _is_assigned(data: bytes, match: re.Match[bytes]) -> bool:
    """Return whether a value that is given to a name such as `token` is a secret, not a word of a program."""
    word, value, quote, sign = match["word"].lower(), match["secret"], match["quote"], match["sign"]
    before = data[max(0, match.start() - 24) : match.start()]
    in_url = before[-1:] in (b"?", b"&", b";")
    flag = re.search(rb"(?:--|ENV |ARG )[\w-]*\Z", before) is not None  # of a command; of a recipe for a container
    if sign == b" " and not flag:
        return False
    if word.startswith(b"pass") or word == b"pwd":
        setting = sign == b":" and data[match.end() : match.end() + 1] in (b"", b"\n", b"\r")
        return (quote != b"" or in_url or flag or setting or match["word"].isupper()) and _is_password(value)
    qualified = in_url or word in (b"secret", b"credential") or re.search(_QUALIFIED, before) is not None
    if re.fullmatch(rb"[0-9a-fA-F-]+", value):  # a digest, or a UUID
        return len(value) >= 32 and (qualified or len(value) in (32, 40))
    if not quote and (sign in b",(" or not re.search(rb"[0-9]", value)):
        return False  # a name
    if (not quote or sign == b",") and _word_size(value) > _NAME_WORD:
        return False  # a name of a class, perhaps in a list of several
    return looks_random(value, 16 if qualified else 20)


def _find_assigned(data: bytes) -> Iterator[Hit]:
    lower = data.lower()  # ten times as fast as a pattern that ignores case
    for word in _NAMES:
        at = lower.find(word)
        while at >= 0:
            match = _ASSIGNED.match(data, at)
            if match and _is_assigned(data, match):
                yield Hit("secret", match.start("secret"), match["secret"])
            at = lower.find(word, at + 1)


# --- credentials in addresses, headers and files, and formats of services -----------------------------------------

#: Kind; texts of which every match contains one, which rules out most files quickly; pattern, of which the group
#: `secret` counts if it has one; what that must fulfill. Lengths are the shortest that the services issue.
_PATTERNS: tuple[tuple[str, str, str, Callable[[bytes], bool] | None], ...] = (
    ("private key", "PRIVATE KEY", r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^-\0]{0,200}", None),
    ("private key", "PuTTY-User", r"PuTTY-User-Key-File-\d: [^\0]{0,4000}?Private-Lines: \d+\s+[\w+/=]+", None),
    # Braces, brackets, quotes and a leading `$` mark where a program inserts the password.
    (
        "URL with a password",
        "://",
        r"(?<=[A-Za-z0-9])://[^\s/?#@:\"'`<>{}\[\]()$*\\|]*:(?!\$)[^\s/@\"'`<>{}\[\]()*\\|]+@[\w\[]",
        None,
    ),
    ("URL with a token", "://", r"://(?P<secret>[A-Za-z0-9_-]{16,})@[\w\[]", looks_random),
    ("URL with a token", "sig=|/web", r"(?:[?&]sig=|/webhooks/[0-9]{17,20}/)(?P<secret>[\w%/+-]{40,}=?)", None),
    (
        "credential of a header",
        "earer |asic |oken ",
        r"(?:[Bb]earer|[Bb]asic|uthorization\W{1,9}[Tt]oken) (?P<secret>[\w.~+/-]{16,}=*)",
        looks_random,
    ),
    (
        "password",  # behind a name: `auth=("jane", "...")`, `login("jane", "...")`
        ",",
        r"(?:auth|login)[ ]?[=(][ ]?\(?[\"'][^\"'\s]+[\"'],\s?[\"'](?P<secret>[^\"'\s\\]{6,100})[\"']",
        _is_password,
    ),
    ("password of netrc", "machine ", r"machine\s+\S+\s+login\s+\S+\s+password\s+(?P<secret>[^\s\\\"']+)", None),
    ("password of pgpass", ":5432:", r":5432:[^:\s]{1,99}:[^:\s]{1,99}:(?P<secret>[^\s:\\\"']{4,})", None),
    ("key of a service", "AKIA|ASIA|NRAK-", r"\b(?:A[KS]IA[A-Z0-9]{16}\b|NRAK-[A-Z0-9]{27})", None),
    (
        "token of a service",
        "ATBB|cio|fw_|GOCSPX-|ya29.|hf_|KGAT_|sk-|pscale_|_test_|whsec_|tskey-",
        r"\b(?:ATBB|cio|fw_|GOCSPX-|ya29\.|hf_|KGAT_|sk-(?:ant|proj|svcacct|admin)-|pscale_(?:tkn|pw|oauth)_|[rs]k_test_|"
        r"whsec_|tskey-[a-z]+-[A-Za-z0-9]+-)[A-Za-z0-9+/_-]{24,}",
        looks_random,
    ),
)


def _find_patterns(data: bytes) -> Iterator[Hit]:
    for kind, heads, pattern, holds in _PATTERNS:
        if any(head.encode() in data for head in heads.split("|")):
            for match in re.finditer(pattern.encode(), data):  # which `re` keeps compiled
                group = "secret" if "secret" in match.re.groupindex else 0
                if holds is None or holds(match[group]):
                    yield Hit(kind, match.start(group), match[group])


@functools.cache
def _scanner() -> Scanner:
    rules = Rules(cache_dir=cache_folder() / "secrets")  # compiled once a machine: 7 s
    return Scanner(rules, policy=DetectionPolicy(inline_ignores=False, markup_context=False))


def _find_formats(data: bytes) -> Iterator[Hit]:
    """Yield the secrets that Kingfisher finds, also below one or two layers of base64."""
    for finding in _scanner().scan(data.replace(b"\0", b"\n")):
        at = finding.location["start_offset"]
        if finding.visible and not (at and re.match(rb"[A-Za-z0-9_]", data[at - 1 : at])):
            kind = finding.rule_id.rpartition("/")[2]
            yield Hit(kind.partition(".")[2] or kind, at, finding.secret.encode())


# --- paths and e-mail addresses -----------------------------------------------------------------------------------

_PATH, _EMAIL = "absolute path", "e-mail address"
#: Many machines have these, and folders like /data and /workspace; a path below is ours only if it exists here.
_COMMON = frozenset({"/root", "/tmp", "/var/tmp"})  # noqa: S108 (nothing is written there)
#: Every machine may have these: a process that runs in one of them reveals nothing about its owner.
_SYSTEM = frozenset({"/", "/bin", "/dev", "/etc", "/home", "/lib", "/opt", "/proc", "/sys", "/usr", "/Users", "/var"})
#: Before an absolute path: no part of a relative one or of a web address, unless it is a flag such as `-I`.
_BEGIN = r"(?:(?<=file://)|(?<=[\s\"'=]-[A-Za-z])|(?<![\w.~/-]))"
_REST = r"[^\s\"'`<>|,;:()\[\]{}\\]*"
_SEGMENT = r"[^\s/\"'`<>|,;:()\[\]{}\\]+"
_WINDOWS = rf"[A-Za-z]:\\{{1,4}}[Uu]sers\\{{1,4}}[^\\/:*?\"<>|\r\n]+\\{_REST}"
#: Kind; a text that every match contains; pattern. Versions such as `timm@1.0`, accounts such as `git@host:` and
#: products such as `x@self.weight` are no addresses.
_PEOPLE = (
    (  # a folder of any user; a name of two words only if a path continues after it
        _PATH,
        b"/",
        rf"{_BEGIN}(?:(?:/home|(?:[A-Za-z]:)?/Users)/{_SEGMENT}(?:(?: {_SEGMENT})?/|\b)|/root/){_REST}".encode(),
    ),
    (_PATH, b"sers\\", rf"\b{_WINDOWS}".encode()),
    (
        _EMAIL,
        b"@",
        rb"(?<![\w.+/-])[\w.+-]{2,64}@(?:[A-Za-z][\w-]{1,62}\.){1,4}(?:com|org|net|edu|gov|dev|info|[a-z]{2})"
        rb"(?![\w.:/-]*[\w:/(\[-])",
    ),
)


def own_folders(*more: Path) -> tuple[str, ...]:
    """Return the home, working and temporary folder of this process, and `more`: as named, and with links resolved."""
    named = {path.absolute() for path in (Path.home(), Path.cwd(), Path(tempfile.gettempdir()), *more)}
    return tuple(sorted({str(path) for path in named | {path.resolve() for path in named}} - _SYSTEM))


def _find_people(data: bytes, folders: Sequence[str]) -> Iterator[Hit]:
    """Yield paths below this machine's folders, then those below anybody's home, and e-mail addresses."""
    for folder in folders:
        if folder.encode() in data:
            for match in re.finditer(rf"{_BEGIN}{re.escape(folder)}(?![\w-]){_REST}".encode(), data):
                below = match[0].decode("utf-8", "replace")[len(folder) :].strip("/").partition("/")[0]
                shared = folder in _COMMON or folder.count("/") == 1
                ours = not shared or (below != "" and (Path(folder) / below).exists())
                yield Hit(_PATH, match.start(), match[0], secret=False, ours=ours)
    for kind, head, pattern in _PEOPLE:
        if head in data:
            yield from (Hit(kind, match.start(), match[0], secret=False) for match in re.finditer(pattern, data))


# --- texts, files and tables --------------------------------------------------------------------------------------

#: Escapes as in JSON and in literals, also of JSON within JSON; those of a path of Windows are none. A row of
#: backslashes that escapes nothing is matched, too: otherwise its rest would be searched again from each of them.
_ESCAPE = re.compile(rf"({_WINDOWS})".encode() + rb"|\\++(?:([nrtbfv0])|([\"'])|u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2}))?+")


def _unescape(data: bytes) -> bytes:
    """Return a text with the characters that are escaped in it, spaces for control characters: its lines stay."""

    def character(match: re.Match[bytes]) -> bytes:
        if match[1] or not match.lastindex:
            return match[0]
        code = match[4] or match[5]
        text = chr(int(code, 16)) if code else (match[3] or b" ").decode()
        return (text if text.isprintable() else " ").encode("utf-8", "replace")

    return _ESCAPE.sub(character, data) if b"\\" in data and b"\0" not in data else data


def find_hits(data: bytes, folders: Sequence[str] | None = None) -> list[Hit]:
    """Return the secrets in a text; with `folders` of this machine, also absolute paths and e-mail addresses.

    Returns: the hits by place; of those that overlap the first, and of those that begin together that of the first
        rule, which says best what it is.
    """
    text = _unescape(data)
    hits = [*_find_patterns(text), *_find_formats(text), *_find_assigned(text)]
    if folders is not None:
        hits += _find_people(text, folders)
    found: list[Hit] = []
    for hit in sorted(hits, key=lambda hit: hit.at):
        if not found or found[-1].at + len(found[-1].text) <= hit.at:
            found.append(hit)
    lines = accumulate(text.count(b"\n", *span) for span in pairwise([0, *(hit.at for hit in found)]))
    return [replace(hit, line=line + 1) for hit, line in zip(found, lines, strict=True)]


_ROWS = 2_000  # per batch, so that a column of long codes takes little memory
_BETWEEN = b"\0\n"  # no pattern goes over it


def _find_in_table(path: Path, folders: Sequence[str]) -> Iterator[tuple[str, int, Hit]]:
    """Yield the hits in the texts of a table, with column and row, and in what it says of itself.

    The texts of a column are searched as one.

    Raises: OSError or pyarrow.ArrowInvalid if it is not a Parquet file.
    """
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        about = [*schema.names, *_strings([dict(item.metadata or {}) for item in (schema, *schema)])]
        columns: list[tuple[str, list[object]]] = [("names", [about])]
        first = 0
        for batch in file.iter_batches(batch_size=_ROWS):
            texts = [name for name in batch.schema.names if not pa.types.is_primitive(batch.schema.field(name).type)]
            columns += [(name, batch[name].to_pylist()) for name in texts]
            for name, values in columns:
                rows = (_unescape("\n".join(_strings(value)).encode()).replace(b"\0", b" ") for value in values)
                data = _BETWEEN.join(rows)
                yield from ((name, first + data.count(_BETWEEN, 0, hit.at), hit) for hit in find_hits(data, folders))
            columns = []
            first += batch.num_rows


def _strings(value: object) -> Iterator[str]:
    """Yield the texts inside a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, dict | list | tuple):
        for item in value.items() if isinstance(value, dict) else value:
            yield from _strings(item)


#: Table columns with other people's code; the code folders of an extraction contain it, too.
_FOREIGN_COLUMNS = frozenset({"code", "lean_code", "nn_code", "prm", "messages"})
_FEW = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One hit in a file: where, what, and whether nothing may be published for it.

    Of a secret only the beginning is shown. By its digest the user marks a hit as a false positive.
    """

    file: str
    where: str
    hit: Hit
    foreign: bool  # in the code of others, where paths and e-mail addresses stay

    @property
    def digest(self) -> str:
        """Return twelve digits for the text."""
        return hashlib.sha256(self.hit.text).hexdigest()[:12]

    @property
    def refused(self) -> bool:
        """Return whether it stops publication, unless its digest is allowed."""
        return self.hit.secret or self.hit.ours or not self.foreign

    def __str__(self) -> str:
        text = self.hit.text.decode("utf-8", "replace")
        shown = f"{text[:4]}…" if self.hit.secret else text
        digest = "" if self.hit.kind == _PATH else f" [{self.digest}]"
        return f"{self.file}, {self.where}: {self.hit.kind} {shown}{digest}"


def screen(files: Mapping[str, Path], *more: Path) -> list[Finding]:
    """Return all findings: in Parquet tables by row, in other files by line, or by byte where they are binary.

    Args: files: the files to publish, by their path in the repository. more: folders of this machine besides the home,
        working and temporary one.
    Raises: UserError if a table cannot be read.
    """
    folders = own_folders(*more)
    findings: list[Finding] = []
    with show_steps("search for secrets"):
        for name, path in sorted(files.items()):
            show_item(name)
            try:
                if name.endswith(".parquet"):
                    for column, row, hit in _find_in_table(path, folders):
                        where = f"row {row}, column {column}"
                        findings.append(Finding(name, where, hit, column in _FOREIGN_COLUMNS))
                    continue
                data = path.read_bytes()
                for hit in find_hits(data, folders):
                    where = f"byte {hit.at}" if b"\0" in data else f"line {hit.line}"
                    findings.append(Finding(name, where, hit, name.startswith((FULL, MINIMIZED))))
            except (OSError, pa.ArrowException) as error:
                reason = str(error).splitlines()[0]
                raise UserError(f"{path}: not readable: {reason}; create the folder again") from error
    return findings


def check_digests(not_secret: Collection[str]) -> None:
    """Check that each is a digest of a finding. Raises: UsageError if one is not."""
    for digest in not_secret:
        if not re.fullmatch(r"[0-9a-f]{12}", digest):
            raise UsageError(f"--not-secret {digest}: use the 12 digits in brackets after the finding")


def check_findings(folder: Path, findings: Sequence[Finding], not_secret: Collection[str] = ()) -> tuple[str, ...]:
    """Return notes on findings that may be published.

    Args: not_secret: digests of findings that were reviewed: they only look like secrets.
    Raises: UserError if a finding must not be published, secrets first; of many, the others are noted.
    """
    stop = [item for item in findings if item.refused]
    refused = [item for item in stop if item.hit.kind == _PATH or item.digest not in not_secret]
    if refused:
        refused.sort(key=lambda item: not item.hit.secret)
        for item in refused[_FEW:]:
            note(f"refused   {item}")
        more = f" (and {len(refused) - _FEW:,} more above)" if refused[_FEW:] else ""
        advice = "create the folder again without them (for a path, with a relative --source)"
        if refused[0].hit.secret:
            advice = "revoke the secrets and create the folder again without them"
        if digests := dict.fromkeys(f" --not-secret {item.digest}" for item in refused if item.hit.kind != _PATH):
            advice += f"; for false positives, such as examples in foreign code:{''.join(digests)}"
        raise UserError(f"{folder}: {'; '.join(map(str, refused[:_FEW]))}{more}; {advice}")
    left = Counter(item.hit.kind for item in findings if not item.refused)
    many = {_PATH: "absolute paths", _EMAIL: "e-mail addresses"}
    notes = [f"left as written: {plural(n, kind, many[kind])} in the code of others" for kind, n in left.items()]
    accepted = ", ".join(sorted({item.digest for item in stop}))
    return (*notes, *([f"published by --not-secret: {accepted}"] if accepted else []))
