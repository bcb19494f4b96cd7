//! The table of `tests/README.md` names tests that exist.

use std::path::Path;

#[test]
fn every_test_that_the_readme_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("tests/README.md")).expect("the table");
    let quoted = readme.split('`').skip(1).step_by(2);
    let mut named = 0;
    for (place, test) in quoted.filter_map(|name| name.rsplit_once("::")) {
        if matches!(place, "a" | "a::b") {
            continue; // the legend
        }
        let file = if place.starts_with("src/") {
            root.join(place)
        } else {
            let place = place.replace("::", "/");
            root.join(format!("tests/black_box/{place}.rs"))
        };
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            text.contains(&format!("fn {test}(")),
            "no {test} in {}",
            file.display()
        );
        named += 1;
    }
    assert!(named > 60, "the table is gone: {named} tests named");
}
