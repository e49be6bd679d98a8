//! A schema registry that speaks the Confluent REST API and checks `FULL_TRANSITIVE` compatibility; it can be away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use apache_avro::Schema;
use apache_avro::schema_compatibility::SchemaCompatibility;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

#[derive(Clone, Default)]
pub struct Registry(Arc<Inner>);

#[derive(Default)]
struct Inner {
    away: AtomicBool,
    url: Mutex<String>,
    /// (subject, schema); the id is the position and one.
    schemas: Mutex<Vec<(String, String)>>,
    registrations: Mutex<u32>,
}

impl Registry {
    pub async fn start() -> Self {
        let registry = Self::default();
        let app = Router::new()
            .route("/subjects/{subject}/versions", post(register))
            .route("/schemas/ids/{id}", get(by_id))
            .layer(from_fn_with_state(registry.clone(), door))
            .with_state(registry.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        *registry.0.url.lock().expect("whole") = format!("http://{address}");
        tokio::spawn(async move { axum::serve(listener, app).await });
        registry
    }

    pub fn url(&self) -> String {
        self.0.url.lock().expect("whole").clone()
    }

    /// 503 to everybody, until it is back.
    pub fn away(&self, away: bool) {
        self.0.away.store(away, Ordering::SeqCst);
    }

    pub fn subjects(&self) -> Vec<String> {
        let mut subjects: Vec<String> =
            self.0.schemas.lock().expect("whole").iter().map(|(subject, _)| subject.clone()).collect();
        subjects.sort();
        subjects.dedup();
        subjects
    }

    pub fn schema(&self, id: u32) -> String {
        self.0.schemas.lock().expect("whole")[id as usize - 1].1.clone()
    }

    /// How often anybody registered anything.
    pub fn registrations(&self) -> u32 {
        *self.0.registrations.lock().expect("whole")
    }

    /// Registers as another producer would.
    pub fn seed(&self, subject: &str, schema: &str) {
        self.0.schemas.lock().expect("whole").push((subject.to_owned(), schema.to_owned()));
    }
}

async fn door(State(registry): State<Registry>, request: Request, next: Next) -> Response {
    if registry.0.away.load(Ordering::SeqCst) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    next.run(request).await
}

async fn register(
    State(registry): State<Registry>,
    Path(subject): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let text = body["schema"].as_str().expect("a schema is a text").to_owned();
    *registry.0.registrations.lock().expect("whole") += 1;
    let mut schemas = registry.0.schemas.lock().expect("whole");
    if let Some(position) = schemas.iter().position(|known| *known == (subject.clone(), text.clone())) {
        return Json(json!({ "id": position + 1 })).into_response();
    }
    let new = Schema::parse_str(&text).expect("a schema");
    let compatible = schemas.iter().filter(|(of, _)| *of == subject).all(|(_, old)| {
        let old = Schema::parse_str(old).expect("a schema");
        SchemaCompatibility::can_read(&old, &new).is_ok() && SchemaCompatibility::can_read(&new, &old).is_ok()
    });
    if !compatible {
        let error = json!({ "error_code": 409, "message": "incompatible with an earlier schema" });
        return (StatusCode::CONFLICT, Json(error)).into_response();
    }
    schemas.push((subject, text));
    Json(json!({ "id": schemas.len() })).into_response()
}

async fn by_id(State(registry): State<Registry>, Path(id): Path<usize>) -> Response {
    let schemas = registry.0.schemas.lock().expect("whole");
    if let Some((_, schema)) = id.checked_sub(1).and_then(|position| schemas.get(position)) {
        return Json(json!({ "schema": schema })).into_response();
    }
    let error = json!({ "error_code": 40403, "message": "Schema not found" });
    (StatusCode::NOT_FOUND, Json(error)).into_response()
}
