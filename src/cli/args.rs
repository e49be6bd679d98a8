//! Values that several commands take: instants and durations, refused with an example.

use std::time::Duration;

use jiff::Timestamp;

/// An instant with its offset. Without one it would mean something else on every machine.
pub fn instant(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| "write an instant with its offset, as 2026-10-14T00:00:00-03:00".to_owned())
}

/// A duration as in the configuration.
pub fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "write a duration as 250ms, 5s or 24h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_needs_its_offset() {
        let parsed = instant("2026-10-14T00:00:00-03:00").map(|instant| instant.to_string());
        assert_eq!(parsed.as_deref(), Ok("2026-10-14T03:00:00Z"));
        assert!(instant("2026-10-14T00:00:00").is_err() && instant("2026-10-14").is_err());
    }
}
