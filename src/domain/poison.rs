//! Why a record can never be applied: stable codes that stand in dead letters, metrics and filters.

/// Dead-letter reasons (`motivo`). The code is a contract with dashboards and scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Not a JSON object.
    InvalidJson,
    /// Avro framing, schema or bytes that cannot be decoded.
    InvalidAvro,
    /// A required field is missing or null.
    MissingField,
    /// A field of another type, empty, or not of its form.
    InvalidField,
    /// Of the right form, but outside what may be.
    OutOfRange,
    /// A NUL character, which no Postgres text can hold.
    InvalidText,
    /// Another event id at a version that is already taken.
    VersionConflict,
    /// The same event id with other content.
    ContentConflict,
    /// The provider said no.
    EffectRefused,
    /// No definite answer in `max_tentativas` attempts.
    EffectExhausted,
    /// Postgres refuses the row for its data (class 22 or 23).
    RefusedByDatabase,
    /// The rules of an order say no to a message of another system.
    CommandRefused,
}

impl Reason {
    /// Every reason, for metrics that must exist before anything happened.
    pub const ALL: [Self; 12] = [
        Self::InvalidJson,
        Self::InvalidAvro,
        Self::MissingField,
        Self::InvalidField,
        Self::OutOfRange,
        Self::InvalidText,
        Self::VersionConflict,
        Self::ContentConflict,
        Self::EffectRefused,
        Self::EffectExhausted,
        Self::RefusedByDatabase,
        Self::CommandRefused,
    ];

    pub const fn code(self) -> &'static str {
        match self {
            Self::InvalidJson => "json-invalido",
            Self::InvalidAvro => "avro-invalido",
            Self::MissingField => "campo-ausente",
            Self::InvalidField => "campo-invalido",
            Self::OutOfRange => "valor-fora-do-limite",
            Self::InvalidText => "texto-invalido",
            Self::VersionConflict => "conflito-de-versao",
            Self::ContentConflict => "conflito-de-conteudo",
            Self::EffectRefused => "efeito-recusado",
            Self::EffectExhausted => "efeito-esgotado",
            Self::RefusedByDatabase => "dado-recusado-pelo-banco",
            Self::CommandRefused => "comando-recusado",
        }
    }

    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.code())
    }
}

/// A reason with the words that name the field and what was wrong with it. Bounded; never holds a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poison {
    pub reason: Reason,
    pub message: String,
}

impl Poison {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}
