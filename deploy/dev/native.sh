# Kafka and Postgres as plain processes under .dev/, on loopback only. Sourced by stack.sh.
#
# Promise: `up` returns when both answer, or fails with the end of the log; run again it changes nothing.
# A pid is believed only if the command line of that process names our own directory, so a pid file that outlived a
# reboot can neither block a start nor stop a stranger. Data survive `down`; `clean` removes them.

readonly RUN=$STATE/run LOGS=$STATE/logs
readonly KAFKA_HOME=$STATE/kafka KAFKA_LIB=$CACHE/kafka-4.1.1
readonly START_LIMIT=90 STOP_LIMIT=30 # seconds; a cold JVM on a busy machine takes 20

# -- processes

# Whether process $1 runs and its command line contains $2.
is_ours() {
  local pid=$1 mark=$2 line
  [[ $pid =~ ^[0-9]+$ ]] || return 1
  if [ -d /proc/self ]; then
    line=$(tr '\0' ' ' 2>/dev/null < "/proc/$pid/cmdline") || return 1
  else
    line=$(ps -ww -o args= -p "$pid" 2>/dev/null) || return 1
  fi
  [[ $line == *"$mark"* ]]
}

# Runs a command in a session of its own, so that Ctrl-C in the terminal does not reach it.
in_background() {
  local log=$1
  shift
  local detach=(setsid)
  has setsid || detach=(nohup)
  ( exec "${detach[@]}" "$@" ) </dev/null >>"$log" 2>&1 9>&- &
}

