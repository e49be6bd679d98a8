//! What people and platforms see of a running process.
//!
//! * [`http`]: the admin listener, on a thread and runtime of its own
//! * [`access`]: who may use what changes or shows business data
//! * [`orders`]: the API of orders
//! * [`console`]: the web console and its JSON API
//! * [`problem`]: errors as RFC 9457 documents, for every route behind the listener
//! * [`probe`]: asks the database every second and tells [`health`](crate::health)

pub mod access;
pub mod console;
pub mod http;
pub mod orders;
pub mod probe;
pub mod problem;
pub mod projections;
pub mod saga;
pub mod windows;

mod pages;
