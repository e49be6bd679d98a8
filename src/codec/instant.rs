//! `ocorridoEm`: RFC 3339 with an offset, and nothing looser.
//!
//! General date parsers also take basic formats, missing seconds or bracketed zones; two readers then disagree on
//! what an event says. Taken here: `2026-10-14T12:00:00Z`, any fraction down to nanoseconds, any offset of the
//! form `±hh:mm`; `t`, `z` and a space for `T` as section 5.6 allows; second 60 as the last second of its minute.
//!
//! The instant is from year 1 to 9999 in UTC: what Postgres, RFC 3339 and the clock library all can hold.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::Offset;

/// 0001-01-01T00:00:00Z. Year zero has no spelling in Postgres.
const EARLIEST_SECOND: i64 = -62_135_596_800;

/// Why a text or number is not an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotAnInstant {
    /// Not RFC 3339 with an offset, or no such day or time of day.
    Form,
    /// Right form, but before year 1, after year 9999, or finer than a nanosecond.
    Range,
}

/// Unit of an instant that is counted from the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EpochUnit {
    Millis,
    Micros,
    Nanos,
}

pub(super) fn from_epoch(count: i64, unit: EpochUnit) -> Result<Timestamp, NotAnInstant> {
    let instant = match unit {
        EpochUnit::Millis => Timestamp::from_millisecond(count),
        EpochUnit::Micros => Timestamp::from_microsecond(count),
        EpochUnit::Nanos => Timestamp::from_nanosecond(i128::from(count)),
    };
    storable(instant.map_err(|_| NotAnInstant::Range)?)
}

pub(super) fn parse(text: &str) -> Result<Timestamp, NotAnInstant> {
    if has_wide_year(text) {
        return Err(NotAnInstant::Range);
    }
    let (date, rest) = take_date(text.as_bytes()).ok_or(NotAnInstant::Form)?;
    let (time, rest) = take_time(rest)?;
    let offset = parse_offset(rest).ok_or(NotAnInstant::Form)?;
    let local = DateTime::from_parts(date, time);
    storable(offset.to_timestamp(local).map_err(|_| NotAnInstant::Range)?)
}

fn storable(instant: Timestamp) -> Result<Timestamp, NotAnInstant> {
    if instant.as_second() < EARLIEST_SECOND { Err(NotAnInstant::Range) } else { Ok(instant) }
}

/// `+300000-01-01...`: an instant as other standards write it, beyond what RFC 3339 has room for.
fn has_wide_year(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    digits >= 4
        && unsigned.as_bytes().get(digits) == Some(&b'-')
        && (digits > 4 || unsigned.len() < text.len())
}

/// `YYYY-MM-DD` and the separator behind it.
fn take_date(text: &[u8]) -> Option<(Date, &[u8])> {
    let (head, rest) = text.split_first_chunk::<11>()?;
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T' | b't' | b' '] = *head else {
        return None;
    };
    let year = i16::from(two_digits([y1, y2])?) * 100 + i16::from(two_digits([y3, y4])?);
    let date = Date::new(year, two_digits([m1, m2])?, two_digits([d1, d2])?).ok()?;
    Some((date, rest))
}

/// `hh:mm:ss` and an optional fraction.
fn take_time(text: &[u8]) -> Result<(Time, &[u8]), NotAnInstant> {
    let (head, rest) = text.split_first_chunk::<8>().ok_or(NotAnInstant::Form)?;
    let [h1, h2, b':', m1, m2, b':', s1, s2] = *head else {
        return Err(NotAnInstant::Form);
    };
    let (Some(hour), Some(minute), Some(second)) =
        (two_digits([h1, h2]), two_digits([m1, m2]), two_digits([s1, s2]))
    else {
        return Err(NotAnInstant::Form);
    };
    let (nanos, rest) = take_fraction(rest)?;
    // A leap second has no instant of its own in Unix time.
    let second = if second == 60 { 59 } else { second };
    let time = Time::new(hour, minute, second, nanos).map_err(|_| NotAnInstant::Form)?;
    Ok((time, rest))
}

fn take_fraction(text: &[u8]) -> Result<(i32, &[u8]), NotAnInstant> {
    let [b'.', text @ ..] = text else {
        return Ok((0, text));
    };
    let (digits, rest) = text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count());
    if digits.is_empty() {
        return Err(NotAnInstant::Form);
    }
    let (kept, beyond) = digits.split_at(digits.len().min(9));
    if beyond.iter().any(|&digit| digit != b'0') {
        return Err(NotAnInstant::Range);
    }
    let padded = kept.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    Ok((padded.fold(0, |nanos, digit| nanos * 10 + i32::from(digit - b'0')), rest))
}

/// `Z` or `±hh:mm`, and nothing behind it.
fn parse_offset(text: &[u8]) -> Option<Offset> {
    let (sign, h1, h2, m1, m2) = match *text {
        [b'Z' | b'z'] => return Some(Offset::UTC),
        [b'+', h1, h2, b':', m1, m2] => (1, h1, h2, m1, m2),
        [b'-', h1, h2, b':', m1, m2] => (-1, h1, h2, m1, m2),
        _ => return None,
    };
    let (hours, minutes) = (i32::from(two_digits([h1, h2])?), i32::from(two_digits([m1, m2])?));
    if hours > 23 || minutes > 59 {
        return None;
    }
    Offset::from_seconds(sign * (hours * 3600 + minutes * 60)).ok()
}

