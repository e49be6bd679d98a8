//! Named crash points between durable steps, for the fault-injection tests. Nothing at all in a release binary.

/// Ends the process at once, without unwinding, if `REPRISE_CRASH` names this point (`name`, or `name:n` for the
/// n-th time it is passed). Only with the feature `crash-points`.
#[cfg(feature = "crash-points")]
pub fn point(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};
    static WANTED: OnceLock<Option<(String, AtomicI64)>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("REPRISE_CRASH").ok()?;
        let (name, count) = text.split_once(':').unwrap_or((&text, "1"));
        Some((name.to_owned(), AtomicI64::new(count.parse().unwrap_or(1))))
    });
    if let Some((wanted, left)) = wanted
        && wanted == name
        && left.fetch_sub(1, Ordering::SeqCst) == 1
    {
        tracing::warn!(point = name, "crash point reached");
        std::process::abort();
    }
}

#[cfg(not(feature = "crash-points"))]
#[inline]
pub const fn point(_name: &str) {}
