"""Planted secrets of our own kinds, and some of Kingfisher's, are found, as written and below base64; names of models and classes are not.

Every value is drawn when the test runs: the repository holds no text that looks like a token.
"""

import base64
import json
import random
import string
import tempfile
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.files.errors import UserError
from manifests.publishing.secrets import (
    Finding,
    check_digests,
    check_findings,
    find_hits,
    looks_random,
    own_folders,
    screen,
)
from tests.builders.suites import table

LETTERS = string.ascii_letters
AL = LETTERS + string.digits
HEX = "0123456789abcdef"
UP = string.ascii_uppercase + "234567"


def planted(seed: int) -> dict[str, str]:
    """Texts with a secret each, by kind."""
    drawn = random.Random(seed)

    def r(n: int, alphabet: str = AL) -> str:
        return "".join(drawn.choice(alphabet) for _ in range(n))

    def b64(data: str | bytes) -> str:
        return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()

    def gh() -> str:
        return "ghp_" + r(36)

    return {
        "AWS key id": f'k = "AKIA{r(16, UP)}"',
        "AWS temporary key id": f'k = "ASIA{r(16, UP)}"',
        "AWS session token": f'AWS_SESSION_TOKEN="{r(220, AL + "/+")}=="',
        "bearer header": f'headers = {{"Authorization": "Bearer {r(40)}"}}',
        "basic header": f'headers = {{"Authorization": "Basic {b64("jane:" + r(14))}"}}',
        ".env line": f"DATABASE_PASSWORD={r(24)}\nDEBUG=1\n",
        "password assigned": f'password = "{r(18)}"',
        "api key in a dict": f'cfg = {{"api_key": "{r(32)}"}}',
        "keyword argument": f'Client(api_token="{r(32)}")',
        "yaml secret": f"client_secret: {r(40)}\n",
        "wandb environment": f'os.environ["WANDB_API_KEY"] = "{r(40, HEX)}"',
        "OpenAI project": f'k="sk-proj-{r(74, AL + "_-")}T3BlbkFJ{r(74, AL + "_-")}"',
        "Fireworks": f'k="fw_{r(24)}"',
        "GitHub classic": f'k="{gh()}"',
        "Bitbucket": f'k="ATBB{r(32)}"',
        "Stripe test": f'k="sk_test_{r(99)}"',
        "Stripe webhook": f'k="whsec_{r(32)}"',
        "Azure SAS": f'u="https://jane.blob.core.windows.net/c/f?sv=2022-11-02&ss=b&srt=o&sp=r&se=2030-01-01T00:00:00Z&sig={quote(b64(drawn.randbytes(32)), safe="")}"',
        "Azure DevOps": f'azure_devops_pat = "{r(52, string.ascii_lowercase + "234567")}"',
        "Discord webhook": f'k="https://discord.com/api/webhooks/{r(18, string.digits)}/{r(68, AL + "_-")}"',
        "Google OAuth secret": f'k="GOCSPX-{r(28, AL + "_-")}"',
        "Google OAuth token": f'k="ya29.{r(100, AL + "_-")}"',
        "PuTTY": f"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: jane\nPublic-Lines: 2\n{r(64)}\n{r(32)}\nPrivate-Lines: 1\n{r(48)}\nPrivate-MAC: {r(64, HEX)}\n",
        "OpenSSH": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{r(70)}\n{r(70)}\n-----END OPENSSH PRIVATE KEY-----",
        "netrc": f"machine api.example.org login jane password {r(16)}",
        "pgpass": f"localhost:5432:db:jane:{r(16)}",
        "URL": f'u="https://jane:{r(12)}@example.org/x"',
        "URL, empty user": f'u="redis://:{r(16)}@cache.example.org:6379/0"',
        "mongodb": f'u="mongodb+srv://jane:{r(16)}@cluster0.abcde.mongodb.net/x"',
        "JDBC": f'u="jdbc:mysql://db.example.org/x?user=jane&password={r(16)}"',
        "token in a query": f'u="https://api.example.org/x?access_token={r(40)}"',
        "npmrc": f"//registry.example.org/:_authToken={r(36)}",
        "crates": f'k="cio{r(32)}"',
        "docker config": json.dumps({"auths": {"https://index.example.org/v1/": {"auth": b64("jane:" + r(16))}}}),
        "Kaggle": json.dumps({"username": "jane", "key": r(32, HEX)}),
        "Kaggle token": f'k="KGAT_{r(32, HEX)}"',
        "New Relic": f'k="NRAK-{r(27, UP)}"',
        "PlanetScale": f'k="pscale_tkn_{r(43, AL + "_-")}"',
        "Tailscale": f'k="tskey-auth-{r(16)}-{r(32)}"',
        "base64, twice": f'k = "{b64(b64(gh()))}"',
        "base64 in a sentence": f'k = "{b64("the key is " + gh() + " here")}"',
        "bytes in hexadecimal": f'SECRET_KEY=bytes.fromhex("{r(64, HEX)}")',
        "hex escapes": 'k = "' + "".join(f"\\x{ord(c):02x}" for c in gh()) + '"',
        "unicode escapes": 'k = "' + "".join(f"\\u{ord(c):04x}" for c in gh()) + '"',
        "percent encoded password": f'u="https://jane:{quote("p@ss/w:" + r(8), safe="")}@example.org/x"',
        "flag of a command": f'os.system("tool --token {r(40)}")',
        "password of a command": f'os.system("docker login -u jane --password {r(20)}")',
        "recipe of a container": f"ENV API_TOKEN {r(40)}",
        "SQL Server": f'c = "Server=db;User Id=sa;Password={r(16)}1;"',
        "notebook": f'u = "http://localhost:8888/lab?token={r(48, HEX)}"',
        "setting": f"user: jane\npassword: {r(12)}9\n",
        "default": f'parser.add_argument("--api-key", default="{r(32)}")',
        "login": f'smtp.login("jane@example.org", "{r(16)}")',
        "pair": f'requests.get(u, auth=("jane", "{r(20)}"))',
        "typed": f'    token: str | None = "{r(32)}"',
    }


