"""A credential in a prompt is stopped before it is sent, and never shown; ordinary text is let through."""

from __future__ import annotations

import base64
import hashlib
import random
import string
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.refusal import Refusal
from adapters.secret_scan import scan
from adapters.task_file import parse_task

ALNUM = string.ascii_letters + string.digits


def made(length: int, alphabet: str = ALNUM) -> str:
    """A value that looks random; written out here, it would look to every scanner like a leak of this repository."""
    source = random.Random(f"{length} {alphabet}")
    return "".join(source.choice(alphabet) for _ in range(length))


HEX = "0123456789abcdef"
SECRETS = {
    "AWS access key id": "AKIA" + made(16, string.ascii_uppercase + "234567"),
    "GitHub token": "ghp_" + made(36),
    "GitLab token": "glpat-" + made(20),
    "Slack token": "xoxb-" + made(12, string.digits) + "-" + made(24),
    "Slack webhook": f"https://hooks.slack.com/services/T{made(8, 'ABC123')}/B{made(8, 'ABC123')}/{made(24)}",
    "Anthropic key": "sk-ant-api03-" + made(93),
    "OpenAI key": "sk-proj-" + made(48),
    "xAI key": "xai-" + made(80),
    "Google API key": "AIza" + made(35),
    "Google OAuth secret": "GOCSPX-" + made(28),
    "Stripe key": "sk_live_" + made(24),
    "npm token": "npm_" + made(36),
    "PyPI token": "pypi-AgEIcHlwaS5vcmc" + made(60),
    "Hugging Face token": "hf_" + made(34),
    "SendGrid key": f"SG.{made(22)}.{made(43)}",
    "DigitalOcean token": "dop_v1_" + made(64, HEX),
    "Telegram bot token": "123456789:AA" + made(33),
    "JSON Web Token": f"eyJ{made(20)}.eyJ{made(40)}.{made(43)}",
}


@pytest.mark.parametrize("kind", SECRETS)
def test_a_token_of_a_known_shape_is_found_wherever_it_stands(kind: str) -> None:
    secret = SECRETS[kind]
    for text in (secret, f"use `{secret}` for it", f"X={secret}", f'{{"a": "{secret}"}}', f"({secret}), then"):
        found = scan(f"one\ntwo\n{text}\nfour")
        assert (3, kind) in [(finding.line, finding.kind) for finding in found], text


@pytest.mark.parametrize(
    "line",
    [
        'api_key = "{hex}"',
        "API_KEY={alnum}",
        "export SERVICE_ACCESS_TOKEN={alnum}",
        '  "client_secret": "{alnum}",',
        "aws_secret_access_key: {aws}",
        'token: str = "{alnum}"',
        "secretKey := '{alnum}'",
        "Authorization: Bearer {alnum}",
        "curl -H 'Authorization: Basic {b64}' x",
        "deploy --api-key={alnum}",
        "deploy --password {alnum}",
        'password = "hunter22"',
        "'db_password': 'Tr0ub4dor&3'",
        'passwd: "Pa$$w0rd1"',
        "postgres://app:s3cr3tpass@db.internal/app",
        "https://user:{alnum}@git.internal/x.git",
    ],
)
def test_a_value_given_to_a_credential_is_found(line: str) -> None:
    values = {
        "hex": made(32, HEX),
        "alnum": made(40),
        "aws": made(40, string.ascii_letters + string.digits + "/+"),
        "b64": base64.b64encode(f"user:{made(20)}".encode()).decode(),
    }
    assert len(scan(line.format(**values))) == 1, line


