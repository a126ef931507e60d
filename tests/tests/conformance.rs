//! Test suites that others wrote, run as they are.

use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tests::{Program, binary, one_at_a_time, skip};

const LIMIT: Duration = Duration::from_secs(600);

/// rdma-core's Python tests, as Debian's package has them. `tests/conformance/pyverbs` says what counts as passed.
#[test]
fn rdma_core_python_tests() {
    let _turn = one_at_a_time();
    if !Path::new("/usr/share/doc/rdma-core/tests").is_dir() {
        return skip("not installed: python3-pyverbs (./test as root installs it)");
    }
    let folder = std::env::temp_dir().join(format!("vrdma-conformance-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/pyverbs"));
    command.arg("--bin").arg(binary().parent().expect("the binary lies in a folder"));
    let report = Program::start("pyverbs", &folder, command).succeed(LIMIT);
    println!("{report}");
    std::fs::remove_dir_all(&folder).expect("the temporary folder is ours");
}
