//! The two layers of settings, file and environment, merged into one tree that remembers where each value is from.
//!
//! An environment variable is a setting only if it spells a name that exists; one that is nearly a setting is a
//! problem, and one that is plainly something else (`REPRISE_SERVICE_HOST` of an orchestrator) is left alone.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::problem::{Problem, Source, nearest};
use super::schema::{
    ANSWERS, EFFECT_KEYS, EFFECTS, FILE_KEY, PROPERTIES, SECTIONS, is_secret_property, variable,
};

const PREFIX: &str = "REPRISE_";
/// Variables of ours that are not settings; a `*` ends a family.
const NOT_SETTINGS: [&str; 5] = ["CONFIG", "CRASH", "LOG", "TEST_*", "DEV_*"];
const DEFAULT_FILE: &str = "reprise.toml";
/// More than any list of effect types needs; a wrong path to a huge file must not fill the memory.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The merged tree.
#[derive(Debug, Default)]
pub(super) struct Layers {
    pub root: Table,
    file: Option<PathBuf>,
    /// Path of a key (joined by dots) -> the variable that set it.
    variables: BTreeMap<String, String>,
}

impl Layers {
    /// Reads the file (`path`, else `REPRISE_CONFIG`, else `./reprise.toml` if it is there) and lays the
    /// environment over it. A file that cannot be read is the only problem there is: without it, the rest is noise.
    pub fn read(
        path: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<(Self, Vec<Problem>), Problem> {
        let env: BTreeMap<String, String> = env.collect();
        let named = path.map(Path::to_path_buf).or_else(|| env.get("REPRISE_CONFIG").map(PathBuf::from));
        let file = named.or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|file| file.exists()));
        let Some(file) = file else { return Self::parse("", None, env) };
        let text = read_bounded(&file).map_err(|what| Problem {
            key: "--config".to_owned(),
            what,
            remedy: "name a readable file by --config or REPRISE_CONFIG".to_owned(),
            source: Source::File(file.clone()),
        })?;
        Self::parse(&text, Some(file), env)
    }

    /// The same for a text that was already read.
    pub fn parse(
        text: &str,
        file: Option<PathBuf>,
        env: BTreeMap<String, String>,
    ) -> Result<(Self, Vec<Problem>), Problem> {
        let root = text.parse::<Table>().map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            Problem {
                key: format!("line {}", before.matches('\n').count() + 1),
                // Not the error's own Display: it quotes the line, which may hold a password.
                what: format!("not TOML: {}", error.message()),
                remedy: "correct the syntax; nothing else was checked".to_owned(),
                source: file.clone().map_or(Source::Default, Source::File),
            }
        })?;
        let mut layers = Self { root, file, variables: BTreeMap::new() };
        let problems = layers.overlay(env);
        Ok((layers, problems))
    }

    pub fn source_of(&self, path: &str, is_set: bool) -> Source {
        match (self.variables.get(path), &self.file) {
            (Some(variable), _) => Source::Variable(variable.clone()),
            (None, Some(file)) if is_set => Source::File(file.clone()),
            _ => Source::Default,
        }
    }

    pub fn is_from_variable(&self, path: &str) -> bool {
        self.variables.contains_key(path)
    }

    /// Path of every value that was set, with where.
    pub fn origins(&self) -> BTreeMap<String, Source> {
        let mut origins = BTreeMap::new();
        let mut open: Vec<(String, &Table)> = vec![(String::new(), &self.root)];
        while let Some((prefix, table)) = open.pop() {
            for (key, value) in table {
                let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                if let Value::Table(inner) = value {
                    open.push((path, inner));
                } else {
                    let source = self.source_of(&path, true);
                    origins.insert(path, source);
                }
            }
        }
        origins
    }

    fn overlay(&mut self, env: BTreeMap<String, String>) -> Vec<Problem> {
        let mut problems = Vec::new();
        let names = self.variables_that_exist();
        for (variable, value) in env {
            let Some(rest) = variable.strip_prefix(PREFIX) else { continue };
            if NOT_SETTINGS.iter().any(|name| match name.strip_suffix('*') {
                Some(family) => rest.starts_with(family),
                None => rest == *name,
            }) {
                continue;
            }
            if let Some(path) = names.get(&variable) {
                self.set(path, value, variable);
            } else if let Some((path, from_file)) = Self::open_path(&variable, &names) {
                if !from_file {
                    self.set(&path, value, variable);
                    continue;
                }
                match read_secret(Path::new(&value)) {
                    Ok(secret) => self.set(&path, secret, variable),
                    Err(what) => problems.push(Problem {
                        key: path.join("."),
                        what,
                        remedy: "name a readable file that holds the value".to_owned(),
                        source: Source::Variable(variable),
                    }),
                }
            } else {
                problems.extend(unknown_variable(&variable, &names));
            }
        }
        problems
    }

    /// The variable of every setting with a fixed name, with its path.
    fn variables_that_exist(&self) -> BTreeMap<String, Vec<String>> {
        let effects: Vec<&str> = self
            .root
            .get(EFFECTS)
            .and_then(Value::as_table)
            .into_iter()
            .flat_map(Table::keys)
            .map(String::as_str)
            .collect();
        let fixed =
            SECTIONS.iter().flat_map(|(section, keys)| keys.iter().map(move |key| vec![*section, *key]));
        let of_effects =
            effects.iter().flat_map(|effect| EFFECT_KEYS.iter().map(move |key| vec![EFFECTS, *effect, *key]));
        let mut names = BTreeMap::new();
        for path in fixed.chain(of_effects) {
            let Some(key) = path.last().filter(|key| ![PROPERTIES, ANSWERS].contains(key)) else { continue };
            let owned: Vec<String> = path.iter().map(|&part| part.to_owned()).collect();
            let name = variable(&path);
            if key.ends_with(FILE_KEY) {
                let stem = name.strip_suffix(&FILE_KEY.to_uppercase()).unwrap_or(&name);
                names.insert(format!("{stem}_FILE"), owned.clone());
            }
            names.insert(name, owned);
        }
        names
    }

    /// A variable inside `[kafka.propriedades]` or `respostas`, whose names are not ours; `true` if it names a file.
    fn open_path(name: &str, known: &BTreeMap<String, Vec<String>>) -> Option<(Vec<String>, bool)> {
        if let Some(rest) = inside(name, &variable(&["kafka", PROPERTIES])) {
            // librdkafka's names have dots only.
            let property = rest.to_lowercase().replace('_', ".");
            let stem = property.strip_suffix(".file").filter(|stem| is_secret_property(stem));
            let path = ["kafka", PROPERTIES, stem.unwrap_or(&property)].map(str::to_owned).to_vec();
            return Some((path, stem.is_some()));
        }
        known.values().filter(|path| path.first().is_some_and(|section| section == EFFECTS)).find_map(
            |path| {
                let [section, effect, _] = path.as_slice() else { return None };
                let status = inside(name, &variable(&[section, effect, ANSWERS]))?;
                Some((vec![section.clone(), effect.clone(), ANSWERS.to_owned(), status.to_owned()], false))
            },
        )
    }

    fn set(&mut self, path: &[String], value: String, variable: String) {
        let Some((key, parents)) = path.split_last() else { return };
        let mut table = &mut self.root;
        for parent in parents {
            let entry = table.entry(parent.clone()).or_insert_with(|| Value::Table(Table::new()));
            // Something that should be a table is not one: the reader reports it.
            let Value::Table(inner) = entry else { return };
            table = inner;
        }
        table.insert(key.clone(), Value::String(value));
        self.variables.insert(path.join("."), variable);
    }
}

