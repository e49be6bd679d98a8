//! W3C Trace Context, level 1: which `traceparent` header may be carried on.

/// The header as a version 00 `traceparent`, if it is valid; an invalid one is as good as none.
///
/// Higher versions are read as the standard asks: by the fields that version 00 has.
pub fn traceparent(header: Option<&[u8]>) -> Option<String> {
    let text = std::str::from_utf8(header?).ok()?;
    let (known, rest) = text.split_at_checked(55)?;
    let mut parts = known.split('-');
    let version = hex(parts.next()?, 2)?;
    let trace_id = hex(parts.next()?, 32)?;
    let parent_id = hex(parts.next()?, 16)?;
    let flags = hex(parts.next()?, 2)?;
    let ends_right = parts.next().is_none() && (rest.is_empty() || version != "00" && rest.starts_with('-'));
    let all_zero = |id: &str| id.bytes().all(|digit| digit == b'0');
    if !ends_right || version == "ff" || all_zero(trace_id) || all_zero(parent_id) {
        return None;
    }
    Some(format!("00-{trace_id}-{parent_id}-{flags}"))
}

/// Exactly `len` lower-case hexadecimal digits.
fn hex(text: &str, len: usize) -> Option<&str> {
    (text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_valid_traceparent_is_carried_on() {
        assert_eq!(traceparent(Some(VALID.as_bytes())).as_deref(), Some(VALID));
        let later = VALID.replacen("00", "01", 1) + "-more";
        assert_eq!(traceparent(Some(later.as_bytes())).as_deref(), Some(VALID));
    }

    #[test]
    fn an_invalid_traceparent_is_as_good_as_none() {
        for bad in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-010",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
            "00-0af7651916cd43dd8448eb211c80319cb-7ad6b7169203331-01",
            " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(traceparent(Some(bad.as_bytes())), None, "{bad:?}");
        }
        assert_eq!(traceparent(None), None);
        assert_eq!(traceparent(Some(b"\xff\xfe")), None);
    }

    proptest! {
        #[test]
        fn any_header_is_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..80), text in "\\PC{50,60}") {
            prop_assert!(traceparent(Some(&bytes)).is_none_or(|valid| valid.len() == 55));
            prop_assert!(traceparent(Some(text.as_bytes())).is_none_or(|valid| valid.len() == 55));
        }
    }
}
