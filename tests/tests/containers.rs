//! Devices in containers: one each, given by CDI name, on the default network; and the same view for a plain program.

use std::time::{Duration, Instant};
use tests::container::{self, Container, ContainerOptions};
use tests::{Daemon, missing_program, need_root, one_at_a_time};

const CLIENT: &str = env!("CARGO_BIN_EXE_verbs-client");
const LIMIT: Duration = Duration::from_secs(60);

/// A daemon with two devices whose CDI specifications lie where podman looks for them, until this is dropped.
struct Scene {
    daemon: Daemon,
    devices: [String; 2],
}

impl Scene {
    fn new(options: &[&str]) -> Scene {
        let mut daemon = Daemon::start();
        // The folder of specifications is the host's.
        let devices = ["a", "b"].map(|name| format!("ct{}{name}", std::process::id()));
        for (number, device) in devices.iter().enumerate() {
            daemon.add_device(device, &format!("203.0.113.{}", number + 1));
        }
        let generated = daemon.cli(&[&["cdi", "generate"], options].concat());
        assert!(generated.status.success(), "{}", generated.output);
        Scene { daemon, devices }
    }

    fn cdi_name(&self, device: usize) -> String {
        format!("vrdma.local/rdma={}", self.devices[device])
    }

    /// A container with one of the devices, or with none.
    fn container(&self, root: &std::path::Path, name: &str, device: Option<usize>, words: &[&str]) -> Container {
        let device = device.map(|device| self.cdi_name(device));
        let devices: Vec<&str> = device.as_deref().into_iter().collect();
        let name = format!("vrdma-{}-{name}", std::process::id());
        let options = ContainerOptions { devices: &devices, files: &[CLIENT], netns: None };
        Container::start(root, self.daemon.folder(), &name, &options, words)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let [a, b] = self.devices.clone();
        let removed = self.daemon.cli(&["cdi", "remove", &a, &b]);
        if !std::thread::panicking() {
            assert!(removed.status.success(), "{}", removed.output);
            assert!(!std::path::Path::new(&format!("/var/run/cdi/vrdma-{a}.json")).exists());
        }
    }
}

#[test]
fn two_containers_use_their_devices_with_unmodified_programs() {
    let _turn = one_at_a_time();
    let Some(root) = container::root() else { return };
    let scene = Scene::new(&[]);
    let mut server = scene.container(&root, "server", Some(0), &["ib_write_bw", "-n", "500"]);
    let deadline = Instant::now() + LIMIT;
    let address = loop {
        match server.address() {
            Some(address) => break address,
            None => assert!(server.program.is_running() && Instant::now() < deadline, "{}", server.program.output()),
        }
    };
    // The address is there before the server listens on it.
    let connect = format!("for n in $(seq 100); do ib_write_bw -n 500 {address} && exit 0; sleep 0.1; done; exit 1");
    let mut client = scene.container(&root, "client", Some(1), &["sh", "-c", &connect]);
    let report = client.program.succeed(LIMIT);
    server.program.succeed(LIMIT);
    assert!(report.contains("BW average") && report.contains(&scene.devices[1]), "{report}");
}

#[test]
fn a_container_sees_its_own_device_and_no_other() {
    let _turn = one_at_a_time();
    let Some(root) = container::root() else { return };
    let scene = Scene::new(&["--sysfs"]);
    let [a, b] = scene.devices.clone();
    let mut plain = scene.container(&root, "plain", None, &["sh", "-c", "ibv_devices; ls /run/vrdma /dev/infiniband"]);
    let output = plain.program.end(LIMIT).output;
    assert!(!output.contains(&a) && !output.contains(&b), "{output}");

    let mut victim = scene.container(&root, "victim", Some(0), &[CLIENT, "victim"]);
    victim.program.wait_for_output("keys ", LIMIT);
    let keys = victim.program.output();
    let keys: Vec<&str> = keys.trim().split(' ').skip(1).collect();

    let path = format!("/sys/class/infiniband/{b}/ports/1");
    let foreign = format!("--foreign-lkey {} --foreign-rkey {} --foreign-addr {}", keys[0], keys[1], keys[2]);
    let look = format!(
        "ibv_devices; ls /run/vrdma/dev /dev/infiniband /sys/class/infiniband; cat {path}/gid_attrs/types/0 {path}/gids/0
         VRDMA_SOCKET=/run/vrdma/dev/{a}/sock ibv_devices; exec {CLIENT} refused {foreign}"
    );
    let seen = scene.container(&root, "other", Some(1), &["sh", "-c", &look]).program.succeed(LIMIT);
    let (before, after) = seen.split_once("RoCE v2\n").unwrap_or_else(|| panic!("the kind of the GID: {seen}"));
    assert!(before.matches(&b).count() == 4 && !before.contains(&a), "{seen}");
    assert!(after.starts_with("0000:0000:0000:0000:0000:ffff:cb00:7102\n"), "{seen}");
    let listed = |name: &str| after.lines().any(|line| line.split_whitespace().next() == Some(name));
    assert!(after.contains("no such device") && !listed(&a), "{seen}");
    assert!(after.contains("of another tenant") && after.ends_with("OK\n"), "{seen}");
    victim.program.signal(nix::sys::signal::Signal::SIGTERM);
    let output = victim.program.succeed(LIMIT);
    assert!(output.contains("OK"), "{output}");
}

#[test]
fn a_daemon_that_is_started_again_is_found_by_containers_that_run() {
    let _turn = one_at_a_time();
    let Some(root) = container::root() else { return };
    let mut scene = Scene::new(&[]);
    let device = scene.devices[0].clone();
    let mut looking = scene.container(&root, "looking", Some(0), &["sh", "-c", "while :; do ibv_devices; sleep 0.1; done"]);
    looking.program.wait_for_output(&device, LIMIT);
    scene.daemon.restart();
    let before = looking.program.output().len();
    scene.daemon.add_device(&device, "203.0.113.1");
    let deadline = Instant::now() + LIMIT;
    while !looking.program.output()[before..].lines().any(|line| line.split_whitespace().next() == Some(&device)) {
        assert!(Instant::now() < deadline, "{}", looking.program.output());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_plain_program_can_have_the_same_view() {
    let _turn = one_at_a_time();
    if missing_program(&["unshare"]) || need_root("a mount namespace") {
        return;
    }
    let mut daemon = Daemon::start();
    daemon.add_device("a", "203.0.113.1");
    let look = "ls /sys/class/net && cat /sys/class/infiniband/a/ports/1/gid_attrs/types/0 && test -c /dev/infiniband/a";
    let mut command = daemon.command(&["run", "--dev", "a", "--view", "--", "sh", "-c", look]);
    command.current_dir("/");
    let output = tests::Program::start("view", daemon.folder(), command).succeed(LIMIT);
    assert!(output.contains("lo\n") && output.ends_with("RoCE v2\n"), "{output}");
    assert!(!std::path::Path::new("/sys/class/infiniband/a").exists(), "the view is the program's own");
}