fn two_digits([tens, ones]: [u8; 2]) -> Option<i8> {
    if !tens.is_ascii_digit() || !ones.is_ascii_digit() {
        return None;
    }
    i8::try_from((tens - b'0') * 10 + (ones - b'0')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nanos(text: &str) -> Result<i128, NotAnInstant> {
        parse(text).map(Timestamp::as_nanosecond)
    }

    #[test]
    fn the_same_instant_has_many_spellings() {
        // date -u -d 2026-10-14T12:00:00Z +%s
        let noon = 1_791_979_200_000_000_000;
        for text in [
            "2026-10-14T12:00:00Z",
            "2026-10-14t12:00:00z",
            "2026-10-14 12:00:00.000Z",
            "2026-10-14T09:00:00-03:00",
            "2026-10-14T17:45:00+05:45",
            "2026-10-14T12:00:00-00:00",
            "2026-10-14T12:00:00.00000000000000Z",
        ] {
            assert_eq!(nanos(text), Ok(noon), "{text}");
        }
        assert_eq!(nanos("2026-10-14T12:00:00.000000001Z"), Ok(noon + 1));
        assert_eq!(nanos("2026-10-14T12:00:00.5Z"), Ok(noon + 500_000_000));
        assert_eq!(nanos("1969-12-31T23:59:59.75Z"), Ok(-250_000_000));
        assert_eq!(nanos("2016-12-31T23:59:60Z"), nanos("2016-12-31T23:59:59Z"));
        assert_eq!(nanos("2024-02-29T00:00:00Z"), Ok(1_709_164_800_000_000_000));
    }

    #[test]
    fn looser_forms_are_refused() {
        for text in [
            "",
            "ontem",
            "2026",
            "2026-10-14",
            "2026-10-14T12:00:00",
            "2026-10-14T12:00Z",
            "20261014T120000Z",
            "2026-10-14T12:00:00+03",
            "2026-10-14T12:00:00+0300",
            "2026-10-14T12:00:00.Z",
            "2026-10-14T12:00:00,5Z",
            "2026-10-14T12:00:00Z ",
            " 2026-10-14T12:00:00Z",
            "2026-10-14T12:00:00Z[UTC]",
            "2026-10-14T12:00:00+24:00",
            "2026-10-14T12:00:00+00:60",
            "2026-10-14T24:00:00Z",
            "2026-10-14T12:60:00Z",
            "2026-10-14T12:00:61Z",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2025-02-29T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "２026-10-14T12:00:00Z",
            "2026-1é-14T12:00:00Z",
            "1791979200",
        ] {
            let got = nanos(text);
            assert!(
                got == Err(NotAnInstant::Form)
                    || text.starts_with("-2026") && got == Err(NotAnInstant::Range),
                "{text}: {got:?}"
            );
        }
    }

    #[test]
    fn b66_instants_that_nobody_can_store_are_out_of_range() {
        for text in [
            "300000-01-01T00:00:00Z",
            "+300000-01-01T00:00:00Z",
            "-000044-03-15T00:00:00Z",
            "0000-12-31T23:59:59Z",
            "0001-01-01T00:00:00+00:01",
            "9999-12-31T23:59:59Z",
            "2026-10-14T12:00:00.0000000001Z",
        ] {
            assert_eq!(nanos(text), Err(NotAnInstant::Range), "{text}");
        }
        assert_eq!(nanos("0001-01-01T00:00:00Z"), Ok(-62_135_596_800_000_000_000));
        for unit in [EpochUnit::Millis, EpochUnit::Micros] {
            assert_eq!(from_epoch(i64::MAX, unit), Err(NotAnInstant::Range));
            assert_eq!(from_epoch(i64::MIN, unit), Err(NotAnInstant::Range));
        }
        assert_eq!(from_epoch(i64::MAX, EpochUnit::Nanos).map(Timestamp::as_second), Ok(9_223_372_036));
        assert_eq!(from_epoch(-1, EpochUnit::Millis).map(Timestamp::as_nanosecond), Ok(-1_000_000));
    }

    proptest! {
        #[test]
        fn text_without_the_form_is_refused_and_never_a_panic(text in "\\PC{0,40}|[-+0-9TZ:. ]{0,19}") {
            prop_assert!(parse(&text).is_err());
        }

        #[test]
        fn an_offset_moves_the_clock_and_not_the_instant(hour in 0_i32..24, minute in 0_i32..60, east in -1439_i32..1440) {
            let sign = if east < 0 { '-' } else { '+' };
            let text = format!("2026-10-14T{hour:02}:{minute:02}:07.25{sign}{:02}:{:02}", east.abs() / 60, east.abs() % 60);
            // 1791936000 = 2026-10-14T00:00:00Z
            let seconds = 1_791_936_000 + i128::from(hour * 3600 + minute * 60 + 7 - east * 60);
            prop_assert_eq!(nanos(&text), Ok(seconds * 1_000_000_000 + 250_000_000));
        }
    }
}
