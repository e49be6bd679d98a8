//! Whether a request may have left this process, as one atomic step instead of a guess from error kinds.
//!
//!   HELD ──the connection takes the body──► HANDED   (may have arrived)
//!     └────the caller gives up first──────► REVOKED  (will never leave)
//!
//! The body stays with us until the connection is about to write it, and is handed over by compare-and-set; the
//! caller that stops waiting, for a time-out or an error, revokes by compare-and-set. Exactly one of them wins,
//! on any number of threads. hyper asks for the body after it has put the head into its buffer and before it
//! flushes that buffer, and a body that fails ends the connection unflushed; and even a head that did get out
//! would announce a length that never follows. So `Revoked` is proof that no request arrived.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

const HELD: u8 = 0;
const HANDED: u8 = 1;
const REVOKED: u8 = 2;

/// The caller's side.
#[derive(Debug)]
pub(super) struct Handover(Arc<AtomicU8>);

/// What had become of the request when the caller stopped waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// The connection had taken it: it may have arrived.
    MayHaveLeft,
    /// It was still here, and will never leave.
    Revoked,
}

impl Handover {
    pub(super) fn new(body: Bytes) -> (Self, GuardedBody) {
        // hyper never asks for an empty body, so there would be no moment of handing over.
        let start = if body.is_empty() { HANDED } else { HELD };
        let gate = Arc::new(AtomicU8::new(start));
        (Self(Arc::clone(&gate)), GuardedBody { data: Some(body).filter(|b| !b.is_empty()), gate })
    }

    /// Gives up. After `Revoked` the request cannot leave any more.
    pub(super) fn revoke(&self) -> Departure {
        match self.0.compare_exchange(HELD, REVOKED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(REVOKED) => Departure::Revoked,
            Err(_) => Departure::MayHaveLeft,
        }
    }
}

/// The connection's side: a body of one piece.
#[derive(Debug)]
pub(super) struct GuardedBody {
    data: Option<Bytes>,
    gate: Arc<AtomicU8>,
}

/// The caller gave up before the connection asked for the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the call was given up before its request was sent")]
pub(super) struct GivenUp;

impl Body for GuardedBody {
    type Data = Bytes;
    type Error = GivenUp;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GivenUp>>> {
        let Some(data) = self.data.take() else { return Poll::Ready(None) };
        let handed = self.gate.compare_exchange(HELD, HANDED, Ordering::AcqRel, Ordering::Acquire);
        Poll::Ready(Some(handed.map(|_| Frame::data(data)).map_err(|_| GivenUp)))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.as_ref().map_or(0, |data| data.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;

    #[test]
    fn a_revoked_body_never_leaves() {
        let (handover, mut body) = Handover::new(Bytes::from_static(b"{}"));
        assert_eq!(handover.revoke(), Departure::Revoked);
        let frame = body.frame().now_or_never().expect("ready at once").expect("a frame");
        assert_eq!(frame.expect_err("nothing may leave"), GivenUp);
        assert_eq!(handover.revoke(), Departure::Revoked);
    }

    #[test]
    fn a_body_that_was_taken_may_have_left() {
        let (handover, mut body) = Handover::new(Bytes::from_static(b"{}"));
        assert_eq!(body.size_hint().exact(), Some(2));
        let frame = body.frame().now_or_never().expect("ready at once").expect("a frame").expect("data");
        assert_eq!(frame.into_data().expect("data"), Bytes::from_static(b"{}"));
        assert_eq!(handover.revoke(), Departure::MayHaveLeft);
        assert!(body.is_end_stream());
    }

    #[test]
    fn an_empty_body_counts_as_gone_from_the_start() {
        let (handover, body) = Handover::new(Bytes::new());
        assert!(body.is_end_stream());
        assert_eq!(handover.revoke(), Departure::MayHaveLeft);
    }
}
