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
from manifests.publish.secrets import (
    Finding,
    check_digests,
    check_findings,
    find_hits,
    looks_random,
    own_folders,
    screen,
)
from tests.builders.suites import read_table, table

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

    def u64(data: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")

    def jwt() -> str:
        return (
            f"{u64({'alg': 'HS256', 'typ': 'JWT'})}.{u64({'sub': '1234567890', 'iat': 1516239022})}.{r(43, AL + '-_')}"
        )

    def uuid() -> str:
        return "-".join(r(n, HEX) for n in (8, 4, 4, 4, 12))

    def gh() -> str:
        return "ghp_" + r(36)

    return {
        "AWS key id": f'k = "AKIA{r(16, UP)}"',
        "AWS temporary key id": f'k = "ASIA{r(16, UP)}"',
        "AWS secret, assigned": f'aws_secret_access_key = "{r(40, AL + "/+")}"',
        "AWS secret, environment": f'os.environ["AWS_SECRET_ACCESS_KEY"] = "{r(40, AL + "/+")}"',
        "AWS secret, argument": f'boto3.client("s3", aws_secret_access_key="{r(40, AL + "/+")}")',
        "AWS session token": f'AWS_SESSION_TOKEN="{r(220, AL + "/+")}=="',
        "JWT": f'token = "{jwt()}"',
        "bearer header": f'headers = {{"Authorization": "Bearer {r(40)}"}}',
        "basic header": f'headers = {{"Authorization": "Basic {b64("jane:" + r(14))}"}}',
        ".env line": f"DATABASE_PASSWORD={r(24)}\nDEBUG=1\n",
        ".env export": f"export API_SECRET={r(32)}\n",
        "password assigned": f'password = "{r(18)}"',
        "api key in a dict": f'cfg = {{"api_key": "{r(32)}"}}',
        "keyword argument": f'Client(api_token="{r(32)}")',
        "yaml secret": f"client_secret: {r(40)}\n",
        "json secret": json.dumps({"clientSecret": r(36)}),
        "wandb": f'wandb.login(key="{r(40, HEX)}")',
        "wandb environment": f'os.environ["WANDB_API_KEY"] = "{r(40, HEX)}"',
        "wandb v1": f"WANDB_API_KEY=wandb_v1_{r(70, AL + '_')}",
        "OpenAI project": f'k="sk-proj-{r(74, AL + "_-")}T3BlbkFJ{r(74, AL + "_-")}"',
        "Fireworks": f'k="fw_{r(24)}"',
        "GitHub classic": f'k="{gh()}"',
        "Bitbucket": f'k="ATBB{r(32)}"',
        "Slack bot": f'k="xoxb-{r(12, string.digits)}-{r(12, string.digits)}-{r(24)}"',
        "Stripe test": f'k="sk_test_{r(99)}"',
        "Stripe webhook": f'k="whsec_{r(32)}"',
        "Azure AD": f'azure_client_secret = "{r(3)}8Q~{r(34, AL + "_-")}"',
        "Azure SAS": f'u="https://jane.blob.core.windows.net/c/f?sv=2022-11-02&ss=b&srt=o&sp=r&se=2030-01-01T00:00:00Z&sig={quote(b64(drawn.randbytes(32)), safe="")}"',
        "Azure DevOps": f'azure_devops_pat = "{r(52, string.ascii_lowercase + "234567")}"',
        "Discord bot": f'discord_token="M{r(23)}.{r(6)}.{r(27, AL + "_-")}"',
        "Discord webhook": f'k="https://discord.com/api/webhooks/{r(18, string.digits)}/{r(68, AL + "_-")}"',
        "Google OAuth secret": f'k="GOCSPX-{r(28, AL + "_-")}"',
        "Google OAuth token": f'k="ya29.{r(100, AL + "_-")}"',
        "Google service account": json.dumps(
            {
                "type": "service_account",
                "private_key_id": r(40, HEX),
                "private_key": "-----BEGIN PRIVATE KEY-----\n" + r(64) + "\n" + r(64) + "\n-----END PRIVATE KEY-----\n",
            }
        ),
        "PuTTY": f"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: jane\nPublic-Lines: 2\n{r(64)}\n{r(32)}\nPrivate-Lines: 1\n{r(48)}\nPrivate-MAC: {r(64, HEX)}\n",
        "OpenSSH": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{r(70)}\n{r(70)}\n-----END OPENSSH PRIVATE KEY-----",
        "netrc": f"machine api.example.org login jane password {r(16)}",
        "pgpass": f"localhost:5432:db:jane:{r(16)}",
        "URL": f'u="https://jane:{r(12)}@example.org/x"',
        "URL, empty user": f'u="redis://:{r(16)}@cache.example.org:6379/0"',
        "database URL": f'DATABASE_URL="postgresql://jane:{r(16)}@db.example.org/x"',
        "mongodb": f'u="mongodb+srv://jane:{r(16)}@cluster0.abcde.mongodb.net/x"',
        "JDBC": f'u="jdbc:mysql://db.example.org/x?user=jane&password={r(16)}"',
        "token in a query": f'u="https://api.example.org/x?access_token={r(40)}"',
        "npmrc": f"//registry.example.org/:_authToken={r(36)}",
        "crates": f'k="cio{r(32)}"',
        "docker config": json.dumps({"auths": {"https://index.example.org/v1/": {"auth": b64("jane:" + r(16))}}}),
        "Kaggle": json.dumps({"username": "jane", "key": r(32, HEX)}),
        "Kaggle token": f'k="KGAT_{r(32, HEX)}"',
        "Neptune": f'NEPTUNE_API_TOKEN="{b64(json.dumps({"api_address": "https://app.neptune.ai", "api_url": "https://app.neptune.ai", "api_key": uuid()}))}"',
        "Comet": f'comet_ml.Experiment(api_key="{r(25)}")',
        "Datadog": f'DD_API_KEY="{r(32, HEX)}"',
        "New Relic": f'k="NRAK-{r(27, UP)}"',
        "PlanetScale": f'k="pscale_tkn_{r(43, AL + "_-")}"',
        "Modal": f'k="as-{r(22)}"; MODAL_TOKEN_SECRET="as-{r(22)}"',
        "Tailscale": f'k="tskey-auth-{r(16)}-{r(32)}"',
        "Cloudinary": f'u="cloudinary://{r(15, string.digits)}:{r(27, AL + "_-")}@jane"',
        "base64": f'k = base64.b64decode("{b64(gh())}")',
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
    assert len(KINDS) == 74
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
SECRETS = read_table(__file__, "screen.md", "Secrets", globals())


def found(folder: Path) -> list[Finding]:
    return screen({path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()})


def column_kinds(text: str) -> dict[str, pa.Array]:
    """The text in the third of four rows, in every type that a column may have."""
    values = ["", None, text, "other"]
    return {
        "string": pa.array(values, pa.string()),
        "large_string": pa.array(values, pa.large_string()),
        "string_view": pa.array(values, pa.string_view()),
        "binary": pa.array([None if v is None else v.encode() for v in values], pa.binary()),
        "dictionary": pa.array(values).dictionary_encode(),
        "list": pa.array([[], None, ["a", text], ["b"]], pa.list_(pa.string())),
        "struct": pa.array([None, {"x": None}, {"x": text}, {"x": "b"}]),
        "list of structs": pa.array(
            [[], None, [{"x": "a"}, {"x": text}], []], pa.list_(pa.struct([("x", pa.string())]))
        ),
        "map": pa.array([[], None, [("k", text)], []], pa.map_(pa.string(), pa.string())),
        "map key": pa.array([[], None, [(text, "v")], []], pa.map_(pa.string(), pa.string())),
    }


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_in_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    secret, name = SECRETS[kind], kind.partition(" (")[0]
    (tmp_path / "report.md").write_text(f"first\nsecond `{secret}`\n")
    (tmp_path / "manifest.json").write_text(json.dumps({"parameters": {"x": secret}}, indent=1))
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "a.py").write_text(f"key = '{secret}'\r\n")
    (tmp_path / "one.png").write_bytes(b"\x89PNG\0\xff" + secret.encode() + b"\0\xfe")
    pq.write_table(pa.table({"n": [1, 2], "error": [None, f"x {secret}"]}), tmp_path / "t.parquet")
    items = found(tmp_path)
    places = {(item.file, item.where) for item in items}
    at = 6 if not secret.startswith("https") else 11  # of a URL, what stands before :// is no part of it
    assert places == {
        ("report.md", "line 2"),
        ("manifest.json", "line 3"),
        ("blocks/a.py", "line 1"),
        ("one.png", f"byte {at}"),
        ("t.parquet", "row 1, column error"),
    }
    assert {item.hit.kind for item in items} == {name}
    assert all(item.hit.secret and item.refused for item in items)
    with pytest.raises(UserError) as caught:
        check_findings(tmp_path, items)
    told = str(caught.value)
    assert secret not in told
    assert secret[4:14] not in told
    assert f"blocks/a.py, line 1: {name}" in told
    assert "(and 2 more)" in told


def test_a_secret_behind_an_escaped_sign(tmp_path: Path) -> None:
    """JSON, and JSON inside JSON, write a line feed as two letters."""
    for number, escape in enumerate(["\n", "\t", "\r", '"', "\b", "\f", "é"]):
        text = f"bad:{escape}{GITHUB}"
        (tmp_path / f"a{number}.jsonl").write_text(json.dumps({"error": text}))
        (tmp_path / f"b{number}.jsonl").write_text(json.dumps({"prm": json.dumps({"error": text})}))
    (tmp_path / "c.py").write_text(f"x = '\\x0a{GITHUB}'")
    pq.write_table(pa.table({"error": ["none", json.dumps(f"bad:\n{GITHUB}")]}), tmp_path / "d.parquet")
    assert [item.file for item in found(tmp_path)] == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize("kind", SECRETS)
def test_what_only_looks_like_a_secret_may_leave_by_its_digest(tmp_path: Path, kind: str) -> None:
    code = f'EXAMPLE = """{SECRETS[kind]}\nMIIEow"""'
    (tmp_path / "a.py").write_text(code)
    pq.write_table(pa.table({"code": [code]}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="--not-secret") as caught:
        check_findings(tmp_path, found(tmp_path))
    digest = str(caught.value).rpartition(" ")[2]
    (note,) = check_findings(tmp_path, found(tmp_path), [digest])
    assert note.startswith(f"left as written: 2 findings, by --not-secret {digest}, in 2 files: a.py, line 1: ")
    other = f"{SECRETS[kind]}\nMIIEpQ" if "private" in kind else SECRETS[kind].replace("2", "3")
    (tmp_path / "b.py").write_text(f'KEY = """{other}"""')
    with pytest.raises(UserError, match=r"b\.py"):
        check_findings(tmp_path, found(tmp_path), [digest])


@pytest.mark.parametrize("digest", ["", "xyz", "ghp_aB3dE6gH", "0123456789AB", "0123456789abc"])
def test_a_digest_that_is_none(digest: str) -> None:
    with pytest.raises(UserError, match="use the 12 digits in brackets"):
        check_digests([digest])


def test_a_secret_in_every_kind_of_column(tmp_path: Path) -> None:
    columns = column_kinds(GITHUB)
    pq.write_table(pa.table({"n": [1.0] * 4, **columns}), tmp_path / "t.parquet")
    told = sorted(str(item).partition(" [")[0] for item in found(tmp_path))
    assert told == sorted(f"t.parquet, row 2, column {name}: github-pat ghp_…" for name in columns)
    table = pa.table({"n": [1]}).replace_schema_metadata({"made by": GITHUB})
    pq.write_table(table, tmp_path / "t.parquet")
    (item,) = found(tmp_path)
    assert item.where == "row 0, column names"
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"t.parquet: not readable: .*; create the folder again"):
        found(tmp_path)


def test_rows_are_counted_over_batches_and_groups(tmp_path: Path) -> None:
    texts = ["x" * (n % 50) for n in range(5_000)]
    for row in (0, 1_999, 2_000, 4_321, 4_999):
        texts[row] = f"{GITHUB} {row}"
    pq.write_table(pa.table({"reason": texts}), tmp_path / "t.parquet", row_group_size=777)
    assert [item.where for item in found(tmp_path)] == [
        f"row {row}, column reason" for row in (0, 1_999, 2_000, 4_321, 4_999)
    ]


def test_neighbours_make_no_secret_and_hide_none(tmp_path: Path) -> None:
    """Values lie end to end while they are searched."""
    secret = GITHUB
    texts = [
        secret[:10],
        secret[10:],
        "ghp_",
        secret,
        secret[4:],
        "AKI",
        "A" + "B" * 16,
        "a\0\nb",
        "_" + secret,
        secret,
    ]
    pq.write_table(pa.table({"x": texts}), tmp_path / "t.parquet")
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
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "a.py").write_text(f"x = '{path}'")
    pq.write_table(pa.table({"code": [path], "nn_code": [path], "prm": [path]}), tmp_path / "t.parquet")
    items = found(tmp_path)
    assert len(items) == 4
    assert not any(item.refused for item in items)
    (note,) = check_findings(tmp_path, items)
    assert note.startswith("left as written: 4 absolute paths in the code of others, in 2 files: ")
    (tmp_path / "specs.jsonl").write_text(f'{{}}\n{{"a": "{path}"}}')
    with pytest.raises(UserError, match=r"specs.jsonl, line 2: absolute path .*; create it again without"):
        check_findings(tmp_path, found(tmp_path))


