# Sourced by the scripts of this folder: ROOT, VENV, and `setup_venv`, which makes .venv ready (POSIX sh).
# Needs nothing but a Python >= 3.11 with venv; says what to install where that is missing.

ROOT=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 1
VENV=$ROOT/.venv
STAMP=$VENV/.unit-workspace-setup
MODERN='import sys; sys.exit(sys.version_info < (3, 11))'

step() { printf '\n== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "$(basename -- "$0")" "$*" >&2
    exit 1
}

# Sets PYTHON to an interpreter that is new enough and can make a virtual environment, or ends with the remedy.
find_python() {
    without_venv=''
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        PYTHON=$(command -v "$name") || continue
        "$PYTHON" -c "$MODERN" 2>/dev/null || continue
        # Debian and Ubuntu ship ensurepip in a package of its own; without it venv makes a folder without pip.
        "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null && return 0
        without_venv=${without_venv:-$name}
    done
    if [ -n "$without_venv" ]; then
        die "expected a Python that can make virtual environments; $without_venv has no ensurepip." \
            "Install it and run this again: apt-get install ${without_venv}-venv"
    fi
    found=$(python3 --version 2>/dev/null) || found='no python3 on PATH'
    die "expected Python 3.11 or newer; found: $found." \
        "Install one and run this again: apt-get install python3 python3-venv (or python3.12 python3.12-venv)"
}

# What the environment was made from. The path counts: an editable install of a copied folder points at the old one.
setup_stamp() {
    printf '%s %s\n' "$ROOT" "$(sha256sum <"$ROOT/pyproject.toml")"
}

setup_venv() {
    [ -f "$STAMP" ] && "$VENV/bin/python" -c "$MODERN" 2>/dev/null && [ "$(cat "$STAMP")" = "$(setup_stamp)" ] &&
        return 0
    if ! { "$VENV/bin/python" -c "$MODERN" && "$VENV/bin/python" -m pip --version; } >/dev/null 2>&1; then
        find_python
        step "$PYTHON -m venv --clear .venv"
        "$PYTHON" -m venv --clear "$VENV" || die "the virtual environment could not be made (see above)"
    fi
    rm -f "$STAMP"
    step ".venv/bin/python -m pip install -e .[dev]"
    (cd "$ROOT" && "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[dev]') ||
        die "the dependencies could not be installed (see above): a package index must be reachable by pip"
    setup_stamp >"$STAMP"
}
