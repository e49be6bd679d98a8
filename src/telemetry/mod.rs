//! Traces: what one event went through, in the words of OpenTelemetry's messaging conventions.
//!
//! ```text
//!   producer ──► process pedido.pago ──► POST notificar-vendedor ──► provider (traceparent)
//!                   ├──► ledger wave   (child of its first event, linked to the others; the call links to it)
//!                   └──► send pedido.pago.dlq
//!   receive pedido.pago (one batch) ──links──► each producer
//! ```
//!
//! Promises:
//! * off, or with a sample of 0, an event costs one branch: no span, no allocation, no clock
//!   (test `nothing_is_made_while_traces_are_off`);
//! * live events go on with the trace of their Kafka header; a replay and a redrive are traces of their own, *linked*
//!   to it (test `b75_...`);
//! * the provider's `traceparent` is the span of that very call (test `the_tree_of_one_event_...`);
//! * spans hold ids and Kafka positions, never payloads, keys' secrets or provider answers;
//! * nothing here blocks or fails: a full queue drops spans and counts them ([`export`]).
//!
//! Not here: metrics and logs, and anything that decides about an event.

pub mod export;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags,
    TraceId, TraceState,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};

use crate::domain::effect::{Run, RunKind};
use crate::domain::record::RawRecord;

/// Links kept on one span; a batch may have more records, and a collector refuses spans without end.
const LINKS_MAX: usize = 128;

/// Where spans are made. Cheap to clone; the default makes none.
#[derive(Clone, Default)]
pub struct Traces(Option<Arc<Source>>);

struct Source {
    tracer: SdkTracer,
    run: Run,
    /// `messaging.consumer.group.name`, where there is one.
    group: Option<String>,
    dlq_topic: String,
}

/// A span that is open until it is dropped; nothing where traces are off.
#[derive(Debug, Default)]
pub struct Open(Option<Box<Span>>);

/// What a call span says about its request.
#[derive(Debug, Clone, Copy)]
pub struct CallFacts<'a> {
    pub effect: &'a str,
    /// `chave`
    pub key: &'a str,
    pub attempt: u32,
}

impl Traces {
    /// No traces: every span is nothing.
    pub fn off() -> Self {
        Self::default()
    }

    pub(crate) fn on(tracer: SdkTracer, run: Run, group: Option<String>, dlq_topic: String) -> Self {
        Self(Some(Arc::new(Source { tracer, run, group, dlq_topic })))
    }

    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// One batch taken from the log, linked to the context of each of its records.
    pub fn receive<'a>(
        &self,
        topic: &str,
        count: usize,
        contexts: impl Iterator<Item = Option<&'a str>>,
    ) -> Open {
        let Some(source) = &self.0 else { return Open::default() };
        let links = contexts.flatten().filter_map(remote).take(LINKS_MAX).map(linked).collect();
        let builder = SpanBuilder::from_name("receive").with_kind(SpanKind::Client).with_links(links);
        let mut span = builder.start_with_context(&source.tracer, &Context::new());
        if span.is_recording() {
            source.messaging(&mut span, "receive", topic);
            span.set_attribute(KeyValue::new("messaging.batch.message_count", number(count)));
        }
        Open(Some(Box::new(span)))
    }

    /// One record that has something to be done: from being read to being settled.
    pub fn process(
        &self,
        raw: &RawRecord,
        event_id: Option<&str>,
        context: Option<&str>,
        read_at: Instant,
    ) -> Open {
        let Some(source) = &self.0 else { return Open::default() };
        let origin = context.and_then(remote);
        let began = SystemTime::now().checked_sub(read_at.elapsed()).unwrap_or_else(SystemTime::now);
        let builder = SpanBuilder::from_name("process").with_kind(SpanKind::Consumer).with_start_time(began);
        let (builder, parent) = match origin {
            Some(origin) if source.run.kind == RunKind::Live => {
                (builder, Context::new().with_remote_span_context(origin))
            }
            // Handled again, perhaps a year later: a trace of its own that points to the first one.
            Some(origin) => (builder.with_links(vec![linked(origin)]), Context::new()),
            None => (builder, Context::new()),
        };
        let mut span = builder.start_with_context(&source.tracer, &parent);
        if span.is_recording() {
            source.messaging(&mut span, "process", &raw.topic);
            span.set_attribute(KeyValue::new(
                "messaging.destination.partition.id",
                raw.partition.to_string(),
            ));
            span.set_attribute(KeyValue::new("messaging.kafka.offset", raw.offset));
            if let Some(id) = event_id {
                span.set_attribute(KeyValue::new("messaging.message.id", id.to_owned()));
            }
        }
        Open(Some(Box::new(span)))
    }

    /// One transaction of the ledger. Nothing where none of its events is recorded.
    pub fn wave<'a>(&self, events: impl Iterator<Item = &'a Open>) -> Open {
        let Some(source) = &self.0 else { return Open::default() };
        let mut recorded = events.filter_map(Open::recorded);
        let Some(first) = recorded.next() else { return Open::default() };
        let own = first.span_id();
        let links = recorded.filter(|other| other.span_id() != own).take(LINKS_MAX).map(linked).collect();
        let parent = Context::new().with_remote_span_context(first);
        let builder = SpanBuilder::from_name("ledger wave").with_kind(SpanKind::Client).with_links(links);
        let mut span = builder.start_with_context(&source.tracer, &parent);
        if span.is_recording() {
            span.set_attribute(KeyValue::new("db.system.name", "postgresql"));
        }
        Open(Some(Box::new(span)))
    }

    /// One request to a provider, made under the reservation of `wave`.
    pub fn call(&self, event: &Open, wave: &Open, facts: CallFacts<'_>) -> Open {
        let Some(source) = &self.0 else { return Open::default() };
        let links = wave.recorded().map(linked).into_iter().collect();
        let builder = SpanBuilder::from_name("POST").with_kind(SpanKind::Client).with_links(links);
        let mut span = builder.start_with_context(&source.tracer, &event.as_parent());
        if span.is_recording() {
            span.update_name(format!("POST {}", facts.effect));
            span.set_attribute(KeyValue::new("http.request.method", "POST"));
            span.set_attribute(KeyValue::new("reprise.efeito", facts.effect.to_owned()));
            span.set_attribute(KeyValue::new("reprise.chave", facts.key.to_owned()));
            if facts.attempt > 1 {
                span.set_attribute(KeyValue::new("http.request.resend_count", i64::from(facts.attempt) - 1));
            }
        }
        Open(Some(Box::new(span)))
    }

    /// A dead letter on its way to its topic.
    pub fn send(&self, event: &Open) -> Open {
        let Some(source) = &self.0 else { return Open::default() };
        let builder = SpanBuilder::from_name("send").with_kind(SpanKind::Producer);
        let mut span = builder.start_with_context(&source.tracer, &event.as_parent());
        if span.is_recording() {
            source.messaging(&mut span, "send", &source.dlq_topic);
        }
        Open(Some(Box::new(span)))
    }
}

