//! `[retencao]`: how old what is kept may become before `reprise retention` takes it away.

use std::time::Duration;

use super::DAY;
use super::reader::Reader;
use super::schema::keys_of;

/// A century: beyond it a horizon would lie before the calendars of the database.
const AGE_MAX: Duration = Duration::from_hours(100 * 365 * 24);

/// Ages; `None` keeps for ever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// `livro`: settled rows of the effect ledger.
    pub ledger: Option<Duration>,
    /// `evidencia`: attempts, and dead letters that were resolved.
    pub evidence: Option<Duration>,
    /// `arquivo`: archived records.
    pub archive: Option<Duration>,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Retention {
    let mut section = reader.section("retencao", keys_of("retencao"));
    let mut age = |key: &str| {
        section.get(key)?;
        section.duration(key, AGE_MAX, &(DAY..=AGE_MAX))
    };
    Retention { ledger: age("livro"), evidence: age("evidencia"), archive: age("arquivo") }
}
