//! Containers: a root made once by debootstrap, kept outside the checkout, and programs that run in it under podman.

use crate::{Program, missing_program, need_root, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where roots are kept, by name of the Debian release; `VRDMA_TEST_ROOTS` names another place.
const ROOTS: &str = "/var/cache/vrdma/roots";
/// What programs in containers need beyond a minimal system.
const PACKAGES: &str = "ibverbs-utils,perftest";

/// A root of the host's own release, so that programs built here run there. Made when there is none, which takes some minutes;
/// `None`, with a counted skip, where that is not possible.
pub fn root() -> Option<PathBuf> {
    if missing_program(&["podman", "runc", "debootstrap", "iptables"]) || need_root("containers") {
        return None;
    }
    // Podman's default network; not in any folder of programs.
    if !Path::new("/usr/lib/podman/netavark").exists() {
        skip("not installed: netavark (./test as root installs it)");
        return None;
    }
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let Some(release) = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")) else {
        skip("the Debian release of this host is not known, so there is no root for containers");
        return None;
    };
    let roots = std::env::var_os("VRDMA_TEST_ROOTS").map_or_else(|| PathBuf::from(ROOTS), PathBuf::from);
    let root = roots.join(release);
    if root.is_dir() {
        return Some(root);
    }
    let fresh = roots.join(format!("{release}.{}", std::process::id()));
    std::fs::create_dir_all(&roots).expect("the place of roots can be made");
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", &format!("--include={PACKAGES}"), release]).arg(&fresh);
    let made = command.stdout(Stdio::null()).status().expect("debootstrap can be started");
    if !made.success() {
        let _ = std::fs::remove_dir_all(&fresh);
        skip("debootstrap cannot make a root for containers: is there a network?");
        return None;
    }
    // Another run may have been first; then its root is as good.
    if std::fs::rename(&fresh, &root).is_err() {
        let _ = std::fs::remove_dir_all(&fresh);
    }
    root.is_dir().then_some(root)
}

/// What a container is given.
#[derive(Clone, Copy, Debug, Default)]
pub struct ContainerOptions<'a> {
    /// Devices, by their CDI names.
    pub devices: &'a [&'a str],
    /// Files and folders of the host, read only at the same paths.
    pub files: &'a [&'a str],
    /// Network namespace of the host to be in, rather than on the default network.
    pub netns: Option<&'a str>,
}

/// A container with one program in it. Dropping it ends both.
#[derive(Debug)]
pub struct Container {
    name: String,
    /// `podman run`: ends with the program, whose output and exit code it has.
    pub program: Program,
}

impl Container {
    /// Starts `words` in a container over `root`.
    pub fn start(root: &Path, folder: &Path, name: &str, options: &ContainerOptions<'_>, words: &[&str]) -> Container {
        let mut command =
            podman(&["run", "--rm", "--name", name, "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]);
        for device in options.devices {
            command.args(["--device", device]);
        }
        for file in options.files {
            command.args(["--volume", &format!("{file}:{file}:ro")]);
        }
        if let Some(netns) = options.netns {
            command.args(["--network", &format!("ns:/run/netns/{netns}")]);
        }
        // `:O` lays a throw-away layer over the root.
        command.args(["--rootfs", &format!("{}:O", root.display())]).args(words);
        Container { name: name.to_owned(), program: Program::start(name, folder, command) }
    }

    /// Its address on the default network, once it has one.
    pub fn address(&self) -> Option<String> {
        self.inspect("{{.NetworkSettings.IPAddress}}").filter(|address| !address.is_empty())
    }

    /// The process of its program, as the host numbers it, once it runs.
    pub fn pid(&self) -> Option<u32> {
        self.inspect("{{.State.Pid}}")?.parse().ok().filter(|&pid| pid != 0)
    }

    fn inspect(&self, format: &str) -> Option<String> {
        let output = podman(&["inspect", "--format", format, &self.name]).output().expect("podman can be started");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = podman(&["rm", "--force", "--time", "0", &self.name]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// crun, podman's other runtime, does not run on every layout of control groups.
fn podman(words: &[&str]) -> Command {
    let mut command = Command::new("podman");
    command.args(["--runtime", "runc", "--log-level", "error"]).args(words);
    command
}
