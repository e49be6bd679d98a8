//! Named crash points between durable steps, for the fault-injection tests. Nothing at all in a release binary.
//!
//! `REPRISE_CRASH` names one point, and may say at which passage and what happens there:
//!
//! * `after_wave`: the process ends at once, without unwinding, the first time it comes there
//! * `after_wave:3`: the third time
//! * `after_wave:3:stop`: it stops there, as by SIGSTOP, until somebody sends it SIGCONT

/// Passes the point `name`, or does what `REPRISE_CRASH` says. Only with the feature `crash-points`.
#[cfg(feature = "crash-points")]
pub fn point(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};
    static WANTED: OnceLock<Option<(String, AtomicI64, bool)>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("REPRISE_CRASH").ok()?;
        let mut parts = text.split(':');
        let name = parts.next()?.to_owned();
        let passage = parts.next().and_then(|count| count.parse().ok()).unwrap_or(1);
        Some((name, AtomicI64::new(passage), parts.next() == Some("stop")))
    });
    if let Some((wanted, left, stop)) = wanted
        && wanted == name
        && left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        tracing::warn!(point = name, "crash point reached");
        if *stop {
            stop_here();
        } else {
            std::process::abort();
        }
    }
}

/// Returns when the process has been continued.
#[cfg(feature = "crash-points")]
fn stop_here() {
    let pid = std::process::id().to_string();
    match std::process::Command::new("kill").args(["-s", "STOP", &pid]).status() {
        Ok(status) if status.success() => {}
        failed => tracing::error!(?failed, "the process could not be stopped"),
    }
}

#[cfg(not(feature = "crash-points"))]
#[inline]
pub const fn point(_name: &str) {}