def test_a_private_key_is_found_and_a_mention_of_one_is_not() -> None:
    body = "\n".join(made(64) for _ in range(3))
    for kind in ("", "RSA ", "OPENSSH ", "ENCRYPTED "):
        pem = f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n-----END {kind}PRIVATE KEY-----"
        assert [(finding.line, finding.kind) for finding in scan(f"\n{pem}")] == [(2, "private key")]
    assert scan("Refuse files that contain `-----BEGIN PRIVATE KEY-----`.\nThen go on.") == []
    assert scan(f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----") == []
    assert scan(f"-----BEGIN PUBLIC KEY-----\n{body}") == []


SHA = hashlib.sha256(b"x").hexdigest()
ORDINARY = [
    "The password field must not be empty; show 'Password is required'.",
    "Rename `token` to `access_token` and keep the secret in the vault.",
    "password: string",
    "password = get_password()",
    "api_key = os.environ['SERVICE_API_KEY']",
    "api_key: ${API_KEY}",
    'token = "<your token>"',
    'token: "{{ secrets.DEPLOY_TOKEN }}"',
    "secret: $SECRET_FROM_ENV",
    'password = "changeme123"',
    'api_key = "your-api-key-goes-here-123"',
    "api_key=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "the example key is AKIAIOSFODNN7EXAMPLE",
    "max_tokens: 4096, token_count=14290",
    "tokenizer = load('cl100k_base')",
    "secret_name: prod/database/password-2024-rotation1",
    "token: base64url-encoded without padding",
    "signing_key: sha256-rsa2048-v1.5-pkcs1",
    "token = parseHttp2Base64Token(request)",
    "token: parseHttp2Base64Token2",
    "auth_key: docs/tasks/T-012/step3.md",
    f"sha256: {SHA}",
    f"commit {SHA[:40]} and {SHA[:7]}",
    f'"packet_digest": "{SHA}"',
    f"--lock-token {SHA[:32]}",
    f"idempotency_token: {SHA[:32]}",
    f"token: {uuid.UUID(int=0x1234567890ABCDEF1234567890ABCDEF)}",
    "id: 550e8400-e29b-41d4-a716-446655440000",
    f"fixture = {base64.b64encode(bytes(range(200))).decode()}",
    "integrity sha512-" + base64.b64encode(hashlib.sha512(b"x").digest()).decode(),
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ7h0X2v9n8Xw3L5kq0m1p2r3s4t5u6v7w8x9y0zAbCd user@host",
    "https://example.com:8443/a/b?c=d and http://localhost:8080/x@y",
    "postgres://postgres:postgres@localhost/test",
    "git clone ssh://git@host.internal:22/x.git",
    "sk-learn, risk-free, task-1, mask-and-ship-it-all-the-way-down-the-long-hyphenated-road-1",
    "Basic authentication, Bearer tokens, Token ring",
    "basic understanding_of_the_whole_codebase_is_enough",
    "secret santa: 2024-12-24T18:00:00Z",
    "pwd=/home/user/projects/web2/src/v3/app",
    "eyJhbGciOiJIUzI1NiJ9 is how each header begins",
    "data:image/png;base64," + base64.b64encode(bytes(range(255, 120, -1))).decode(),
]


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_text_is_let_through(line: str) -> None:
    assert scan(line) == []


@given(st.binary(min_size=8, max_size=96), st.uuids(), st.sampled_from(["", "see ", "blob: ", '"data": "', "etag="]))
def test_hashes_uuids_and_base64_alone_are_let_through(data: bytes, identity: uuid.UUID, before: str) -> None:
    for value in (hashlib.sha1(data).hexdigest(), hashlib.sha256(data).hexdigest(), str(identity), data.hex()):
        assert scan(before + value) == []
    encoded = base64.b64encode(data).decode()
    assert [finding for finding in scan(before + encoded) if finding.kind != "AWS access key id"] == []


def test_the_refusal_names_line_and_kind_and_never_the_secret() -> None:
    secret = SECRETS["GitHub token"]
    password = made(20)
    text = f'---\nfeature: F-1\nwrite_allowed: [a]\n---\nUse {secret}.\ndb_password = "{password}"\n'
    with pytest.raises(Refusal) as caught:
        parse_task(text.encode(), "T-1.md")
    shown = f"{caught.value} {caught.value.document()}"
    assert "line 5: GitHub token, line 6: value of a password" in shown
    assert secret not in shown and secret[4:] not in shown and password not in shown
    assert caught.value.line == 5


def test_a_secret_in_the_head_is_refused_without_being_shown() -> None:
    secret = SECRETS["Anthropic key"]
    text = f"---\nfeature: F-1\nwrite_allowed: [a]\ntitle: use {secret}\n---\n"
    with pytest.raises(Refusal) as caught:
        parse_task(text.encode(), "T-1.md")
    assert "line 4: Anthropic key" in str(caught.value)
    assert secret not in str(caught.value.document())


@pytest.mark.parametrize(
    "unit",
    ["a", "1", "-", "eyJa.", "sk-", "token=", "password: ", "://a:", "--a", "-----BEGIN PRIVATE KEY-----", "Bearer "],
)
def test_no_text_makes_the_search_slow(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    before = time.process_time()
    scan(text)
    assert time.process_time() - before < 2.0
