#!/usr/bin/env bash
# The CDC road, for real: Kafka Connect from the dev stack's jars, the connector from Maven Central, the shipped
# outbox-connector.json. Needs the dev servers (`make up`), Java and Maven. REPRISE_DEV_CACHE holds the jars.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${REPRISE_DEV_CACHE:-$root/.dev/cache}
plugins=$cache/debezium-3.2.0.Final

# In a container-based stack nobody has fetched Kafka's jars yet.
fetch() {
  local pom=$1 into=$2 work
  [ ! -d "$into" ] || return 0
  echo "fetching $(basename "$into") from Maven Central (once)" >&2
  work=$(mktemp -d)
  cp "$pom" "$work/pom.xml"
  (cd "$work" && mvn -q -B -Dstyle.color=never dependency:copy-dependencies -DoutputDirectory=lib -DincludeScope=runtime >&2)
  mkdir -p "$(dirname "$into")"
  mv "$work/lib" "$into"
  rm -rf "$work"
}

fetch "$root/deploy/dev/kafka/pom.xml" "$cache/kafka-4.1.1"
fetch "$here/pom.xml" "$plugins/debezium-connector-postgres"

export REPRISE_TEST_CONNECT_JARS=$cache/kafka-4.1.1 REPRISE_TEST_CONNECT_PLUGINS=$plugins
cd "$root"
cargo test --locked --features crash-points --test integration cdc:: -- --ignored
