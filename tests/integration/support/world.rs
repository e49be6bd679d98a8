//! One test's own deployment: topics, group, database, configuration, provider, and the commands of the binary.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use rdkafka::message::OwnedMessage;
use serde_json::Value;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection, FromRow};
use uuid::Uuid;

use super::event::event;
use super::http::{self, Reply};
use super::kafka::{self, Kafka, Outgoing};
use super::process::{Ended, Process, tail};
use super::setup::{Setup, usual_config};
use super::{LATER, Provider, SOON, eventually, kafka_servers, postgres_server};

/// Kept for ever, like the business topics.
const KEEP: (&str, &str) = ("retention.ms", "-1");

pub struct World {
    pub topic: String,
    pub dlq_topic: String,
    pub group: String,
    pub partitions: i32,
    pub provider: Provider,
    pub kafka: Kafka,
    pub database_url: String,
    /// The configuration; [`World::write_config`] after a change.
    pub config: toml::Table,
    pub http_port: u16,
    dir: PathBuf,
    database: String,
    pool: PgPool,
    commands: std::cell::Cell<u32>,
}

impl World {
    /// The usual world, its schema migrated by the binary.
    pub async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    pub async fn with(setup: Setup) -> Self {
        let world = Self::bare(setup).await;
        world.cli(&["migrate"]).await;
        world
    }

