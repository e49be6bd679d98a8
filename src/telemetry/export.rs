//! Spans to a collector, on a thread of their own.
//!
//! ```text
//!   spans ──try_send──► bounded queue ──every 200 ms──► batch ──► OTLP (HTTP or gRPC)
//!              └─ full: dropped and counted          └─ failed or too slow: counted
//! ```
//!
//! Promises:
//! * business work is never delayed: a span is handed over without waiting, and the exporter has its own thread and
//!   runtime, so that neither a slow collector nor one that never answers is felt anywhere else;
//! * memory is bounded by [`QUEUE`] spans;
//! * the end comes last and is bounded: when the [`Exporter`] is dropped it sends what is left for at most
//!   [`CLOSE_WITHIN`], and says so where that was not enough (test `b74_...`);
//! * every span is counted once, as delivered, dropped or failed.

use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol as Wire, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
    WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    Sampler, SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Traces;
use crate::domain::effect::{Run, RunKind};
use crate::metrics::{Metrics, SpanFate};

/// Spans that may wait: half a second at 15,000 events a second with everything sampled; about 8 MB.
const QUEUE: usize = 16_384;
/// Spans in one request; collectors accept 4 MB.
const BATCH: usize = 512;
/// How long spans are gathered. The queue has no waiter meanwhile, so handing one over wakes nobody.
const EVERY: Duration = Duration::from_millis(200);
/// A request that takes longer is given up, and its spans with it.
const EXPORT_WITHIN: Duration = Duration::from_secs(10);
/// The last requests at the end of the process. Small against any grace period.
pub const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// The request that is under way then, or the last one: it must end before the wait for it does.
const LAST_REQUEST: Duration = Duration::from_millis(1500);

/// `protocolo`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Protobuf over HTTP, to `/v1/traces`.
    Http,
    Grpc,
}

/// Where traces go, and how many.
pub struct Settings {
    /// The collector's address; for HTTP, `/v1/traces` is added where it has no path.
    pub endpoint: String,
    pub protocol: Protocol,
    /// Share of the traces that begin here, above 0 and up to 1. A trace that came with an event is followed as its
    /// producer decided.
    pub sample: f64,
    /// Sent with every request. May hold a token.
    pub headers: Vec<(String, String)>,
    /// `service.name`; else `OTEL_SERVICE_NAME`, else `reprise`.
    pub service: Option<String>,
    pub group: String,
    pub dlq_topic: String,
    pub run: Run,
}

/// Why no exporter can be made of the settings.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("telemetria.endpoint: {0}")]
    Exporter(#[from] ExporterBuildError),
    #[error("telemetria.cabecalhos_arquivo: a header cannot be sent by this protocol")]
    Header,
    #[error("traces: their thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
    #[error("traces: their thread ended at once")]
    Gone,
}

/// The running exporter. Dropping it delivers what is left, within [`CLOSE_WITHIN`].
pub struct Exporter {
    closing: CancellationToken,
    ended: std_mpsc::Receiver<()>,
}

impl Exporter {
    /// Starts the thread. Nobody is asked whether the collector answers.
    pub fn start(settings: Settings, metrics: Arc<Metrics>) -> Result<(Self, Traces), TelemetryError> {
        let (queue, spans) = mpsc::channel(QUEUE);
        let closing = CancellationToken::new();
        let (ended_out, ended) = std_mpsc::channel();
        let (ready_out, ready) = std_mpsc::channel();
        let resource = resource(settings.service.as_deref());
        let pump = Pump { spans, closing: closing.clone(), metrics: Arc::clone(&metrics), away: false };
        let (endpoint, described) = (endpoint(&settings), resource.clone());
        let (protocol, headers) = (settings.protocol, settings.headers);
        std::thread::Builder::new().name("traces".to_owned()).spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return ready_out.send(Err(error.into())).unwrap_or_default(),
            };
            runtime.block_on(async {
                // Made here: both clients bind to the runtime that they are made on.
                let told = match exporter(protocol, endpoint, headers) {
                    Ok(mut exporter) => {
                        exporter.set_resource(&described);
                        ready_out.send(Ok(())).map(|()| Some(exporter))
                    }
                    Err(error) => ready_out.send(Err(error)).map(|()| None),
                };
                if let Ok(Some(exporter)) = told {
                    pump.run(exporter).await;
                }
            });
            // Before the runtime goes: a name that is still being resolved must not hold the end.
            ended_out.send(()).unwrap_or_default();
        })?;
        ready.recv().map_err(|_| TelemetryError::Gone)??;
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(settings.sample))))
            .with_resource(resource)
            .with_span_processor(Queue { queue, metrics })
            .build();
        let group = (settings.run.kind == RunKind::Live).then_some(settings.group);
        let traces = Traces::on(provider.tracer("reprise"), settings.run, group, settings.dlq_topic);
        Ok((Self { closing, ended }, traces))
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.closing.cancel();
        if self.ended.recv_timeout(CLOSE_WITHIN) == Err(std_mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!(waited = ?CLOSE_WITHIN, "the thread of the traces does not end; the last ones are lost");
        }
    }
}

