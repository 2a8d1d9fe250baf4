"""A model at an endpoint, without a sandbox: keys, trouble, harm, how many requests at once, and nothing twice."""

import json
import re
import subprocess
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants, get_token

from lemur.synthesis import Sampling, Service, endpoint
from lemur.synthesis.endpoint import Answer, Endpoint, Request
from lemur_core.files.errors import UsageError, UserError
from tests.builders import model_server

Raw, completion, serving = model_server.Raw, model_server.completion, model_server.serving
Command = Callable[..., subprocess.CompletedProcess[str]]

HUB, KEY = "hf_the_users_own_token_of_the_hub", "sk-the-key-of-the-endpoint-0123456789"
KEY_NAME = "LEMUR_MODEL_KEY"
NO_PYTHON = "```python\ndef (\n```"
TEXT = Answer("text", 100, 50, "stop")
GOOD = completion("text").body


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers get the ports of earlier ones: what one answered is not for the next. And nobody waits a second."""
    monkeypatch.setattr(endpoint, "_PAUSE", 0.01)
    monkeypatch.setenv("LEMUR_CURATOR_CACHE", str(tmp_path / "answers"))
    monkeypatch.delenv(KEY_NAME, raising=False)


@pytest.fixture(params=["environment", "file"])
def logged_in(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    if request.param == "environment":
        monkeypatch.setenv("HF_TOKEN", HUB)
    else:
        (tmp_path / "token").write_text(HUB)
    assert get_token() == HUB


def questions(count: int) -> list[Request]:
    return [Request([{"role": "user", "content": f"question {number}"}], number) for number in range(count)]


def ask(
    url: str,
    count: int = 1,
    model: str = "scripted",
    sampling: Sampling | None = None,
    **options: Any,
) -> list[Answer]:
    service = Service(url, **{"key_name": KEY_NAME, "retries": 2, **options})
    return Endpoint(model, service, sampling or Sampling()).ask(questions(count))


@pytest.mark.usefixtures("logged_in")
def test_what_is_asked_and_by_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of the endpoint arrives where there is one, the user's token of the Hub never."""
    monkeypatch.setenv("ANOTHER_NAME", KEY)
    with serving(lambda request, number: completion("cut o", "length")) as server:
        first = ask(f"{server.url}/", sampling=Sampling(0.0, 77), model="some/name")
        assert ask(server.url, key_name="ANOTHER_NAME") == first == [Answer("cut o", 100, 50, "length")]
    assert server.requests[0] == {
        "model": "some/name", "messages": [{"role": "user", "content": "question 0"}], "seed": 0, "temperature": 0.0,
        "max_tokens": 77,
    }  # fmt: skip
    assert [one["authorization"] for one in server.headers] == ["Bearer none", f"Bearer {KEY}"]
    assert HUB not in json.dumps([server.headers, server.requests])


