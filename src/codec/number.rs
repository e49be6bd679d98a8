//! Exact decimals from their text: never a float, never a rounding, never work or memory beyond the text's length.
//!
//! A [`Decimal`] keeps up to 38 significant digits and any exponent. Longer ones keep their digit count only:
//! every limit in use (64-bit integers, percentages of 33 digits) refuses them by that count.

use crate::domain::money::{PERCENT_SCALE_MAX, Percent, PercentOutOfRange};

/// Digits that always fit the mantissa: 10^38 < 2^127.
const DIGITS_MAX: u64 = 38;

/// Digits of the largest i64.
const I64_DIGITS: i64 = 19;

/// `mantissa * 10^exponent`, the mantissa without trailing zeros; zero is all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    /// Meaningless when `digits > DIGITS_MAX`.
    mantissa: u128,
    /// Digits of the mantissa; 0 for zero.
    digits: u64,
    exponent: i64,
}

/// Why a decimal is not an i64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotAnI64 {
    Fraction,
    TooLarge,
}

impl Decimal {
    const ZERO: Self = Self { negative: false, mantissa: 0, digits: 0, exponent: 0 };

    /// Reads a number as JSON spells it (RFC 8259, section 6); anything else is `None`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.as_bytes() {
            [b'-', rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let (whole, rest) = split_digits(rest);
        if whole.is_empty() || (whole.len() > 1 && whole[0] == b'0') {
            return None;
        }
        let (fraction, rest) = match rest {
            [b'.', rest @ ..] => match split_digits(rest) {
                ([], _) => return None,
                split => split,
            },
            rest => (&[][..], rest),
        };
        let exponent = match rest {
            [] => 0,
            [b'e' | b'E', rest @ ..] => parse_exponent(rest)?,
            _ => return None,
        };
        Some(Self::assemble(negative, whole, fraction, exponent))
    }

    fn assemble(negative: bool, whole: &[u8], fraction: &[u8], exponent: i64) -> Self {
        let (mut mantissa, mut digits, mut zeros) = (0_u128, 0_u64, 0_u32);
        for digit in whole.iter().chain(fraction).map(|byte| byte - b'0') {
            if digit == 0 {
                // Zeros count only once another digit follows; leading ones never do.
                zeros = zeros.saturating_add(u32::from(digits > 0));
                continue;
            }
            digits += u64::from(zeros) + 1;
            if digits <= DIGITS_MAX {
                mantissa = mantissa * 10_u128.pow(zeros + 1) + u128::from(digit);
            }
            zeros = 0;
        }
        if digits == 0 {
            return Self::ZERO;
        }
        let places = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
        let exponent = exponent.saturating_sub(places).saturating_add(i64::from(zeros));
        Self { negative, mantissa, digits, exponent }
    }

    /// `unscaled / 10^scale`, as Avro's decimal has it: big-endian two's complement. `None` for no bytes at all.
    pub(super) fn from_twos_complement(unscaled: &[u8], scale: u32) -> Option<Self> {
        let negative = unscaled.first()? & 0x80 != 0;
        let filler = if negative { 0xff } else { 0x00 };
        let start = unscaled.iter().position(|&byte| byte != filler).unwrap_or(unscaled.len());
        let significant = &unscaled[start..];
        let mut wide = [filler; 17]; // one more than 128 bits: the sign survives a full mantissa
        let Some(tail) = wide.len().checked_sub(significant.len()).filter(|&tail| tail > 0) else {
            return Some(Self { negative, mantissa: 0, digits: u64::MAX >> 1, exponent: -i64::from(scale) });
        };
        wide[tail..].copy_from_slice(significant);
        let mut bits = [0_u8; 16];
        bits.copy_from_slice(&wide[1..]);
        let bits = u128::from_be_bytes(bits);
        let magnitude = if negative { bits.wrapping_neg() } else { bits };
        if negative && magnitude == 0 {
            // -2^128 exactly: the only value whose magnitude leaves 128 bits.
            return Some(Self { negative, mantissa: 0, digits: DIGITS_MAX + 1, exponent: -i64::from(scale) });
        }
        Some(Self::from_parts(negative, magnitude, -i64::from(scale)))
    }

    fn from_parts(negative: bool, mut mantissa: u128, mut exponent: i64) -> Self {
        if mantissa == 0 {
            return Self::ZERO;
        }
        while mantissa.is_multiple_of(10) {
            mantissa /= 10;
            exponent += 1;
        }
        Self { negative, mantissa, digits: u64::from(mantissa.ilog10()) + 1, exponent }
    }

