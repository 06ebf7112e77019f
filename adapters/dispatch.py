"""The story of one call: check, ask the controller, prompt, run, publish (order: protocol section 13).

Until the handshake succeeded nothing is written and nothing sent. From then on whatever happens leaves a log
and, as long as the result directory is still ours, one result document.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from adapters import confine
from adapters.call import MODELS_SECONDS, Launch, Reader, probe_output, run_call
from adapters.config import config_path, home_folder
from adapters.contract import LOG_NAME
from adapters.environment import Settings, child_environment, locate, search_path
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
from adapters.models import listed_label
from adapters.probe import probe, require_flags, wanted_flags
from adapters.prompt import build_prompt
from adapters.publish import AdapterLog, ResultDirectory
from adapters.redaction import load_redactor
from adapters.results import Conclusion, Receipt
from adapters.route_table import DEFAULT_EFFORT, ROUTES, Authorization
from adapters.routes import Adapter, Call, Context, load
from adapters.scratch import scratch_folder
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
        self._route = ROUTES[authorization.route]
        self._settings = settings
        self._environ = environ
        self._places = places
        self._job = job
        self._log = log
        self._say = say
        self._reader: Reader | None = None
        self._confinement: confine.Confinement | None = None
        self._measured = Measured()

    def conclude(self, packet: bytes, receipt: Receipt) -> Conclusion:
        """Run the sanctioned route once and say what came of it."""
        try:
            return self._conclude(packet, receipt)
        except Unavailable as error:
            return receipt.unavailable(str(error), detail=error.detail)
        except Interrupted as error:
            if self._reader is not None:
                self._know(seen=self._reader.seen, confinement_note=self._confinement_note())
            return receipt.interrupted(error.signum, self._measured)
        except RunnerError as error:
            raise AdapterError(f"cannot supervise the route's CLI: {error}") from None

    def _conclude(self, packet: bytes, receipt: Receipt) -> Conclusion:
        adapter = self._adapter()
        assessed = self._assess(adapter)
        executable, path = locate(adapter.executable, adapter.extra_path, self._environ)
        environment = {**child_environment(self._environ, adapter.environment, path), **dict(adapter.variables)}
        prompt = build_prompt(packet, receipt.redactor, adapter.prompt_note)
        posture = assessed.posture
        self._know(confinement=posture.kind, confinement_abi=posture.abi, resume=adapter.resume)
        with scratch_folder(self._environ) as scratch:
            prompt_file = scratch / "prompt"
            create_exclusive(prompt_file, prompt)
            stdin = prompt_file if adapter.prompt_on_stdin else None
            if adapter.wrap_prompt is not None:
                stdin = scratch / "stdin"
                create_exclusive(stdin, adapter.wrap_prompt(prompt))
            for planted in adapter.planted:
                create_exclusive(scratch / planted.name, planted.content)
                environment[planted.variable] = str(scratch / planted.name)
            raw_result = _made(scratch / "result") / "raw-result"
            workspace = self._places.workspace
            call = Call(str(workspace), str(prompt_file), str(raw_result))
            argv = adapter.argv(call)
            self._ask_cli(adapter, argv, executable, path, scratch)
            if posture.kind in ("landlock", "bubblewrap"):
                environment.update(confine.temporary(self._route, _made(scratch / "tmp")))
                if posture.enforced:
                    environment.update(adapter.variables_when_confined)
                self._confinement = self._confine(adapter, assessed, environment, executable, scratch)
            if adapter.models is not None:
                asked = (executable, *adapter.models)
                listing = probe_output(asked, environment, scratch, self._job, MODELS_SECONDS)
                self._know(model_label=listed_label(listing or "", self._authorization.model_requested))
            confinement = self._confinement
            argv = (executable, *argv[1:])
            launch = Launch(
                argv=argv if confinement is None else confinement.wrap(argv),
                workspace=workspace,
                environment=environment,
                stdin=stdin,
                job=self._job,
                before_exec=None if confinement is None else confinement.before_exec(),
            )
            self._reader = Reader(adapter, self._settings, self._log, raw_result, self._say)
            finished = run_call(launch, self._reader)
        self._know(seen=finished.seen, survivors=len(finished.outcome.survivors))
        self._know(confinement_note=posture.note or self._confinement_note())
        return receipt.concluded(finished, adapter, self._measured, self._settings.max_raw_bytes)

    def _adapter(self) -> Adapter:
        context = Context(
            self._authorization.model_requested,
            self._environ,
            self._places.workspace,
            self._authorization.effort or DEFAULT_EFFORT,
        )
        return load(self._route.name, context)

    def _assess(self, adapter: Adapter) -> confine.Assessed:
        """What will hold the worker; `Unavailable` when more is demanded."""
        assessed = confine.assess(adapter, self._environ, search_path(self._environ), self._places.workspace)
        restrictions = self._authorization.restrictions
        demand = confine.demanded(self._settings.require_enforced_confinement, assessed.mode, restrictions)
        confine.check(self._route, assessed.posture, demand)
        return assessed

    def _ask_cli(self, adapter: Adapter, argv: tuple[str, ...], executable: str, path: str, scratch: Path) -> None:
        """Learn the CLI's version; `Unavailable` when it no longer knows our flags."""
        wanted = wanted_flags(self._route.harness, argv)
        told = probe(
            executable,
            adapter.version,
            adapter.help,
            self._environ,
            path,
            scratch=scratch,
            job=self._job,
            wanted=wanted,
        )
        self._know(cli_version=told.version)
        require_flags(told, wanted, adapter.executable)

    def _confine(
        self, adapter: Adapter, assessed: confine.Assessed, environment: dict[str, str], executable: str, scratch: Path
    ) -> confine.Confinement:
        places = self._places
        needs = confine.needs(self._route, adapter, environment, executable)
        keep_out = {
            "the result folder": places.result_dir,
            "your configuration": config_path(self._environ),
            confine.HOME: Path(home_folder(environment)),
        }
        own = (scratch / "result", scratch / "tmp")
        return confine.Confinement(assessed, confine.fence_of(places.workspace, own, needs, keep_out), places.workspace)

    def _confinement_note(self) -> str | None:
        return None if self._confinement is None else self._confinement.note()

    def _know(self, **facts: object) -> None:
        self._measured = msgspec.structs.replace(self._measured, **facts)


def _made(folder: Path) -> Path:
    os.mkdir(folder, 0o700)
    return folder


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
