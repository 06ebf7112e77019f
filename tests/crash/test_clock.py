"""The clock jumps between commands and within one: nothing of a run depends on the order of times."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.host import Host, Reply

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

/* CLOCK_SHIFT seconds are added to the wall clock; with CLOCK_SWING they are taken off again at every second look. */
static long shift(void) {
    static long looks;
    const char *text = getenv("CLOCK_SHIFT");
    long seconds = text ? atol(text) : 0;
    return getenv("CLOCK_SWING") && looks++ % 2 ? -seconds : seconds;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, out);
    if (!result && clock == CLOCK_REALTIME) out->tv_sec += shift();
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""
DAY = 24 * 3600
COMPILER = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The compiled library that moves the clock of a process and its children."""
    if COMPILER is None:
        pytest.skip("no C compiler for the clock shim")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(_SHIM)
    argv = [COMPILER, "-shared", "-fPIC", "-O1", "-o", str(folder / "clock.so"), str(folder / "clock.c"), "-ldl"]
    done = subprocess.run(argv, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the clock shim does not compile: {done.stderr.decode('utf-8', 'replace')[:200]}")
    return str(folder / "clock.so")


class _Moving(Host):
    """A host whose commands each live at another time."""

    shim = ""
    swing = False
    shifts: tuple[int, ...] = (0,)
    calls = 0

    def call(self, *args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Reply:
        """One command, at the next time of the list."""
        more = {"LD_PRELOAD": self.shim, "CLOCK_SHIFT": str(self.shifts[self.calls % len(self.shifts)])}
        self.calls += 1
        return super().call(*args, env={**more, **({"CLOCK_SWING": "1"} if self.swing else {}), **(env or {})}, cwd=cwd)


@pytest.mark.parametrize(
    ("shifts", "swing"),
    [((0, -DAY, 3600, -30 * DAY), False), ((400 * DAY, -20 * 365 * DAY), False), ((12 * 3600,), True)],
    ids=["days back and forth", "decades", "within each command"],
)
def test_a_clock_that_jumps_neither_stops_nor_confuses_a_run(
    shim: str, tmp_path: Path, shifts: tuple[int, ...], swing: bool
) -> None:
    host = _Moving(tmp_path)
    host.make_repo()
    host.shim, host.shifts, host.swing = shim, shifts, swing
    host.init().expect("READY")
    host.pending()
    host.integrate(argv=("false",)).expect("BLOCKED")
    host.call("resume", "--run-id", "r1").expect("RESUMED")
    host.integrate().expect("UNIT_COMMITTED")
    host.call("verify-run", "--run-id", "r1", "--", "true").expect("RUN_VERIFIED")
    host.call("journal", "verify", "--run-id", "r1").expect("JOURNAL_OK")
    assert host.git("status", "--porcelain") == ""
    assert (host.repo / "new.txt").read_text() == "new\n"


def test_the_shim_moves_what_python_reads(shim: str) -> None:
    """The tests above mean something."""
    code = "import time; print(int(time.time()))"
    env = {**os.environ, "LD_PRELOAD": shim, "CLOCK_SHIFT": str(-20 * 365 * DAY)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(plain.stdout) - int(done.stdout) > 19 * 365 * DAY
