#!/bin/sh
# Make the virtual environment .venv and install Tickwright into it, editable.
#
#   scripts/bootstrap.sh        what the product needs
#   scripts/bootstrap.sh dev    that, and what its checks and tests need
#
# Asks nothing, never calls sudo, needs no git, and a second run with nothing changed does nothing. What it
# installs, pip and the build back end included, has a version and a hash in requirements.lock.
# PYTHON names the interpreter to use (3.11 or newer).
set -eu

cd "$(dirname "$0")/.."
kind=${1:-product}
venv=.venv
stamp="$venv/.bootstrap-$kind"

say() { printf '%s\n' "$*" >&2; }
die() { say "bootstrap: $*"; exit 1; }

fingerprint() {
    pwd
    cat pyproject.toml requirements.lock scripts/bootstrap.sh scripts/locked.py | cksum
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for name in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.14; do
        if [ -n "$name" ] && new_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    return 1
}

# Install Debian packages as root; everybody else reads what to type.
install_or_explain() {
    if ! command -v apt-get >/dev/null 2>&1; then
        die "please install Python 3.11 or newer with venv and ensurepip (Debian calls them: $*)"
    fi
    [ "$(id -u)" = 0 ] || die "please run: sudo apt-get install $*"
    say "bootstrap: installing $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq </dev/null >&2
    apt-get install -qq -y --no-install-recommends "$@" </dev/null >&2
}

make_venv() {
    python=$(find_python) || { install_or_explain python3 python3-venv; python=$(find_python); } ||
        die "Python 3.11 or newer is needed; set PYTHON to it"
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        version=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        install_or_explain python3-venv "$version"
    fi
    say "bootstrap: making $venv with $python"
    "$python" -m venv --clear "$venv"
}

# First everything from the lock, each file against its hash; then ourselves, with nothing fetched any more.
# The lock is complete, so nothing is resolved; byte code is made when a module is first imported.
install() {
    pip="$venv/bin/python -m pip --disable-pip-version-check"
    locked="$venv/locked-$kind.txt"
    "$venv/bin/python" scripts/locked.py "$kind" >"$locked"
    say "bootstrap: installing ($kind)"
    $pip install --quiet --require-hashes --no-deps --no-compile --requirement "$locked" </dev/null
    $pip install --quiet --no-index --no-deps --no-build-isolation --editable . </dev/null
}

case $kind in product | dev) ;; *) die "usage: scripts/bootstrap.sh [dev]" ;; esac

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    exit 0
fi
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    make_venv
elif [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" != "$(pwd)" ]; then
    make_venv # the folder was moved or copied: the scripts inside point to the old place
fi
install
fingerprint >"$stamp"
