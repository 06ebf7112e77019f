"""The demo's model on loopback, so that the real codex CLI can work offline: one tool call, then one message.

The server and the way in which codex talks to it are those of the end-to-end tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.e2e import model_server
from tests.e2e.model_server import Refuse, Run, Say, Step
from tests.e2e.wires import Body


@dataclass(frozen=True)
class Turn:
    """What the model does when the prompt holds the turn's key: run `command`, then say `message`."""

    command: str
    message: str


class ModelServer(model_server.ModelServer):
    """Serves `turns` (key: a text that only the wanted prompt holds) while it is entered."""

    def __init__(self, turns: Mapping[str, Turn]) -> None:
        def script(body: Body) -> Sequence[Step]:
            said = json.dumps(body.get("input", []))
            for key, turn in turns.items():
                if json.dumps(key)[1:-1] in said:
                    return Run(turn.command), Say(turn.message)
            return (Refuse(400, {"error": {"message": "the prompt names none of this model's turns"}}),)

        super().__init__(script)

    @property
    def base_url(self) -> str:
        """What codex is given as its provider's address."""
        return f"{self.url}/v1"
