//! What `docs/faults.md` promises is proved by tests that exist.

use std::fs;
use std::path::Path;

fn sources(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder of the crate") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&fs::read_to_string(&path).expect("UTF-8"));
        }
    }
}

/// As a function, or as one that a macro of the tests makes.
fn is_a_test(name: &str, sources: &str) -> bool {
    [format!("fn {name}("), format!(" {name}: "), format!(" {name}, ")]
        .iter()
        .any(|form| sources.contains(form))
}

#[test]
fn every_fault_of_the_table_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/faults.md")).expect("the page");
    let mut code = String::new();
    sources(&root.join("src"), &mut code);
    sources(&root.join("tests"), &mut code);
    let mut rows = 0;
    for line in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| what fails")) {
        let proofs = line.trim_end_matches(" |").rsplit(" | ").next().expect("a last column");
        let names: Vec<&str> = proofs.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test is named: {line}");
        let absent: Vec<&&str> = names.iter().filter(|name| !is_a_test(name, &code)).collect();
        assert!(absent.is_empty(), "{absent:?} do not exist: {line}");
        rows += 1;
    }
    assert_eq!(rows, 34, "a row was added or removed: change this number with it");
    assert!(!is_a_test("a_test_that_nobody_wrote", &code));
}
