//! The published schemas of the order side, every version there ever was.
//!
//! A change is a new file beside its predecessors (`schemas/orders.events/<event type>/<version>.avsc`) and a line
//! here; the tests hold it against all of them, as a registry set to `FULL_TRANSITIVE` would.

use super::PEDIDO_PAGO_AVSC;

/// One version of one message's schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Header `event_type`.
    pub event_type: &'static str,
    /// Header `schema_version`.
    pub version: u32,
    pub text: &'static str,
}

macro_rules! published {
    ($event_type:literal, $version:literal) => {
        Published {
            event_type: $event_type,
            version: $version,
            text: include_str!(concat!("../../schemas/orders.events/", $event_type, "/", $version, ".avsc")),
        }
    };
}

/// `orders.events`, versions of one event type in their order.
pub const ORDER_EVENTS: &[Published] = &[
    published!("OrderPlaced", 1),
    published!("OrderPaid", 1),
    published!("CourierAssigned", 1),
    published!("CourierAssigned", 2),
    published!("PickedUp", 1),
    published!("OutForDelivery", 1),
    published!("Delivered", 1),
    published!("CancellationRequested", 1),
    published!("Cancelled", 1),
];

/// `pedido.pago`.
pub const PEDIDO_PAGO: &[Published] =
    &[Published { event_type: "pedido.pago", version: 1, text: PEDIDO_PAGO_AVSC }];

/// The version that is asked for, else the newest.
pub fn find(published: &'static [Published], event_type: &str, version: Option<u32>) -> Option<Published> {
    published
        .iter()
        .rev()
        .find(|known| {
            known.event_type == event_type && version.is_none_or(|version| version == known.version)
        })
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use apache_avro::Schema;
    use apache_avro::schema_compatibility::SchemaCompatibility;

    fn parsed(published: &Published) -> Schema {
        Schema::parse_str(published.text)
            .unwrap_or_else(|e| panic!("{} {}: {e}", published.event_type, published.version))
    }

    #[test]
    fn every_schema_is_backward_and_full_transitive_compatible_with_all_its_predecessors() {
        let mut pairs = 0;
        for new in ORDER_EVENTS.iter().chain(PEDIDO_PAGO) {
            for old in ORDER_EVENTS.iter().filter(|old| old.event_type == new.event_type) {
                let (old, new) = (parsed(old), parsed(new));
                SchemaCompatibility::can_read(&old, &new).expect("new readers read old data");
                SchemaCompatibility::can_read(&new, &old).expect("old readers read new data");
                pairs += 1;
            }
        }
        assert_eq!(
            pairs, 11,
            "8 event types with themselves, CourierAssigned 1 and 2 with each other and 2 itself"
        );
    }

    #[test]
    fn the_check_refuses_what_a_registry_would() {
        let old =
            Schema::parse_str(r#"{"type":"record","name":"A","fields":[{"name":"x","type":"string"}]}"#)
                .expect("a schema");
        let required = Schema::parse_str(
            r#"{"type":"record","name":"A","fields":[{"name":"x","type":"string"},{"name":"y","type":"string"}]}"#,
        )
        .expect("a schema");
        let retyped =
            Schema::parse_str(r#"{"type":"record","name":"A","fields":[{"name":"x","type":"long"}]}"#)
                .expect("a schema");
        assert!(SchemaCompatibility::can_read(&old, &required).is_err(), "a new field without a default");
        assert!(SchemaCompatibility::can_read(&old, &retyped).is_err(), "another type");
    }

    #[test]
    fn the_newest_version_is_found_where_none_is_named() {
        let version = |asked| find(ORDER_EVENTS, "CourierAssigned", asked).map(|found| found.version);
        assert_eq!(
            [version(None), version(Some(1)), version(Some(2)), version(Some(3))],
            [Some(2), Some(1), Some(2), None]
        );
    }
}
