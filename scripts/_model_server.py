"""A scripted model on loopback, so that the real codex CLI can work offline: one tool call, then one message.

Speaks the one endpoint that codex uses with a configured provider: `POST <base>/responses`, answered with the
server-sent events response.created, response.output_item.done, response.completed. It decides by the request
alone, so that a client that asks twice gets the same answer twice.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

TOOL = "exec_command"


@dataclass(frozen=True)
class Turn:
    """What the model does when the prompt holds the turn's key: run `command`, then say `message`."""

    command: str
    message: str


class ModelServer:
    """Serves `turns` (key: a text that only the wanted prompt holds) on 127.0.0.1 while it is entered."""

    def __init__(self, turns: Mapping[str, Turn]) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.turns = dict(turns)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    turns: dict[str, Turn]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if not self.path.endswith("/responses"):
            self.send_error(404)
            return
        asked = json.loads(body).get("input", [])
        said = json.dumps(asked)
        turn = next((turn for key, turn in self.server.turns.items() if json.dumps(key)[1:-1] in said), None)
        if turn is None:
            self.send_error(400, "the prompt names none of this model's turns")
            return
        answered = any(item.get("type") == "function_call_output" for item in asked)
        self._send_events(_message(turn) if answered else _tool_call(turn))

    def _send_events(self, item: dict[str, Any]) -> None:
        usage = {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 20,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 120,
        }
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": "resp_1", "usage": usage}},
        ]
        lines = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(lines)))
        self.end_headers()
        self.wfile.write(lines.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the demo's output is the protocol, not this server's log."""


def _tool_call(turn: Turn) -> dict[str, Any]:
    arguments = json.dumps({"cmd": turn.command})
    return {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": TOOL, "arguments": arguments}


def _message(turn: Turn) -> dict[str, Any]:
    content = [{"type": "output_text", "text": turn.message, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
