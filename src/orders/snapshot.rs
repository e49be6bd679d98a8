//! The fold of an order as a cache: it saves reading old events, and is never believed without looking.
//!
//! A snapshot is used only if it is of this program's form, is of this order and version, and its digest is that of
//! what it holds. Anything else is as good as none, and is replaced when the next one is due.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::order::Order;

/// Form of the payload. Raise it whenever [`Order`] changes its meaning or its fields: 2 knows vehicle types.
pub const FORM: u32 = 2;

/// What is stored.
pub fn write(order: &Order) -> Result<Value, serde_json::Error> {
    let text = serde_json::to_string(order)?;
    Ok(json!({ "order": serde_json::to_value(order)?, "digest": digest(&text) }))
}

/// The order that was stored; `None` where it is not what it says.
pub fn read(order_id: Uuid, version: u32, payload: &str) -> Option<Order> {
    let stored: Value = serde_json::from_str(payload).ok()?;
    let order: Order = serde_json::from_value(stored.get("order")?.clone()).ok()?;
    let text = serde_json::to_string(&order).ok()?;
    let sound = order.order_id == order_id
        && order.version == version
        && stored.get("digest").and_then(Value::as_str) == Some(digest(&text).as_str());
    sound.then_some(order)
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        if write!(text, "{byte:02x}").is_err() {
            text.clear();
        }
        text
    })
}
