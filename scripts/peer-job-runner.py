#!/usr/bin/env python3
"""`peer-job-runner` for a ce-work skill folder: hands over to the package `runner`.

Any Python 3.6 can start it: it finds the interpreter that has the packages and becomes it. Nothing is ever
imported from the current directory, the script's folder or PYTHONPATH: hosts run this in repositories that
may hold folders with these very names. `unit-workspace install-scripts DIR` writes it with INTERPRETER filled
in. It differs from its sibling in NAME, MODULE and one import alone.
"""
# unit-workspace drop-in

import os
import sys

INTERPRETER = ""
NAME = "peer-job-runner"
MODULE = "runner"
REENTERED = "unit_workspace_drop_in"
HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(HERE)
# An installed copy names its interpreter; only scripts of a source checkout use the folders beside them.
CHECKOUT = not INTERPRETER and os.path.isfile(os.path.join(ROOT, MODULE, "cli.py"))
INSTALL = f"unit-workspace install-scripts {HERE}"


def fail(message):
    sys.stderr.write(f"{NAME}: {message}\n")
    return 1


def reenter():
    """Become that interpreter, its module path free of PYTHON* variables (-E) and of this folder (-P)."""
    venv = os.path.join(ROOT, ".venv", "bin", "python")
    interpreter = INTERPRETER or (venv if CHECKOUT and os.access(venv, os.X_OK) else sys.executable)
    if interpreter == sys.executable and sys.version_info < (3, 11):
        found = f"{sys.version.split()[0]} at {interpreter}"
        return fail(f"expected Python 3.11 or newer, found {found}; do `{INSTALL}` with a newer one")
    try:
        argv = [interpreter, "-E", "-P", "-X", REENTERED, os.path.abspath(__file__)]
        os.execv(interpreter, argv + sys.argv[1:])
    except OSError as error:
        return fail(f"cannot run the interpreter {interpreter!r}: {error.strerror}; do `{INSTALL}` again")


def run():
    os.environ["UNIT_WORKSPACE_SCRIPTS_DIR"] = HERE
    if CHECKOUT:
        sys.path.insert(0, ROOT)
    try:
        from runner.cli import main
    except ImportError as error:
        remedy = os.path.join(HERE, "test") if CHECKOUT else "pip install unit-workspace"
        return fail(f"{sys.executable} lacks what this needs: {error}; install it with `{remedy}`")
    return main()


if __name__ == "__main__":
    sys.exit(run() if REENTERED in sys._xoptions else reenter())
