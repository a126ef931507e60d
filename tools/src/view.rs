//! What a kernel would show of a device outside the verbs: the `/sys/class/infiniband/NAME` tree that collective libraries read
//! to find out which GID is of which kind, and the device node whose existence others take for that of the device.
//!
//! Written as plain files, which a container or a private mount namespace lays over the real `/sys/class`. Says the same as the
//! verbs do; is a picture of the moment at which it was written.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use serde_json::Value;

use crate::api::Device;

/// Where device nodes of RDMA lie.
pub const NODES: &str = "/dev/infiniband";
/// Device number of `/dev/null`: opening the node must do no harm.
pub const NULL_DEVICE: (u64, u64) = (1, 3);
const CLASS: &str = "/sys/class";

/// Writes `root/infiniband/NAME`, to be laid over `/sys/class`.
pub fn write_class(device: &Device, root: &Path) -> Result<()> {
    let top = root.join("infiniband").join(&device.name);
    for (file, text) in files(device) {
        let path = top.join(file);
        let folder = path.parent().expect("files lie in folders");
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::write(&path, format!("{text}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Paths under the device's folder, and what each file says, as the kernel words it (`Documentation/ABI/stable/sysfs-class-infiniband`).
fn files(device: &Device) -> Vec<(String, String)> {
    let is_up = device.state == "ACTIVE";
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let mut files = vec![
        file("node_type", "1: CA"),
        file("node_guid", &device.guid),
        file("sys_image_guid", &device.guid),
        file("node_desc", "vrdma"),
        file("fw_ver", env!("CARGO_PKG_VERSION")),
        file("board_id", "vrdma"),
        file("ports/1/state", if is_up { "4: ACTIVE" } else { "1: DOWN" }),
        file("ports/1/phys_state", if is_up { "5: LinkUp" } else { "3: Disabled" }),
        file("ports/1/link_layer", "Ethernet"),
        file("ports/1/rate", "25 Gb/sec (1X EDR)"),
        file("ports/1/lid", "0x0"),
        file("ports/1/sm_lid", "0x0"),
        file("ports/1/pkeys/0", "0xffff"),
    ];
    let interface = match &device.wire {
        Some(Value::Object(wire)) => wire.get("interface").and_then(Value::as_str),
        _ => None,
    };
    for (index, ip) in device.ips.iter().enumerate() {
        let Ok(ip) = ip.parse::<IpAddr>() else { continue };
        files.push((format!("ports/1/gids/{index}"), gid_text(ip)));
        files.push((format!("ports/1/gid_attrs/types/{index}"), "RoCE v2".to_owned()));
        if let Some(interface) = interface {
            files.push((format!("ports/1/gid_attrs/ndevs/{index}"), interface.to_owned()));
        }
    }
    files
}

/// A GID as the kernel writes it: eight groups of four digits, none left out.
fn gid_text(ip: IpAddr) -> String {
    let v6: Ipv6Addr = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    v6.segments().map(|group| format!("{group:04x}")).join(":")
}

/// Gives this process, and those that it becomes or starts, a mount namespace of its own in which the devices can be seen.
pub fn enter(devices: &[Device]) -> Result<()> {
    const NOTHING: Option<&str> = None;
    let permitted = "only root may (or who has CAP_SYS_ADMIN); without --view programs find the device by verbs calls alone";
    unshare(CloneFlags::CLONE_NEWNS).with_context(|| format!("cannot make a mount namespace: {permitted}"))?;
    mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NOTHING)
        .context("cannot keep mounts to this program")?;
    // The folder stays, empty, for the rest of the system, if there was none.
    fs::create_dir_all(NODES).with_context(|| format!("cannot make {NODES}"))?;
    let fresh = || mount(Some("vrdma"), NODES, Some("tmpfs"), MsFlags::empty(), Some("mode=755"));
    fresh().with_context(|| format!("cannot mount on {NODES}"))?;
    for device in devices {
        write_class(device, Path::new(NODES))?;
    }
    let layers = format!("lowerdir={NODES}:{CLASS}");
    mount(Some("overlay"), CLASS, Some("overlay"), MsFlags::empty(), Some(layers.as_str()))
        .with_context(|| format!("cannot lay the devices over {CLASS}"))?;
    // The overlay holds on to its layers: the folder is free for what belongs there.
    umount2(NODES, MntFlags::MNT_DETACH).and_then(|()| fresh()).with_context(|| format!("cannot mount on {NODES} again"))?;
    for device in devices {
        let node = Path::new(NODES).join(&device.name);
        mknod(&node, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(NULL_DEVICE.0, NULL_DEVICE.1))
            .with_context(|| format!("cannot make {}", node.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_tree_says_what_the_device_is() {
        let device: Device = serde_json::from_value(json!({
            "name": "a", "guid": "0200:c0ff:fe00:0201", "ips": ["192.0.2.1", "2001:db8::1"], "state": "ACTIVE",
            "wire": {"interface": "eth0"}
        }))
        .unwrap();
        let root = tempfile::tempdir().unwrap();
        write_class(&device, root.path()).unwrap();
        let read = |file: &str| fs::read_to_string(root.path().join("infiniband/a").join(file)).unwrap();
        assert_eq!(read("ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:c000:0201\n");
        assert_eq!(read("ports/1/gids/1"), "2001:0db8:0000:0000:0000:0000:0000:0001\n");
        assert_eq!(read("ports/1/gid_attrs/types/1"), "RoCE v2\n");
        assert_eq!(read("ports/1/gid_attrs/ndevs/0"), "eth0\n");
        assert_eq!((read("node_guid"), read("ports/1/state")), ("0200:c0ff:fe00:0201\n".into(), "4: ACTIVE\n".into()));
    }
}
