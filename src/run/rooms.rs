//! Rooms that run beside the consumer, or without one: a name, and how it begins.
//!
//! A room runs until its token is cancelled; an early end of any of them ends the process, as with every part.

use axum::Router;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::RunError;
use super::parts::Parts;
use crate::config::Config;

type Running = BoxFuture<'static, Result<(), RunError>>;

/// A part of the service with a life of its own.
pub struct Room {
    pub name: &'static str,
    begin: fn(&Config, &Parts, CancellationToken) -> Result<Running, RunError>,
}

impl Room {
    /// `begin` checks what can be checked and returns the room's whole life.
    pub const fn new(
        name: &'static str,
        begin: fn(&Config, &Parts, CancellationToken) -> Result<Running, RunError>,
    ) -> Self {
        Self { name, begin }
    }

    pub(super) fn begin(
        &self,
        config: &Config,
        parts: &Parts,
        stop: CancellationToken,
    ) -> Result<Running, RunError> {
        Ok((self.begin)(config, parts, stop)?.boxed())
    }
}

/// Routes behind the token, on the same listener as everything else.
pub type Routes = fn(&Config, &Parts) -> Result<Router, RunError>;

/// What runs beside the consumer, or instead of it.
#[derive(Default)]
pub struct Beside {
    pub rooms: Vec<Room>,
    pub routes: Vec<Routes>,
}

impl Beside {
    pub(super) fn router(&self, config: &Config, parts: &Parts) -> Result<Router, RunError> {
        self.routes.iter().try_fold(Router::new(), |all, routes| Ok(all.merge(routes(config, parts)?)))
    }
}
