"""An OpenAI-compatible endpoint whose answers a test writes, one for each request."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Raw:
    """An answer as bytes; `promised` more than there are breaks it off."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    promised: int = 0


#: An iterator is sent as it is, head and all, until it ends or nobody listens any more.
Script = Callable[[dict[str, Any], int], "str | Raw | Iterator[bytes]"]


@dataclass
class ModelServer:
    """What was asked, with its headers, whose names are in lower case, and where."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def completion(text: str, finish: str = "stop") -> Raw:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    told = {"id": "x", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice]}
    told |= {"usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}}
    return Raw(body=json.dumps(told).encode(), headers={"Content-Type": "application/json"})


@contextmanager
def serving(script: Script) -> Iterator[ModelServer]:
    """A server that answers by a script, which is given the request and how many came before it."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(server.requests)
                server.requests.append(request)
                server.headers.append({name.lower(): value for name, value in self.headers.items()})
            answer = script(request, number)
            if isinstance(answer, Iterator):
                self.close_connection = True
                with suppress(ConnectionError):
                    for part in answer:
                        self.wfile.write(part)
                return
            raw = answer if isinstance(answer, Raw) else completion(answer)
            self.send_response(raw.status)
            for name, value in raw.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(raw.body) + raw.promised))
            self.end_headers()
            with suppress(ConnectionError):  # it may have waited long enough
                self.wfile.write(raw.body)
            if raw.promised:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = ModelServer(f"http://127.0.0.1:{http.server_address[1]}/v1")
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)  # seconds until it ends
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
