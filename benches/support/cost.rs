//! What a run costs: CPU seconds by process, memory, and Postgres' own counters.
//!
//! CPU comes from `/proc`, so it is known where the servers are processes of this machine and absent elsewhere.
//! A server that others use at the same time is charged with their work as well: give the bench its own.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::{PgPool, Row as _};

use super::Failure;

/// Clock ticks of `/proc/<pid>/stat`: 100 on every Linux this runs on.
const TICKS: f64 = 100.0;

/// The calling thread's id, as in `/proc/self/task`.
pub fn thread_id() -> Option<u64> {
    std::fs::read_link("/proc/thread-self").ok()?.file_name()?.to_str()?.parse().ok()
}

/// CPU seconds of one thread of this process.
pub fn thread_cpu(thread: u64) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    Some(text.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
}

struct Stat {
    parent: u32,
    /// Of the process and its threads.
    own: f64,
    /// Of its children that have ended.
    ended: f64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own: (ticks(11)? + ticks(12)?) / TICKS,
        ended: (ticks(13)? + ticks(14)?) / TICKS,
    })
}

pub fn cpu_of(pid: u32) -> Option<f64> {
    stat(pid).map(|stat| stat.own)
}

/// A process with its children, living or ended.
fn cpu_of_family(pid: u32) -> Option<f64> {
    let head = stat(pid)?;
    let pids =
        std::fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let living: f64 = pids.filter_map(stat).filter(|stat| stat.parent == pid).map(|stat| stat.own).sum();
    Some(head.own + head.ended + living)
}

pub fn peak_rss_mb(pid: u32) -> Option<f64> {
    memory(pid, "VmHWM")
}

pub fn rss_mb(pid: u32) -> Option<f64> {
    memory(pid, "VmRSS")
}

fn memory(pid: u32, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}

/// The process that listens on this port of this machine.
fn listener(port: u16) -> Option<u32> {
    let wanted = format!(":{port:04X}");
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let sockets: Vec<String> = tables
        .iter()
        .flat_map(|table| table.lines())
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = fields.get(3) == Some(&"0A") && fields.get(1)?.ends_with(&wanted);
            listens.then(|| format!("socket:[{}]", fields.get(9).unwrap_or(&"")))
        })
        .collect();
    let owns = |pid: u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let mut links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        links.any(|link| sockets.iter().any(|socket| link.as_os_str() == socket.as_str())).then_some(pid)
    };
    let mut pids: Vec<u32> = std::fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    pids.into_iter().find_map(owns)
}

fn port_of(address: &str) -> Option<u16> {
    let host = address.rsplit('@').next()?.split('/').next()?;
    host.split(',').next()?.rsplit_once(':')?.1.parse().ok()
}

/// The servers' processes, where they can be seen.
#[derive(Debug, Clone, Copy)]
pub struct Servers {
    kafka: Option<u32>,
    postgres: Option<u32>,
}

impl Servers {
    pub fn find(kafka: &str, postgres: &str) -> Self {
        let find = |address: &str| listener(port_of(address.trim_start_matches("postgres://"))?);
        Self { kafka: find(kafka), postgres: find(postgres) }
    }
}

/// CPU seconds so far, by who spent them.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    pub service: Option<f64>,
    pub postgres: Option<f64>,
    pub kafka: Option<f64>,
    pub provider: f64,
}

impl Cpu {
    pub fn read(service: &[u32], servers: Servers, provider: f64) -> Self {
        Self {
            service: service.iter().map(|pid| cpu_of(*pid)).sum(),
            postgres: servers.postgres.and_then(cpu_of_family),
            kafka: servers.kafka.and_then(cpu_of),
            provider,
        }
    }

    pub fn since(self, before: Self) -> Self {
        let less = |after: Option<f64>, before: Option<f64>| Some(after? - before?);
        Self {
            service: less(self.service, before.service),
            postgres: less(self.postgres, before.postgres),
            kafka: less(self.kafka, before.kafka),
            provider: self.provider - before.provider,
        }
    }
}

/// Postgres counters that tell what an event costs.
#[derive(Debug, Clone, Copy)]
pub struct Counters {
    pub syncs: f64,
    pub wal_bytes: f64,
    pub transactions: f64,
    pub updates: f64,
    pub hot_updates: f64,
}

impl Counters {
    /// The server tells its counters with a delay of a second.
    pub async fn read(pool: &PgPool) -> Result<Self, Failure> {
        tokio::time::sleep(Duration::from_millis(1300)).await;
        let row = sqlx::query(
            "select wal_sync::float8, wal_bytes::float8,
                    (select xact_commit::float8 from pg_stat_database where datname = current_database()),
                    coalesce((select n_tup_upd::float8 from pg_stat_user_tables where relname = 'efeito_aplicado'), 0),
                    coalesce((select n_tup_hot_upd::float8 from pg_stat_user_tables where relname = 'efeito_aplicado'), 0)
             from pg_stat_wal",
        )
        .fetch_one(pool)
        .await?;
        Ok(Self {
            syncs: row.try_get(0)?,
            wal_bytes: row.try_get(1)?,
            transactions: row.try_get(2)?,
            updates: row.try_get(3)?,
            hot_updates: row.try_get(4)?,
        })
    }

    /// Adds, under these names, what happened since `before`, per event.
    pub fn per_event(&self, before: &Self, events: f64, into: &mut HashMap<&'static str, f64>) {
        into.insert("syncs_per_event", (self.syncs - before.syncs) / events);
        into.insert("tx_per_event", (self.transactions - before.transactions) / events);
        into.insert("wal_bytes_per_event", (self.wal_bytes - before.wal_bytes) / events);
        let updates = self.updates - before.updates;
        if updates > 0.0 {
            into.insert("hot_percent", 100.0 * (self.hot_updates - before.hot_updates) / updates);
        }
    }
}
