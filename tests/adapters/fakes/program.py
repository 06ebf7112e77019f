"""A fake agent CLI: takes exactly the documented flags, refuses all others in its parser's own words, and replays a
recorded event stream.

Started by a script that `install` writes. The flags are those of `spec/agents.md`. A recording is the CLI's stdout,
line by line, with these exceptions:

    2> TEXT          a line on stderr
    => exit N        the exit code (0 unless given)
    => leave child   leaves a process of its own session behind
    => hang          never exits
    => export TEXT   the file that the flag --export names

`@ANSWER@` stands for the worker's final JSON object as it looks inside a JSON string, `@ANSWER:1@` and `@ANSWER:2@` for
its two halves, `@DECOY@` for an object of the same kind that the worker never said, `@RAW@` for the plain object,
`@MODEL@` for the served model, `@CWD@` for the folder it runs in and `@RESETS@` for half an hour from now.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, TypeAlias

    Takes: TypeAlias = str | tuple[str, ...] | None
    Given: TypeAlias = dict[str, str]

TEXT = "takes a value"

FLAGS: dict[str, dict[str, Takes]] = {
    "claude": {
        "-p": None,
        "--output-format": ("text", "json", "stream-json"),
        "--verbose": None,
        "--permission-mode": ("acceptEdits", "bypassPermissions", "default", "dontAsk", "plan"),
        "--tools": TEXT,
        "--allowed-tools": TEXT,
        "--safe-mode": None,
        "--bare": None,
        "--no-session-persistence": None,
        "--effort": ("low", "medium", "high", "max"),
        "--model": TEXT,
        "--max-turns": TEXT,
        "--max-budget-usd": TEXT,
        "--json-schema": TEXT,
        "-r": TEXT,
        "-c": None,
        "--fork-session": None,
    },
    "grok": {
        "--prompt-file": TEXT,
        "--cwd": TEXT,
        "--output-format": ("plain", "json", "streaming-json", "streaming-messages-json"),
        "--no-auto-update": None,
        "--verbatim": None,
        "--no-subagents": None,
        "--no-memory": None,
        "--no-plan": None,
        "--disable-web-search": None,
        "--max-turns": TEXT,
        "--effort": ("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        "--sandbox": TEXT,
        "--permission-mode": ("default", "acceptEdits", "auto", "dontAsk", "bypassPermissions", "plan"),
        "--always-approve": None,
        "--tools": TEXT,
        "--allow": TEXT,
        "--deny": TEXT,
        "--model": TEXT,
        "-m": TEXT,
        "-r": TEXT,
        "-c": None,
        "-s": TEXT,
    },
    "cursor-agent": {
        "-p": None,
        "--output-format": ("text", "json", "stream-json"),
        "--stream-partial-output": None,
        "--force": None,
        "--sandbox": ("enabled", "disabled"),
        "--trust": None,
        "--workspace": TEXT,
        "--model": TEXT,
        "--resume": TEXT,
        "--continue": None,
    },
    "opencode": {
        "--dir": TEXT,
        "--format": ("default", "json"),
        "--auto": None,
        "-m": TEXT,
        "--model": TEXT,
        "--variant": TEXT,
        "--title": TEXT,
        "-s": TEXT,
        "-c": None,
        "--fork": None,
    },
    "agy": {
        "--add-dir": TEXT,
        "--print-timeout": TEXT,
        "--dangerously-skip-permissions": None,
        "--output-format": ("text", "json", "stream-json"),
        "--input-format": ("text", "stream-json"),
        "--json-schema": TEXT,
        "--model": TEXT,
        "--disable-slash-commands": None,
        "-p": TEXT,
        "--conversation": TEXT,
        "--continue": None,
        "--sandbox": None,
    },
    "devin": {
        "-p": None,
        "--prompt-file": TEXT,
        "--permission-mode": ("auto", "accept-edits", "smart", "dangerous", "bypass", "autonomous"),
        "--sandbox": None,
        "--model": TEXT,
        "--export": TEXT,
        "--respect-workspace-trust": ("true", "false"),
        "-r": TEXT,
        "-c": None,
    },
}
VERSIONS = {
    "claude": "2.1.197 (Claude Code)",
    "grok": "grok 1.0.34",
    "cursor-agent": "2026.09.02-3e8eec8",
    "opencode": "1.18.33",
    "agy": "1.2.17",
    "devin": "devin 3000.11.3 (9c803229faa4)",
}
MODELS = """\
Available models

