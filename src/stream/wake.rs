//! Wakes the polling thread: from the client's queues, from the handle.
//!
//! A wake that comes before the wait is not lost; one that never comes costs at most the wait's own limit.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Waker {
    rung: Mutex<bool>,
    bell: Condvar,
}

impl Waker {
    pub fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_one();
    }

    pub fn wait(&self, limit: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut rung, _) =
            self.bell.wait_timeout_while(rung, limit, |rung| !*rung).unwrap_or_else(PoisonError::into_inner);
        *rung = false;
    }
}
