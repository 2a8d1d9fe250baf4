"""Messages between the caller and its server: JSON objects, each behind its length, over a socket that never blocks."""

import json
import socket
from typing import Any

#: The largest message either side accepts.
MAX_MESSAGE_BYTES = 64 * 2**20
_LENGTH_BYTES = 4
_READ_BYTES = 1 << 18

Message = dict[str, Any]


class Channel:
    """One end of the socket. Both ends are trusted: no job ever holds one."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.closed = False

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._outgoing) and not self.closed

    def send(self, message: Message) -> None:
        """Queue one message and write what the socket takes now.

        Raises: ValueError if it is too large, or JSON cannot hold it.
        """
        body = json.dumps(message).encode()
        if len(body) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(body)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        self._outgoing += len(body).to_bytes(_LENGTH_BYTES, "big") + body
        self.flush()

    def flush(self) -> None:
        """Write as much as the socket takes without blocking."""
        while self._outgoing and not self.closed:
            try:
                written = self._socket.send(self._outgoing)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self.closed = True
                return
            del self._outgoing[:written]

    def receive(self) -> list[Message]:
        """The messages that have arrived whole; sets `closed` once the other end is gone."""
        while not self.closed:
            try:
                chunk = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                self.closed = True
            self._incoming += chunk
        messages: list[Message] = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        if len(self._incoming) < _LENGTH_BYTES:
            return None
        end = _LENGTH_BYTES + int.from_bytes(self._incoming[:_LENGTH_BYTES], "big")
        if len(self._incoming) < end:
            return None
        message: Message = json.loads(self._incoming[_LENGTH_BYTES:end])
        del self._incoming[:end]
        return message

    def close(self) -> None:
        """Close this end; the other end sees it at once."""
        self.closed = True
        self._socket.close()
