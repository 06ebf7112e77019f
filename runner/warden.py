"""The supervisor side of `runner.foreground`: a process between the caller and the child.

It is there to outlive the caller by the few moments that it takes to end the tree. It holds one pipe from its
caller; when that reads end-of-file (the caller asked for the end, or was killed) it ends the tree at once.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from collections.abc import Set
from typing import NoReturn

import msgspec

from runner import launch
from runner.descriptors import close_all_but, null_standard_streams
from runner.private import write_all
from runner.process import ProcessIdentity, become_subreaper, poll_milliseconds
from runner.signals import Signals
from runner.tree import Tree

GO = b"g"


class Held(msgspec.Struct, frozen=True, tag=True):
    """The child exists and waits at its gate; None: it was killed there."""

    child: ProcessIdentity | None


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The tree is gone. `status` is the child's raw wait status."""

    status: int | None
    timed_out: bool
    stopped: str | None
    failure: launch.Failure | None
    survivors: tuple[ProcessIdentity, ...]


Report = Held | Finished


class Orders(msgspec.Struct, frozen=True):
    """What the caller wants: `timeout` (None: unbounded) and `grace` in seconds, and its two pipe ends."""

    command: launch.Command
    timeout: float | None
    grace: float
    orders_fd: int
    report_fd: int


def serve(orders: Orders, mask: Set[int]) -> NoReturn:
    """Be the supervisor; for a freshly forked process whose signals are blocked. Never returns."""
    code = 1
    try:
        # A finalizer of the caller's garbage would close descriptor numbers that now are ours.
        gc.disable()
        os.setsid()
        command = orders.command
        streams = (command.stdin, command.stdout, command.stderr)
        close_all_but({*streams, orders.orders_fd, orders.report_fd})
        null_standard_streams()
        become_subreaper()
        caught = (signal.SIGCHLD, signal.SIGTERM)
        ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE)
        with Signals(caught, ignored, force=True) as signals:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask - set(caught))
            _report(orders, _supervise(orders, signals))
        code = 0
    finally:
        os._exit(code)


def _supervise(orders: Orders, signals: Signals) -> Finished:
    try:
        gate = launch.fork_gated(orders.command)
    except OSError as fault:
        failure = launch.Failure(launch.NOT_EXECUTABLE, f"cannot start a process: {fault.strerror}")
        return Finished(None, False, None, failure, ())
    for fd in {orders.command.stdin, orders.command.stdout, orders.command.stderr} - {-1}:
        os.close(fd)
    tree = Tree(gate.pid)
    _report(orders, Held(gate.identity()))
    over = _watch(orders, signals, gate, tree)
    gate.shut()
    ended = tree.end(orders.grace, signals.wait)
    problem = None if ended.status is None else gate.failure()
    stopped = "supervisor was asked to stop" if over == "asked" else None
    return Finished(ended.status, over == "timeout", stopped, problem, ended.survivors)


def _watch(orders: Orders, signals: Signals, gate: launch.Gate, tree: Tree) -> str:
    """Until something ends the run; says what: `exit`, `timeout`, `order` or `asked`."""
    poller = select.poll()
    poller.register(orders.orders_fd, select.POLLIN)
    poller.register(signals.fd, select.POLLIN)
    deadline: float | None = None
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        ready = {fd for fd, _ in poller.poll(None if left is None else poll_milliseconds(left))}
        if signals.fd in ready:
            if signal.SIGTERM in signals.drain():
                return "asked"
            if tree.exited():
                return "exit"
        if orders.orders_fd in ready:
            if os.read(orders.orders_fd, 1) != GO:
                return "order"
            gate.open()
            if orders.timeout is not None:
                deadline = time.monotonic() + orders.timeout
        if deadline is not None and time.monotonic() >= deadline:
            return "timeout"


def _report(orders: Orders, report: Report) -> None:
    try:
        write_all(orders.report_fd, msgspec.json.encode(report) + b"\n")
    except BrokenPipeError:
        # The caller is gone; the tree is ended all the same.
        pass