@pytest.mark.parametrize("status", [400, 401, 500])
def test_a_key_that_is_told_back_is_left_out(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stands: also where the text is cut in it."""
    monkeypatch.setenv(KEY_NAME, KEY)
    for before in (0, 280, 295, 2**16 - 9):
        body = f"{'x' * before}{KEY} is wrong".encode()
        with serving(lambda request, number, body=body: Raw(status, body)) as server:
            try:
                said = ask(server.url, retries=0)[0].why
            except UserError as error:
                said = str(error)
        assert f"status {status}" in said
        assert not [KEY[:size] for size in range(4, len(KEY)) if KEY[:size] in said]


def test_a_key_in_an_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that stands for one is none there: `dummy` may well be in code."""
    for key, text in ((KEY, "your key is (key)"), ("dummy", "your key is dummy")):
        monkeypatch.setenv(KEY_NAME, key)
        with serving(lambda request, number, key=key: Raw(400, f"not {key}".encode())) as server:
            assert ask(server.url) == [Answer(why="status 400: not (key)")]
        with serving(lambda request, number, key=key: f"your key is {key}") as server:
            assert ask(server.url) == [Answer(text, 100, 50, "stop")]


NO_COMPLETIONS = (
    *({"a": 1}, {"error": "no"}, [], [1], None, "text", 7, {"choices": []}, {"choices": None}, {"choices": [None]}),
    *({"choices": [{"message": None}]}, {"choices": [{"index": 0}]}, {"choices": {"message": {"content": "text"}}}),
)
PASSING = {
    "busy": (Raw(429, b'{"error": "busy"}', {"Retry-After": "soon"}), r"status 429: .*busy"),
    "broken": (Raw(500, b"oops"), r"status 500: oops"),
    "loading": (Raw(503, b""), r"status 503: "),
    "truncated": (Raw(200, GOOD[:40], {"Content-Type": "application/json"}, promised=200), r"."),
    "html": (Raw(200, b"<html>Bad gateway</html>", {"Content-Type": "text/html"}), "not a chat completion"),
    "not UTF-8": (Raw(200, b"\xff\xfe\x00"), "not a chat completion"),
    **{json.dumps(one): (Raw(200, json.dumps(one).encode()), "not a chat completion") for one in NO_COMPLETIONS},
    **{
        f"{number:.9}": (Raw(200, GOOD.replace(b": 50", f": {number}".encode())), "not a chat completion")
        for number in ("NaN", "-Infinity", "1" + "0" * 30, "9" * 5000)
    },
}


@pytest.mark.parametrize("trouble", PASSING)
def test_trouble(trouble: str) -> None:
    """It may pass; where it stays, it is an attempt without answer."""
    answer, said = PASSING[trouble]
    with serving(lambda request, number: answer if number < 2 else "text") as server:
        assert ask(server.url) == [TEXT]
    assert len(server.requests) == 3
    with serving(lambda request, number: "text" if request["seed"] else answer) as server:
        told = ask(server.url, 2, retries=1)
    assert (told[0].text, told[1]) == (None, TEXT)
    assert re.match(rf"no answer in 2 requests; last error: .*{said}", told[0].why), told[0].why
    assert "\n" not in told[0].why
    assert len(server.requests) == 3


def test_nobody_listens() -> None:
    with serving(lambda request, number: "text") as server:
        pass
    assert re.match(r"no answer in 2 requests; last error: .{5}", ask(server.url, retries=1)[0].why)


def test_pauses_grow_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    monkeypatch.setattr(endpoint, "_PAUSE", 10)
    with serving(lambda request, number: Raw(503)) as server:
        ask(server.url, retries=4)
    assert [one for one in pauses if one] == [10, 20, 40, 60]


def test_what_no_retry_mends_ends_an_attempt_at_once() -> None:
    answers = [Raw(400, b'{"error": "context too long"}'), Raw(422, b""), '{"choices": []}']
    with serving(lambda request, number: answers[request["seed"]]) as server:
        told = ask(server.url, 3)
    assert told[0] == Answer(why='status 400: {"error": "context too long"}')
    assert told[1].why.startswith("status 422: ")
    assert told[2] == Answer('{"choices": []}', 100, 50, "stop")
    assert len(server.requests) == 3


def change(**parts: Any) -> bytes:
    """A completion with other parts; one that is None is missing."""
    whole = {**json.loads(GOOD), **parts}
    return json.dumps({name: value for name, value in whole.items() if value is not None}).encode()


def count_as(usage: str) -> list[bytes]:
    """Completions whose numbers of tokens, or the object with both, are this."""
    one = GOOD.replace(b": 100,", f": {usage},".encode()).replace(b": 50,", f": {usage},".encode())
    return [one, re.sub(rb'"usage": \{.*?\}', lambda _: f'"usage": {usage}'.encode(), GOOD)]


SILENT = [{"index": 0, "message": {"role": "assistant", "content": None}}]
UNCOUNTED = ('"1e9"', "-1000000", "1e9", "1.5", "true", "null", "[]", '{"a": 1}', str(2**31), '"\\ud800"')
NO_WORDS = ("7", "null", '{"a": 1}', '["stop"]', '"st\\ud800op"', '"a\\u0000"', f'"{"x" * 99}"')
REPORTED: list[tuple[bytes, Answer]] = [
    (change(choices=SILENT), Answer(why="the endpoint returned a message without text")),
    (change(usage=None), Answer("text", None, None, "stop")),
    (change(choices=json.loads(GOOD)["choices"] * 5_000), TEXT),
    (GOOD.replace(b'"text"', b'"a \\ud800 b"'), Answer("a \\ud800 b", 100, 50, "stop")),
    *((GOOD.replace(b'"stop"', finish.encode()), Answer("text", 100, 50, None)) for finish in NO_WORDS),
    *((body, Answer("text", None, None, "stop")) for usage in UNCOUNTED for body in count_as(usage)),
]


def test_what_an_endpoint_reports() -> None:
    """An answer was paid for: it counts, as if what counts nothing were not reported, and is kept as it came."""
    with serving(lambda request, number: Raw(200, REPORTED[request["seed"]][0])) as server:
        for _ in range(2):
            assert ask(server.url, len(REPORTED)) == [expected for _, expected in REPORTED]
    assert len(server.requests) == len(REPORTED) + 1


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_a_refusal_ends_the_run(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda request, number: Raw(status, b"no\nsuch thing")) as server:
        with pytest.raises(UserError) as caught:
            ask(server.url, 20, at_once=1)
        assert str(caught.value) == (
            f"{server.url}: refuses with status {status}: no such thing; a key would be read from {KEY_NAME};"
            " what it answered before is cached"
        )
        assert len(server.requests) == 1
        monkeypatch.setenv(KEY_NAME, KEY)
        with pytest.raises(UserError, match=f"no such thing; is the key right\\? it is read from {KEY_NAME}"):
            ask(server.url)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_NAME, KEY)
    with (
        serving(lambda request, number: "text") as other,
        serving(lambda request, number: Raw(status, b"", {"Location": f"{other.url}/{KEY}"})) as server,
    ):
        with pytest.raises(UserError, match=rf"status {status}: redirects to .*; pass the final address") as caught:
            ask(server.url, 3)
        assert not other.requests
    assert KEY not in str(caught.value)


