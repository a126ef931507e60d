//! Finds the preload library, which belongs to the very build of this binary.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// Overrides the search.
const VARIABLE: &str = "VRDMA_LIBRARY";
const NAME: &str = "libvrdma_verbs.so";

/// Absolute path of `libvrdma_verbs.so`: `$VRDMA_LIBRARY`, else near the running binary.
pub fn find() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        let path = std::path::absolute(&named).with_context(|| format!("{VARIABLE} names no file"))?;
        ensure!(path.is_file(), "{VARIABLE} names {}, which is not a file", path.display());
        return Ok(path);
    }
    let binary = std::env::current_exe().context("cannot find the running binary")?;
    match near(&binary) {
        Some(path) => Ok(path),
        None => bail!(
            "cannot find {NAME}, which belongs beside {}: build it with `cargo build --release -p vdev-verbs`, or name it with \
             {VARIABLE}",
            binary.display()
        ),
    }
}

/// The places, in order: cargo puts the library of a plain `cargo run` into `deps` only, and then a copy beside the binary may
/// be older; an installation has it beside the binary or in `lib`.
fn near(binary: &Path) -> Option<PathBuf> {
    let dir = binary.parent()?;
    ["deps", ".", "../lib/vrdma", "../lib"].iter().map(|place| dir.join(place).join(NAME)).find_map(|path| {
        let path = path.canonicalize().ok()?;
        path.is_file().then_some(path)
    })
}

/// The value of `LD_PRELOAD`: ours goes after what is there already, so that a user's own interposition keeps working.
pub fn preload(present: Option<OsString>, library: &Path) -> Result<OsString> {
    let path = library.to_str().filter(|path| !path.contains([' ', ':']));
    let Some(path) = path else {
        bail!(
            "the loader cannot preload {}, as its path has a space or a colon in it: move it or name a link with {VARIABLE}",
            library.display()
        );
    };
    let mut value = present.unwrap_or_default();
    let listed = value.to_string_lossy().split([' ', ':']).any(|entry| entry == path);
    if !listed {
        if !value.is_empty() {
            value.push(":");
        }
        value.push(path);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_once() {
        let library = Path::new("/l/libvrdma_verbs.so");
        assert_eq!(preload(None, library).unwrap(), "/l/libvrdma_verbs.so");
        let both = preload(Some("/l/x.so".into()), library).unwrap();
        assert_eq!(both, "/l/x.so:/l/libvrdma_verbs.so");
        assert_eq!(preload(Some(both.clone()), library).unwrap(), both);
        assert!(preload(None, Path::new("/a b/l.so")).is_err());
    }

    #[test]
    fn the_build_tree_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let binary = root.join("vrdma");
        assert_eq!(near(&binary), None);
        std::fs::write(root.join(NAME), "").unwrap();
        assert_eq!(near(&binary), Some(root.join(NAME)));
        std::fs::create_dir(root.join("deps")).unwrap();
        std::fs::write(root.join("deps").join(NAME), "").unwrap();
        assert_eq!(near(&binary), Some(root.join("deps").join(NAME)));
    }
}
