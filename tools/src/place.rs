//! Where the daemon's sockets lie: one directory with `api.sock` and `dev/NAME/sock`.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

/// Longest path of a Unix socket in bytes (`sun_path` less its closing zero).
const SOCKET_PATH_MAX: usize = 107;

/// The directory of one daemon.
#[derive(Clone, Debug)]
pub struct Place {
    dir: PathBuf,
}

impl Place {
    /// The directory that the user named, else the default one of this user.
    pub fn find(named: Option<&Path>) -> Result<Place> {
        Place::choose(named, nix::unistd::geteuid().is_root(), std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
    }

    fn choose(named: Option<&Path>, is_root: bool, runtime_dir: Option<PathBuf>) -> Result<Place> {
        let dir = match named {
            Some(dir) => {
                ensure!(!dir.as_os_str().is_empty(), "the directory of the daemon is the empty string: name one with --dir");
                dir.to_owned()
            }
            None if is_root => PathBuf::from("/run/vrdma"),
            None => match runtime_dir.filter(|dir| dir.is_absolute()) {
                Some(runtime_dir) => runtime_dir.join("vrdma"),
                None => bail!(
                    "there is no default directory for the daemon's sockets, as XDG_RUNTIME_DIR is not set: name one with --dir \
                     or VRDMA_DIR"
                ),
            },
        };
        // Programs started with `run` may change their directory before they open the socket.
        Ok(Place { dir: std::path::absolute(dir)? })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Socket of the control API.
    pub fn api_socket(&self) -> Result<PathBuf> {
        checked(self.dir.join("api.sock"))
    }

    /// Socket of the controller of the wide-area network.
    pub fn wan_socket(&self) -> Result<PathBuf> {
        checked(self.dir.join("wan.sock"))
    }

    /// Socket of a device.
    pub fn device_socket(&self, name: &str) -> Result<PathBuf> {
        checked(self.device_folder(name)?.join("sock"))
    }

    /// Folder of a device, which holds its socket. The name must be a plain file name, so that it cannot lead out of the directory.
    pub fn device_folder(&self, name: &str) -> Result<PathBuf> {
        let plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0', ':']);
        ensure!(plain, "`{}` is not a device name: see `vrdma dev list`", name.escape_debug());
        Ok(self.dir.join("dev").join(name))
    }
}

fn checked(path: PathBuf) -> Result<PathBuf> {
    let length = path.as_os_str().len();
    ensure!(
        length <= SOCKET_PATH_MAX,
        "the socket path {} is {length} bytes long and the system allows {SOCKET_PATH_MAX}: choose a shorter directory with \
         --dir or VRDMA_DIR",
        path.display()
    );
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults() {
        let place = |named: Option<&str>, root, runtime: Option<&str>| {
            Place::choose(named.map(Path::new), root, runtime.map(PathBuf::from)).map(|place| place.dir)
        };
        assert_eq!(place(None, true, Some("/run/user/1")).unwrap(), Path::new("/run/vrdma"));
        assert_eq!(place(None, false, Some("/run/user/1")).unwrap(), Path::new("/run/user/1/vrdma"));
        assert_eq!(place(Some("/x"), true, None).unwrap(), Path::new("/x"));
        assert!(place(None, false, None).is_err());
        assert!(place(None, false, Some("relative")).is_err());
        assert!(place(Some(""), false, None).is_err());
    }

    #[test]
    fn names_stay_in_the_directory_and_paths_fit() {
        let place = Place { dir: PathBuf::from("/run/vrdma") };
        assert_eq!(place.device_socket("a").unwrap(), Path::new("/run/vrdma/dev/a/sock"));
        for name in ["", ".", "..", "../api", "a/b", "a:b"] {
            assert!(place.device_socket(name).is_err(), "{name}");
        }
        let longest = SOCKET_PATH_MAX - "/run/vrdma/dev//sock".len();
        assert!(place.device_socket(&"n".repeat(longest)).is_ok());
        assert!(place.device_socket(&"n".repeat(longest + 1)).is_err());
    }
}
