//! The one road: plan, ledger, gateway, settle.
pub mod intake;
