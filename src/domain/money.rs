//! Exact money: integer cents, exact percentages, one rounding rule.
//!
//! Commission = valor x percentual / 100, **half away from zero**: 5000 x 0.57 % = 28.5 -> 29, and the reversal
//! of an amount is exactly the negative of its commission, so books close. No floats anywhere.

use num_bigint::BigInt;

/// An amount in integer cents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cents(pub i64);

/// Most decimal places a percentage may have; mantissas then fit 128 bits with room.
pub const PERCENT_SCALE_MAX: u32 = 30;

/// An exact decimal from 0 to 100: `mantissa / 10^scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Percent {
    mantissa: i128,
    scale: u32,
}

/// A percentage outside 0 to 100, or with more than [`PERCENT_SCALE_MAX`] decimal places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be from 0 to 100, with at most {PERCENT_SCALE_MAX} decimal places")]
pub struct PercentOutOfRange;

impl Percent {
    /// `mantissa / 10^scale`, with trailing zeros dropped so that equal percentages are equal values.
    pub fn new(mut mantissa: i128, mut scale: u32) -> Result<Self, PercentOutOfRange> {
        while scale > 0 && mantissa % 10 == 0 {
            mantissa /= 10;
            scale -= 1;
        }
        if scale > PERCENT_SCALE_MAX || mantissa < 0 || mantissa > 100 * 10_i128.pow(scale) {
            return Err(PercentOutOfRange);
        }
        Ok(Self { mantissa, scale })
    }

    /// Mantissa and scale without trailing zeros.
    pub const fn normalized(self) -> (i128, u32) {
        (self.mantissa, self.scale)
    }
}

/// Commission in cents, half away from zero. Cannot overflow: `percent` is at most 100.
pub fn commission(amount: Cents, percent: Percent) -> Cents {
    let divisor = 100 * 10_i128.pow(percent.scale);
    let magnitude = i128::from(amount.0.unsigned_abs());
    let rounded = magnitude
        .checked_mul(percent.mantissa)
        .and_then(|product| product.checked_add(divisor / 2))
        .map_or_else(|| wide_quotient(magnitude, percent.mantissa, divisor), |sum| sum / divisor);
    let signed = if amount.0 < 0 { -rounded } else { rounded };
    // |result| <= |amount|, which is an i64; i64::MIN at 100 % is itself.
    Cents(i64::try_from(signed).unwrap_or(amount.0))
}

/// `(magnitude * mantissa + divisor / 2) / divisor` where 128 bits do not suffice.
fn wide_quotient(magnitude: i128, mantissa: i128, divisor: i128) -> i128 {
    let sum = BigInt::from(magnitude) * mantissa + divisor / 2;
    i128::try_from(sum / divisor).unwrap_or(magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn percent(mantissa: i128, scale: u32) -> Percent {
        Percent::new(mantissa, scale).expect("in range")
    }

    #[test]
    fn b24_half_away_from_zero_and_reversals_close_the_books() {
        assert_eq!(commission(Cents(5000), percent(57, 2)), Cents(29));
        assert_eq!(commission(Cents(7000), percent(115, 2)), Cents(81));
        assert_eq!(commission(Cents(10050), percent(25, 0)), Cents(2513));
        assert_eq!(commission(Cents(-10050), percent(25, 0)), Cents(-2513));
        assert_eq!(commission(Cents(1), percent(50, 0)), Cents(1));
    }

    #[test]
    fn extremes_are_exact() {
        assert_eq!(commission(Cents(i64::MAX), percent(100, 0)), Cents(i64::MAX));
        assert_eq!(commission(Cents(i64::MIN), percent(100, 0)), Cents(i64::MIN));
        let third = percent(33_333_333_333_333_333_333, 18);
        assert_eq!(commission(Cents(333), third), Cents(111));
        let long = percent(99_999_999_999_999_999_999_999_999_999_999, 30);
        assert_eq!(commission(Cents(i64::MAX), long), Cents(i64::MAX));
        assert!(Percent::new(-1, 0).is_err() && Percent::new(10001, 2).is_err());
    }

    #[test]
    fn spelling_does_not_matter() {
        assert_eq!(percent(500, 2), percent(5, 0));
    }

    proptest! {
        #[test]
        fn a_reversal_is_the_exact_negative(amount in -i64::MAX..=i64::MAX, mantissa in 0_i128..=10_000_000, scale in 5_u32..=5) {
            let p = percent(mantissa, scale);
            prop_assert_eq!(commission(Cents(amount), p).0, -commission(Cents(-amount), p).0);
        }

        #[test]
        fn the_error_is_at_most_half_a_cent(amount in any::<i64>(), mantissa in 0_i128..=10_000_000) {
            let c = commission(Cents(amount), percent(mantissa, 5));
            // 2 * |amount * mantissa - c * 10^7| <= 10^7
            let exact = BigInt::from(amount) * mantissa;
            let gap: BigInt = exact - BigInt::from(c.0) * 10_000_000;
            prop_assert!(gap.magnitude() * 2u32 <= BigInt::from(10_000_000).magnitude().clone());
        }
    }
}