    /// Without a schema: nothing of the binary has run yet.
    pub async fn bare(setup: Setup) -> Self {
        let id = Uuid::new_v4().simple().to_string()[..8].to_owned();
        let topic = format!("pedido.pago.{id}");
        let dlq_topic = format!("{topic}.dlq");
        let kafka = Kafka::connect(&kafka_servers());
        let mut topic_config = vec![KEEP];
        topic_config.extend(&setup.topic_config);
        kafka.create_topic(&topic, setup.partitions, &topic_config).await;
        kafka.create_topic(&dlq_topic, setup.dlq_partitions, &[KEEP]).await;

        let database = format!("reprise_{id}");
        run_as_superuser(&format!(r#"create database "{database}""#)).await.unwrap_or_else(|e| {
            panic!("no database at {} (make up): {e}", postgres_server());
        });
        let database_url = format!("{}/{database}", postgres_server());
        let pool = PgPoolOptions::new()
            .max_connections(2)
            .connect_lazy(&database_url)
            .expect("REPRISE_TEST_PG is a Postgres URL without a database name");

        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&id);
        fs::create_dir_all(&dir).expect("a folder can be made under target/tmp");
        let mut world = Self {
            group: format!("comissao-{id}"),
            partitions: setup.partitions,
            provider: Provider::start().await,
            kafka,
            database_url,
            config: toml::Table::new(),
            http_port: free_port(),
            dir,
            database,
            pool,
            commands: std::cell::Cell::new(0),
            topic,
            dlq_topic,
        };
        world.config = usual_config(&world, setup.effects);
        world.write_config();
        world
    }

    // -- configuration

    /// Sets one key, given as its path, for the processes started from now on.
    pub fn set(&mut self, path: &[&str], value: impl Into<toml::Value>) {
        let (key, sections) = path.split_last().expect("a path has a key");
        let mut table = &mut self.config;
        for section in sections {
            let next = table.entry(*section).or_insert_with(|| toml::Table::new().into());
            table = next.as_table_mut().unwrap_or_else(|| panic!("{section} is no section"));
        }
        table.insert((*key).to_owned(), value.into());
        self.write_config();
    }

    pub fn write_config(&self) {
        self.write_config_as("reprise.toml", &self.config);
    }

    /// Another configuration beside the usual one, for `--config`.
    pub fn write_config_as(&self, name: &str, config: &toml::Table) -> PathBuf {
        let path = self.dir.join(name);
        fs::write(&path, config.to_string()).expect("a configuration can be written");
        path
    }

    /// A configuration that differs only in its HTTP port: a second instance of the same group.
    pub fn second_instance(&self) -> (PathBuf, u16) {
        let (mut config, port) = (self.config.clone(), free_port());
        let http = config["http"].as_table_mut().expect("a section");
        http.insert("endereco".to_owned(), format!("127.0.0.1:{port}").into());
        (self.write_config_as(&format!("reprise-{port}.toml"), &config), port)
    }

    /// Where its configuration and logs are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    // -- Kafka

    pub async fn send(&self, event: &Value) -> (i32, i64) {
        self.kafka.produce(&self.topic, &Outgoing::event(event)).await
    }

    /// Events of the orders `ped-<first>` to `ped-<first + count - 1>`.
    pub async fn feed(&self, first: u32, count: u32) {
        let events = (first..first + count).map(|n| Outgoing::event(&event(n)));
        self.kafka.produce_all(&self.topic, events).await;
    }

    /// [`Self::feed`] with log times a second apart.
    pub async fn feed_from(&self, first: u32, count: u32, start_ms: i64) {
        let events =
            (0..count).map(|i| Outgoing::event(&event(first + i)).at(start_ms + i64::from(i) * 1_000));
        self.kafka.produce_all(&self.topic, events).await;
    }

    pub async fn committed(&self) -> BTreeMap<i32, Option<i64>> {
        self.kafka.committed(&self.group, &self.topic, self.partitions).await
    }

    /// Whether the live group has committed everything there is.
    pub async fn caught_up(&self) -> bool {
        let (ends, committed) = (self.kafka.ends(&self.topic).await, self.committed().await);
        ends.iter().all(|(partition, end)| *end == 0 || committed[partition] == Some(*end))
    }

    pub async fn dlq(&self) -> Vec<OwnedMessage> {
        self.kafka.read(&self.dlq_topic).await
    }

    // -- Postgres

    pub async fn rows<T>(&self, sql: &str) -> Vec<T>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let query = sqlx::query_as(AssertSqlSafe(sql.to_owned()));
        query.fetch_all(&self.pool).await.unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    /// The one value of the one row.
    pub async fn one<T>(&self, sql: &str) -> T
    where
        (T,): for<'r> FromRow<'r, PgRow>,
        T: Send + Unpin,
    {
        let query = sqlx::query_as(AssertSqlSafe(sql.to_owned()));
        let (value,): (T,) = query.fetch_one(&self.pool).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        value
    }

    /// How many rows it changed.
    pub async fn execute(&self, sql: &str) -> u64 {
        let query = sqlx::query(AssertSqlSafe(sql.to_owned()));
        query.execute(&self.pool).await.unwrap_or_else(|e| panic!("{sql}: {e}")).rows_affected()
    }

    /// Effects by state.
    pub async fn states(&self) -> BTreeMap<String, i64> {
        let sql = "select estado::text, count(*) from efeito_aplicado group by 1";
        self.rows::<(String, i64)>(sql).await.into_iter().collect()
    }

    pub async fn done(&self) -> i64 {
        self.one("select count(*) from efeito_aplicado where estado = 'concluido'").await
    }

    /// Commission by order.
    pub async fn commissions(&self) -> BTreeMap<String, i64> {
        let sql = "select pedido_id, valor_centavos from comissao";
        self.rows::<(String, i64)>(sql).await.into_iter().collect()
    }

    /// The database refuses everybody and ends their sessions, until [`Self::database_back`].
    pub async fn database_away(&self) {
        let name = &self.database;
        // Two statements on their own: the door is shut, for all to see, before anybody is sent out.
        for sql in [
            format!(r#"alter database "{name}" allow_connections false"#),
            format!("select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"),
        ] {
            run_as_superuser(&sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        }
    }

    pub async fn database_back(&self) {
        let sql = format!(r#"alter database "{}" allow_connections true"#, self.database);
        run_as_superuser(&sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    }

    // -- the binary

    /// A command with this world's configuration and none of the tester's own environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_reprise"));
        for (name, _) in std::env::vars_os() {
            // Overrides of the configuration, exported for a developer's own runs, would win over our file.
            if name.to_string_lossy().starts_with("REPRISE_") {
                command.env_remove(name);
            }
        }
        command.env("REPRISE_CONFIG", self.dir.join("reprise.toml"));
        command.env("TZ", "UTC").env("NO_COLOR", "1").current_dir(&self.dir).args(args);
        command
    }

    /// Starts a command made by [`Self::command`], perhaps with a [`super::crash`] in its environment.
    pub fn spawn(&self, command: Command) -> Process {
        let number = self.commands.get() + 1;
        self.commands.set(number);
        let verb = command.get_args().next().map(|a| a.to_string_lossy().into_owned()).unwrap_or_default();
        Process::start(command, &self.dir, &format!("{number:02}-{verb}"))
    }

    pub fn run(&self, args: &[&str]) -> Process {
        self.spawn(self.command(args))
    }

    /// Runs a command to its end, whatever that is.
    pub async fn try_cli(&self, args: &[&str]) -> Ended {
        self.run(args).ended(LATER).await
    }

    /// Runs a command that must succeed.
    pub async fn cli(&self, args: &[&str]) -> Ended {
        let ended = self.try_cli(args).await;
        assert_eq!(ended.code, Some(0), "{args:?}\n{}{}", ended.stdout, tail(&ended.stderr, 40));
        ended
    }

    /// Runs a command that must succeed, and reads its JSON.
    pub async fn json(&self, args: &[&str]) -> Value {
        let ended = self.cli(&[args, &["--output", "json"]].concat()).await;
        serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}\n{}", ended.stdout))
    }

    /// `live`, ready.
    pub async fn live(&self) -> Process {
        self.live_as(self.command(&["live"]), self.http_port).await
    }

    /// `live` as given, once it is ready on `port`.
    pub async fn live_as(&self, command: Command, port: u16) -> Process {
        let mut live = self.spawn(command);
        eventually("live is ready", LATER, async || {
            assert!(live.is_alive(), "live ended:\n{}", tail(&live.stderr(), 40));
            http::request("GET", &format!("http://127.0.0.1:{port}/readyz"), &[], None)
                .await
                .filter(|r| r.status == 200)
        })
        .await;
        live
    }

    /// Waits until every event is settled and committed.
    pub async fn settled(&self) {
        super::until("the group has caught up", SOON, async || self.caught_up().await).await;
    }

    pub async fn get(&self, path: &str) -> Option<Reply> {
        self.request("GET", path, &[], None).await
    }

    pub async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Option<Reply> {
        let url = format!("http://127.0.0.1:{}{path}", self.http_port);
        http::request(method, &url, headers, body).await
    }

    /// The sum of a metric's series with these labels; `None` where there is none, or nobody answers.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let reply = self.get("/metrics").await?;
        http::metric(&reply.body, name, labels)
    }
}

