"""The story of one call: check, ask the controller, prompt, run, publish (order: protocol section 13).

Until the handshake succeeded nothing is written and nothing sent. From then on whatever happens leaves a log
and, as long as the result directory is still ours, one result document.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from adapters.call import Launch, Reader, probe_version, run_call
from adapters.contract import LOG_NAME
from adapters.environment import Settings, child_environment, find_executable, search_path
from adapters.errors import AdapterError, Unavailable
from adapters.finished import Measured
from adapters.handshake import authorize_dispatch
from adapters.inputs import (
    Arguments,
    Places,
    check_arguments,
    read_authorization,
    read_job_id,
    read_packet,
    settle_places,
)
from adapters.prompt import build_prompt
from adapters.publish import AdapterLog, ResultDirectory
from adapters.redaction import load_redactor
from adapters.results import Conclusion, Receipt
from adapters.route_table import ROUTES, Authorization
from adapters.routes import Adapter, Call, Context, load
from runner.errors import Interrupted, RunnerError
from runner.private import create_exclusive

Say = Callable[[str], None]

_ENDING = (signal.SIGTERM, signal.SIGINT)


def dispatch(arguments: Arguments, environ: Mapping[str, str], say: Say) -> int:
    """Do the one call and return the exit code; `say` prints one line for people.

    Raises `AdapterError` for a refusal, and `runner.errors.Interrupted` for a signal that came before there
    was anything to publish.
    """
    settings = Settings.from_environment(environ)
    check_arguments(arguments)
    authorization, raw = read_authorization(arguments)
    job = read_job_id(environ)
    redactor = load_redactor(environ.get("CE_WORK_REDACT_FILE"))
    authorize_dispatch(arguments, authorization, raw, job, environ)
    places = settle_places(arguments)
    with ResultDirectory(places.result_dir) as results:
        packet = read_packet(places.packet, settings.max_packet_bytes, arguments.packet_digest)
        receipt = Receipt(authorization, str(places.result_dir / LOG_NAME), redactor, datetime.now())
        with results.create_log(redactor, settings.max_raw_bytes) as log:
            run = _Run(authorization, settings, environ, places, job, log, say)
            conclusion = run.conclude(packet, receipt)
            with _too_late_for_signals():
                log.finish()
                results.publish(conclusion.data, log)
    say(conclusion.message)
    return conclusion.exit_code


class _Run:
    """One authorized call, and what is known of it so far."""

    def __init__(
        self,
        authorization: Authorization,
        settings: Settings,
        environ: Mapping[str, str],
        places: Places,
        job: str,
        log: AdapterLog,
        say: Say,
    ) -> None:
        self._authorization = authorization
        self._settings = settings
        self._environ = environ
        self._places = places
        self._job = job
        self._log = log
        self._say = say
        self._reader: Reader | None = None
        self._measured = Measured()

    def conclude(self, packet: bytes, receipt: Receipt) -> Conclusion:
        """Run the sanctioned route once and say what came of it."""
        try:
            return self._conclude(packet, receipt)
        except Unavailable as error:
            return receipt.unavailable(str(error))
        except Interrupted as error:
            if self._reader is not None:
                self._know(seen=self._reader.seen)
            return receipt.interrupted(error.signum, self._measured)
        except RunnerError as error:
            raise AdapterError(f"cannot supervise the route's CLI: {error}") from None

    def _conclude(self, packet: bytes, receipt: Receipt) -> Conclusion:
        adapter = self._adapter()
        executable, path = _resolve(adapter, self._environ)
        environment = child_environment(self._environ, adapter.environment, path)
        prompt = build_prompt(packet, receipt.redactor, adapter.prompt_note)
        self._know(confinement=adapter.confinement)
        with _scratch(self._environ) as scratch:
            prompt_file = scratch / "prompt"
            create_exclusive(prompt_file, prompt)
            if adapter.version is not None:
                version = probe_version((executable, *adapter.version), environment, scratch, self._job)
                self._know(cli_version=version)
            raw_result = scratch / "raw-result"
            workspace = self._places.workspace
            call = Call(str(workspace), str(prompt_file), str(raw_result))
            launch = Launch(
                argv=(executable, *adapter.argv(call)[1:]),
                workspace=workspace,
                environment=environment,
                stdin=prompt_file if adapter.prompt_on_stdin else None,
                job=self._job,
            )
            self._reader = Reader(adapter, self._settings, self._log, raw_result, self._say)
            finished = run_call(launch, self._reader)
        self._know(seen=finished.seen, survivors=len(finished.outcome.survivors))
        return receipt.concluded(finished, adapter, self._measured, self._settings.max_raw_bytes)

    def _adapter(self) -> Adapter:
        route = ROUTES[self._authorization.route]
        if self._settings.require_enforced_confinement and route.restriction_posture == "cooperative":
            raise Unavailable(
                f"enforced confinement is required, and route {route.name!r} has only cooperative restrictions"
            )
        context = Context(self._authorization.model_requested, self._environ, self._places.workspace)
        return load(route.name, context)

    def _know(self, **facts: object) -> None:
        self._measured = msgspec.structs.replace(self._measured, **facts)


def _resolve(adapter: Adapter, environ: Mapping[str, str]) -> tuple[str, str]:
    """The executable's absolute path, and the PATH for the child on which it was found."""
    path = search_path(environ)
    found = find_executable(adapter.executable, path)
    if found is None and adapter.extra_path:
        path = os.pathsep.join([path, *adapter.extra_path])
        found = find_executable(adapter.executable, path)
    if found is None:
        raise Unavailable(f"fixed route executable '{adapter.executable}' is unavailable")
    return found, path


@contextmanager
def _scratch(environ: Mapping[str, str]) -> Iterator[Path]:
    """A private directory for the prompt and the raw result, removed afterwards."""
    base = environ.get("TMPDIR", "")
    path = Path(base if os.path.isabs(base) else "/tmp", f"ce-work-adapter-{os.urandom(6).hex()}")
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)
    except OSError as error:
        raise AdapterError(f"cannot create a private scratch directory {path}: {error.strerror}") from None
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _too_late_for_signals() -> Iterator[None]:
    """The CLI has ended and its evidence is being published: a signal to stop comes too late and is dropped."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        while signal.sigtimedwait(_ENDING, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
