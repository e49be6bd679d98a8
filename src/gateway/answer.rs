//! From a complete answer to what it proves. Pure.
//!
//! | status | proof |
//! |---|---|
//! | 2xx | done |
//! | 3xx (never followed), 4xx but those below | refused |
//! | 401, 403, 407 | credentials |
//! | 409, 425 | in progress |
//! | 429, 503 with a Retry-After that can be read | not now |
//! | 408, other 5xx, 1xx, above 599 | unknown |
//!
//! `respostas` overrides single statuses before anything else. An answer that did not end proves nothing and never
//! comes here.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::Proof;

/// Longest Retry-After that is honoured. A provider that means more is asked once an hour; one that errs (a date in
/// the next century, milliseconds taken for seconds) does not hold an order, and the offset behind it, for longer.
pub const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

/// What a status means for one effect type, whatever it means elsewhere: `respostas = { "409" = "feito" }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum Override {
    #[serde(rename = "feito")]
    Done,
    #[serde(rename = "recusado")]
    Refused,
    #[serde(rename = "agora-nao")]
    NotNow,
    #[serde(rename = "desconhecido")]
    Unknown,
}

impl Override {
    pub const ALL: [Self; 4] = [Self::Done, Self::Refused, Self::NotNow, Self::Unknown];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "feito",
            Self::Refused => "recusado",
            Self::NotNow => "agora-nao",
            Self::Unknown => "desconhecido",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|answer| answer.as_str() == text)
    }
}

/// What a status proves, before the body is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    Refused,
    Credentials,
    NotNow { retry_after: Option<Duration> },
    InProgress,
    Unknown,
}

impl Verdict {
    /// `retry_after` as [`retry_after`] read it from the answer.
    pub(super) fn of(
        status: u16,
        retry_after: Option<Duration>,
        overrides: &BTreeMap<u16, Override>,
    ) -> Self {
        match overrides.get(&status) {
            Some(Override::Done) => Self::Done,
            Some(Override::Refused) => Self::Refused,
            Some(Override::NotNow) => Self::NotNow { retry_after },
            Some(Override::Unknown) => Self::Unknown,
            None => Self::of_status(status, retry_after),
        }
    }

    const fn of_status(status: u16, retry_after: Option<Duration>) -> Self {
        match status {
            200..=299 => Self::Done,
            401 | 403 | 407 => Self::Credentials,
            409 | 425 => Self::InProgress,
            429 => Self::NotNow { retry_after },
            503 if retry_after.is_some() => Self::NotNow { retry_after },
            300..=407 | 410..=499 => Self::Refused,
            _ => Self::Unknown,
        }
    }

    /// `result` is asked for only where the effect is done.
    pub(super) fn into_proof(self, result: impl FnOnce() -> String) -> Proof {
        match self {
            Self::Done => Proof::Done { result: result() },
            Self::Refused => Proof::Refused,
            Self::Credentials => Proof::Credentials,
            Self::NotNow { retry_after } => Proof::NotNow { retry_after },
            Self::InProgress => Proof::InProgress,
            Self::Unknown => Proof::Unknown,
        }
    }
}

/// A Retry-After in seconds or as an HTTP date, at most [`RETRY_AFTER_MAX`]; a date that has passed means now.
/// What is neither is no Retry-After: on a 503 it must not turn 'unknown' into 'not done'.
pub(super) fn retry_after(header: &str, now: SystemTime) -> Option<Duration> {
    let header = header.trim();
    let wait = if !header.is_empty() && header.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than a u64 holds are still a number of seconds.
        Duration::from_secs(header.parse().unwrap_or(u64::MAX))
    } else {
        httpdate::parse_http_date(header).ok()?.duration_since(now).unwrap_or_default()
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
#[expect(clippy::duration_suboptimal_units, reason = "Retry-After is in seconds")]
mod tests {
    use super::*;

    const MINUTE: Option<Duration> = Some(Duration::from_secs(60));

    fn verdict(status: u16, retry_after: Option<Duration>) -> Verdict {
        Verdict::of(status, retry_after, &BTreeMap::new())
    }

    #[test]
    fn b51_every_status_has_one_meaning() {
        let table: [(Verdict, &[u16]); 6] = [
            (Verdict::Done, &[200, 201, 202, 204, 206, 226, 299]),
            (Verdict::Refused, &[300, 301, 304, 307, 308, 400, 402, 404, 406, 410, 418, 422, 424, 426, 499]),
            (Verdict::Credentials, &[401, 403, 407]),
            (Verdict::InProgress, &[409, 425]),
            (Verdict::NotNow { retry_after: None }, &[429]),
            (Verdict::Unknown, &[100, 101, 103, 408, 500, 501, 502, 503, 504, 599, 600, 999]),
        ];
        for (expected, statuses) in table {
            for &status in statuses {
                assert_eq!(verdict(status, None), expected, "status {status}");
            }
        }
        assert_eq!(verdict(429, MINUTE), Verdict::NotNow { retry_after: MINUTE });
        assert_eq!(verdict(503, MINUTE), Verdict::NotNow { retry_after: MINUTE });
        assert_eq!(verdict(500, MINUTE), Verdict::Unknown);
    }

    #[test]
    fn overrides_come_before_everything_else() {
        let overrides = BTreeMap::from([
            (409, Override::Done),
            (500, Override::Refused),
            (404, Override::NotNow),
            (202, Override::Unknown),
        ]);
        assert_eq!(Verdict::of(409, None, &overrides), Verdict::Done);
        assert_eq!(Verdict::of(500, None, &overrides), Verdict::Refused);
        assert_eq!(Verdict::of(404, MINUTE, &overrides), Verdict::NotNow { retry_after: MINUTE });
        assert_eq!(Verdict::of(202, None, &overrides), Verdict::Unknown);
        assert_eq!(Verdict::of(200, None, &overrides), Verdict::Done);
        assert_eq!(Override::parse("agora-nao"), Some(Override::NotNow));
        assert_eq!(Override::parse("talvez"), None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        // 2015-10-21T07:28:00Z
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_480);
        let read = |header| retry_after(header, now);
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        assert_eq!(read(" 0 "), Some(Duration::ZERO));
        assert_eq!(read("Wed, 21 Oct 2015 07:29:30 GMT"), Some(Duration::from_secs(90)));
        assert_eq!(read("Wednesday, 21-Oct-15 07:29:30 GMT"), Some(Duration::from_secs(90)));
        assert_eq!(read("Wed, 21 Oct 2015 07:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(read("Fri, 31 Dec 2100 23:59:59 GMT"), Some(Duration::from_secs(3_600)));
        assert_eq!(read("99999999999999999999999"), Some(Duration::from_secs(3_600)));
        for junk in ["", "soon", "-5", "1.5", "1e3", "2015-10-21"] {
            assert_eq!(read(junk), None, "{junk:?}");
        }
    }
}
