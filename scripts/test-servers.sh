#!/bin/sh
# Install the servers that the tests start themselves: PostgreSQL, RabbitMQ, Redis, PgBouncer.
#
# On Debian and Ubuntu, as root or with a sudo that needs no password; elsewhere it says what is
# missing and succeeds: those tests skip on a laptop (and fail in CI). Nothing is started as a service.
set -eu

say() { printf '%s\n' "test-servers: $*" >&2; }

has_postgresql() {
    [ -n "${TICKWRIGHT_TEST_PG_BIN:-}" ] || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}
has_program() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ]; }

missing=''
has_postgresql || missing="$missing postgresql"
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing="$missing rabbitmq-server"
has_program redis-server || missing="$missing redis-server"
has_program pgbouncer || missing="$missing pgbouncer"
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    say "not installed, so their tests skip:$missing"
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true >/dev/null 2>&1; then
        exec sudo -n sh "$0"
    fi
    say "not installed, so their tests skip; to run them: sudo sh scripts/test-servers.sh"
    say "missing:$missing"
    exit 0
fi

# Debian starts what it installs, unless this file says no. One that is already there is somebody's decision.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

say "installing$missing"
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update -qq </dev/null >&2
if [ "${missing#* postgresql}" != "$missing" ] && apt-cache show postgresql-15 >/dev/null 2>&1; then
    missing=$(printf '%s' "$missing" | sed 's/ postgresql/ postgresql-15/')
fi
# shellcheck disable=SC2086  # a list of words
if ! apt-get install -qq -y --no-install-recommends $missing </dev/null >&2; then
    say "some packages could not be installed; their tests skip (and fail in CI):$missing"
fi