/// What stands behind `prefix__` in `name`.
fn inside<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    name.strip_prefix(prefix)?.strip_prefix("__").filter(|rest| !rest.is_empty())
}

/// A variable that names no setting. Without a `__` it is a problem only if it is a setting but for that.
fn unknown_variable(name: &str, known: &BTreeMap<String, Vec<String>>) -> Option<Problem> {
    let meant = if name.contains("__") {
        nearest(name, known.keys().map(String::as_str))
    } else {
        Some(known.keys().find(|setting| setting.replace("__", "_") == name)?.as_str())
    };
    let remedy = meant.map_or_else(
        || "a setting is REPRISE_ + section + __ + key; effect types must stand in the file".to_owned(),
        |setting| format!("did you mean {setting}?"),
    );
    Some(Problem {
        key: name.to_owned(),
        what: "this environment variable names no setting".to_owned(),
        remedy,
        source: Source::Default,
    })
}

/// A secret from a file, without the line end that editors leave. The path is relative to the working directory.
pub(super) fn read_secret(path: &Path) -> Result<String, String> {
    let text = read_bounded(path)?;
    let secret = text.trim();
    if secret.is_empty() {
        return Err(format!("{} is empty", path.display()));
    }
    Ok(secret.to_owned())
}

fn read_bounded(path: &Path) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(cannot)?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(cannot)?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(format!("{} has more than {FILE_BYTES_MAX} bytes", path.display()));
    }
    Ok(text)
}
