#!/bin/sh
# Make the virtual environment .venv and install Tickwright into it, editable.
#
#   scripts/bootstrap.sh        what the product needs
#   scripts/bootstrap.sh dev    that, and what its checks and tests need
#
# Asks nothing, needs no git, and a second run with nothing changed does nothing. Versions are
# those of requirements.lock. PYTHON names the interpreter to use (3.11 or newer).
set -eu

cd "$(dirname "$0")/.."
kind=${1:-product}
venv=.venv
stamp="$venv/.bootstrap-$kind"

say() { printf '%s\n' "$*" >&2; }
die() { say "bootstrap: $*"; exit 1; }

fingerprint() {
    pwd
    cat pyproject.toml requirements.lock scripts/bootstrap.sh | cksum
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

# Install Debian packages where that needs no password; otherwise say what to type.
install_or_explain() {
    if command -v apt-get >/dev/null 2>&1; then
        if [ "$(id -u)" = 0 ]; then
            become='env'
        elif command -v sudo >/dev/null 2>&1 && sudo -n true >/dev/null 2>&1; then
            become='sudo -n env'
        else
            die "please run: sudo apt-get install $*"
        fi
        say "bootstrap: installing $*"
        $become DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null >&2
        $become DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" </dev/null >&2
    else
        die "please install Python 3.11 or newer with venv and ensurepip (Debian calls them: $*)"
    fi
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

# Constraints without hashes: pip cannot check hashes beside an editable install.
install() {
    pip="$venv/bin/python -m pip --disable-pip-version-check"
    sed -n 's/ *\\$//; /^[A-Za-z0-9]/p' requirements.lock >"$venv/constraints.txt"
    if ! $pip install --help | grep -q -e --group; then # dependency groups came with pip 25.1
        $pip install --quiet --upgrade 'pip>=25.1' </dev/null
    fi
    if [ "$kind" = dev ]; then set -- --group dev; else set --; fi
    say "bootstrap: installing ($kind)"
    $pip install --quiet --constraint "$venv/constraints.txt" "$@" --editable . </dev/null
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