KINDS = sorted(planted(0))


def test_planted_secrets_are_found() -> None:
    missed = [kind for seed in range(8) for kind, text in planted(seed).items() if not find_hits(text.encode())]
    assert len(missed) <= 0.01 * 8 * len(KINDS), missed
    assert len(KINDS) == 55
    assert [kind for kind in KINDS if missed.count(kind) > 3] == [], "no kind is missed for what it is"


def test_the_place_is_that_of_the_secret() -> None:
    before = b"import torch\n\nnames = ['conv1', 'bn1']\n" * 20
    for kind, text in planted(0).items():
        hits = find_hits(before + text.encode() + b"\n" + before)
        assert all(len(before) <= hit.at < len(before) + len(text) for hit in hits), kind
        assert bool(hits) == bool(find_hits(text.encode())), kind


@table(__file__, "secrets.md", "What is no secret", globals())
def test_what_is_no_secret(text: str) -> None:
    assert find_hits(text.encode()) == []


REPEATED = b"a|A1|%41|&#65;|/|\"|'a'|key=|password='|65, |\\|://|machine |\0|Bearer "


@pytest.mark.parametrize("text", REPEATED.split(b"|"))
def test_nothing_takes_more_than_linear_time(text: bytes) -> None:
    """A pattern that goes over the whole text at each position would take hours."""
    find_hits(b"[" + text * (400_000 // len(text)))


@given(st.binary(max_size=300))
def test_any_bytes_can_be_searched(data: bytes) -> None:
    assert all(0 <= hit.at <= len(data) for hit in find_hits(data))
    assert looks_random(data) in (True, False)


# Secrets and paths are found in every kind of file and column, and what only looks like one is not.

ALNUM = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fGhIjKlMnOpQrStUvWx"
GITHUB = "ghp_" + ALNUM[:36]


def found(folder: Path) -> list[Finding]:
    return screen({path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()})


def write(folder: Path, **files: str) -> Path:
    """Write texts; `__` in a name is a folder, and `_` a dot."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def column_kinds(text: str) -> dict[str, pa.Array]:
    """The text in the third of four rows, in every type that a column may have."""
    values = ["", None, text, "other"]
    structs = pa.list_(pa.struct([("x", pa.string())]))
    return {
        "string": pa.array(values, pa.string()),
        "string_view": pa.array(values, pa.string_view()),
        "binary": pa.array([None if v is None else v.encode() for v in values], pa.binary()),
        "dictionary": pa.array(values).dictionary_encode(),
        "list of structs": pa.array([[], None, [{"x": "a"}, {"x": text}], []], structs),
        "map": pa.array([[], None, [("k", text)], []], pa.map_(pa.string(), pa.string())),
        "map key": pa.array([[], None, [(text, "v")], []], pa.map_(pa.string(), pa.string())),
    }


@table(__file__, "screen.md", "Secrets", globals())
def test_a_secret_in_every_kind_of_file(
    tmp_path: Path, name: str, secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, report_md=f"first\nsecond `{secret}`\n", blocks__a_py=f"key = '{secret}'\r\n")
    write(tmp_path, manifest_json=json.dumps({"parameters": {"x": secret}}, indent=1))
    (tmp_path / "one.png").write_bytes(b"\x89PNG\0\xff" + secret.encode() + b"\0\xfe")
    pq.write_table(pa.table({"n": [1, 2], "error": [None, f"x {secret}"]}), tmp_path / "t.parquet")
    items = found(tmp_path)
    at = 6 if not secret.startswith("https") else 11  # of a URL, what stands before :// is no part of it
    places = ("line 1", "line 3", f"byte {at}", "line 2", "row 1, column error")
    files = ("blocks/a.py", "manifest.json", "one.png", "report.md", "t.parquet")
    assert [(item.file, item.where) for item in items] == list(zip(files, places, strict=True))
    assert {(item.hit.kind, item.hit.secret, item.refused) for item in items} == {(name, True, True)}
    with pytest.raises(UserError) as caught:
        check_findings(tmp_path, items)
    told, noted = str(caught.value), capsys.readouterr().err
    assert all(line.startswith(f"refused   {file}") for line, file in zip(noted.splitlines(), files[3:], strict=True))
    assert secret[4:14] not in told + noted, "each is told once"
    assert f"blocks/a.py, line 1: {name} " in told
    assert "(and 2 more above)" in told


def test_a_secret_behind_an_escaped_sign(tmp_path: Path) -> None:
    """JSON, and JSON inside JSON, write a line feed as two letters."""
    for number, escape in enumerate(["\n", "\t", "\r", '"', "\b", "\f", "é"]):
        text = f"bad:{escape}{GITHUB}"
        (tmp_path / f"a{number}.jsonl").write_text(json.dumps({"error": text}))
        (tmp_path / f"b{number}.jsonl").write_text(json.dumps({"prm": json.dumps({"error": text})}))
    (tmp_path / "c.py").write_text(f"x = '\\x0a{GITHUB}'")
    pq.write_table(pa.table({"error": ["none", json.dumps(f"bad:\n{GITHUB}")]}), tmp_path / "d.parquet")
    assert [item.file for item in found(tmp_path)] == sorted(path.name for path in tmp_path.iterdir())


def test_what_only_looks_like_a_secret_may_leave_by_its_digest(tmp_path: Path) -> None:
    write(tmp_path, a_py=f'EXAMPLE = "{GITHUB}"', b_md=GITHUB)
    with pytest.raises(UserError, match="--not-secret") as caught:
        check_findings(tmp_path, found(tmp_path))
    digest = str(caught.value).rpartition(" ")[2]
    assert check_findings(tmp_path, found(tmp_path), [digest]) == (f"published by --not-secret: {digest}",)
    write(tmp_path, c_py=f'KEY = "{GITHUB.replace("2", "3")}"')
    with pytest.raises(UserError, match=r"c\.py"):
        check_findings(tmp_path, found(tmp_path), [digest])
    for wrong in ("", "xyz", "ghp_aB3dE6gH", "0123456789AB", "0123456789abc"):
        with pytest.raises(UserError, match="use the 12 digits in brackets"):
            check_digests([digest, wrong])


def test_a_secret_in_every_kind_of_column(tmp_path: Path) -> None:
    columns = column_kinds(GITHUB)
    table = pa.table({"n": [1.0] * 4, **columns}).replace_schema_metadata({"made by": GITHUB})
    pq.write_table(table, tmp_path / "t.parquet")
    told = sorted(str(item).partition(" [")[0] for item in found(tmp_path))
    places = [f"row 2, column {name}" for name in columns]
    assert told == sorted(f"t.parquet, {place}: github-pat ghp_…" for place in ("row 0, column names", *places))
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"t.parquet: not readable: .*; create the folder again"):
        found(tmp_path)


def test_rows_are_counted_over_batches_and_groups(tmp_path: Path) -> None:
    texts = ["x" * (n % 50) for n in range(5_000)]
    rows = (0, 1_999, 2_000, 4_321, 4_999)
    for row in rows:
        texts[row] = f"{GITHUB} {row}"
    pq.write_table(pa.table({"reason": texts}), tmp_path / "t.parquet", row_group_size=777)
    assert [item.where for item in found(tmp_path)] == [f"row {row}, column reason" for row in rows]


def test_neighbours_make_no_secret_and_hide_none(tmp_path: Path) -> None:
    """Values lie end to end while they are searched."""
    parts = [
        GITHUB[:10],
        GITHUB[10:],
        "ghp_",
        GITHUB,
        GITHUB[4:],
        "AKI",
        "A" + "B" * 16,
        "a\0\nb",
        "_" + GITHUB,
        GITHUB,
    ]
    pq.write_table(pa.table({"x": parts}), tmp_path / "t.parquet")
    assert [item.where for item in found(tmp_path)] == ["row 3, column x", "row 9, column x"]


@table(__file__, "screen.md", "What is none", globals())
def test_what_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.md").write_text(f"{text}\n'{text}'")
    pq.write_table(pa.table({"reason": [text]}), tmp_path / "t.parquet")
    assert found(tmp_path) == []


OWN_PATHS = (
    r"/home/jane/data/x.py | /Users/jane/x | C:\Users\jane\x | C:\\Users\\jane\\x | file:///home/jane/x | /home/jürgen/x"
    r" | /home/j\u00fcrgen/x | /Users/Jane Doe/x | C:\Users\Jane Doe\x | c:\users\jane\x | HOME=/home/jane"
    r" | cc -I/home/jane/include | bad:\n/home/jane/x | bad:\t/root/x"
)


@pytest.mark.parametrize("path", OWN_PATHS.split(" | "))
def test_people_s_paths_stay_in_their_own_code_alone(tmp_path: Path, path: str) -> None:
    write(tmp_path, blocks__a_py=f"x = '{path}'")
    pq.write_table(pa.table({"code": [path], "nn_code": [path], "prm": [path]}), tmp_path / "t.parquet")
    told = ("left as written: 4 absolute paths in the code of others",)
    assert check_findings(tmp_path, found(tmp_path)) == told
    write(tmp_path, specs_jsonl=f'{{}}\n{{"a": "{path}"}}')
    with pytest.raises(UserError, match=r"specs.jsonl, line 2: absolute path .* without them .*a relative --source"):
        check_findings(tmp_path, found(tmp_path))


@pytest.mark.parametrize("own", ["cwd", "home", "temporary", "folder", "jürgen"])
def test_paths_of_this_machine_never_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    places = {place: tmp_path / "m" / place for place in ("cwd", "home", "temporary", "folder", "jürgen")}
    for path in places.values():
        path.mkdir(parents=True)
    monkeypatch.chdir(places["cwd"])
    monkeypatch.setenv("HOME", str(places["home"]))
    monkeypatch.setattr(tempfile, "tempdir", str(places["temporary"]))
    text = f"see {places[own]}/x.py:3 and {places[own]}land/x"
    write(tmp_path / "f", report_md=text, blocks__a_py=text, a_json=json.dumps(text), b_png=f"\0{text}")
    files = {name: tmp_path / "f" / name for name in ("report.md", "blocks/a.py", "a.json", "b.png")}
    items = screen(files, places["folder"], places["jürgen"])
    assert sorted(item.file for item in items if item.refused) == sorted(files)
    assert all(str(item).endswith(f": absolute path {places[own]}/x.py") for item in items)


def test_folders_that_many_machines_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path below one of them is ours only if it exists here; in our own files it is told in any case."""
    for named, ours in (("/content", True), ("/", False), ("/usr", False)):
        monkeypatch.setattr(Path, "cwd", classmethod(lambda cls, named=named: cls(named)))
        assert (named in own_folders()) == ours
    monkeypatch.setattr(Path, "cwd", classmethod(lambda cls: cls("/proc1")))
    monkeypatch.setattr(Path, "exists", lambda self: str(self) in ("/proc1/mine", "/tmp/mine"))
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    lines = [f"x = '{top}/{below}/x'" for top in ("/proc1", "/tmp", "/root") for below in ("mine", "data")]
    write(tmp_path / "f", blocks__a_py="\n".join(lines))
    assert [item.refused for item in found(tmp_path / "f")] == [True, False, True, False, False, False]
    write(tmp_path / "f", report_md="/root/no-such-thing/x.pt")
    assert [item.refused for item in found(tmp_path / "f") if item.file == "report.md"] == [True]


def test_an_e_mail_address_stays_in_the_code_of_others_alone(tmp_path: Path) -> None:
    write(tmp_path, blocks__a_py="# Jane Doe <jane.doe@example.org>\nimport torch\n")
    left = "left as written: 1 e-mail address in the code of others"
    assert check_findings(tmp_path, found(tmp_path)) == (left,)
    write(tmp_path, report_md="first\nask jane.doe@example.org, or mailto:jane.doe@example.org\n")
    with pytest.raises(UserError, match=r"report.md, line 2: e-mail address jane.doe@example.org \[\w+\].*; .*not-se"):
        check_findings(tmp_path, found(tmp_path))
    digest = found(tmp_path)[-1].digest
    assert check_findings(tmp_path, found(tmp_path), [digest]) == (left, f"published by --not-secret: {digest}")
