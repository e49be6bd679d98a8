//! An OTLP receiver: gRPC on one port, protobuf over HTTP on another; keeps every span.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::codegen::Service as _;

use super::{SOON, eventually};

/// Served until it is dropped.
pub struct Collector {
    kept: Kept,
    pub http_port: u16,
    pub grpc_port: u16,
    _servers: JoinSet<()>,
}

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Received>>);

#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    services: Vec<String>,
    /// The header `x-acesso` of each request.
    access: Vec<Option<String>>,
}

impl Collector {
    pub async fn start() -> Self {
        let kept = Kept::default();
        let mut servers = JoinSet::new();
        let http = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let grpc = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = |socket: &TcpListener| socket.local_addr().expect("bound").port();
        let (http_port, grpc_port) = (port(&http), port(&grpc));
        let receiver = TraceServiceServer::new(kept.clone());
        let router = axum::Router::new()
            .route("/v1/traces", axum::routing::post(over_http))
            .with_state(receiver.clone());
        servers.spawn(async move { axum::serve(http, router).await.expect("it serves until it is dropped") });
        servers.spawn(async move {
            let incoming = tonic::transport::server::TcpIncoming::from(grpc);
            let server = tonic::transport::Server::builder().add_service(receiver);
            server.serve_with_incoming(incoming).await.expect("it serves until it is dropped");
        });
        Self { kept, http_port, grpc_port, _servers: servers }
    }

    pub fn spans(&self) -> Vec<Span> {
        self.kept.lock().spans.clone()
    }

    /// Every `service.name` that came with spans.
    pub fn services(&self) -> Vec<String> {
        self.kept.lock().services.clone()
    }

    pub fn access(&self) -> Vec<Option<String>> {
        self.kept.lock().access.clone()
    }

    /// The first span for which this holds, once it is there.
    pub async fn span(&self, what: &str, is_it: impl Fn(&Span) -> bool) -> Span {
        eventually(what, SOON, async || self.spans().into_iter().find(|span| is_it(span))).await
    }
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Received> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let access = request.metadata().get("x-acesso").and_then(|value| value.to_str().ok());
        let access = access.map(str::to_owned);
        let mut received = self.lock();
        received.access.push(access);
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.map(|resource| resource.attributes).unwrap_or_default();
            for attribute in attributes.into_iter().filter(|attribute| attribute.key == "service.name") {
                if let Some(Value::StringValue(name)) = attribute.value.and_then(|value| value.value) {
                    received.services.push(name);
                }
            }
            received.spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

/// OTLP over HTTP is the same message without gRPC's five bytes before it.
async fn over_http(
    State(mut receiver): State<TraceServiceServer<Kept>>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let mut framed = vec![0];
    framed.extend(u32::try_from(body.len()).expect("small").to_be_bytes());
    framed.extend(&body);
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    let mut request = Request::post(path).header("content-type", "application/grpc");
    if let Some(access) = headers.get("x-acesso") {
        request = request.header("x-acesso", access);
    }
    let request = request.body(Body::from(framed)).expect("a request");
    let answered = receiver.call(request).await.expect("it never fails");
    assert!(
        answered.headers().get("grpc-status").is_none_or(|status| status == "0"),
        "not a message of OTLP"
    );
    StatusCode::OK
}

/// An attribute as text.
pub fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}

/// Ids as they stand in a `traceparent`.
pub fn hex(id: &[u8]) -> String {
    id.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}
