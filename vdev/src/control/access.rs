//! Sockets whose rights are set before anybody can connect.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
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

/// Removes a socket that nobody listens on any more. Anything else stays, and binding there fails.
pub fn remove_stale(path: &Path) {
    let is_socket = path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err_and(refused) {
        let _ = std::fs::remove_file(path);
    }
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
