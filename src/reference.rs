//! The pages of `docs/reference` are what the code says: tests compare them, and write them when
//! `REPRISE_WRITE_REFERENCE` is set.

use std::path::Path;

/// Fails where the committed page is not what the code generates.
#[track_caller]
pub fn check(page: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(page);
    if std::env::var_os("REPRISE_WRITE_REFERENCE").is_some() {
        std::fs::create_dir_all(path.parent().expect("a page is in a folder")).expect("it can be made");
        std::fs::write(&path, generated).expect("it can be written");
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == generated,
        "docs/reference/{page} is not what the code says; run REPRISE_WRITE_REFERENCE=1 cargo test --lib reference"
    );
}

/// One row of a table.
pub fn row(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
    format!("| {} |\n", cells.join(" | "))
}
