//! The decoders on mutations of a corpus: a moment in every test run, a minute in `make fuzz`.
//!
//! A failure names the seed; the same seed makes the same inputs. The input itself is written beside the corpus.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

#[path = "../../fuzz/checks.rs"]
mod checks;

/// Grown inputs stay below it: what is slow there is slow for its size, not for its cunning.
const BYTES_MAX: usize = 64 * 1024;
/// An answer takes microseconds; this is a loop.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Pieces on which number readers, string readers and frames have stumbled elsewhere.
const PIECES: [&[u8]; 16] = [
    b"9223372036854775808",
    b"-0",
    b"1e400",
    b"1E-400",
    b"0.1",
    b"\\u0000",
    b"\\ud800",
    b"\xff\xfe",
    b"null",
    b"{}",
    b"[[[[[[[[",
    b"\"\"",
    b"\0\0\0\0\x07",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"2026-02-30T25:61:61Z",
    b"NaN",
];

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> =
        fs::read_dir(&dir).expect("a corpus").map(|file| file.expect("a file").path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).expect("an input")).collect()
}

fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut StdRng) {
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..=bytes.len());
        let until = random.random_range(at..=bytes.len().min(at + 16));
        match random.random_range(0..6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            1 if at < bytes.len() => bytes[at] = random.random(),
            2 => drop(bytes.drain(at..until)),
            3 => {
                let piece = PIECES[random.random_range(0..PIECES.len())];
                bytes.splice(at..until, piece.iter().copied());
            }
            4 => {
                let other = &others[random.random_range(0..others.len())];
                let from = random.random_range(0..=other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
            _ => {
                let again = bytes[at..until].repeat(random.random_range(1..40));
                bytes.splice(at..at, again);
            }
        }
    }
    bytes.truncate(BYTES_MAX);
}

fn fuzz(target: &str, check: fn(&[u8])) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("REPRISE_FUZZ_SEED").unwrap_or_else(|| rand::rng().random());
    let end = Instant::now() + Duration::from_secs(number("REPRISE_FUZZ_SECONDS").unwrap_or(1));
    let (inputs, mut random) = (corpus(target), StdRng::seed_from_u64(seed));
    for input in &inputs {
        check(input);
    }
    let mut tried = 0_u64;
    while Instant::now() < end {
        let mut input = inputs[random.random_range(0..inputs.len())].clone();
        mutate(&mut input, &inputs, &mut random);
        let began = Instant::now();
        let held = catch_unwind(AssertUnwindSafe(|| check(&input))).is_ok() && began.elapsed() < ANSWER_MAX;
        if !held {
            let file = format!("{}/fuzz-{target}-{seed}", env!("CARGO_TARGET_TMPDIR"));
            fs::write(&file, &input).expect("the input is kept");
            panic!("{target}: REPRISE_FUZZ_SEED={seed}, after {tried} inputs; the input is {file}");
        }
        tried += 1;
    }
    println!("{target}: {tried} inputs, seed {seed}");
    assert!(tried > 0);
}

#[test]
fn any_record_is_an_answer() {
    fuzz("record", checks::record);
}

#[test]
fn any_schema_of_a_registry_is_an_answer() {
    fuzz("schema", checks::schema);
}

#[test]
fn any_trace_header_is_an_answer() {
    fuzz("trace", checks::trace);
}
