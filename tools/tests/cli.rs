//! The real binary, as a user meets it: help, exit codes, texts. Each test has a directory of its own.
//! Addresses are from a range for documentation that no interface has, so that no device of a test takes a UDP port.

mod vrdma;

use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use vrdma::Vrdma;

#[test]
fn help_and_version_succeed() {
    let vrdma = Vrdma::new();
    for args in [
        &["--help"][..],
        &["dev", "--help"],
        &["run", "--help"],
        &["daemon", "--help"],
        &["demo", "--help"],
        &["bench", "pin", "--help"],
        &["bench", "isolation", "--help"],
        &["sim", "run", "--help"],
    ] {
        let output = vrdma.run(args);
        assert_eq!(output.code, 0, "{args:?}");
        assert!(output.stdout.contains("Usage: vrdma"), "{}", output.stdout);
    }
    assert!(vrdma.run(&["--version"]).stdout.starts_with("vrdma "));
}

#[test]
fn wrong_command_lines_exit_with_2() {
    let vrdma = Vrdma::new();
    for args in [
        &[][..],
        &["fly"],
        &["dev", "add", "a"],
        &["dev", "add", "a", "--ip", "192.0.2"],
        &["dev", "add", "a", "--ip", "203.0.113.1", "--mtu", "1500"],
        &["dev", "add", "a", "--ip", "203.0.113.1", "--mode", "999"],
        &["run", "--", "true"],
        &["run", "--dev", "a"],
        &["run", "--shape", "piece=64k", "--", "true"],
        &["run", "--shape", "rate=1G,rate=2G", "--", "true"],
        &["run", "--shape", "rate=0", "--", "true"],
        &["run", "--dev", "a", "--stats", "--", "true"],
        &["bench", "pin", "--guest-gib", "1,0"],
        &["bench", "isolation", "--link-rate", "10"],
        &["daemon", "--isolation", "some"],
        &["sim", "run"],
        &["sim", "run", "x.toml", "--seed", "-1"],
        &["sim", "run", "x.toml", "--runs", "0"],
    ] {
        let output = vrdma.run(args);
        assert_eq!(output.code, 2, "{args:?}: {}", output.stderr);
        assert!(output.stderr.contains("Usage") || output.stderr.contains("--help"), "{}", output.stderr);
    }
}

