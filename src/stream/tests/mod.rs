//! Against a real broker (`REPRISE_TEST_KAFKA`, by default 127.0.0.1:29092): own topic and group names per test.

mod bed;
mod consuming;
mod coordinator;
mod ending;
mod letters;
