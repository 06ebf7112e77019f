"""Finds what looks like a credential in a text that is about to be sent to a model. Pure, linear, prints no secret.

A prompt ends up in transcripts, logs and on other people's machines (seed 003: "NEVER pass secrets in prompts").
Tokens with a published prefix are found by it; other values only when they are assigned to a name that means a
credential and look random, so that hashes, UUIDs, test data and prose about passwords pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """A 1-based line and the kind of secret that it seems to hold. Never the secret."""

    line: int
    kind: str


# Publicly documented token shapes. Repetitions are bounded so that no line can make a search slow.
_KINDS: tuple[tuple[str, str], ...] = (
    ("AWS access key id", r"(?<![A-Za-z0-9/+])(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Za-z0-9/+])"),
    ("GitHub token", r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{60,255})"),
    ("GitLab token", r"\bgl(?:pat|ptt|dt|rt|cbt|soat)-[A-Za-z0-9_-]{20,64}"),
    ("Slack token", r"\bxox[abeoprs]-[A-Za-z0-9-]{20,255}"),
    ("Slack webhook", r"hooks\.slack\.com/services/T[A-Z0-9]{6,20}/B[A-Z0-9]{6,20}/[A-Za-z0-9]{16,40}"),
    ("Anthropic key", r"\bsk-ant-[A-Za-z0-9_-]{24,255}"),
    ("OpenAI key", r"\bsk-(?:(?:proj|svcacct|admin|or-v1)-[A-Za-z0-9_-]{24,255}|[A-Za-z0-9]{40,64}\b)"),
    ("xAI key", r"\bxai-[A-Za-z0-9]{40,120}"),
    ("Google API key", r"\bAIza[A-Za-z0-9_-]{35}"),
    ("Google OAuth secret", r"\bGOCSPX-[A-Za-z0-9_-]{24,40}"),
    ("Stripe key", r"\b[rs]k_live_[A-Za-z0-9]{16,255}"),
    ("npm token", r"\bnpm_[A-Za-z0-9]{36}\b"),
    ("PyPI token", r"\bpypi-AgE[A-Za-z0-9_-]{40,255}"),
    ("Hugging Face token", r"\bhf_[A-Za-z0-9]{34,64}\b"),
    ("SendGrid key", r"\bSG\.[A-Za-z0-9_-]{20,24}\.[A-Za-z0-9_-]{40,48}"),
    ("DigitalOcean token", r"\bdo[opr]_v1_[a-f0-9]{64}\b"),
    ("Telegram bot token", r"(?<![0-9A-Za-z])[0-9]{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])"),
    ("JSON Web Token", r"\beyJ[A-Za-z0-9_-]{8,4096}\.eyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{20,4096}"),
)
_BY_PREFIX = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)

_KEY_BEGIN = re.compile(r"-----BEGIN (?:[A-Z0-9]{2,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BODY = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{40,}={0,2}")
_KEY_BODY_WITHIN = 6

_URL_PASSWORD = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"<>]{0,100}:([^\s/:@'\"<>]{3,200})@[\w.-]")
_AUTHORIZATION = re.compile(r"(?<![\w-])(?:Bearer|Basic|Token)\s{1,4}([A-Za-z0-9._~+/=-]{20,4096})", re.IGNORECASE)
_NAME = (
    r"(?:pass(?:word|wd|phrase)|passwd|pwd|secret|(?:secret|api|access|private|auth|signing|encryption)[_-]?key"
    r"|token|client[_-]?secret|credentials?)"
)
_ASSIGNMENT = re.compile(
    rf"({_NAME})['\"`]?\s{{0,8}}(?::\s{{0,4}}[A-Za-z]{{1,20}}\s{{0,4}}=|=>|:=|[=:])\s{{0,8}}"
    r"(?:\"([^\"\n]{1,512})\"|'([^'\n]{1,512})'|([^\s'\"`,;)}\]]{1,512}))",
    re.IGNORECASE,
)
_FLAG = re.compile(rf"(?<![\w-])--([a-z-]{{0,30}}?{_NAME}) ([^\s'\"`]{{8,512}})", re.IGNORECASE)
_LONGER_NAME = re.compile(r"[A-Za-z0-9_-]{0,40}\Z")
# A token of these is a place in a list or a lock, not a credential.
_NO_CREDENTIAL = re.compile(r"(?:lock|csrf|page|next|continuation|sync|idempotency|cancellation)[_-]?token\Z", re.I)
_PLACEHOLDER = re.compile(
    r"\A\$|\$\{|\{\{|<[^<>]*>|%\(|\*{3}|…|\.{3}|example|placeholder|change[_-]?me|redacted|your[_-]|x{4}"
    r"|environ|getenv|[a-z_]\(|(?<![a-z0-9])(?:dummy|fake|sample|todo)(?![a-z0-9])",
    re.IGNORECASE,
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_SEPARATORS = re.compile(r"[-_./:+=~]")
_RUN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")


def scan(text: str) -> list[Finding]:
    """Every line of `text` that seems to hold a secret, once a kind, in order."""
    return list(dict.fromkeys(_findings(text.split("\n"))))


def _findings(lines: list[str]) -> Iterator[Finding]:
    for number, line in enumerate(lines, 1):
        for kind, pattern in _BY_PREFIX:
            if any(_real(match[0]) for match in pattern.finditer(line)):
                yield Finding(number, kind)
        if _KEY_BEGIN.search(line) and any(
            _KEY_BODY.search(follower) for follower in lines[number - 1 : number + _KEY_BODY_WITHIN]
        ):
            yield Finding(number, "private key")
        if any(_password(match[1]) for match in _URL_PASSWORD.finditer(line)):
            yield Finding(number, "password in a URL")
        if any(_random(match[1]) for match in _AUTHORIZATION.finditer(line)):
            yield Finding(number, "authorization header")
        for match in _ASSIGNMENT.finditer(line):
            name = _LONGER_NAME.search(line, max(0, match.start() - 40), match.start())
            if _assigned((name[0] if name else "") + match[1], match[2] or match[3], match[4] or ""):
                yield Finding(number, f"value of a {match[1].lower()}")
        if any(_assigned(match[1], None, match[2]) for match in _FLAG.finditer(line)):
            yield Finding(number, "credential option of a command")


def _assigned(name: str, within_quotes: str | None, bare: str) -> bool:
    if _NO_CREDENTIAL.search(name):
        return False
    if within_quotes is None:
        return _random(bare)
    chosen_by_a_person = re.search(r"pass|pwd", name, re.IGNORECASE) is not None
    return _random(within_quotes) or (chosen_by_a_person and _password(within_quotes))


def _password(value: str) -> bool:
    """One word of at least 8 characters with letters and digits that is no stand-in for a password."""
    return (
        len(value) >= 8
        and _real(value)
        and re.search(r"\s", value) is None
        and re.search(r"[A-Za-z]", value) is not None
        and re.search(r"[0-9]", value) is not None
    )


def _random(value: str) -> bool:
    """Whether nobody would write `value` by hand: a long word in which letters and digits alternate all the time."""
    value = value.rstrip(".,:")
    if len(value) < 16 or not _real(value) or re.search(r"\s", value) or _UUID.fullmatch(value):
        return False
    return any(
        len(word) >= 12 and sum(char.isdigit() for char in word) >= 2 and len(_RUN.findall(word)) * 2.8 >= len(word)
        for word in _SEPARATORS.split(value)
    )


def _real(value: str) -> bool:
    return _PLACEHOLDER.search(value) is None and len(set(value)) >= 5