    pub(super) fn to_i64(self) -> Result<i64, NotAnI64> {
        if self.digits == 0 {
            return Ok(0);
        }
        if self.exponent < 0 {
            return Err(NotAnI64::Fraction);
        }
        if self.magnitude() > I64_DIGITS {
            return Err(NotAnI64::TooLarge);
        }
        // At most 19 digits: far from 128 bits.
        let exponent = u32::try_from(self.exponent).map_err(|_| NotAnI64::TooLarge)?;
        let value = i128::try_from(self.mantissa * 10_u128.pow(exponent)).map_err(|_| NotAnI64::TooLarge)?;
        i64::try_from(if self.negative { -value } else { value }).map_err(|_| NotAnI64::TooLarge)
    }

    pub(super) fn to_percent(self) -> Result<Percent, PercentOutOfRange> {
        if self.digits == 0 {
            return Percent::new(0, 0);
        }
        if self.negative || self.magnitude() > 3 || self.exponent < -i64::from(PERCENT_SCALE_MAX) {
            return Err(PercentOutOfRange);
        }
        // At most 3 digits before the point and PERCENT_SCALE_MAX after it: 33 of 38.
        let mantissa = i128::try_from(self.mantissa).map_err(|_| PercentOutOfRange)?;
        let shift = u32::try_from(self.exponent.unsigned_abs()).map_err(|_| PercentOutOfRange)?;
        if self.exponent < 0 {
            Percent::new(mantissa, shift)
        } else {
            Percent::new(mantissa * 10_i128.pow(shift), 0)
        }
    }

    /// Digits before the decimal point; zero or less for values below one.
    fn magnitude(self) -> i64 {
        i64::try_from(self.digits).unwrap_or(i64::MAX).saturating_add(self.exponent)
    }
}

impl From<i64> for Decimal {
    fn from(value: i64) -> Self {
        Self::from_parts(value < 0, u128::from(value.unsigned_abs()), 0)
    }
}

fn split_digits(bytes: &[u8]) -> (&[u8], &[u8]) {
    bytes.split_at(bytes.iter().take_while(|byte| byte.is_ascii_digit()).count())
}

