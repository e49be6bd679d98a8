//! The API of orders: where its desk comes from, and the process that serves it (and takes foreign messages).

use axum::Router;

use super::parts::Parts;
use super::rooms::Beside;
use super::{LiveOptions, RunError, serve};
use crate::config::Config;
use crate::ops;
use crate::orders::desk::{Desk, DeskSettings};
use crate::orders::translate::AlsoPublished;
use crate::pg::connect::Database;

/// Serves the API until it is told to stop.
pub async fn api(config: &Config, options: LiveOptions) -> Result<(), RunError> {
    serve(config, options, Beside { rooms: vec![super::foreign::room()], routes: vec![routes] }).await
}

/// The routes of orders, for the listener of any process.
pub fn routes(config: &Config, parts: &Parts) -> Result<Router, RunError> {
    Ok(ops::orders::router(desk(config, parts.database.clone())))
}

/// Where commands on orders are taken, in this process.
pub fn desk(config: &Config, database: Database) -> Desk {
    let also_publish =
        if config.orders.courier_assigned_v1 { vec![AlsoPublished::CourierAssignedV1] } else { Vec::new() };
    Desk::new(database, DeskSettings { snapshot_every: config.orders.snapshot_every, also_publish })
}
