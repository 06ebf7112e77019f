#!/bin/sh
# unit-workspace drop-in
# `cross-model-work` for a ce-work skill folder: hands over to the package `adapters`.
#
# Needs nothing but a POSIX shell and PATH=/usr/bin:/bin to start. Nothing is ever imported from the current
# directory, this folder or PYTHONPATH (-E -P): hosts run this in repositories that may hold folders with these
# very names. `unit-workspace install-scripts DIR` writes it with INTERPRETER filled in.

INTERPRETER=""

fail() {
    printf '[cross-model-work] %s\n' "$1" >&2
    exit 1
}

self=$(readlink -f -- "$0") || fail "cannot resolve $0"
here=${self%/*}
root=${here%/*}
# An installed copy names its interpreter; only a script of a source checkout uses the folders beside it.
if [ -n "$INTERPRETER" ] || [ ! -f "$root/adapters/cli.py" ]; then
    root=
fi

if [ -n "$INTERPRETER" ]; then
    python=$INTERPRETER
elif [ -n "${CE_PEER_PYTHON:-}" ]; then
    python=$CE_PEER_PYTHON
elif [ -n "$root" ] && [ -x "$root/.venv/bin/python" ]; then
    python=$root/.venv/bin/python
else
    python=python3
fi
command -v "$python" >/dev/null 2>&1 ||
    fail "no Python at '$python'; do 'unit-workspace install-scripts $here' with Python 3.11 or newer"

UNIT_WORKSPACE_SCRIPTS_DIR=$here
export UNIT_WORKSPACE_SCRIPTS_DIR
# Python older than 3.11 does not know -P: it says so and exits with 2, before anything else happened.
exec "$python" -E -P -c '
import sys

root = sys.argv.pop(1)
if root:
    sys.path.insert(0, root)
try:
    from adapters.cli import main
except ImportError as error:
    remedy = root + "/scripts/test" if root else "pip install unit-workspace"
    sys.exit(f"[cross-model-work] {sys.executable} lacks what this needs: {error}; install it with `{remedy}`")
main()
' "$root" "$@"
