#!/bin/sh
# Install the servers that the tests start themselves: PostgreSQL, RabbitMQ, Redis, PgBouncer, Kafka, Prometheus.
#
# On Debian and Ubuntu, as root; it never calls sudo. Elsewhere it says what is missing, and what to
# type, and succeeds: those tests skip on a laptop (and fail in CI). Nothing is started as a service.
# Kafka needs no package: Maven brings its jars into .kafka/, once, and Java runs them.
set -eu

cd "$(dirname "$0")/.."
jars=.kafka/libs

say() { printf '%s\n' "test-servers: $*" >&2; }

has_postgresql() {
    [ -n "${TICKWRIGHT_TEST_PG_BIN:-}" ] || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}
has_program() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ]; }
has_kafka() { ls "$jars"/kafka_2.13-*.jar >/dev/null 2>&1; }

# Into a folder of its own first: a run that is broken off leaves no half of it behind.
fetch_kafka() {
    if has_kafka || [ -n "${TICKWRIGHT_TEST_ONLY_PACKAGES:-}" ]; then return; fi
    if ! has_program mvn; then
        say "there is no Maven, so there is no Kafka, and its tests skip (and fail in CI)"
        return
    fi
    say "fetching Kafka's jars"
    rm -rf .kafka/fetching
    mkdir -p .kafka
    if mvn -q -B -Dstyle.color=never -f tests/kit/kafka-pom.xml \
        org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$(pwd)/.kafka/fetching" </dev/null >&2; then
        rm -rf "$jars"
        mv .kafka/fetching "$jars"
    else
        say "the jars could not be fetched; Kafka's tests skip (and fail in CI)"
    fi
}

missing=''
has_postgresql || missing="$missing postgresql"
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || missing="$missing rabbitmq-server"
has_program redis-server || missing="$missing redis-server"
has_program pgbouncer || missing="$missing pgbouncer"
has_program prometheus || missing="$missing prometheus"
has_program cc || missing="$missing gcc libc6-dev" # a clock that jumps is a few lines of C
has_program chromium || missing="$missing chromium"
has_program go || missing="$missing golang-go" # for the tests of its client; those of the other need Node.js, as the page does
has_program java || missing="$missing openjdk-17-jre-headless"
has_kafka || has_program mvn || missing="$missing maven"
if [ -z "$missing" ]; then
    fetch_kafka
    exit 0
fi

if ! command -v apt-get >/dev/null 2>&1; then
    say "not installed, so their tests skip:$missing"
    fetch_kafka
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    say "not installed, so their tests skip:$missing"
    say "to run them: sudo env TICKWRIGHT_TEST_ONLY_PACKAGES=1 sh scripts/test-servers.sh"
    fetch_kafka
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
if [ "${missing#* openjdk}" != "$missing" ] && ! apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
    missing=$(printf '%s' "$missing" | sed 's/ openjdk-17-jre-headless/ default-jre-headless/')
fi
# shellcheck disable=SC2086  # a list of words
if ! apt-get install -qq -y --no-install-recommends $missing </dev/null >&2; then
    say "some packages could not be installed; their tests skip (and fail in CI):$missing"
fi
fetch_kafka
