//! Where the built product lies.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Path of the `vrdma` binary of the release build. The preload library lies beside it.
///
/// `VRDMA_BIN_DIR` names the folder, as `./test` does after building; without it the product is built first, so that a
/// plain `cargo test -p tests` never runs against an old daemon.
pub fn binary() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let folder = match std::env::var_os("VRDMA_BIN_DIR") {
            Some(folder) => PathBuf::from(folder),
            None => build(),
        };
        let path = folder.join("vrdma");
        assert!(path.is_file(), "{} does not exist: build it with `cargo build --release`", path.display());
        path
    })
}

fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "build",
            "--release",
            "--quiet",
            "--package",
            "tools",
            "--package",
            "perftest",
            "--package",
            "vdev-verbs",
            "--package",
            "vdev-verbs-dropin",
        ])
        .current_dir(root)
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "the release build failed");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("release")
}
