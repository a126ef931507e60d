//! Makes the library a stand-in for `libibverbs.so.1` and `librdmacm.so.1`: the name of the one (programs that need the other look for
//! the file), and the version nodes that `src/versions.rs` and `src/cm/versions.rs` put symbols into.
//!
//! The nodes are empty in the version script, as rustc has a script of its own that lists the names; the symbols bring their
//! versions along from the assembler. That takes LLD, rustc's linker on this platform; GNU ld refuses two scripts.

use std::fmt::Write;
use std::path::PathBuf;

/// Version nodes of each library, each the successor of the one before.
const NODES: [&[&str]; 3] = [IBVERBS, RDMACM, VRDMA];

/// What neither library has.
const VRDMA: &[&str] = &["VRDMA_1.0"];

const RDMACM: &[&str] = &["RDMACM_1.0", "RDMACM_1.1", "RDMACM_1.2", "RDMACM_1.3", "RDMACM_1.4", "RDMACM_1.5"];

const IBVERBS: &[&str] = &[
    "IBVERBS_1.0",
    "IBVERBS_1.1",
    "IBVERBS_1.5",
    "IBVERBS_1.6",
    "IBVERBS_1.7",
    "IBVERBS_1.8",
    "IBVERBS_1.9",
    "IBVERBS_1.10",
    "IBVERBS_1.11",
    "IBVERBS_1.12",
    "IBVERBS_1.13",
    "IBVERBS_1.14",
    "IBVERBS_1.15",
    "IBVERBS_1.16",
    "IBVERBS_1.17",
    "IBVERBS_1.18",
    "IBVERBS_PRIVATE_34",
    "IBVERBS_PRIVATE_65",
];

fn main() {
    let mut script = String::new();
    for library in NODES {
        let mut before = "";
        for node in library {
            let _ = writeln!(script, "{node} {{}} {before};");
            before = node;
        }
    }
    let path = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("nodes.map");
    std::fs::write(&path, script).expect("the version script can be written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", path.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cfg=versioned");
    println!("cargo:rerun-if-changed=build.rs");
}
