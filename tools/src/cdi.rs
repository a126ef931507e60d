//! `vrdma cdi`: Container Device Interface specifications, one file per device, by which container engines give a device to a
//! container (`podman run --device vrdma.local/rdma=NAME …`).
//!
//! A container gets the folder of its device's socket, not the socket, so that it finds the socket of a daemon that was started
//! again; the preload library and two variables; and the device node that some libraries look for.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::api::Client;
use crate::args::{CdiCommand, CdiOptions};
use crate::output::{print, print_json, table};
use crate::place::Place;
use crate::run::SOCKET_VARIABLE;
use crate::{library, view};

/// Vendor and class of our devices.
const KIND: &str = "vrdma.local/rdma";
/// The oldest version that has all members used: engines refuse versions that they do not know.
const VERSION: &str = "0.5.0";
/// In containers: the folder of device folders, which the library searches, and the library.
const SOCKETS_INSIDE: &str = "/run/vrdma/dev";
const LIBRARY_INSIDE: &str = "/usr/lib/vrdma/libvrdma_verbs.so";
/// In a device's folder: what is laid over `/sys/class`.
const CLASS_FOLDER: &str = "class";

/// Carries out one command and prints the outcome.
pub fn carry_out(place: &Place, command: CdiCommand, as_json: bool) -> Result<()> {
    match command {
        CdiCommand::Generate { options, sysfs } => generate(place, &options, sysfs, as_json),
        CdiCommand::Remove { options } => remove(place, &options, as_json),
    }
}

fn generate(place: &Place, options: &CdiOptions, sysfs: bool, as_json: bool) -> Result<()> {
    let client = Client::new(place.clone())?;
    let devices = match options.devices.as_slice() {
        [] => client.devices()?.into_iter().filter(|device| device.vm.is_none()).collect(),
        names => names.iter().map(|name| client.device(name)).collect::<Result<Vec<_>>>()?,
    };
    if let Some(device) = devices.iter().find(|device| device.vm.is_some()) {
        bail!("{} is a virtual machine's device: containers cannot open it", device.name);
    }
    ensure!(!devices.is_empty(), "there are no devices: add one with `vrdma dev add NAME --ip IP`");
    let library = library::find()?;
    let folder = &options.spec_dir;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut written = Vec::new();
    for device in &devices {
        let of_device = place.device_folder(&device.name)?;
        // Always: while it lies there, the daemon leaves the folder, which containers hold, when it stops.
        let class = of_device.join(CLASS_FOLDER);
        view::write_class(device, &class)?;
        let spec = spec(&device.name, &of_device, &library, sysfs.then_some(class.as_path()))?;
        let file = spec_file(folder, &device.name);
        write_whole(&file, &serde_json::to_vec_pretty(&spec)?)?;
        written.push((format!("{KIND}={}", device.name), file));
    }
    if as_json {
        return print_json(&written.iter().map(|(device, file)| json!({ "device": device, "file": file })).collect::<Vec<_>>());
    }
    print(table(["DEVICE", "FILE"], written.iter().map(|(device, file)| [device.clone(), file.display().to_string()]), &[]))
}

/// What a container engine is to do for a container that gets this device.
fn spec(name: &str, folder: &Path, library: &Path, class: Option<&Path>) -> Result<Value> {
    let text = |path: &Path| path.to_str().map(str::to_owned).with_context(|| format!("{} is not text", path.display()));
    let bind = |host: &Path, inside: &str| -> Result<Value> {
        let options = ["ro", "nosuid", "nodev", "bind"];
        Ok(json!({ "hostPath": text(host)?, "containerPath": inside, "options": options }))
    };
    let mut mounts = vec![bind(folder, &format!("{SOCKETS_INSIDE}/{name}"))?, bind(library, LIBRARY_INSIDE)?];
    if let Some(class) = class {
        let class = text(class)?;
        ensure!(
            !class.contains([':', ',', '\\']),
            "{class} cannot be a layer of /sys/class: choose a directory without : , and \\"
        );
        let layers = format!("lowerdir={class}:/sys/class");
        mounts.push(json!({
            "hostPath": "overlay", "containerPath": "/sys/class", "type": "overlay", "options": ["ro", layers],
        }));
    }
    let (major, minor) = view::NULL_DEVICE;
    let edits = json!({
        "env": [format!("{SOCKET_VARIABLE}={SOCKETS_INSIDE}"), format!("LD_PRELOAD={LIBRARY_INSIDE}")],
        "deviceNodes": [{
            "path": format!("{}/{name}", view::NODES), "hostPath": "/dev/null",
            "type": "c", "major": major, "minor": minor, "permissions": "rw",
        }],
        "mounts": mounts,
    });
    Ok(json!({ "cdiVersion": VERSION, "kind": KIND, "devices": [{ "name": name, "containerEdits": edits }] }))
}