def test_what_was_answered_before_a_refusal_is_not_asked_again() -> None:
    with serving(lambda request, number: Raw(401, b"no") if number == 2 else "text") as server:
        with pytest.raises(UserError, match="status 401"):
            ask(server.url, 6, at_once=1)
        assert len(server.requests) == 3
        assert ask(server.url, 6, at_once=1) == [TEXT] * 6
    assert [request["seed"] for request in server.requests] == [0, 1, 2, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:8000", "ftp://a/v1", "http://", "http:///v1", "http://user:secret@host/v1", "file:///etc"),
        *("http://[a/v1", "http://a:99999/v1", "http://a:b/v1", "http://:80/v1", "http://a/\x1b[2J", "http://a\n/v1"),
    ],
)
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match=r"^--base-url .*: use http://HOST:PORT/v1; set a key in the environment"):
        ask(url)


def drip(body: bytes, pause: float = 0.05) -> Iterator[bytes]:
    for place in range(len(body)):
        time.sleep(pause)
        yield body[place : place + 1]


def chunks(parts: Iterator[bytes], *headers: str) -> Iterator[bytes]:
    """A response whose length nobody states."""
    yield "\r\n".join(["HTTP/1.1 200 OK", "Transfer-Encoding: chunked", *headers, "", ""]).encode()
    for part in parts:
        yield b"%x\r\n%b\r\n" % (len(part), part)
    yield b"0\r\n\r\n"


def bomb() -> Iterator[bytes]:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    yield packer.compress(b'{"choices": "')
    for _ in range(2048):
        yield packer.compress(b" " * 2**20)
    yield packer.flush()