impl Source {
    fn messaging(&self, span: &mut Span, operation: &'static str, topic: &str) {
        span.update_name(format!("{operation} {topic}"));
        span.set_attribute(KeyValue::new("messaging.system", "kafka"));
        span.set_attribute(KeyValue::new("messaging.operation.name", operation));
        span.set_attribute(KeyValue::new("messaging.operation.type", operation));
        span.set_attribute(KeyValue::new("messaging.destination.name", topic.to_owned()));
        span.set_attribute(KeyValue::new("reprise.execucao", self.run.kind.as_str()));
        if self.run.kind != RunKind::Live {
            span.set_attribute(KeyValue::new("reprise.execucao.id", self.run.id.clone()));
        }
        if let (Some(group), true) = (&self.group, operation != "send") {
            span.set_attribute(KeyValue::new("messaging.consumer.group.name", group.clone()));
        }
    }
}

impl Open {
    /// The context to send out, whether or not the span is recorded; `None` where traces are off.
    pub fn traceparent(&self) -> Option<String> {
        let context = self.0.as_ref()?.span_context().clone();
        let flags = context.trace_flags().to_u8();
        context.is_valid().then(|| format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id()))
    }

    /// It did not come to what was wanted; `kind` is one of few words.
    pub fn failed(&mut self, kind: &'static str) {
        let Some(span) = self.recording() else { return };
        span.set_attribute(KeyValue::new("error.type", kind));
        span.set_status(Status::error(""));
    }

    /// What a provider's answer proved.
    pub fn answered(&mut self, proof: &'static str, status: Option<u16>, done: Done) {
        let Some(span) = self.recording() else { return };
        span.set_attribute(KeyValue::new("reprise.prova", proof));
        if let Some(status) = status {
            span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        }
        if done == Done::No {
            self.failed(proof);
        }
    }

    /// How much one wave wrote.
    pub fn wrote(&mut self, settled: usize, reserved: usize) {
        let Some(span) = self.recording() else { return };
        span.set_attribute(KeyValue::new("reprise.onda.encerrados", number(settled)));
        span.set_attribute(KeyValue::new("reprise.onda.reservados", number(reserved)));
    }

    fn recording(&mut self) -> Option<&mut Span> {
        self.0.as_deref_mut().filter(|span| span.is_recording())
    }

    fn recorded(&self) -> Option<SpanContext> {
        let span = self.0.as_ref()?;
        span.is_recording().then(|| span.span_context().clone())
    }

    fn as_parent(&self) -> Context {
        let context = self.0.as_ref().map(|span| span.span_context().clone());
        context.map_or_else(Context::new, |context| Context::new().with_remote_span_context(context))
    }
}

/// Whether a call did what was wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    Yes,
    No,
}

/// The context of a version 00 `traceparent`.
fn remote(traceparent: &str) -> Option<SpanContext> {
    let mut parts = traceparent.split('-').skip(1);
    let trace_id = TraceId::from_hex(parts.next()?).ok()?;
    let span_id = SpanId::from_hex(parts.next()?).ok()?;
    let flags = u8::from_str_radix(parts.next()?, 16).ok()?;
    let context = SpanContext::new(trace_id, span_id, TraceFlags::new(flags), true, TraceState::NONE);
    context.is_valid().then_some(context)
}

fn linked(context: SpanContext) -> Link {
    Link::new(context, Vec::new(), 0)
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn nothing_is_made_while_traces_are_off() {
        let traces = Traces::off();
        let raw = RawRecord::default();
        let event = traces.process(&raw, Some("evt-1"), Some(PARENT), Instant::now());
        let call = traces.call(&event, &Open::default(), CallFacts { effect: "e", key: "k", attempt: 1 });
        assert!(event.0.is_none() && call.0.is_none() && traces.wave([&event].into_iter()).0.is_none());
        assert_eq!(call.traceparent(), None, "the record's own header stays as it is");
    }

    #[test]
    fn a_context_is_read_with_its_flags() {
        let context = remote(PARENT).expect("valid");
        assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id().to_string(), "b7ad6b7169203331");
        assert!(context.is_sampled() && context.is_remote());
        assert!(!remote(&PARENT.replace("-01", "-00")).expect("valid").is_sampled());
    }
}
