//! Writer schemas from a Confluent schema registry, one `GET /schemas/ids/{id}` at a time.
//!
//! Two ways to fail, because they need two answers: an absent registry is waited for, an absent schema is asked for
//! again for a while (registries replicate) and then makes its records `avro-invalido`. A schema that is there but
//! cannot be used is a [`Schema`] all the same: its records say why. Nothing is retried or cached here.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use serde::Deserialize;

use super::avro::Schema;

/// Longest wait for one answer, connect to last byte.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest answer that is read; schemas are a few kilobytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Most schemas one schema may refer to, directly and through others.
const REFERENCES_MAX: usize = 64;

/// Why there is no schema.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// Not reachable, or it refuses us: says nothing about the schema. Wait and ask again.
    #[error("schema registry cannot be asked: {0}")]
    Away(String),
    /// It answered that there is no such schema. Replication may still bring it.
    #[error("schema registry has no schema with this id")]
    NotFound,
}

/// A registry at one address.
#[derive(Debug, Clone)]
pub struct SchemaRegistry {
    client: reqwest::Client,
    url: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Registered {
    schema: String,
    /// Absent for Avro.
    schema_type: Option<String>,
    #[serde(default)]
    references: Vec<Reference>,
}

#[derive(Deserialize, PartialEq, Eq, Hash, Clone)]
struct Reference {
    subject: String,
    version: i32,
}

impl SchemaRegistry {
    /// `url` as in `orders.registry_url`; a user and password in it are sent as basic authentication.
    pub fn new(url: &str) -> Result<Self, RegistryError> {
        let client = reqwest::Client::builder().timeout(ANSWER_TIMEOUT).build();
        let client = client.map_err(|err| RegistryError::Away(causes(&err)))?;
        Ok(Self { client, url: url.trim_end_matches('/').to_owned() })
    }

    /// The schema with this id, with everything it refers to.
    pub async fn fetch(&self, id: u32) -> Result<Schema, RegistryError> {
        let registered: Registered = self.get(&["schemas", "ids", &id.to_string()]).await?;
        match registered.schema_type.as_deref() {
            None | Some("AVRO") => {}
            Some(other) => return Ok(Schema::unusable(format!("schema is of type {other}, not AVRO"))),
        }
        match self.referenced(registered.references).await? {
            Some(references) => Ok(Schema::parse(&registered.schema, &references)),
            None => Ok(Schema::unusable(format!("schema refers to more than {REFERENCES_MAX} others"))),
        }
    }