@pytest.mark.parametrize("own", ["cwd", "home", "temporary", "folder", "jürgen"])
def test_paths_of_this_machine_never_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    places = {place: tmp_path / "m" / place for place in ("cwd", "home", "temporary", "folder", "jürgen")}
    for path in places.values():
        path.mkdir(parents=True)
    monkeypatch.chdir(places["cwd"])
    monkeypatch.setenv("HOME", str(places["home"]))
    monkeypatch.setattr(tempfile, "tempdir", str(places["temporary"]))
    file, text = tmp_path / "f", f"see {places[own]}/x.py:3 and {places[own]}land/x"
    for name, content in {
        "report.md": text,
        "blocks/a.py": text,
        "a.json": json.dumps(text),
        "b.png": f"\0{text}",
    }.items():
        file.write_text(content)
        (item,) = screen({name: file}, places["folder"], places["jürgen"])
        assert item.refused
        assert str(item).endswith(f": absolute path {places[own]}/x.py")


def test_a_working_folder_with_a_name_that_many_machines_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for named, ours in (("/content", True), ("/", False), ("/usr", False)):
        monkeypatch.setattr(Path, "cwd", classmethod(lambda cls, named=named: cls(named)))
        assert (named in own_folders()) == ours
    monkeypatch.setattr(Path, "cwd", classmethod(lambda cls: cls("/proc1")))
    monkeypatch.setattr(Path, "exists", lambda self: str(self) == "/proc1/mine")
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "a.py").write_text("a = '/proc1/mine/x'\nb = '/proc1/data/x'\n")
    assert [(item.where, item.refused) for item in found(tmp_path)] == [("line 1", True), ("line 2", False)]


