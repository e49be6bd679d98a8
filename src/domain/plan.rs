//! `plan`: from an event and the policies to what should be true. Live, replay, redrive and dry run differ only
//! in what they do with a [`Plan`].

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use smallvec::SmallVec;

use super::effect::{EffectPolicy, EffectRequest, EffectTypeId, Mode, RequestBody, effect_key};
use super::event::{Digest, Event, digest_of};
use super::money::{Cents, commission};

/// The effect types of this deployment, in the order of the configuration.
#[derive(Debug, Clone)]
pub struct Policies(Arc<[EffectPolicy]>);

impl Policies {
    pub fn new(policies: Vec<EffectPolicy>) -> Self {
        Self(policies.into())
    }

    pub fn get(&self, id: EffectTypeId) -> &EffectPolicy {
        &self.0[usize::from(id.0)]
    }

    pub fn id_of(&self, name: &str) -> Option<EffectTypeId> {
        self.iter().find(|(_, policy)| policy.name == name).map(|(id, _)| id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (EffectTypeId, &EffectPolicy)> {
        (0_u16..).map(EffectTypeId).zip(self.0.iter())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What `comissao` should say because of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommissionWrite {
    pub order_id: String,
    pub amount: Cents,
    pub version: i64,
    pub event_id: String,
    /// `resumo_evento`
    pub event_digest: Digest,
}

/// What should be true because of one event: one commission write and one request per effect type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub commission: CommissionWrite,
    pub effects: SmallVec<[EffectRequest; 2]>,
}

/// Pure: the same event and policies always make the same plan. Times come from the event, never from a clock.
pub fn plan(event: Event, policies: &Policies) -> Plan {
    let event_digest = event.digest();
    let amount = commission(event.amount, event.percent);
    let occurred_at = event.occurred_at.to_string();
    let effects = policies
        .iter()
        .filter(|(_, policy)| policy.on_event)
        .map(|(effect_type, policy)| {
            let key = effect_key(&event.id, &policy.name);
            let body = render(&RequestBody {
                chave: Cow::Borrowed(&key),
                evento_id: Cow::Borrowed(&event.id),
                tipo_efeito: Cow::Borrowed(&policy.name),
                pedido_id: Cow::Borrowed(&event.order_id),
                valor_centavos: amount.0,
                ocorrido_em: Cow::Borrowed(&occurred_at),
            });
            let early = policy.effective_from.is_some_and(|from| event.occurred_at < from);
            let mode = if early { Mode::Suppress } else { policy.mode };
            EffectRequest { effect_type, digest: digest_of(body.as_bytes()), key, body, mode }
        })
        .collect();
    Plan {
        commission: CommissionWrite {
            order_id: event.order_id,
            amount,
            version: event.version,
            event_id: event.id,
            event_digest,
        },
        effects,
    }
}

/// An effect that no event asks for: what a saga's step is to the outside world.
#[derive(Debug, Clone, Copy)]
pub struct Errand<'a> {
    pub effect_type: EffectTypeId,
    /// Stands for the event: `<saga id>-<step>`.
    pub event_id: &'a str,
    pub order_id: &'a str,
    /// The ledger holds one effect per order, version and type. Errands count downwards from -1, where no event is.
    pub version: i64,
    pub amount: Cents,
    pub occurred_at: Timestamp,
}

impl Errand<'_> {
    /// The same errand always makes the same request. Nothing of it is a commission.
    pub fn plan(self, policies: &Policies) -> Plan {
        let policy = policies.get(self.effect_type);
        let key = effect_key(self.event_id, &policy.name);
        let occurred_at = self.occurred_at.to_string();
        let body = render(&RequestBody {
            chave: Cow::Borrowed(&key),
            evento_id: Cow::Borrowed(self.event_id),
            tipo_efeito: Cow::Borrowed(&policy.name),
            pedido_id: Cow::Borrowed(self.order_id),
            valor_centavos: self.amount.0,
            ocorrido_em: Cow::Borrowed(&occurred_at),
        });
        let digest = digest_of(body.as_bytes());
        let request = EffectRequest { effect_type: self.effect_type, digest, key, body, mode: policy.mode };
        let commission = CommissionWrite {
            order_id: self.order_id.to_owned(),
            amount: self.amount,
            version: self.version,
            event_id: self.event_id.to_owned(),
            event_digest: digest,
        };
        Plan { commission, effects: SmallVec::from_iter([request]) }
    }
}

/// Room for a body with two ids of 36 bytes: its memory is taken once and never grown.
const BODY_BYTES: usize = 320;

fn render(body: &RequestBody<'_>) -> String {
    let mut text = Vec::with_capacity(BODY_BYTES);
    // Strings and one integer into memory: neither serialization nor UTF-8 has a way to fail.
    serde_json::to_writer(&mut text, body)
        .map_or_else(|_| String::new(), |()| String::from_utf8(text).unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::domain::effect::{OnFailure, body_from_stored};
    use crate::domain::money::Percent;
    use std::time::Duration;

    pub(crate) fn policy(name: &str) -> EffectPolicy {
        EffectPolicy {
            name: name.to_owned(),
            mode: Mode::Apply,
            on_event: true,
            on_failure: OnFailure::Hold,
            effective_from: None,
            lease: Duration::from_secs(30),
            max_attempts: 5,
            backoff_initial: Duration::from_millis(200),
            backoff_max: Duration::from_secs(30),
            key_memory: Duration::from_hours(24),
            slots: 64,
            per_second: None,
            circuit_threshold: 5,
            circuit_wait: Duration::from_secs(1),
        }
    }

    pub(crate) fn event(id: &str, order: &str, version: i64, amount: i64) -> Event {
        Event {
            id: id.to_owned(),
            order_id: order.to_owned(),
            version,
            amount: Cents(amount),
            percent: Percent::new(5, 0).expect("5 %"),
            occurred_at: "2026-10-14T09:00:00-03:00".parse().expect("an instant"),
        }
    }

    #[test]
    fn b12_keys_come_from_business_identity_and_effect_name() {
        let policies = Policies::new(vec![policy("notificar-vendedor"), policy("pagar-repasse")]);
        let p = plan(event("evt-1", "ped-1", 1, 10_000), &policies);
        let keys: Vec<_> = p.effects.iter().map(|e| e.key.as_str()).collect();
        assert_eq!(keys, ["evt-1:notificar-vendedor", "evt-1:pagar-repasse"]);
        assert_eq!(p.commission.amount, Cents(500));
        assert_eq!(
            p.effects[0].body,
            r#"{"chave":"evt-1:notificar-vendedor","eventoId":"evt-1","tipoEfeito":"notificar-vendedor","pedidoId":"ped-1","valorCentavos":500,"ocorridoEm":"2026-10-14T12:00:00Z"}"#
        );
    }

    #[test]
    fn a_stored_body_is_rebuilt_byte_for_byte() {
        let policies = Policies::new(vec![policy("notificar-vendedor")]);
        let p = plan(event("evt-\"é\\", "ped", 1, 1), &policies);
        let reordered: serde_json::Value = serde_json::from_str(&p.effects[0].body).expect("json");
        let stored = format!("{reordered:#}");
        assert_eq!(body_from_stored(&stored).expect("our own body"), p.effects[0].body);
    }

    #[test]
    fn b25_events_before_the_effective_date_are_suppressed() {
        let mut late = policy("notificar-vendedor");
        late.effective_from = Some("2026-11-01T00:00:00Z".parse().expect("an instant"));
        let p = plan(event("e", "p", 1, 1), &Policies::new(vec![late]));
        assert_eq!(p.effects[0].mode, Mode::Suppress);
    }
}
