//! The outbox table: added to in the transaction of the append, read and marked by the relay.

use sqlx::PgConnection;
use sqlx::types::Json;

use super::error::StoreError;
use crate::outbox::message::{Message, header};

/// Channel of the hint that there is something to publish.
pub const CHANNEL: &str = "reprise_outbox";

/// One statement, so that adding costs one round trip; the advisory key decides who notifies (see [`add`]).
const ADD: &str = "
    with added as (
        insert into outbox (id, destination, aggregate_type, aggregate_id, event_type, payload, headers,
                            schema_version, tenant_id, traceparent)
        select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::jsonb[], $7::jsonb[],
                             $8::text[], $9::text[], $10::text[])
        returning 1
    )
    select case when pg_try_advisory_xact_lock(7453627, 1) then pg_notify('reprise_outbox', '') is null end
    from (select count(*) from added) as counted";

/// Adds messages to the transaction that is open on `connection`, in their order.
///
/// The hint for the relay is sent at the commit and carries nothing. Commits that notify queue on one lock of the
/// whole database, so only one open transaction at a time does: its commit speaks for those that found it there.
/// A hint that is missed (that transaction rolled back) costs the relay's poll interval, nothing else.
pub async fn add(connection: &mut PgConnection, messages: &[Message]) -> Result<(), StoreError> {
    if messages.is_empty() {
        return Ok(());
    }
    let texts = |of: fn(&Message) -> &str| messages.iter().map(of).collect::<Vec<&str>>();
    let optional = |name: &'static str| {
        messages.iter().map(|message| message.headers.get(name).map(String::as_str)).collect::<Vec<_>>()
    };
    sqlx::query(ADD)
        .bind(messages.iter().map(|message| message.id).collect::<Vec<_>>())
        .bind(texts(|message| message.destination.as_str()))
        .bind(texts(|message| message.aggregate_type))
        .bind(texts(|message| &message.aggregate_id))
        .bind(texts(|message| &message.event_type))
        .bind(messages.iter().map(|message| &message.payload).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| Json(&message.headers)).collect::<Vec<_>>())
        .bind(optional(header::SCHEMA_VERSION))
        .bind(optional(header::TENANT_ID))
        .bind(optional(header::TRACEPARENT))
        .fetch_one(connection)
        .await?;
    Ok(())
}
