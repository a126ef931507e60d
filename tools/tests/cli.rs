//! The real binary, as a user meets it: help, exit codes, texts. Each test has a directory of its own.

mod vrdma;

use vrdma::Vrdma;

#[test]
fn help_and_version_succeed() {
    let vrdma = Vrdma::new();
    for args in [&["--help"][..], &["dev", "--help"], &["run", "--help"]] {
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
        &["dev", "add", "a", "--ip", "192.0.2.1", "--mtu", "1500"],
        &["dev", "add", "a", "--ip", "192.0.2.1", "--mode", "999"],
        &["run", "--", "true"],
        &["run", "--dev", "a"],
    ] {
        let output = vrdma.run(args);
        assert_eq!(output.code, 2, "{args:?}: {}", output.stderr);
        assert!(output.stderr.contains("Usage") || output.stderr.contains("--help"), "{}", output.stderr);
    }
}

#[test]
fn without_a_daemon_the_next_step_is_named() {
    let vrdma = Vrdma::new();
    for args in [&["dev", "list"][..], &["dev", "add", "a", "--ip", "192.0.2.1"], &["run", "--dev", "a", "--", "true"]] {
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
    for args in [&["dev", "list"][..], &["run", "--dev", "a", "--", "true"]] {
        let output = vrdma.run_in(&long, args);
        assert_eq!(output.code, 1, "{args:?}");
        assert!(output.stderr.contains("the system allows 107"), "{}", output.stderr);
        assert!(output.stderr.contains("--dir"), "{}", output.stderr);
    }
}
