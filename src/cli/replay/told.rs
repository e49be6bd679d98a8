//! How a replay stands, in tables for people.

use crate::cli::output::Row;
use crate::run::told::{ListedRun, Told};

impl Row for Told {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "situacao",
        "simular",
        "de",
        "ate",
        "fonte",
        "politicas",
        "particoes",
        "eventos",
        "estado",
        "efeitos",
    ];
}

impl Row for ListedRun {
    const COLUMNS: &'static [&'static str] =
        &["id", "simular", "situacao", "de", "ate", "restante", "pedidoPor", "criadoEm"];
}