    /// The texts of all schemas referred to, each once; `None` when there are too many.
    async fn referenced(&self, references: Vec<Reference>) -> Result<Option<Vec<String>>, RegistryError> {
        let mut seen: HashSet<Reference> = HashSet::new();
        let mut texts = Vec::new();
        let mut open = VecDeque::from(references);
        while let Some(next) = open.pop_front() {
            if !seen.insert(next.clone()) {
                continue;
            }
            if seen.len() > REFERENCES_MAX {
                return Ok(None);
            }
            let path = ["subjects", &next.subject, "versions", &next.version.to_string()];
            let registered: Registered = self.get(&path).await?;
            texts.push(registered.schema);
            open.extend(registered.references);
        }
        Ok(Some(texts))
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, path: &[&str]) -> Result<T, RegistryError> {
        let away = |cause: String| RegistryError::Away(cause);
        let mut url = reqwest::Url::parse(&self.url).map_err(|err| away(format!("registry_url: {err}")))?;
        // Segment by segment, so that a subject with a slash in its name stays one segment.
        url.path_segments_mut()
            .map_err(|()| away("registry_url: must be an http or https address".to_owned()))?
            .pop_if_empty()
            .extend(path);
        let mut answer = self.client.get(url).send().await.map_err(|err| away(causes(&err)))?;
        let status = answer.status();
        if status == reqwest::StatusCode::NOT_FOUND {
            return Err(RegistryError::NotFound);
        }
        if !status.is_success() {
            return Err(away(format!("it answered {status}")));
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|err| away(causes(&err)))? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(away(format!("its answer is larger than {ANSWER_BYTES_MAX} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&body).map_err(|err| away(format!("its answer is not a schema: {err}")))
    }
}

/// The client's error with what is beneath it, but without the address, which may hold a password.
fn causes(err: &reqwest::Error) -> String {
    let mut text = if err.is_timeout() {
        "no answer in time".to_owned()
    } else if err.is_connect() {
        "no connection".to_owned()
    } else {
        "request failed".to_owned()
    };
    let mut source = std::error::Error::source(err);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Decoded, Decoder, PEDIDO_PAGO_AVSC};
    use axum::extract::Path;
    use axum::http::StatusCode;
    use axum::response::{IntoResponse, Response};
    use axum::routing::get;
    use serde_json::json;

    /// A registry with a handful of schemas, one kind of trouble per id.
    async fn stub() -> String {
        let by_id = |Path(id): Path<u32>| async move {
            match id {
                1 => axum::Json(json!({ "schema": PEDIDO_PAGO_AVSC })).into_response(),
                2 => axum::Json(json!({ "schema": "syntax = \"proto3\";", "schemaType": "PROTOBUF" })).into_response(),
                3 => axum::Json(json!({ "schema": r#"{"type":"record","name":"a.B","fields":[{"name":"tipo","type":"a.Tipo"}]}"#,
                    "references": [{ "name": "a.Tipo", "subject": "a/tipo", "version": 4 }] }))
                .into_response(),
                4 => axum::Json(json!({ "schema": "{" })).into_response(),
                503 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
                401 => StatusCode::UNAUTHORIZED.into_response(),
                200 => "<html>".into_response(),
                _ => (StatusCode::NOT_FOUND, axum::Json(json!({ "error_code": 40403, "message": "Schema not found" }))).into_response(),
            }
        };
        let by_subject = |Path((subject, version)): Path<(String, i32)>| async move {
            assert_eq!((subject.as_str(), version), ("a/tipo", 4));
            let answer: Response =
                axum::Json(json!({ "schema": r#"{"type":"enum","name":"a.Tipo","symbols":["x"]}"# }))
                    .into_response();
            answer
        };
        let app = axum::Router::new()
            .route("/base/schemas/ids/{id}", get(by_id))
            .route("/base/subjects/{subject}/versions/{version}", get(by_subject));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await.expect("serving") });
        format!("http://{address}/base/")
    }

    #[tokio::test]
    async fn a_schema_is_fetched_with_what_it_refers_to() {
        let registry = SchemaRegistry::new(&stub().await).expect("a registry");
        let mut decoder = Decoder::new();
        decoder.learn(3, registry.fetch(3).await.expect("a schema"));
        assert_eq!(decoder.decode(Some(&[0, 0, 0, 0, 3, 0])), Ok(Decoded::OtherType));
        registry.fetch(1).await.expect("a schema");
    }

    #[tokio::test]
    async fn an_unusable_schema_makes_its_records_say_why() {
        let registry = SchemaRegistry::new(&stub().await).expect("a registry");
        let mut decoder = Decoder::new();
        for (id, why) in [(2_u8, "schema is of type PROTOBUF, not AVRO"), (4, "schema cannot be parsed")] {
            decoder.learn(u32::from(id), registry.fetch(u32::from(id)).await.expect("kept with its reason"));
            let err = decoder.decode(Some(&[0, 0, 0, 0, id, 0])).expect_err("unusable");
            assert!(err.to_string().starts_with("avro-invalido: ") && err.to_string().contains(why), "{err}");
        }
    }

    #[tokio::test]
    async fn b69_an_absent_schema_and_an_absent_registry_are_told_apart() {
        let url = stub().await;
        let registry = SchemaRegistry::new(&url).expect("a registry");
        assert!(matches!(registry.fetch(99).await, Err(RegistryError::NotFound)));
        for trouble in [503, 401, 200] {
            assert!(matches!(registry.fetch(trouble).await, Err(RegistryError::Away(_))), "{trouble}");
        }
        let closed =
            std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let away = SchemaRegistry::new(&format!("http://user:secret@{closed}")).expect("a registry");
        let Err(RegistryError::Away(cause)) = away.fetch(1).await else { panic!("nobody listens there") };
        assert!(cause.contains("no connection") && !cause.contains("secret"), "{cause}");
        assert!(matches!(
            SchemaRegistry::new("not an address").expect("a registry").fetch(1).await,
            Err(RegistryError::Away(_))
        ));
    }
}
