"""A model on loopback that plays a script: what stands where a real provider would be, for the real agent CLIs.

It decides by the request alone (how many tool results it holds), so that a CLI that asks twice gets the same answer
twice. Each step is one answer of the model, good or bad; the last one is repeated.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

from tests.e2e.wires import WIRES, Body, Event, Wire


@dataclass(frozen=True)
class Run:
    """Asks for one shell command."""

    command: str


@dataclass(frozen=True)
class Say:
    """The last message of the turn."""

    text: str


@dataclass(frozen=True)
class Refuse:
    """An HTTP error with a JSON body."""

    status: int
    body: Body
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stream:
    """Status 200 and these events: errors that providers tell inside the stream."""

    events: tuple[Event, ...]


@dataclass(frozen=True)
class Hang:
    """Takes the request and never answers."""


@dataclass(frozen=True)
class Cut:
    """Begins to answer, then resets the connection."""


Step: TypeAlias = Run | Say | Refuse | Stream | Hang | Cut
Script: TypeAlias = Callable[[Body], Sequence[Step]]
"""From the decoded request to the steps of the conversation that it belongs to."""


class ModelServer:
    """Plays `script` on 127.0.0.1 while it is entered. `requests`: method and path of everything that was asked."""

    def __init__(self, script: Script | Sequence[Step]) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.script = script if callable(script) else lambda _: script
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.requests = self._server.requests

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.over.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    script: Script

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.over = threading.Event()
        self.requests: list[tuple[str, Body]] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A CLI that was killed closes its connections: that is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body: Body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or b"{}")
        path = urlsplit(self.path).path
        self.server.requests.append((path, body))
        wire = next((wire for wire in WIRES if path.endswith(wire.path)), None)
        if wire is None:
            self._answer(404, b"{}")
            return
        steps = self.server.script(body)
        done = wire.tool_results(body)
        self._play(wire, body, done, steps[min(done, len(steps) - 1)])

    def do_GET(self) -> None:
        self.server.requests.append((urlsplit(self.path).path, {}))
        self._answer(404, b"{}")

    do_HEAD = do_GET

    def _play(self, wire: Wire, body: Body, done: int, step: Step) -> None:
        match step:
            case Run(command):
                self._stream(wire.encode(wire.tool_call(body, done, command)))
            case Say(text):
                self._stream(wire.encode(wire.message(body, text)))
            case Stream(events):
                self._stream(wire.encode(list(events)))
            case Refuse(status, refusal, headers):
                self._answer(status, json.dumps(refusal).encode(), headers)
            case Hang():
                self.server.over.wait()
            case Cut():
                self._cut(wire.encode(wire.message(body, "I was about to say"))[0])

    def _stream(self, parts: list[bytes]) -> None:
        self._answer(200, b"".join(parts), {"Content-Type": "text/event-stream"})

    def _answer(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _cut(self, part: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(part) + 1000))
        self.end_headers()
        self.wfile.write(part)
        self.wfile.flush()
        # Closing with a linger of zero seconds resets the connection instead of ending it in order.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: a test's output is not this server's log."""
