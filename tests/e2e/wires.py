"""The three ways in which agent CLIs talk to a model, as far as they do here: one tool call, then one message.

Pure: a decoded request in, the server-sent events of the answer out. Sources: `spec/agents.md` and the vendors'
public API references (OpenAI responses and chat completions, Anthropic messages).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]
Event = dict[str, Any]

INPUT_TOKENS, OUTPUT_TOKENS = 100, 20
"""What every answer of the model is said to have cost."""


@dataclass(frozen=True)
class Wire:
    """One endpoint.

    `tool_results` counts how often a tool has already answered; `tool_call(body, n, command)` is the n-th call that
    runs a shell command, `message(body, text)` a turn's last word. `named`: each event has a line with its type;
    `end`: what closes the stream.
    """

    path: str
    tool_results: Callable[[Body], int]
    tool_call: Callable[[Body, int, str], list[Event]]
    message: Callable[[Body, str], list[Event]]
    named: bool = True
    end: str = ""

    def encode(self, events: list[Event]) -> list[bytes]:
        """Each event as it stands in the stream."""
        told = [
            (f"event: {event['type']}\n" if self.named else "") + f"data: {json.dumps(event)}\n\n" for event in events
        ]
        return [text.encode() for text in (*told, self.end) if text]


# --- POST /v1/responses (codex) ---------------------------------------------------------------------------------------


def _responses_results(body: Body) -> int:
    return sum(item.get("type") == "function_call_output" for item in body.get("input", []))


def _responses_tool_call(body: Body, number: int, command: str) -> list[Event]:
    call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": "exec_command"}
    return _responses({**call, "arguments": json.dumps({"cmd": command})})


def _responses_message(body: Body, text: str) -> list[Event]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return _responses(
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    )


def _responses(item: Event) -> list[Event]:
    usage = {
        "input_tokens": INPUT_TOKENS,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": OUTPUT_TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    return [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "resp_1", "usage": usage}},
    ]


# --- POST /v1/messages (claude) ---------------------------------------------------------------------------------------


def _messages_results(body: Body) -> int:
    blocks = [block for message in body.get("messages", []) for block in _blocks(message)]
    return sum(block.get("type") == "tool_result" for block in blocks)


def _blocks(message: Body) -> list[Body]:
    content = message.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _messages_tool_call(body: Body, number: int, command: str) -> list[Event]:
    block = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {}}
    arguments = {"command": command, "description": "as asked"}
    return _messages(body, block, {"type": "input_json_delta", "partial_json": json.dumps(arguments)}, "tool_use")


def _messages_message(body: Body, text: str) -> list[Event]:
    return _messages(body, {"type": "text", "text": ""}, {"type": "text_delta", "text": text}, "end_turn")


def _messages(body: Body, block: Event, delta: Event, reason: str) -> list[Event]:
    message: Event = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": 1},
    }
    ending = {"stop_reason": reason, "stop_sequence": None}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": OUTPUT_TOKENS}},
        {"type": "message_stop"},
    ]


# --- POST /v1/chat/completions (opencode) -----------------------------------------------------------------------------


def _chat_results(body: Body) -> int:
    return sum(message.get("role") == "tool" for message in body.get("messages", []))


def _chat_tool_call(body: Body, number: int, command: str) -> list[Event]:
    arguments = json.dumps({"command": command, "description": "as asked"})
    call = {
        "index": 0,
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "bash", "arguments": arguments},
    }
    return _chat(body, {"tool_calls": [call]}, "tool_calls")


def _chat_message(body: Body, text: str) -> list[Event]:
    return _chat(body, {"content": text}, "stop")


def _chat(body: Body, delta: Event, reason: str) -> list[Event]:
    def chunk(choices: list[Event], **more: Any) -> Event:
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body.get("model")}
        return {**head, "choices": choices, **more}

    total = INPUT_TOKENS + OUTPUT_TOKENS
    usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": total}
    return [
        chunk([{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}]),
        chunk([{"index": 0, "delta": {}, "finish_reason": reason}]),
        chunk([], usage=usage),
    ]


RESPONSES = Wire("/responses", _responses_results, _responses_tool_call, _responses_message)
MESSAGES = Wire("/messages", _messages_results, _messages_tool_call, _messages_message)
CHAT = Wire("/chat/completions", _chat_results, _chat_tool_call, _chat_message, named=False, end="data: [DONE]\n\n")
WIRES = (RESPONSES, MESSAGES, CHAT)