fn resource(service: Option<&str>) -> Resource {
    let from_environment = std::env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty());
    let builder = Resource::builder();
    match service {
        Some(name) => builder.with_service_name(name.to_owned()),
        None if from_environment => builder,
        None => builder.with_service_name("reprise"),
    }
    .build()
}

/// An HTTP endpoint without a path is the collector's base address.
fn endpoint(settings: &Settings) -> String {
    match (settings.protocol, url::Url::parse(&settings.endpoint)) {
        (Protocol::Http, Ok(mut url)) if matches!(url.path(), "" | "/") => {
            url.set_path("/v1/traces");
            url.into()
        }
        _ => settings.endpoint.clone(),
    }
}

fn exporter(
    protocol: Protocol,
    endpoint: String,
    headers: Vec<(String, String)>,
) -> Result<SpanExporter, TelemetryError> {
    Ok(match protocol {
        Protocol::Http => SpanExporter::builder()
            .with_http()
            .with_protocol(Wire::HttpBinary)
            .with_endpoint(endpoint)
            .with_timeout(EXPORT_WITHIN)
            .with_headers(headers.into_iter().collect())
            .build()?,
        Protocol::Grpc => {
            let mut fields = hyper::HeaderMap::new();
            for (name, value) in headers {
                let name = hyper::header::HeaderName::try_from(name).map_err(|_| TelemetryError::Header)?;
                let value =
                    hyper::header::HeaderValue::try_from(value).map_err(|_| TelemetryError::Header)?;
                fields.insert(name, value);
            }
            SpanExporter::builder()
                .with_tonic()
                .with_endpoint(endpoint)
                .with_timeout(EXPORT_WITHIN)
                .with_metadata(MetadataMap::from_headers(fields))
                .build()?
        }
    })
}

/// Hands ended spans over without waiting.
#[derive(Debug)]
struct Queue {
    queue: mpsc::Sender<SpanData>,
    metrics: Arc<Metrics>,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.queue.try_send(span).is_err() {
            self.metrics.spans(SpanFate::Dropped, 1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    /// The [`Exporter`] ends it.
    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The other end of the queue.
struct Pump {
    spans: mpsc::Receiver<SpanData>,
    closing: CancellationToken,
    metrics: Arc<Metrics>,
    /// The last request failed.
    away: bool,
}

impl Pump {
    async fn run(mut self, exporter: SpanExporter) {
        loop {
            let closing = self.closing.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_none();
            while let Some(batch) = self.next_batch() {
                self.send(&exporter, batch).await;
                if self.away && self.closing.is_cancelled() {
                    let lost = self.spans.len();
                    self.metrics.spans(SpanFate::Failed, lost);
                    tracing::warn!(waiting = lost, "the collector does not answer; the last traces are lost");
                    return;
                }
            }
            if closing {
                return;
            }
        }
    }

    fn next_batch(&mut self) -> Option<Vec<SpanData>> {
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Ok(span) = self.spans.try_recv()
        {
            batch.push(span);
        }
        (!batch.is_empty()).then_some(batch)
    }

    async fn send(&mut self, exporter: &SpanExporter, batch: Vec<SpanData>) {
        let count = batch.len();
        let at_the_end = async {
            self.closing.cancelled().await;
            tokio::time::sleep(LAST_REQUEST).await;
        };
        let result = tokio::select! {
            sent = exporter.export(batch) => sent.map_err(|error| error.to_string()),
            () = tokio::time::sleep(EXPORT_WITHIN) => Err(format!("no answer within {EXPORT_WITHIN:?}")),
            () = at_the_end => Err("no answer before the end".to_owned()),
        };
        match result {
            Ok(()) => {
                self.metrics.spans(SpanFate::Delivered, count);
                if std::mem::take(&mut self.away) {
                    tracing::info!("the collector takes traces again");
                }
            }
            Err(error) => {
                self.metrics.spans(SpanFate::Failed, count);
                // Once per outage: a collector that is away for a day must not fill the log.
                if !std::mem::replace(&mut self.away, true) {
                    tracing::warn!(error, "the collector does not take traces; they are lost until it does");
                }
            }
        }
    }
}
