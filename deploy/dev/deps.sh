# What the build and the native servers need from the system. Sourced by stack.sh.
#
# Promise: where apt is there and we are root, what is missing is installed; everywhere else the missing packages are
# named, with the command that installs them, and nothing is changed. What is present is never touched.

readonly POSTGRES_MIN=14

has() { command -v "$1" >/dev/null 2>&1; }

# Installs the given Debian packages, or says how to and fails.
require_packages() {
  [ $# -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ] || ! has apt-get; then
    die "missing on this machine: $*
On Debian or Ubuntu:  sudo apt-get update && sudo apt-get install -y $*
Elsewhere install the same by the system's own package manager, then run this again."
  fi
  say "installing $*"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# OpenSSL and zlib are linked into the Kafka client, which is C and built with make.
require_build_tools() {
  local missing=()
  has cc || has gcc || has clang || missing+=(gcc libc6-dev)
  has c++ || has g++ || has clang++ || missing+=(g++)
  has make || missing+=(make)
  if ! has pkg-config; then
    missing+=(pkg-config libssl-dev zlib1g-dev)
  else
    pkg-config --exists openssl || missing+=(libssl-dev)
    pkg-config --exists zlib || missing+=(zlib1g-dev)
  fi
  require_packages "${missing[@]+"${missing[@]}"}"
  has cargo || die "cargo is missing: install the Rust toolchain from https://rustup.rs"
  require_component rustfmt fmt
  require_component clippy clippy
}

# Rustup's minimal profile has neither.
require_component() {
  local component=$1 subcommand=$2
  if cargo "$subcommand" --version >/dev/null 2>&1; then return; fi
  has rustup || die "'cargo $subcommand' is missing: install $component of this toolchain"
  rustup component add "$component" >&2
}

# What the tests of rules and of poolers run beside the servers: Debian starts both as services, which nobody asked for.
require_test_tools() {
  local missing=()
  has promtool && has prometheus || missing+=(prometheus)
  has pgbouncer || [ -x /usr/sbin/pgbouncer ] || missing+=(pgbouncer)
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ] || [ -e /usr/sbin/policy-rc.d ]; then
    require_packages "${missing[@]}"
    return
  fi
  printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
  chmod +x /usr/sbin/policy-rc.d
  local code=0
  ( require_packages "${missing[@]}" ) || code=$?
  rm -f /usr/sbin/policy-rc.d
  [ "$code" -eq 0 ] || exit "$code"
}

java_major() {
  has java || { echo 0; return; }
  # 'openjdk version "17.0.15" ...'; up to Java 8 it began with "1.".
  java -version 2>&1 | awk -F'"' '/version "/ { split($2, v, "."); print (v[1] == 1 ? v[2] : v[1]) + 0; exit }'
}

require_java() {
  local missing=()
  if [ "$(java_major)" -lt 17 ]; then
    if has apt-cache && apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then
      missing+=(openjdk-17-jre-headless)
    else
      missing+=(default-jre-headless)
    fi
  fi
  [ -d "$KAFKA_LIB" ] || has mvn || missing+=(maven)
  require_packages "${missing[@]+"${missing[@]}"}"
  [ "$(java_major)" -ge 17 ] || die "java 17 or newer is needed; 'java' is version $(java_major). Put a newer one first in PATH."
}

# The directory with initdb and postgres of the newest server that is new enough; empty where there is none.
postgres_bin() {
  local dir best="" best_major=0 major
  for dir in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin "$(pg_config --bindir 2>/dev/null || true)" \
    "$(dirname "$(command -v initdb 2>/dev/null || echo /none/initdb)")"; do
    [ -x "$dir/postgres" ] && [ -x "$dir/initdb" ] || continue
    major=$("$dir/postgres" --version | sed -E 's/[^0-9]*([0-9]+).*/\1/')
    if [ "$major" -ge "$POSTGRES_MIN" ] && [ "$major" -gt "$best_major" ]; then best=$dir best_major=$major; fi
  done
  echo "$best"
}

require_postgres() {
  [ -z "$(postgres_bin)" ] || return 0
  if [ "$(id -u)" -eq 0 ] && has apt-get; then
    # The package would make and start a cluster of its own on 5432; nobody asked for that one.
    mkdir -p /etc/postgresql-common/createcluster.d
    [ -e /etc/postgresql-common/createcluster.conf ] ||
      echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.d/reprise-dev.conf
    apt-get update -qq
    if apt-cache show postgresql-15 >/dev/null 2>&1; then require_packages postgresql-15; else require_packages postgresql; fi
  else
    require_packages postgresql-15
  fi
  [ -n "$(postgres_bin)" ] || die "no Postgres server of version $POSTGRES_MIN or newer was found after the installation"
}

# The tests play the console's stories in a real browser.
require_browser() {
  local missing=()
  has chromium || has chromium-browser || has google-chrome || missing+=(chromium)
  has chromedriver || missing+=(chromium-driver)
  require_packages "${missing[@]+"${missing[@]}"}"
}