#[test]
fn without_a_daemon_the_next_step_is_named() {
    let vrdma = Vrdma::new();
    for args in [&["dev", "list"][..], &["dev", "add", "a", "--ip", "203.0.113.1"], &["run", "--dev", "a", "--", "true"]] {
        let output = vrdma.run(args);
        assert_eq!(output.code, 1, "{args:?}");
        assert!(output.stderr.contains("no daemon answers at"), "{}", output.stderr);
        assert!(output.stderr.contains("`vrdma daemon`"), "{}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    }
}

#[test]
fn a_socket_that_nobody_serves_is_told_apart() {
    let vrdma = Vrdma::new();
    drop(std::os::unix::net::UnixListener::bind(vrdma.dir().join("api.sock")).unwrap());
    let output = vrdma.run(&["dev", "list"]);
    assert_eq!(output.code, 1);
    assert!(output.stderr.contains("connection refused"), "{}", output.stderr);
}

#[test]
fn a_directory_that_is_too_long_is_refused() {
    let vrdma = Vrdma::new();
    let long = vrdma.dir().join("x".repeat(120));
    for args in [&["dev", "list"][..], &["daemon"], &["run", "--dev", "a", "--", "true"]] {
        let output = vrdma.run_in(&long, args);
        assert_eq!(output.code, 1, "{args:?}");
        assert!(output.stderr.contains("the system allows 107"), "{}", output.stderr);
        assert!(output.stderr.contains("--dir"), "{}", output.stderr);
    }
}

#[test]
fn devices_come_and_go() {
    let vrdma = Vrdma::new();
    let _daemon = vrdma.daemon();
    let empty = vrdma.succeed(&["dev", "list"]);
    assert!(empty.contains("vrdma dev add"), "{empty}");
    assert_eq!(vrdma.json(&["--json", "dev", "list"]), json!([]));

    let added = vrdma.succeed(&["dev", "add", "a", "--ip", "203.0.113.1", "--ip", "2001:db8::1"]);
    assert!(added.contains("203.0.113.1"), "{added}");
    vrdma.succeed(&["dev", "add", "a", "--ip", "203.0.113.1", "--ip", "2001:db8::1"]);
    let device = vrdma.json(&["dev", "show", "a", "--json"]);
    assert_eq!(device["name"], "a");
    assert_eq!(device["ips"], json!(["203.0.113.1", "2001:db8::1"]));
    assert_eq!(device["socket"], json!(vrdma.dir().join("dev/a/sock")));
    assert!(vrdma.dir().join("dev/a/sock").exists());
    assert_eq!(vrdma.json(&["dev", "list", "--json"])[0], device);

    let shown = vrdma.succeed(&["dev", "show", "a"]);
    assert!(shown.contains("gid 1") && shown.contains("2001:db8::1"), "{shown}");
    let listed = vrdma.succeed(&["dev", "list"]);
    assert!(listed.lines().next().unwrap().starts_with("NAME"), "{listed}");

    vrdma.succeed(&["dev", "del", "a"]);
    vrdma.succeed(&["dev", "del", "a"]);
    assert!(!vrdma.dir().join("dev/a/sock").exists());
    vrdma.fail(&["dev", "show", "a"], &["a"]);
}

#[test]
fn settings_are_honoured() {
    let vrdma = Vrdma::new();
    let _daemon = vrdma.daemon();
    vrdma.succeed(&["dev", "add", "a", "--ip", "203.0.113.1", "--mtu", "1024", "--mode", "640"]);
    assert_eq!(vrdma.json(&["dev", "show", "a", "--json"])["active_mtu"], 1024);
    let mode = std::fs::metadata(vrdma.dir().join("dev/a/sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

#[test]
fn a_device_with_other_settings_is_a_conflict() {
    let vrdma = Vrdma::new();
    let _daemon = vrdma.daemon();
    vrdma.succeed(&["dev", "add", "a", "--ip", "203.0.113.1"]);
    vrdma.fail(&["dev", "add", "a", "--ip", "203.0.113.3"], &["a"]);
    assert_eq!(vrdma.json(&["dev", "show", "a", "--json"])["ips"], json!(["203.0.113.1"]));
}

#[test]
fn bad_names_are_refused() {
    let vrdma = Vrdma::new();
    let _daemon = vrdma.daemon();
    let long = "n".repeat(200);
    for name in ["", "a/b", "../api", "a b", "\u{e9}", "a:b", long.as_str()] {
        vrdma.fail(&["dev", "add", name, "--ip", "203.0.113.1"], &[]);
        vrdma.fail(&["run", "--dev", name, "--", "true"], &[]);
    }
    assert_eq!(vrdma.json(&["dev", "list", "--json"]), json!([]));
}

#[test]
fn shares_are_set_and_shown() {
    let vrdma = Vrdma::new();
    let _daemon = vrdma.daemon();
    vrdma.succeed(&["dev", "add", "a", "--ip", "203.0.113.1"]);
    assert!(vrdma.succeed(&["dev", "show", "a"]).contains("weight 100, classes found"));
    let set =
        ["dev", "set", "a", "--weight", "250", "--rate", "2.5G", "--min-rate", "500M", "--burst", "64k", "--class", "latency"];
    let printed = vrdma.succeed(&set);
    let shown = "weight 250, at least 500 Mbit/s, at most 2.5 Gbit/s in bursts of 64 kB, treated as latency";
    assert!(printed.contains(shown), "{printed}");
    let printed = vrdma.succeed(&["dev", "show", "a"]);
    assert!(printed.contains(shown), "{printed}");
    // What is not named stays.
    let device = vrdma.json(&["dev", "set", "a", "--rate", "none", "--class", "auto", "--json"]);
    let shares = json!({
        "weight": 250, "min_bits_per_sec": 500_000_000, "max_bits_per_sec": null, "burst_bytes": 64_000, "class": null
    });
    assert_eq!(device["shares"], shares);
    vrdma.fail(&["dev", "set", "a", "--weight", "0"], &["1 to 10000, not 0", "stays as it is"]);
    vrdma.fail(&["dev", "set", "a", "--rate", "1M"], &["above the highest rate"]);
    vrdma.fail(&["dev", "set", "b", "--weight", "1"], &["no device", "b"]);
    for wrong in [&["dev", "set", "a"][..], &["dev", "set", "a", "--rate", "fast"], &["dev", "set", "a", "--rate", "-1"]] {
        assert_eq!(vrdma.run(wrong).code, 2, "{wrong:?}");
    }
}

#[test]
fn one_directory_has_one_daemon() {
    let vrdma = Vrdma::new();
    let daemon = vrdma.daemon();
    vrdma.fail(&["daemon"], &["another daemon", "directory"]);
    vrdma.succeed(&["dev", "list"]);
    drop(daemon);
    assert!(!vrdma.dir().join("api.sock").exists());
    let _again = vrdma.daemon();
    vrdma.succeed(&["dev", "list"]);
}

#[test]
fn a_killed_daemon_leaves_nothing_in_the_way() {
    let vrdma = Vrdma::new();
    let mut daemon = vrdma.daemon();
    vrdma.succeed(&["dev", "add", "a", "--ip", "203.0.113.1"]);
    daemon.kill();
    vrdma.fail(&["dev", "list"], &["no daemon answers", "connection refused"]);
    let _again = vrdma.daemon();
    assert_eq!(vrdma.json(&["dev", "list", "--json"]), json!([]));
}

#[test]
fn run_gives_the_program_its_environment_and_its_exit_code() {
    let vrdma = Vrdma::new();
    let _daemon = vrdma.daemon();
    vrdma.succeed(&["dev", "add", "a", "--ip", "203.0.113.1"]);
    vrdma.succeed(&["dev", "add", "b", "--ip", "203.0.113.2"]);
    let printed = vrdma.succeed(&["run", "--dev", "a", "--dev", "b", "--", "sh", "-c", "echo $VRDMA_SOCKET; echo $LD_PRELOAD"]);
    let dir = vrdma.dir();
    let sockets = format!("{}:{}", dir.join("dev/a/sock").display(), dir.join("dev/b/sock").display());
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[0], sockets);
    assert!(lines[1].ends_with("libvrdma_verbs.so"), "{printed}");
    assert_eq!(vrdma.run(&["run", "--dev", "a", "--", "sh", "-c", "exit 7"]).code, 7);
    // Devices that are not ours need no daemon.
    let shaped = ["run", "--shape", "rate=2.5G,piece=8k,device=rxe0", "--stats", "--", "sh", "-c", "echo $VRDMA_SHAPE"];
    assert_eq!(Vrdma::new().succeed(&shaped), "rate=2500000000,piece=8000,device=rxe0,stats\n");
    vrdma.fail(&["run", "--dev", "c", "--", "true"], &["no device c", "a, b"]);
    vrdma.fail(&["run", "--dev", "a", "--", "/no/such/program"], &["/no/such/program"]);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let vrdma = Vrdma::new();
    let _daemon = vrdma.daemon();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = vrdma.command(&["dev", "list"]).stdout(writer).output().unwrap();
    assert!(output.status.success());
    assert!(output.stderr.is_empty());
}