@pytest.mark.parametrize("common", ["/tmp", "/root"])
def test_common_folders_are_ours_where_the_path_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, common: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    monkeypatch.setenv("HOME", "/root")
    there = Path(tempfile.mkdtemp(dir=common)) if common == "/tmp" else None
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "a.py").write_text(f"x = '{common}/no-such-thing/x.pt'\ny = '{there or ''}/y'\n")
    items = found(tmp_path)
    assert [item.refused for item in items] == ([False, True] if there else [False])
    if there:
        there.rmdir()
    (tmp_path / "report.md").write_text(f"{common}/no-such-thing/x.pt")
    assert [item.refused for item in found(tmp_path) if item.file == "report.md"] == [True]


def test_an_e_mail_address_stays_in_the_code_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "blocks").mkdir()
    (tmp_path / "blocks" / "a.py").write_text("# Jane Doe <jane.doe@example.org>\nimport torch\n")
    (note,) = check_findings(tmp_path, found(tmp_path))
    assert note.startswith("left as written: 1 e-mail address in the code of others, in 1 file: blocks/a.py, line 1: ")
    (tmp_path / "report.md").write_text("first\nask jane.doe@example.org, or mailto:jane.doe@example.org\n")
    with pytest.raises(
        UserError, match=r"report.md, line 2: e-mail address jane.doe@example.org \[\w+\]; .*; .*not-se"
    ):
        check_findings(tmp_path, found(tmp_path))
    digest = found(tmp_path)[-1].digest
    assert any(digest in note for note in check_findings(tmp_path, found(tmp_path), [digest]))
