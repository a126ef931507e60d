//! Programs in C, compiled against the distribution's headers: what inline functions and structs of those make of the library.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::{Daemon, Program, missing_program, one_at_a_time, skip};

const LIMIT: Duration = Duration::from_secs(60);

/// Whether C programs cannot be compiled here; the test is skipped then.
fn no_compiler() -> bool {
    if missing_program(&["cc"]) {
        return true;
    }
    let headers =
        ["/usr/include/infiniband/verbs.h", "/usr/include/rdma/rdma_cma.h"].iter().all(|file| Path::new(file).is_file());
    if !headers {
        skip("not installed: libibverbs-dev, librdmacm-dev (./test as root installs them)");
    }
    !headers
}

/// Compiles a source of `programs/` into this folder.
fn compile(source: &str, folder: &Path, target: &str, options: &[&str]) -> PathBuf {
    let target = folder.join(target);
    let mut command = Command::new("cc");
    command.args(["-Wall", "-Werror", "-o"]).arg(&target);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source)).args(options);
    let output = command.output().expect("cc can be started");
    assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
    target
}

#[test]
fn wrong_arguments_get_the_errors_of_the_manual() {
    let _turn = one_at_a_time();
    if no_compiler() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    let program = compile("bad_arguments.c", daemon.folder(), "bad_arguments", &["-libverbs"]);
    let output = daemon.run("a", &[program.to_str().expect("a text")]).succeed(LIMIT);
    assert!(output.contains(" 0 answers differ"), "{output}");
    daemon.wait_until_unused("a", Duration::from_secs(5));
}

/// Programs that open a domain by the same file share its queue pairs, and each has its own shared receive queues; what one has
/// opened outlives the death of the one that made it.
#[test]
fn extended_connections_are_shared_between_processes() {
    let _turn = one_at_a_time();
    if no_compiler() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    let program = compile("shared_target.c", daemon.folder(), "shared_target", &["-libverbs"]);
    let output = daemon.run("a", &[program.to_str().expect("a text")]).succeed(LIMIT);
    assert!(output.lines().any(|line| line == "OK"), "{output}");
    daemon.wait_until_unused("a", Duration::from_secs(5));
}

/// A stand-in for the distribution's library has a device of another kind: the same program uses that one through the stand-in
/// and ours through the preloaded library.
#[test]
fn a_device_of_another_kind_is_reached_through_the_same_preload() {
    let _turn = one_at_a_time();
    if no_compiler() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    let folder = daemon.folder().to_owned();
    compile("other_library.c", &folder, "libibverbs.so.1", &["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1"]);
    let search = format!("-L{}", folder.display());
    let program = compile("two_devices.c", &folder, "two_devices", &["-Wl,--no-as-needed", &search, "-l:libibverbs.so.1"]);
    let words = [program.to_str().expect("a text"), "2"];
    let output = daemon.run_with("a", &words, |command| _ = command.env("LD_LIBRARY_PATH", &folder)).succeed(LIMIT);
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines.contains(&"device a") && lines.contains(&"device other0") && lines.contains(&"OK"), "{output}");
    let verbs =
        ["open_device", "alloc_pd", "reg_mr", "query_device", "dereg_mr", "dealloc_pd", "close_device", "free_device_list"];
    for verb in verbs {
        let line = format!("other library: ibv_{verb}");
        let count = lines.iter().filter(|found| **found == line).count();
        assert_eq!(count, 1, "{line:?} is there {count} times in:\n{output}");
    }

    // Without a device of ours the program sees what it would see without us.
    let output = without_device(&program, &["1".as_ref()], &folder);
    assert!(output.contains("device other0") && output.contains("OK"), "{output}");
}

/// The same for connection management, whose ids show no device: it is with ours in a program that was given any, and behind us in
/// all others.
#[test]
fn connection_management_of_another_kind_is_reached_where_there_is_none_of_our_devices() {
    let _turn = one_at_a_time();
    if no_compiler() {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    let folder = daemon.folder().to_owned();
    compile("other_cm_library.c", &folder, "librdmacm.so.1", &["-shared", "-fPIC", "-Wl,-soname,librdmacm.so.1"]);
    let search = format!("-L{}", folder.display());
    let program = compile("one_id.c", &folder, "one_id", &["-Wl,--no-as-needed", &search, "-l:librdmacm.so.1"]);
    let words = [program.to_str().expect("a text")];
    let output = daemon.run_with("a", &words, |command| _ = command.env("LD_LIBRARY_PATH", &folder)).succeed(LIMIT);
    assert_eq!(output, "OK\n");

    let calls = ["create_event_channel", "create_id", "destroy_id", "destroy_event_channel"];
    let lines: String = calls.iter().map(|call| format!("other library: rdma_{call}\n")).collect();
    let module = compile("one_id.c", &folder, "one_id.so", &["-shared", "-fPIC", &search, "-l:librdmacm.so.1"]);
    let loader = compile("load.c", &folder, "load", &["-ldl"]);
    for (program, words) in [(&program, vec![]), (&loader, vec![module.as_os_str()])] {
        assert_eq!(without_device(program, &words, &folder), format!("{lines}OK\n"), "{}", program.display());
    }
}

/// What a program prints under the preload that was given no device of ours, with the stand-in of `folder` behind it.
fn without_device(program: &Path, words: &[&OsStr], folder: &Path) -> String {
    let mut command = Command::new(program);
    command.args(words).env("LD_LIBRARY_PATH", folder).env_remove("VRDMA_SOCKET");
    command.env("LD_PRELOAD", tests::binary().with_file_name("libvrdma_verbs.so"));
    Program::start("alone", folder, command).succeed(LIMIT)
}
