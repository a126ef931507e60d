//! Sockets whose rights are set before anybody can connect.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use nix::sys::socket::SockType;

use super::seqpacket;

/// A bound socket that only the daemon's user may connect to once it listens.
///
/// # Errors
/// As `bind(2)`; nothing is left behind.
pub fn bind_private(path: &Path, kind: SockType) -> io::Result<OwnedFd> {
    bind_with(path, kind, 0o600, None, None)
}

/// A bound socket with this mode and owner. It does not listen yet, so nobody was able to connect with other rights.
///
/// # Errors
/// As `bind(2)`, `chmod(2)` and `chown(2)`; nothing is left behind.
pub fn bind_with(path: &Path, kind: SockType, mode: u32, uid: Option<u32>, gid: Option<u32>) -> io::Result<OwnedFd> {
    let socket = seqpacket::bind(path, kind)?;
    let rights = || {
        if uid.is_some() || gid.is_some() {
            chown(path, uid, gid)?;
        }
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
    };
    if let Err(error) = rights() {
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(socket)
}
