//! Layering and style that a compiler does not check: who may depend on whom, what lies below `rnic`, how files begin and how
//! long they are.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Workspace crates that each crate may use. One that is missing here may use none.
const MAY_USE: &[(&str, &[&str])] = &[
    ("emtt", &["roce"]),
    ("isolation", &["roce"]),
    ("spray", &["roce"]),
    ("rnic", &["emtt", "isolation", "roce", "spray"]),
    ("fabric", &["rnic", "emtt", "isolation", "roce", "spray"]),
    ("terra-client", &["terra"]),
    // The arbiter shapes what a program sends through devices that are not ours; the drop-in has none of those behind it.
    ("vdev-verbs", &["vdev-abi", "isolation", "roce"]),
    ("vdev-verbs-dropin", &["vdev-abi"]),
    ("vdev", &["rnic", "emtt", "isolation", "roce", "spray", "pvdma", "vdev-abi"]),
];
/// Crates that may use any other, and that no other may use (`skip` is for the tests of all).
const ON_TOP: &[&str] = &["tools", "perftest", "tests"];
/// The protocol core: no I/O, no unsafe code, no standard library.
const CORE: &[&str] = &["roce", "emtt", "isolation", "spray", "rnic"];
/// All that the core may use from outside: none of these does I/O.
const OUTSIDE_OF_CORE: &[&str] = &["bitflags", "crc32fast", "thiserror"];
/// Longest source file, tests apart.
const MAX_LINES: usize = 800;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace")
}

fn packages() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is missing in {value}"))
}

/// Names of the normal and build dependencies of each package.
fn uses() -> BTreeMap<String, Vec<String>> {
    let names = |package: &Value| {
        let all = package["dependencies"].as_array().expect("dependencies").clone();
        all.iter()
            .filter(|dependency| dependency["kind"] != "dev")
            .map(|dependency| text(dependency, "name").to_owned())
            .collect()
    };
    packages().iter().map(|package| (text(package, "name").to_owned(), names(package))).collect()
}

#[test]
fn crates_depend_downwards_only() {
    let uses = uses();
    assert!(uses.contains_key("rnic") && uses.contains_key("vdev"), "cargo metadata lists the workspace: {uses:?}");
    for (name, used) in &uses {
        for other in used.iter().filter(|other| uses.contains_key(*other)) {
            let allowed = MAY_USE.iter().any(|(upper, lower)| upper == name && lower.contains(&other.as_str()));
            let on_top = ON_TOP.contains(&name.as_str());
            assert!(allowed || on_top, "{name} must not depend on {other}");
            let below_top = !ON_TOP.contains(&other.as_str()) || on_top;
            assert!(below_top, "{name} must not depend on {other}: nothing below the top uses it");
        }
    }
}

#[test]
fn nothing_below_the_core_does_io() {
    let uses = uses();
    for name in CORE {
        for other in uses.get(*name).unwrap_or_else(|| panic!("{name} is in the workspace")) {
            let allowed = uses.contains_key(other) || OUTSIDE_OF_CORE.contains(&other.as_str());
            assert!(allowed, "{name} uses {other}: what the core may use is {OUTSIDE_OF_CORE:?}");
        }
        let entry = std::fs::read_to_string(root().join(name).join("src/lib.rs")).expect("the crate has a lib.rs");
        for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
            assert!(entry.lines().any(|line| line == attribute), "{name} lacks {attribute}");
        }
    }
}

/// All Rust sources of the repository.
fn sources() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
        .current_dir(root())
        .output()
        .expect("git can be started");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let list = String::from_utf8(output.stdout).expect("file names are text");
    let files: Vec<PathBuf> = list.lines().map(|name| root().join(name)).filter(|path| path.is_file()).collect();
    assert!(files.len() > 20, "the sources are found: {files:?}");
    files
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_file_says_what_it_is() {
    for path in sources() {
        let first = read(&path).lines().find(|line| !line.starts_with("#![")).unwrap_or_default().to_owned();
        assert!(first.starts_with("//! "), "{} does not begin with its purpose (//!)", path.display());
    }
}

#[test]
fn no_file_is_too_long() {
    for path in sources() {
        let is_test = path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
        let body = read(&path);
        // Tests beside the code do not count: they follow it.
        let lines = body.lines().take_while(|line| *line != "#[cfg(test)]").count();
        assert!(is_test || lines <= MAX_LINES, "{} has {lines} lines of code, more than {MAX_LINES}", path.display());
    }
}

#[test]
fn nothing_is_left_undone() {
    // Spelt in pieces, so that this file does not find itself.
    let marks =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX"), concat!("to", "do!("), concat!("unimpl", "emented!(")];
    for path in sources() {
        for (number, line) in read(&path).lines().enumerate() {
            let mark = marks.iter().find(|mark| line.contains(**mark));
            assert!(mark.is_none(), "{}:{} holds {}", path.display(), number + 1, mark.unwrap_or(&""));
        }
    }
}

#[test]
fn modules_are_named_after_what_they_hold() {
    const NO_NAMES: &[&str] = &["manager", "helper", "helpers", "util", "utils", "common", "misc"];
    for path in sources() {
        let named = |part: &std::ffi::OsStr| NO_NAMES.iter().any(|name| Path::new(part).file_stem() == Some(name.as_ref()));
        let inside = path.strip_prefix(root()).expect("a source lies in the repository");
        assert!(!inside.components().any(|part| named(part.as_os_str())), "{} says nothing by its name", inside.display());
    }
}
