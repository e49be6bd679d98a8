#!/usr/bin/env bash
# The development servers: a Kafka and a Postgres, on loopback.
#
#   stack.sh up       start what does not run, return when both answer
#   stack.sh down     stop both, keep their data
#   stack.sh status   what runs; exit 1 unless both do
#   stack.sh logs     follow the logs
#   stack.sh env      shell lines that point reprise and its tests at these servers: eval "$(deploy/dev/stack.sh env)"
#   stack.sh deps     install, or name, what the build and the tests need
#   stack.sh jars     fetch Kafka's jars where they are missing, print their folder
#   stack.sh clean    stop both and remove their data
#
# Where a Docker daemon answers they are containers (docker-compose.yml, with Prometheus and Grafana); elsewhere plain
# processes under .dev/ (native.sh). REPRISE_DEV_MODE=docker|native decides against that.
# Ports: REPRISE_DEV_KAFKA_PORT (29092), REPRISE_DEV_KAFKA_CONTROLLER_PORT (the next one), REPRISE_DEV_PG_PORT (25432).
# REPRISE_DEV_DIR holds the state (.dev); another one, with other ports, is another stack beside the first.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
CACHE=$ROOT/.dev/cache
STATE=${REPRISE_DEV_DIR:-$ROOT/.dev}
mkdir -p "$STATE" && STATE=$(cd "$STATE" && pwd)
KAFKA_PORT=${REPRISE_DEV_KAFKA_PORT:-29092}
KAFKA_CONTROLLER_PORT=${REPRISE_DEV_KAFKA_CONTROLLER_PORT:-$((KAFKA_PORT + 1))}
PG_PORT=${REPRISE_DEV_PG_PORT:-25432}
readonly HERE ROOT CACHE STATE KAFKA_PORT KAFKA_CONTROLLER_PORT PG_PORT

say() { echo "$*" >&2; }
die() { say "stack: $*"; exit 1; }

# shellcheck source=deploy/dev/deps.sh
. "$HERE/deps.sh"
# shellcheck source=deploy/dev/native.sh
. "$HERE/native.sh"

mode() {
  case ${REPRISE_DEV_MODE:-} in
    docker | native) echo "$REPRISE_DEV_MODE" ;;
    "") if has docker && docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1; then echo docker; else echo native; fi ;;
    *) die "REPRISE_DEV_MODE is 'docker' or 'native', not '$REPRISE_DEV_MODE'" ;;
  esac
}

compose() {
  REPRISE_DEV_KAFKA_PORT=$KAFKA_PORT REPRISE_DEV_PG_PORT=$PG_PORT \
    docker compose -p "${REPRISE_DEV_PROJECT:-reprise-dev}" -f "$ROOT/docker-compose.yml" "$@"
}

# Two `make up` at once would start two servers on one data directory.
lock() {
  exec 9>"$STATE/lock"
  if has flock; then flock -w 180 9 || die "another start or stop holds $STATE/lock"; fi
}

print_env() {
  cat <<LINES
export REPRISE_KAFKA__BROKERS=127.0.0.1:$KAFKA_PORT
export REPRISE_POSTGRES__URL=postgres://postgres@127.0.0.1:$PG_PORT/reprise
export REPRISE_TEST_KAFKA=127.0.0.1:$KAFKA_PORT
export REPRISE_TEST_PG=postgres://postgres@127.0.0.1:$PG_PORT
LINES
}

# shellcheck disable=SC2086 # the services are a list of words
up() {
  lock
  local mode
  mode=$(mode)
  case $mode in
    docker) compose up -d --wait ${REPRISE_DEV_SERVICES:-} >&2 ;;
    native) native_up ;;
  esac
  say "kafka 127.0.0.1:$KAFKA_PORT, postgres 127.0.0.1:$PG_PORT"
}

by_mode() {
  local native=$1 mode
  shift
  mode=$(mode)
  if [ "$mode" = docker ]; then compose "$@"; else "$native"; fi
}

case ${1:-} in
  up) up ;;
  down) lock; by_mode native_down down ;;
  status) by_mode native_status ps ;;
  logs) by_mode native_logs logs -f --tail 100 ;;
  env) print_env ;;
  deps) require_build_tools; require_test_tools; require_browser; require_java; require_postgres ;;
  jars) lock; mkdir -p "$CACHE"; require_java; fetch_kafka; echo "$KAFKA_LIB" ;;
  clean) lock; by_mode native_clean down -v ;;
  *) sed -n '2,11p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
esac