fn spec_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("vrdma-{name}.json"))
}

/// Engines read the folder at any time: a file is there whole or not at all.
fn write_whole(file: &Path, bytes: &[u8]) -> Result<()> {
    // Engines look at names that end in .json or .yaml only.
    let fresh = file.with_extension("new");
    fs::write(&fresh, bytes).and_then(|()| fs::rename(&fresh, file)).with_context(|| format!("cannot write {}", file.display()))
}

fn remove(place: &Place, options: &CdiOptions, as_json: bool) -> Result<()> {
    let folder = &options.spec_dir;
    let names = if options.devices.is_empty() { generated(folder)? } else { options.devices.clone() };
    for name in &names {
        // Also checks that the name is one, before it becomes part of a path.
        let of_device = place.device_folder(name)?;
        gone(fs::remove_file(spec_file(folder, name)), &spec_file(folder, name))?;
        gone(fs::remove_dir_all(of_device.join(CLASS_FOLDER)), &of_device)?;
        // Nothing is left of a device that is gone.
        let _ = fs::remove_dir(of_device);
    }
    if as_json { print_json(&json!({ "removed": names })) } else { Ok(()) }
}

/// Names of the devices whose specifications of ours lie in the folder.
fn generated(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        let ours = |spec: &Value| spec["kind"] == KIND;
        let Some(spec) = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok()).filter(ours)
        else {
            continue;
        };
        match spec["devices"][0]["name"].as_str() {
            Some(name) if spec_file(folder, name) == path => names.push(name.to_owned()),
            _ => bail!("{} is of our kind but was not written by us: remove it by hand", path.display()),
        }
    }
    names.sort();
    Ok(names)
}

/// What was not there need not be removed.
fn gone(result: std::io::Result<()>, path: &Path) -> Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_gets_one_device_and_nothing_else() {
        let spec = spec("a", Path::new("/run/vrdma/dev/a"), Path::new("/l/libvrdma_verbs.so"), None).unwrap();
        let edits = &spec["devices"][0]["containerEdits"];
        let sources: Vec<&str> =
            edits["mounts"].as_array().unwrap().iter().map(|mount| mount["hostPath"].as_str().unwrap()).collect();
        assert_eq!(sources, ["/run/vrdma/dev/a", "/l/libvrdma_verbs.so"]);
        assert_eq!(edits["deviceNodes"][0]["path"], "/dev/infiniband/a");
        assert_eq!(edits["env"][0], "VRDMA_SOCKET=/run/vrdma/dev");
    }

    #[test]
    fn only_our_specifications_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let spec = |name: &str| spec(name, Path::new("/f"), Path::new("/l"), None).unwrap().to_string();
        write_whole(&spec_file(folder.path(), "b"), spec("b").as_bytes()).unwrap();
        write_whole(&spec_file(folder.path(), "a"), spec("a").as_bytes()).unwrap();
        fs::write(folder.path().join("other.json"), r#"{"kind": "other.example/x", "devices": [{"name": "c"}]}"#).unwrap();
        fs::write(folder.path().join("broken.json"), "{").unwrap();
        assert_eq!(generated(folder.path()).unwrap(), ["a", "b"]);
        fs::write(folder.path().join("copy.json"), spec("a")).unwrap();
        assert!(generated(folder.path()).is_err());
        assert!(generated(Path::new("/nonexistent")).unwrap().is_empty());
    }
}