port_open() { (: < "/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

require_free_port() {
  local port=$1 what=$2 setting=$3
  port_open "$port" || return 0
  die "port $port ($what) is taken by a process that this stack did not start.
Stop that one, or choose another port:  $setting=$((port + 10000)) make up"
}

# Polls `$2...` until it succeeds; $1 names what is awaited. Fails early once the process is gone.
await_ready() {
  local what=$1 pid_of=$2 ready=$3 log=$4 end=$((SECONDS + START_LIMIT))
  until "$ready"; do
    if [ -z "$("$pid_of")" ] && [ $SECONDS -gt $((end - START_LIMIT + 5)) ]; then
      tail -n 20 "$log" >&2
      die "$what ended while starting; its log is $log"
    fi
    if [ $SECONDS -ge $end ]; then
      tail -n 20 "$log" >&2
      die "$what does not answer within $START_LIMIT s; its log is $log (a changed port takes effect after 'make down')"
    fi
    sleep 0.2
  done
}

# Sends $2 to process $1 and waits for its end; then $3, which cannot be refused.
stop_process() {
  local pid=$1 gentle=$2 hard=$3 end=$((SECONDS + STOP_LIMIT))
  kill "-$gentle" "$pid"
  while kill -0 "$pid" 2>/dev/null && ! is_zombie "$pid"; do
    if [ $SECONDS -ge $end ]; then
      kill "-$hard" "$pid" 2>/dev/null || true
      return 0
    fi
    sleep 0.1
  done
}

# In a container without an init nobody collects the dead.
is_zombie() { [ -r "/proc/$1/stat" ] && [ "$(sed -E 's/.*\) (.).*/\1/' "/proc/$1/stat" 2>/dev/null)" = Z ]; }

# -- Kafka

kafka_pid() {
  local pid
  pid=$(cat "$RUN/kafka.pid" 2>/dev/null) || return 0
  if is_ours "$pid" "-Dreprise.dev=$KAFKA_HOME "; then echo "$pid"; fi
}

# A Metadata request (v0, all topics) is answered with at least one broker: the port alone opens seconds earlier.
kafka_ready() {
  local answer
  answer=$(
    exec 2>/dev/null # refused while it starts
    exec 3<>"/dev/tcp/127.0.0.1/$KAFKA_PORT" || exit 1
    printf '\0\0\0\016\0\003\0\0\0\0\0\001\377\377\0\0\0\0' >&3
    timeout 3 head -c 12 <&3 | od -An -tx1 -v | tr -d ' \n'
  ) || return 1
  # length, correlation id 1, number of brokers
  [[ $answer =~ ^[0-9a-f]{8}00000001([0-9a-f]{8})$ ]] && [ "${BASH_REMATCH[1]}" != 00000000 ]
}

fetch_kafka() {
  [ ! -d "$KAFKA_LIB" ] || return 0
  say "fetching Kafka from Maven Central (once)"
  local work=$CACHE/kafka-fetch
  rm -rf "$work"
  mkdir -p "$work"
  cp "$HERE/kafka/pom.xml" "$work/"
  (cd "$work" && mvn -q -B -Dstyle.color=never dependency:copy-dependencies -DoutputDirectory=lib -DincludeScope=runtime >&2)
  mv "$work/lib" "$KAFKA_LIB"
  rm -rf "$work"
}

java_kafka() { java "-Dlog4j2.configurationFile=$HERE/kafka/log4j2.yaml" -cp "$KAFKA_LIB/*" "$@"; }

start_kafka() {
  if [ -n "$(kafka_pid)" ]; then
    await_ready Kafka kafka_pid kafka_ready "$LOGS/kafka.log"
    return
  fi
  require_free_port "$KAFKA_PORT" Kafka REPRISE_DEV_KAFKA_PORT
  require_free_port "$KAFKA_CONTROLLER_PORT" "Kafka's controller" REPRISE_DEV_KAFKA_CONTROLLER_PORT
  require_java
  fetch_kafka
  mkdir -p "$KAFKA_HOME"
  sed -e "s|@PORT@|$KAFKA_PORT|g" -e "s|@CONTROLLER_PORT@|$KAFKA_CONTROLLER_PORT|g" -e "s|@DATA@|$KAFKA_HOME/data|g" \
    "$HERE/kafka/server.properties" > "$KAFKA_HOME/server.properties"
  if [ ! -f "$KAFKA_HOME/data/meta.properties" ]; then
    local id
    id=$(java_kafka kafka.tools.StorageTool random-uuid 2>/dev/null)
    java_kafka kafka.tools.StorageTool format -t "$id" -c "$KAFKA_HOME/server.properties" >>"$LOGS/kafka.log" 2>&1 ||
      die "Kafka's data directory cannot be formatted; see $LOGS/kafka.log"
  fi
  in_background "$LOGS/kafka.log" java -Xms256m -Xmx768m -XX:+UseG1GC "-Dreprise.dev=$KAFKA_HOME" \
    "-Dlog4j2.configurationFile=$HERE/kafka/log4j2.yaml" -cp "$KAFKA_LIB/*" kafka.Kafka "$KAFKA_HOME/server.properties"
  echo $! > "$RUN/kafka.pid"
}

stop_kafka() {
  local pid
  pid=$(kafka_pid)
  if [ -n "$pid" ]; then
    stop_process "$pid" TERM KILL
    say "Kafka stopped (pid $pid)"
  fi
  rm -f "$RUN/kafka.pid"
}

# -- Postgres

# Postgres refuses to run as root; the packages bring a user for it.
if [ "$(id -u)" -ne 0 ]; then
  AS_POSTGRES=(env)
elif has setpriv; then
  AS_POSTGRES=(setpriv --reuid=postgres --regid=postgres --init-groups --)
else
  AS_POSTGRES=(su postgres -s /bin/sh -c 'exec "$0" "$@"' --)
fi
readonly AS_POSTGRES

# Where that user cannot reach the checkout (a home that is closed to others), the data live in /var/tmp.
postgres_home() {
  if [ "$(id -u)" -ne 0 ] || "${AS_POSTGRES[@]}" test -x "$STATE" 2>/dev/null; then
    echo "$STATE/postgres"
  else
    echo "/var/tmp/reprise-dev-$(printf %s "$STATE" | cksum | cut -d' ' -f1)"
  fi
}

postgres_pid() {
  local data pid
  data=$(postgres_home)/data
  pid=$(head -n 1 "$data/postmaster.pid" 2>/dev/null) || return 0
  if is_ours "$pid" "-D $data "; then echo "$pid"; fi
}

postgres_ready() { "$PG_BIN/pg_isready" -q -h 127.0.0.1 -p "$PG_PORT" -U postgres -t 2; }

write_postgres_settings() {
  local data=$1 lz4
  cat <<SETTINGS
# Written by the development stack at every start.
listen_addresses = '127.0.0.1'
port = $PG_PORT
unix_socket_directories = ''
max_connections = 300
shared_buffers = 512MB
wal_level = logical
max_wal_size = 4GB
# fsync and synchronous_commit stay on: what is measured and tested here must survive a kill.
SETTINGS
  lz4=$("${AS_POSTGRES[@]}" "$PG_BIN/postgres" -D "$data" -c wal_compression=lz4 -C wal_compression 2>/dev/null) || lz4=
  if [ "$lz4" = lz4 ]; then echo "wal_compression = lz4"; fi
}

start_postgres() {
  require_postgres
  PG_BIN=$(postgres_bin)
  if [ -n "$(postgres_pid)" ]; then return; fi
  require_free_port "$PG_PORT" Postgres REPRISE_DEV_PG_PORT
  local home data
  home=$(postgres_home) data=$home/data
  mkdir -p "$home"
  if [ "$(id -u)" -eq 0 ]; then chown postgres "$home"; fi
  if [ ! -f "$data/PG_VERSION" ]; then
    (cd "$home" && "${AS_POSTGRES[@]}" "$PG_BIN/initdb" -D "$data" -A trust -U postgres -E UTF8 --locale=C) >>"$LOGS/postgres.log" 2>&1 ||
      die "initdb failed; see $LOGS/postgres.log"
    echo "include 'reprise.conf'" >> "$data/postgresql.conf"
  fi
  : > "$data/reprise.conf"
  if [ "$(id -u)" -eq 0 ]; then chown postgres "$data/reprise.conf"; fi
  local settings
  settings=$(write_postgres_settings "$data")
  echo "$settings" > "$data/reprise.conf"
  # Left by a server that was killed: its pid may be another program's by now, and Postgres would refuse to start.
  rm -f "$data/postmaster.pid"
  cd "$home" # a directory its user may stand in
  in_background "$LOGS/postgres.log" "${AS_POSTGRES[@]}" "$PG_BIN/postgres" -D "$data" -c cluster_name=reprise-dev
  cd "$ROOT"
}

stop_postgres() {
  local pid
  pid=$(postgres_pid)
  if [ -n "$pid" ]; then
    stop_process "$pid" INT QUIT # fast, then immediate shutdown
    say "Postgres stopped (pid $pid)"
  fi
}

# -- both

native_up() {
  mkdir -p "$RUN" "$LOGS" "$CACHE"
  start_postgres
  start_kafka
  await_ready Postgres postgres_pid postgres_ready "$LOGS/postgres.log"
  await_ready Kafka kafka_pid kafka_ready "$LOGS/kafka.log"
  local psql=("$PG_BIN/psql" -h 127.0.0.1 -p "$PG_PORT" -U postgres -d postgres -qAtX)
  [ "$("${psql[@]}" -c "select 1 from pg_database where datname = 'reprise'")" = 1 ] ||
    "${psql[@]}" -c 'create database reprise'
}

native_down() {
  stop_kafka
  stop_postgres
}

native_status() {
  local pid rc=0
  PG_BIN=$(postgres_bin)
  pid=$(kafka_pid)
  if [ -n "$pid" ] && kafka_ready; then say "Kafka     127.0.0.1:$KAFKA_PORT  pid $pid"; else say "Kafka     not running"; rc=1; fi
  pid=$(postgres_pid)
  if [ -n "$pid" ] && postgres_ready; then say "Postgres  127.0.0.1:$PG_PORT  pid $pid"; else say "Postgres  not running"; rc=1; fi
  return $rc
}

native_logs() { exec tail -n 100 -F "$LOGS/kafka.log" "$LOGS/postgres.log"; }

native_clean() {
  native_down
  local home
  home=$(postgres_home)
  rm -rf "$home" "$KAFKA_HOME" "$RUN" "$LOGS"
}