impl Drop for World {
    /// Takes everything away; a failed test keeps its folder. `REPRISE_TEST_KEEP` keeps all, to look at.
    fn drop(&mut self) {
        if std::env::var_os("REPRISE_TEST_KEEP").is_some() {
            eprintln!("kept: {} and database {}", self.dir.display(), self.database);
            return;
        }
        if std::thread::panicking() {
            eprintln!("logs and configuration: {}", self.dir.display());
        } else if let Err(e) = fs::remove_dir_all(&self.dir) {
            eprintln!("{} stays: {e}", self.dir.display());
        }
        let drop_database = format!(r#"drop database if exists "{}" with (force)"#, self.database);
        let topics = [self.topic.clone(), self.dlq_topic.clone()];
        let group = self.group.clone();
        // A runtime of its own: this may run while the test's is unwinding.
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                if let Err(e) = run_as_superuser(&drop_database).await {
                    eprintln!("{drop_database}: {e}");
                }
                kafka::remove(&kafka_servers(), &[&topics[0], &topics[1]], &[&group]).await;
            });
            std::io::Result::Ok(())
        });
        if !matches!(cleaner.join(), Ok(Ok(()))) {
            eprintln!("the world was not taken away");
        }
    }
}

async fn run_as_superuser(sql: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(&format!("{}/postgres", postgres_server())).await?;
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
    connection.close().await
}

pub fn free_port() -> u16 {
    let socket = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    socket.local_addr().expect("a bound socket has an address").port()
}