/// Saturates: beyond 10^18 places every limit has long been passed, and no text is long enough to come back.
fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let size = digits
        .iter()
        .fold(0_i64, |sum, digit| sum.saturating_mul(10).saturating_add(i64::from(digit - b'0')));
    Some(if negative { -size } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn integer(text: &str) -> Result<i64, NotAnI64> {
        Decimal::parse(text).expect(text).to_i64()
    }

    fn percent(text: &str) -> Result<(i128, u32), PercentOutOfRange> {
        Decimal::parse(text).expect(text).to_percent().map(Percent::normalized)
    }

    #[test]
    fn only_the_spellings_of_json_are_numbers() {
        for text in [
            "", "-", "+5", "05", "-01", ".5", "5.", "5.e1", "1e", "1e+", "0x10", "1_000", " 5", "5 ", "5,5",
            "NaN", "Infinity", "--1", "1e5.0", "٣",
        ] {
            assert_eq!(Decimal::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn integers_are_exact_to_the_last_unit_or_refused() {
        assert_eq!(integer("9007199254740993"), Ok(9_007_199_254_740_993));
        assert_eq!(integer("9223372036854775807"), Ok(i64::MAX));
        assert_eq!(integer("-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(integer("9223372036854775808"), Err(NotAnI64::TooLarge));
        assert_eq!(integer("-9223372036854775809"), Err(NotAnI64::TooLarge));
        assert_eq!(integer("1e4"), Ok(10_000));
        assert_eq!(integer("10000.0"), Ok(10_000));
        assert_eq!(integer("100000E-1"), Ok(10_000));
        assert_eq!(integer("0.00001e+9"), Ok(10_000));
        assert_eq!(integer("-0"), Ok(0));
        assert_eq!(integer("0e999999999999999999999999"), Ok(0));
        assert_eq!(integer("1.5"), Err(NotAnI64::Fraction));
        assert_eq!(integer("1e-1"), Err(NotAnI64::Fraction));
    }

    #[test]
    fn exponents_beyond_all_measure_are_refused_at_once() {
        for text in [
            "1e400",
            "1e999999999",
            "1e99999999999999999999999999999999",
            "123456789012345678901234567890123456789012345",
        ] {
            assert_eq!(integer(text), Err(NotAnI64::TooLarge), "{text}");
            assert_eq!(percent(text), Err(PercentOutOfRange), "{text}");
        }
        for text in [
            "1e-999999999",
            "1e-99999999999999999999999999999999",
            "12345678901234567890123456789012345678901234.5",
        ] {
            assert_eq!(integer(text), Err(NotAnI64::Fraction), "{text}");
            assert_eq!(percent(text), Err(PercentOutOfRange), "{text}");
        }
        let long = format!("1{}.{}e-70000", "0".repeat(70_000), "0".repeat(70_000));
        assert_eq!(integer(&long), Ok(1));
    }

    #[test]
    fn percentages_keep_every_digit() {
        assert_eq!(percent("0.57"), Ok((57, 2)));
        assert_eq!(percent("5.00"), Ok((5, 0)));
        assert_eq!(percent("1e2"), Ok((100, 0)));
        assert_eq!(percent("-0.0"), Ok((0, 0)));
        assert_eq!(percent("33.333333333333333333"), Ok((33_333_333_333_333_333_333, 18)));
        assert_eq!(percent("0.000000000000000000000000000001"), Ok((1, 30)));
        assert_eq!(
            percent("99.999999999999999999999999999999"),
            Ok((99_999_999_999_999_999_999_999_999_999_999, 30))
        );
        assert_eq!(percent("100.01"), Err(PercentOutOfRange));
        assert_eq!(percent("-1"), Err(PercentOutOfRange));
        assert_eq!(percent("1e3"), Err(PercentOutOfRange));
        assert_eq!(percent("1e-31"), Err(PercentOutOfRange));
    }

    #[test]
    fn b69_twos_complement_keeps_its_sign_and_scale() {
        let read = |bytes: &[u8], scale| Decimal::from_twos_complement(bytes, scale);
        assert_eq!(read(&[0x9c], 2), Decimal::parse("-1.00"));
        assert_eq!(read(&[0x00, 0xff], 1), Decimal::parse("25.5"));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0x9c], 4), Decimal::parse("-0.0100"));
        assert_eq!(read(&[0x00], 9), Decimal::parse("0"));
        assert_eq!(read(&[0xff], 0), Decimal::parse("-1"));
        assert_eq!(read(&[0x80], 0), Decimal::parse("-128"));
        assert_eq!(read(&[0xff, 0x00], 0), Decimal::parse("-256"));
        assert_eq!(read(&[], 0), None);
        assert_eq!(read(&[0x7f; 40], 0).map(Decimal::to_i64), Some(Err(NotAnI64::TooLarge)));
        let mut edge = [0_u8; 17];
        edge[0] = 0xff;
        assert_eq!(read(&edge, 0).map(Decimal::to_i64), Some(Err(NotAnI64::TooLarge)));
    }

    /// Other spellings of `mantissa * 10^-places`: a shifted exponent, and zeros that say nothing.
    fn spell(mantissa: i128, places: u32, shift: i32, zeros: usize) -> String {
        let sign = if mantissa < 0 { "-" } else { "" };
        let digits = format!("{:0>width$}", mantissa.unsigned_abs(), width = places as usize + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places as usize);
        let exponent = if shift == 0 { String::new() } else { format!("e{shift}") };
        format!("{sign}{whole}.{fraction}{}{exponent}", "0".repeat(zeros.max(1)))
    }

    proptest! {
        #[test]
        fn every_exact_spelling_of_an_amount_is_its_value(value in any::<i64>(), places in 0_u32..40, zeros in 0_usize..40) {
            // value = (value * 10^-places) * 10^places
            let text = spell(i128::from(value), places, i32::try_from(places).expect("small"), zeros);
            prop_assert_eq!(integer(&text), Ok(value));
        }

        #[test]
        fn every_exact_spelling_of_a_percentage_is_its_value(mantissa in 0_i128..=100_000_000_000, zeros in 0_usize..40, shift in 0_i32..20) {
            // mantissa / 10^9, written with its point moved `shift` places to the left and put back.
            let text = spell(mantissa, 9 + u32::try_from(shift).expect("small"), shift, zeros);
            let got = Decimal::parse(&text).expect("a number").to_percent();
            prop_assert_eq!(got, Percent::new(mantissa, 9));
        }

        #[test]
        fn twos_complement_and_text_agree(value in -10_i128.pow(38) + 1..10_i128.pow(38), scale in 0_u32..40) {
            let text = spell(value, scale, 0, 0);
            prop_assert_eq!(Decimal::from_twos_complement(&value.to_be_bytes(), scale), Decimal::parse(&text));
        }

        #[test]
        fn any_text_is_a_number_exactly_when_json_says_so(text in "-?[0-9]{0,3}(\\.[0-9]{0,3})?([eE][-+]?[0-9]{0,2})?|[-+0-9.eE]{0,12}") {
            prop_assert_eq!(Decimal::parse(&text).is_some(), serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok());
        }
    }
}
