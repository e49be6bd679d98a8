//! A pooler between the service and Postgres.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::support::native::{as_postgres, port_of};
use crate::support::process::Process;
use crate::support::world::free_port;
use crate::support::{LATER, Setup, World, postgres_server, until};

const PGBOUNCER: &str = "/usr/sbin/pgbouncer";

/// A `PgBouncer` in transaction mode before the test's Postgres, and the world's database behind it.
fn pgbouncer(world: &mut World, ignored: &str) -> Pooler {
    let port = free_port();
    // Its user cannot enter the folder of the test.
    let dir = std::env::temp_dir().join(format!("reprise-pooler-{port}"));
    fs::create_dir_all(&dir).expect("a folder");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("its mode");
    let (file, server_port) = (dir.join("pgbouncer.ini"), port_of(&postgres_server()));
    let text = format!(
        "[databases]\n* = host=127.0.0.1 port={server_port} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 20\n\
         ignore_startup_parameters = extra_float_digits{ignored}\n"
    );
    fs::write(&file, text).expect("a configuration");
    let mut command = as_postgres(PGBOUNCER);
    command.arg(&file).current_dir(&dir);
    let process = Process::start(command, world.dir(), "pgbouncer");
    let behind = world.database_url.replace(&format!(":{server_port}/"), &format!(":{port}/"));
    world.set(&["postgres", "url"], behind);
    Pooler { process: Some(process), dir }
}

struct Pooler {
    process: Option<Process>,
    dir: PathBuf,
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.process.take();
        fs::remove_dir_all(&self.dir).ok();
    }
}

async fn refused(world: &World, said: &str) {
    until("the pooler answers", LATER, async || {
        let ended = world.try_cli(&["migrate"]).await;
        if ended.stderr.contains("refused") && ended.stderr.contains("os error") {
            return false;
        }
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
        assert!(ended.stderr.contains("give the address of Postgres itself"), "{}", ended.stderr);
        true
    })
    .await;
    // The service ends too, and does not wait for the database to come back.
    // It asks while its own probes and gauges use the same sessions, so more than once.
    for _ in 0..4 {
        let ended = world.run(&["live"]).ended(LATER).await;
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("pooler"), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn b64_a_pooler_that_refuses_session_settings_is_named_at_start() {
    let mut world = World::bare(Setup::default()).await;
    let _pooler = pgbouncer(&mut world, "");
    refused(&world, "does not take our session settings").await;
}

#[tokio::test]
async fn b64_a_pooler_that_swallows_session_settings_is_named_at_start() {
    let mut world = World::bare(Setup::default()).await;
    let _pooler = pgbouncer(&mut world, ",options");
    refused(&world, "do not reach the server").await;
}

#[tokio::test]
async fn b64_a_pooler_that_shares_sessions_is_named_at_start_even_where_settings_arrive() {
    let mut world = World::bare(Setup::default()).await;
    let name = world.database_url.rsplit('/').next().expect("a name").to_owned();
    world.execute(&format!(r#"alter database "{name}" set lock_timeout = '5s'"#)).await;
    let _pooler = pgbouncer(&mut world, ",options");
    refused(&world, "two of our connections share one server process").await;
}

#[test]
fn the_pooler_of_these_tests_is_installed() {
    assert!(
        Command::new(PGBOUNCER).arg("--version").status().is_ok_and(|status| status.success()),
        "make deps"
    );
}