auto - Auto (current)
composer-2.5 - Composer 2.5
composer-2.5-fast - Composer 2.5 Fast (default)
cursor-grok-4.6-high - \x1b[1mCursor Grok 4.6\x1b[0m
claude-fable-5-thinking-high - Claude Fable 5 1M Thinking (NO ZDR)

Tip: use --model <id> (or /model <id> in interactive mode) to switch.
"""


def refuse(cli: str, flag: str) -> NoReturn:
    """End as the CLI's parser does when it does not know `flag`."""
    if cli in ("claude", "cursor-agent"):
        fail(f"error: unknown option '{flag}'", 1)
    if cli == "opencode":
        fail(f"opencode run [message..]\n\nOptions:\n  --format  format\n\nUnknown argument: {flag.lstrip('-')}", 1)
    if cli == "agy":
        fail(f"flag provided but not defined: -{flag.lstrip('-')}\nUsage of agy:", 2)
    fail(f"error: unexpected argument '{flag}' found\n\nUsage: {cli} [OPTIONS]\n\nTry '--help'.", 2)


def fail(text: str, code: int) -> NoReturn:
    """Say `text` on stderr and exit."""
    sys.stderr.write(text + "\n")
    sys.exit(code)


def parse(cli: str, words: list[str], known: dict[str, Takes]) -> tuple[Given, list[str]]:
    """The flags of the command line and what is no flag."""
    given: Given = {}
    rest: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        if word not in known:
            refuse(cli, word)
        takes = known[word]
        if takes is None:
            given[word] = "yes"
            continue
        if not words:
            fail(f"flag needs an argument: {word}", 2)
        given[word] = words.pop(0)
        if takes != TEXT and given[word] not in takes:
            fail(f"error: invalid value '{given[word]}' for '{word} <VALUE>'", 2)
    return given, rest


def prompt_of(cli: str, given: Given, rest: list[str], stdin: bytes) -> bytes:
    """The prompt that reached the CLI, by the way that it documents; it ends as the CLI does when there is none."""
    if cli in ("grok", "devin"):
        if "--prompt-file" not in given:
            fail("error: a prompt is required", 1)
        if cli == "devin" and (given.get("--respect-workspace-trust") != "false" or "-p" not in given):
            fail("Error: this directory is not trusted", 1)
        with open(given["--prompt-file"], "rb") as file:
            return file.read()
    if cli == "agy":
        if "-p" in given or given.get("--output-format") != "stream-json":
            fail("error: --input-format stream-json needs --output-format stream-json and no -p", 1)
        events = [json.loads(line) for line in stdin.splitlines()]
        assert [event["event"] for event in events] == ["user"], events
        content: str = events[0]["message"]["content"]
        return content.encode()
    if cli == "cursor-agent" and not ("--trust" in given and "--force" in given):
        fail("⚠ Workspace Trust Required", 1)
    if cli == "opencode" and rest != ["run"]:
        fail("opencode: words on the command line would arrive in quotes", 1)
    if cli in ("claude", "cursor-agent") and "-p" not in given:
        fail("Error: no terminal", 1)
    if not stdin.strip():
        fail("Error: You must provide a message or a command", 1)
    return stdin


def remember(room: str, given: Given, stdin: bytes, prompt: bytes) -> None:
    """Write down what reached the CLI, for the test to look at; in the workspace, where it may write."""
    with open("/proc/self/cmdline", "rb") as file:
        cmdline = file.read()
    with open("/proc/self/environ", "rb") as file:
        entries = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0") if entry]
    environment = {name: value for name, _, value in entries}
    planted = {}
    for name, value in environment.items():
        if value.startswith(room) and os.path.isfile(value):
            with open(value) as text:
                planted[name] = {"path": value, "text": text.read(), "mode": oct(os.stat(value).st_mode & 0o777)}
    called = {
        "argv": sys.argv[1:],
        "cmdline": cmdline.decode("latin-1"),
        "cwd": os.getcwd(),
        "environment": environment,
        "planted": planted,
        "flags": sorted(given),
    }
    for name, data in (("called.json", json.dumps(called).encode()), ("stdin", stdin), ("prompt", prompt)):
        with open(f".fake-{name}", "wb") as out:
            out.write(data)


def replay(lines: list[str], given: Given, values: dict[str, str]) -> int:
    """Print the recording and do what it says; returns the exit code."""
    code = 0
    for line in lines:
        for name, value in values.items():
            line = line.replace(name, value)
        if line.startswith("2> "):
            sys.stderr.write(line[3:] + "\n")
            sys.stderr.flush()
        elif line.startswith("=> exit "):
            code = int(line[8:])
        elif line.startswith("=> export "):
            with open(given["--export"], "w") as file:
                file.write(line[10:])
        elif line == "=> leave child":
            leave_child()
        elif line == "=> hang":
            sys.stdout.flush()
            time.sleep(600)
        else:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    return code


def leave_child() -> None:
    """A process that outlives its parent in a session of its own and holds none of its pipes."""
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.execv("/bin/sleep", ["sleep", "600"])


def main(cli: str, room: str, recording: str, answer: str, model: str, without: str) -> int:
    """Be the CLI `cli` for one call; `without` is a flag that this release no longer knows."""
    known = {flag: takes for flag, takes in FLAGS[cli].items() if flag != without}
    words = sys.argv[1:]
    if words == ["--version"]:
        print(VERSIONS[cli])
        return 0
    if words[-1:] == ["--help"]:
        print("\n".join(f"  {flag}" for flag in known))
        return 0
    if cli == "cursor-agent" and words == ["--list-models"]:
        print(MODELS)
        return 0
    given, rest = parse(cli, words, known)
    stdin = sys.stdin.buffer.read()
    remember(room, given, stdin, prompt_of(cli, given, rest, stdin))
    half = len(answer) // 2
    values = {
        "@ANSWER@": inside(answer),
        "@ANSWER:1@": inside(answer[:half]),
        "@ANSWER:2@": inside(answer[half:]),
        "@DECOY@": inside(answer.replace('"summary": "', '"summary": "DECOY ')),
        "@RAW@": answer,
        "@MODEL@": model,
        "@CWD@": os.getcwd(),
        "@RESETS@": str(int(time.time()) + 1800),
    }
    with open(recording) as file:
        return replay(file.read().splitlines(), given, values)


def inside(text: str) -> str:
    """`text` as it looks inside a JSON string."""
    return json.dumps(text)[1:-1]
