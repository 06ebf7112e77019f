"""What the controller hands over, checked before anything leaves this machine (protocol section 13, order of
checks).

Every check raises `AdapterError`: exit 2, no result file, no model CLI started.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from adapters.errors import AdapterError
from adapters.files import read_regular
from adapters.route_table import Authorization
from runner.errors import Untrusted
from runner.private import read_private

MAX_AUTHORIZATION_BYTES = 64 * 1024

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SAFE_ID = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,128}")


class Arguments(msgspec.Struct, frozen=True):
    """The command line, as given."""

    authorization: str
    workspace: str
    packet: str
    packet_digest: str
    result_dir: str


class Places(msgspec.Struct, frozen=True):
    """The same paths after the handshake. `workspace` is resolved; `result_dir` is the absolute path as
    recorded.
    """

    workspace: Path
    packet: Path
    result_dir: Path


def check_arguments(arguments: Arguments) -> None:
    """Check 1: shapes and kinds, without looking inside."""
    if _DIGEST.fullmatch(arguments.packet_digest) is None:
        raise AdapterError("expected packet digest must be 64 lowercase hex digits (SHA-256)")
    if not arguments.authorization:
        raise AdapterError("an authorization file is required; use the authorization_path that prepare returned")
    if not os.path.isdir(arguments.workspace):
        raise AdapterError(f"workspace is not a directory: {arguments.workspace}")
    if not _is(arguments.packet, stat.S_ISREG):
        raise AdapterError(f"packet must be a regular file and no link: {arguments.packet}")
    if not _is(arguments.result_dir, stat.S_ISDIR):
        raise AdapterError(f"result directory must be a real directory and no link: {arguments.result_dir}")


def read_authorization(arguments: Arguments) -> tuple[Authorization, bytes]:
    """Check 3: the decoded authorization, and the bytes whose digest the controller will compare."""
    try:
        return _authorization(Path(arguments.authorization), arguments.packet_digest)
    except (ValueError, OSError, Untrusted) as error:
        raise AdapterError(f"controller authorization rejected: {error}") from None


def read_job_id(environ: Mapping[str, str]) -> str:
    """Check 4: the id under which the runner started this process."""
    job = environ.get("CE_PEER_JOB_ID", "")
    if _SAFE_ID.fullmatch(job) is None:
        raise AdapterError(
            "CE_PEER_JOB_ID must be the runner's job id (1 to 128 characters of A-Za-z0-9._-); "
            "start this program through peer-job-runner start"
        )
    return job


def settle_places(arguments: Arguments) -> Places:
    """Check 6: packet and results lie outside the workspace, and the workspace inside a Git work tree."""
    workspace = Path(os.path.realpath(arguments.workspace))
    for name, path in (("result directory", arguments.result_dir), ("packet", arguments.packet)):
        if Path(os.path.realpath(path)).is_relative_to(workspace):
            raise AdapterError(f"{name} must be outside the workspace, where the worker writes: {path}")
    if not any(os.path.lexists(folder / ".git") for folder in (workspace, *workspace.parents)):
        raise AdapterError(f"workspace is not inside a Git work tree: {workspace}")
    packet = Path(os.path.abspath(arguments.packet))
    return Places(workspace, packet, Path(os.path.abspath(arguments.result_dir)))


def read_packet(path: Path, max_bytes: int, digest: str) -> bytes:
    """Check 7: the packet's bytes, read once; their SHA-256 must be `digest`."""
    import hashlib

    try:
        data, _ = read_regular(path, max_bytes, follow=False)
    except OSError as error:
        raise AdapterError(f"packet {path}: {error.strerror}") from None
    if len(data) > max_bytes:
        raise AdapterError(f"packet must be at most {max_bytes} bytes: {path}")
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise AdapterError(f"packet digest mismatch: expected {digest}, found {found}")
    return data


def _authorization(path: Path, packet_digest: str) -> tuple[Authorization, bytes]:
    before = os.lstat(path)
    data = read_private(path, MAX_AUTHORIZATION_BYTES)
    if _version(os.lstat(path)) != _version(before):
        raise ValueError("it changed while it was read")
    authorization = Authorization.parse(data)
    disagreement = authorization.disagreement_with_table()
    if disagreement is not None:
        raise ValueError(disagreement)
    if authorization.packet_digest != packet_digest:
        raise ValueError(
            f"packet_digest is {authorization.packet_digest}, the expected-packet argument {packet_digest}"
        )
    return authorization, data


def _version(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _is(path: str, kind: object) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return False
    return bool(callable(kind) and kind(mode))
