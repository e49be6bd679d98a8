//! Values that must never be printed: passwords, tokens, signing secrets, and addresses that may carry them.

use std::fmt;

/// What stands in the place of a secret.
pub const REDACTED: &str = "***";

/// Query parameters of an address that say nothing secret.
const HARMLESS_PARAMETERS: [&str; 6] =
    ["sslmode", "sslrootcert", "host", "port", "dbname", "application_name"];

/// A secret. It has no `Display`, and its `Debug` is redacted; only [`Secret::expose`] gives the text.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself. Never log it, never put it into an error.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({REDACTED})")
    }
}

/// An address without its password and without the values of its query parameters (a password or an API key may
/// stand there too). What is no address is hidden whole.
pub fn redacted_url(text: &str) -> String {
    let Ok(mut url) = url::Url::parse(text) else { return REDACTED.to_owned() };
    if url.password().is_some() && url.set_password(Some(REDACTED)).is_err() {
        return REDACTED.to_owned();
    }
    if url.query().is_some() {
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let mut query = url.query_pairs_mut();
        query.clear();
        for (name, value) in &pairs {
            let harmless = HARMLESS_PARAMETERS.contains(&name.as_str());
            query.append_pair(name, if harmless { value } else { REDACTED });
        }
    }
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_shows_in_debug_output() {
        assert_eq!(format!("{:?}", Some(Secret::new("hunter2"))), "Some(Secret(***))");
    }

    #[test]
    fn an_address_loses_its_password_and_its_query_values_only() {
        assert_eq!(redacted_url("postgres://ana:s3nha@db:5432/x"), "postgres://ana:***@db:5432/x");
        assert_eq!(
            redacted_url("postgres://db/x?sslmode=require&password=s3nha"),
            "postgres://db/x?sslmode=require&password=***"
        );
        assert_eq!(redacted_url("postgres://ana@db/x"), "postgres://ana@db/x");
        assert_eq!(redacted_url("https://p.example/n?api=abc"), "https://p.example/n?api=***");
        assert_eq!(redacted_url("s3nha"), "***");
    }
}
