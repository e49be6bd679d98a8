//! The process itself: how long it runs and how much memory it holds. Read at each scrape, never in between.

use std::time::Instant;

use prometheus::{Gauge, IntGauge};

use super::family::Families;
use super::{MetricsError, name};

pub(super) struct Process {
    started: Instant,
    uptime: Gauge,
    resident: IntGauge,
}

impl Process {
    pub(super) fn new(families: &Families) -> Result<Self, MetricsError> {
        Ok(Self {
            started: Instant::now(),
            uptime: families.seconds_gauge(name::UPTIME, "Seconds since the process started")?,
            resident: families
                .gauge(name::RESIDENT, "Resident memory; 0 where the system does not tell (not Linux)")?,
        })
    }

    pub(super) fn read(&self) {
        self.uptime.set(self.started.elapsed().as_secs_f64());
        self.resident.set(resident_bytes().unwrap_or(0));
    }
}

/// `VmRSS` of this process. Not `statm`: that counts in pages, whose size differs between machines.
fn resident_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    resident_bytes_in(&status)
}

fn resident_bytes_in(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes_whatever_the_page_size() {
        assert_eq!(resident_bytes_in("Name:\treprise\nVmRSS:\t    2048 kB\nThreads:\t4\n"), Some(2_097_152));
        assert_eq!(resident_bytes_in("Name:\treprise\n"), None);
        assert_eq!(resident_bytes_in("VmRSS:\tlots kB\n"), None);
    }
}
