//! Where the records of a replay come from: the topic, or the archive. Whoever reads them cannot tell.

use std::time::Duration;

use super::RunError;
use super::archive_source::ArchiveHandle;
use crate::applier::intake::{LaneId, ResumeAt};
use crate::stream::ConsumerHandle;

/// A running source.
pub enum Source {
    Log(ConsumerHandle),
    Archive(ArchiveHandle),
}

impl Source {
    /// Resolves when nothing more is read: `Ok` only after [`Self::close`].
    pub async fn ended(&self) -> Result<(), RunError> {
        match self {
            Self::Log(consumer) => Ok(consumer.ended().await?),
            Self::Archive(archive) => archive.ended().await,
        }
    }

    /// Reads nothing more. What was read before may still be delivered.
    pub fn stop(&self) {
        match self {
            Self::Log(consumer) => consumer.stop(),
            Self::Archive(archive) => archive.stop(),
        }
    }

    /// Leaves, within a limit.
    pub async fn close(self, settled: Vec<(LaneId, ResumeAt)>, within: Duration) {
        match self {
            Self::Log(consumer) => {
                let closed = consumer.close(settled, within).await;
                tracing::debug!(?closed, "left the replay's group");
            }
            Self::Archive(archive) => archive.close(within).await,
        }
    }
}