OK = b"HTTP/1.1 200 OK\r\n"
LONG = r"^the response is longer than 2 MiB, or in more than 16384 parts$"
HARM: dict[str, tuple[Callable[[], Iterator[bytes]], str]] = {
    "endless headers": (lambda: chain([OK], repeat(b"X-A: " + b"a" * 1000 + b"\r\n")), r"last error: .*too long$"),
    "switches": (
        lambda: chain([b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"], drip(b" " * 40)),
        r"^status 101|last error",
    ),
    "endless chunks": (lambda: chunks(repeat(b" " * 2**20)), LONG),
    "endless small chunks": (lambda: chunks(repeat(b" ")), LONG),
    "endless without a length": (lambda: chain([OK + b"\r\n"], repeat(b"x" * 2**20)), LONG),
    "a length of a petabyte": (lambda: iter([OK + b"Content-Length: %d\r\n\r\n{" % 10**15]), r"last error: ."),
    "a length that lies": (lambda: iter([OK + b"Content-Length: 20\r\n\r\n" + GOOD]), "not a chat completion"),
    "no HTTP": (lambda: iter([GOOD]), r"last error: ."),
    "a bomb": (lambda: chunks(bomb(), "Content-Encoding: gzip"), "not a chat completion"),
    "packed many times": (
        lambda: chunks(iter([b"x"]), "Content-Encoding: " + "gzip, " * 1000 + "gzip"),
        "not a chat completion",
    ),
    "deep": (lambda: chunks(iter([b'{"a":' * 100_000, b"}" * 100_000])), "not a chat completion"),
    "another charset": (
        lambda: chunks(iter(['{"choices": "\xe4"}'.encode("latin-1")]), "Content-Type: application/json; charset=x"),
        "not a chat completion",
    ),
    "a long text": (lambda: chunks(iter([GOOD.replace(b'"text"', b'"' + b"`" * 2**21 + b'"')])), LONG),
    "a list of texts": (lambda: chunks(iter([GOOD.replace(b'"text"', b'["text"]')])), "its content is of type list"),
    "controls": (lambda: iter([b"HTTP/1.1 400 X\r\n\r\n\0no \r\nlemur: all is well\0"]), r"^status 400: \\x00no lemur"),
}


@pytest.mark.parametrize("harm", HARM)
def test_harm_costs_one_attempt(harm: str) -> None:
    """The others have their answers; few bytes of it are read, and little memory is used."""
    parts, said = HARM[harm]
    sent: list[int] = []

    def send() -> Iterator[bytes]:
        for part in parts():
            yield part
            sent.append(len(part))

    tracemalloc.start()
    with serving(lambda request, number: "text" if request["seed"] else send()) as server:
        told = ask(server.url, 3, retries=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (told[0].text, told[1:]) == (None, [TEXT] * 2)
    assert re.search(said, told[0].why), told[0].why
    assert len(told[0].why) < 400
    assert len(server.requests) == 3
    assert sum(sent) < 32 * 2**20  # with what sockets hold
    assert peak < 64 * 2**20


LATE: dict[str, Callable[[], Iterator[bytes]]] = {
    "slow body": lambda: chain([OK + b"Content-Length: %d\r\n\r\n" % len(GOOD)], drip(GOOD)),
    "slow head": lambda: drip(OK + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD),
    "silence": lambda: drip(OK, 5),
    "endless early hints": lambda: repeat(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
    "endless continue": lambda: repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("late", LATE)
def test_the_time_of_a_request_includes_the_last_byte(late: str) -> None:
    """None of them would ever end in this time, so a busy machine changes nothing."""
    with serving(lambda request, number: LATE[late]()) as server:
        (told,) = ask(server.url, retries=1, timeout=0.5)
    assert told.why == "no answer in 2 requests; last error: no answer within 0.5 s"


@pytest.mark.parametrize("at_once", [1, 3])
def test_requests_at_once(at_once: int) -> None:
    """Each request waits until as many as may are under way; that no further one is shows in the most that were."""
    lock, under_way, most = threading.Lock(), [0], [0]
    full = threading.Barrier(at_once)

    def script(request: dict[str, Any], number: int) -> str:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        full.wait(60)
        with lock:
            under_way[0] -= 1
        return f"text {request['seed']}"

    with serving(script) as server:
        told = ask(server.url, 6, at_once=at_once)
    assert [answer.text for answer in told] == [f"text {number}" for number in range(6)]
    assert most[0] == at_once


def test_nothing_is_asked_twice_and_another_question_is(capsys: pytest.CaptureFixture[str]) -> None:
    def texts(count: int, **options: Any) -> list[str | None]:
        return [answer.text for answer in ask(server.url, count, at_once=1, retries=0, **options)]

    with serving(lambda request, number: Raw(500) if number == 1 else f"text {number}") as server:
        assert texts(3) == ["text 0", None, "text 2"]
        capsys.readouterr()
        assert texts(4) == ["text 0", "text 3", "text 2", "text 4"]  # what had no answer is asked again
        assert "scripted: 2 answers from an earlier run" in capsys.readouterr().err
        assert texts(4) == ["text 0", "text 3", "text 2", "text 4"]
        assert [request["seed"] for request in server.requests] == [0, 1, 2, 1, 3]
        assert texts(1, model="another") == ["text 5"]
        assert texts(1, sampling=Sampling(temperature=0.1)) == ["text 6"]
        assert texts(1, sampling=Sampling(max_tokens=20)) == ["text 7"]
        assert (
            Endpoint("scripted", Service(server.url), Sampling()).ask([Request(questions(1)[0].messages, 1)])[0].text
            == "text 8"
        )


@pytest.fixture
def synthesize(library: Path, tmp_path: Path, lemur_here: Command) -> Command:
    def run(*more: object) -> subprocess.CompletedProcess[str]:
        return lemur_here("synthesize", "--in", library, "--out", tmp_path / "out", "--model", "m", *more, cwd=tmp_path)

    return run


def attempts_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "attempts.parquet").to_pylist()
    return rows


@pytest.mark.usefixtures("logged_in")
def test_a_run_goes_on_and_writes_no_key(synthesize: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_NAME, KEY)
    answers = [NO_PYTHON, Raw(422, KEY.encode()), Raw(400, f"Bearer {KEY}".encode()), "", Raw(413, b"<html>"), KEY]
    answers.append("x = 1\n" * 100_000)
    with serving(lambda request, number: answers[request["seed"]]) as server:
        done = synthesize("--base-url", server.url, "--n", 7)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == (
        "m: 0 of 7 attempts accepted, 8 answers, 1,200 tokens; failed: 6 answer, 1 syntax"
    )
    rows = [row for row in attempts_of(tmp_path / "out") if row["round"] == 0]
    assert [row["failed"] for row in rows] == ["syntax", *["answer"] * 6]
    assert rows[6]["error"] == "the file has 600,000 characters; at most 262,144 are read"
    assert [row["error"] for row in rows[:4]] == [
        "line 1: invalid syntax",
        "status 422: (key)",
        "status 400: Bearer (key)",
        "the answer holds no code; answer with one fence ```python … ```",
    ]
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "token":
            held = path.read_bytes()
            assert KEY.encode() not in held, path
            assert HUB.encode() not in held, path
            assert server.url.encode() not in held or "answers" in path.parts, path
    tables = json.dumps(rows)  # their columns are compressed
    assert KEY not in tables + done.stdout + done.stderr
    assert HUB not in tables


def test_an_answer_that_is_cut_off_is_told_so_whatever_its_fault(synthesize: Command, tmp_path: Path) -> None:
    cut = completion("```python\nclass Net:\n    def forward(self", "length")
    with serving(lambda request, number: cut) as server:
        assert synthesize("--base-url", server.url, "--n", 1).returncode == 0
    rows = attempts_of(tmp_path / "out")
    assert [row["error"].endswith("; the answer was cut off at its limit of tokens") for row in rows] == [True, True]
    assert ["cut off" in request["messages"][-1]["content"] for request in server.requests] == [False, True]
