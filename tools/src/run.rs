//! `vrdma run`: replaces this process by a program whose verbs calls go to our devices, or are shaped on their way to others.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use crate::args::{RunOptions, Shape};
use crate::library;
use crate::place::Place;

/// Where the preload library finds the device sockets.
pub const SOCKET_VARIABLE: &str = "VRDMA_SOCKET";

/// How the preload library shapes devices that are not ours.
const SHAPE_VARIABLE: &str = "VRDMA_SHAPE";

/// Does not return when the program starts.
pub fn carry_out(place: &Place, options: RunOptions) -> Result<()> {
    let mut sockets = OsString::new();
    for name in &options.devices {
        let socket = place.device_socket(name)?;
        check_device(place, name, &socket)?;
        if !sockets.is_empty() {
            sockets.push(":");
        }
        sockets.push(socket);
    }
    if options.view {
        let client = crate::api::Client::new(place.clone())?;
        let devices = options.devices.iter().map(|name| client.device(name)).collect::<Result<Vec<_>>>()?;
        crate::view::enter(&devices)?;
    }
    let program = &options.program[0];
    let mut command = Command::new(program);
    command.args(&options.program[1..]);
    equip(&mut command, &sockets)?;
    if let Some(Shape(members)) = options.shape {
        command.env(SHAPE_VARIABLE, if options.stats { members + ",stats" } else { members });
    }
    let error = command.exec();
    let program = program.to_string_lossy();
    Err(match error.kind() {
        ErrorKind::NotFound => anyhow!("there is no program `{program}` (or no interpreter that it names): is it installed?"),
        _ => anyhow::Error::from(error).context(format!("cannot start `{program}`")),
    })
}

/// Gives a program the preload library and the device sockets (paths with `:` between them).
pub fn equip(command: &mut Command, sockets: &OsStr) -> Result<()> {
    let library = library::find()?;
    command.env("LD_PRELOAD", library::preload(std::env::var_os("LD_PRELOAD"), &library)?);
    command.env(SOCKET_VARIABLE, sockets);
    Ok(())
}

/// Looks at the socket only, so that users who may use the device but not the control API can run programs; asks the API for
/// the reason when there is no socket.
fn check_device(place: &Place, name: &str, socket: &Path) -> Result<()> {
    match std::fs::metadata(socket) {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("cannot use device {name}: {}", socket.display())),
    }
    let devices = crate::api::Client::new(place.clone())?.devices()?;
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    if names.is_empty() {
        bail!("there is no device {name}: the daemon at {} has none, add one with `vrdma dev add`", place.dir().display());
    }
    bail!("there is no device {name}: the daemon at {} has {}", place.dir().display(), names.join(", "));
}
