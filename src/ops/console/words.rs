//! What the console says, in the browser's language: one catalogue per language, the same keys in both (test
//! `both_languages_say_everything_that_is_asked_for`). Words of the boundary (states, reasons, keys) are not translated:
//! they are what tables, logs and the other people in the incident say.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::http::{HeaderMap, header};

/// A language of the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lang {
    English,
    Portuguese,
}

type Catalogue = HashMap<String, String>;

static ENGLISH: LazyLock<Catalogue> = LazyLock::new(|| parse(include_str!("words/en.toml")));
static PORTUGUESE: LazyLock<Catalogue> = LazyLock::new(|| parse(include_str!("words/pt.toml")));

fn parse(text: &str) -> Catalogue {
    toml::from_str(text).unwrap_or_default()
}

impl Lang {
    /// The first language of `Accept-Language` that we speak, by its weight; English if there is none.
    pub fn of(headers: &HeaderMap) -> Self {
        let asked =
            headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut best = (0.0, Self::English);
        for range in asked.split(',') {
            let (tag, weight) = range.split_once(';').unwrap_or((range, "q=1"));
            let weight: f32 = weight.trim().trim_start_matches("q=").parse().unwrap_or(0.0);
            let tag = tag.trim().to_ascii_lowercase();
            let lang = match tag.split('-').next() {
                Some("pt") => Self::Portuguese,
                Some("en") => Self::English,
                _ => continue,
            };
            if weight > best.0 {
                best = (weight, lang);
            }
        }
        best.1
    }

    /// For the page's `lang` attribute.
    pub const fn tag(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::Portuguese => "pt-BR",
        }
    }

    fn catalogue(self) -> &'static Catalogue {
        match self {
            Self::English => &ENGLISH,
            Self::Portuguese => &PORTUGUESE,
        }
    }

    /// The text of a key. One that is missing shows its key, which a test finds before a person does.
    pub fn say(self, key: &str) -> String {
        self.known(key).map_or_else(|| key.to_owned(), str::to_owned)
    }

    /// The text of a key that depends on data.
    pub fn known(self, key: &str) -> Option<&'static str> {
        self.catalogue().get(key).map(String::as_str)
    }

    /// The text of a key, `{name}`s replaced.
    pub fn fill(self, key: &str, values: &[(&str, &str)]) -> String {
        let mut text = self.say(key);
        for (name, value) in values {
            text = text.replace(&format!("{{{name}}}"), value);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn headers(languages: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::ACCEPT_LANGUAGE, header::HeaderValue::from_static(languages))])
    }

    #[test]
    fn the_browsers_first_language_that_we_speak_is_spoken() {
        for (asked, tag) in [
            ("pt-BR,pt;q=0.9,en;q=0.8", "pt-BR"),
            ("fr,en;q=0.5,pt;q=0.7", "pt-BR"),
            ("en-GB, pt;q=0.9", "en"),
            ("de", "en"),
            ("", "en"),
        ] {
            assert_eq!(Lang::of(&headers(asked)).tag(), tag, "{asked}");
        }
        assert_eq!(Lang::of(&HeaderMap::new()).tag(), "en");
    }

    /// Keys that stand in the sources as `say("key"`, `fill("key"` or `notice(&view, "key"`.
    fn asked_for(dir: &Path, keys: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                asked_for(&path, keys);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !path.ends_with("words.rs")
            {
                let text = std::fs::read_to_string(&path).expect("a source");
                for call in ["say(\"", "fill(\"", "notice(&view, \"", "key: \""] {
                    keys.extend(
                        text.split(call).skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned),
                    );
                }
            }
        }
    }

    #[test]
    fn both_languages_say_everything_that_is_asked_for() {
        let english: BTreeSet<&str> = ENGLISH.keys().map(String::as_str).collect();
        let portuguese: BTreeSet<&str> = PORTUGUESE.keys().map(String::as_str).collect();
        assert!(english.len() > 100, "the catalogue is read");
        let differs: Vec<_> = english.symmetric_difference(&portuguese).collect();
        assert!(differs.is_empty(), "in one language only: {differs:?}");
        let mut keys = BTreeSet::new();
        asked_for(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops/console"), &mut keys);
        let missing: Vec<_> = keys.iter().filter(|key| !english.contains(key.as_str())).collect();
        assert!(keys.len() > 50 && missing.is_empty(), "asked for, not there: {missing:?}");
    }

    #[test]
    fn what_is_filled_in_is_the_same_in_both_languages() {
        let names = |text: &str| -> BTreeSet<String> {
            text.split('{')
                .skip(1)
                .filter_map(|rest| rest.split_once('}'))
                .map(|(name, _)| name.to_owned())
                .collect()
        };
        for (key, english) in ENGLISH.iter() {
            assert_eq!(names(english), names(&PORTUGUESE[key]), "{key}");
        }
    }
}
