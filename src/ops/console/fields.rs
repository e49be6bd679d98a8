//! Fields of a query or a form: pairs in their order, a name perhaps more than once.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

/// Names and values, decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    pub fn parse(encoded: &[u8]) -> Self {
        Self(url::form_urlencoded::parse(encoded).into_owned().collect())
    }

    /// The first value of this name that says something.
    pub fn get(&self, name: &str) -> Option<&str> {
        let of_name = self.0.iter().filter(|(key, _)| key == name);
        of_name.map(|(_, value)| value.trim()).find(|value| !value.is_empty())
    }

    /// Every value of this name that says something.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let of_name = self.0.iter().filter(move |(key, _)| key == name);
        of_name.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// This query with one field set otherwise, for links of filters and pages.
    pub fn with(&self, name: &str, value: &str) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.pairs().filter(|(key, value)| *key != name && !value.is_empty()));
        query.append_pair(name, value);
        query.finish()
    }
}

impl<S: Sync> FromRequestParts<S> for Fields {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default().as_bytes()))
    }
}

/// Text as one segment of a path, or as a value of a query.
pub fn encode(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_may_repeat_and_empty_ones_say_nothing() {
        let fields = Fields::parse(b"id=3&id=4&reason=&order=p%2F1+x");
        assert_eq!(fields.all("id").collect::<Vec<_>>(), ["3", "4"]);
        assert_eq!((fields.get("reason"), fields.get("order")), (None, Some("p/1 x")));
        assert_eq!(fields.with("order", "a&b"), "id=3&id=4&order=a%26b");
    }

    #[test]
    fn a_key_is_one_segment_of_a_path() {
        assert_eq!(encode("evt 1/2:tipo"), "evt%201%2F2%3Atipo");
    }
}
