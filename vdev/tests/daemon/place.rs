//! A daemon of this process in a directory of its own, and its API spoken by hand.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use vdev::{Daemon, DaemonConfig};

/// A directory that is removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("vdev-{}-{count}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running daemon.
pub struct Place {
    pub daemon: Option<Daemon>,
    pub folder: Folder,
}

impl Place {
    pub fn new() -> Place {
        Place::with(|_| {})
    }

    /// A daemon with other settings than the usual ones.
    pub fn with(change: impl FnOnce(&mut DaemonConfig)) -> Place {
        let folder = Folder::new();
        let mut config = DaemonConfig::new(folder.path());
        change(&mut config);
        let daemon = Daemon::start(config).unwrap();
        Place { daemon: Some(daemon), folder }
    }

    /// A daemon with devices `a` (203.0.113.1) and `b` (203.0.113.2).
    pub fn with_two_devices() -> Place {
        let place = Place::new();
        for (name, ip) in [("a", "203.0.113.1"), ("b", "203.0.113.2")] {
            place.add(name, ip);
        }
        place
    }

    pub fn api(&self) -> PathBuf {
        self.folder.path().join("api.sock")
    }

    pub fn socket(&self, device: &str) -> PathBuf {
        self.folder.path().join("dev").join(device).join("sock")
    }

    pub fn add(&self, name: &str, ip: &str) -> Value {
        let (status, body) = self.http("PUT", &format!("/v1/devices/{name}"), &format!("{{\"ips\":[\"{ip}\"]}}"));
        assert_eq!(status, 201, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    pub fn device(&self, name: &str) -> Value {
        let (status, body) = self.http("GET", &format!("/v1/devices/{name}"), "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    pub fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        http(&self.api(), method, path, body).unwrap()
    }

    /// Waits until a device has this many clients.
    pub fn wait_for_clients(&self, device: &str, count: usize) {
        wait_until(&format!("device {device} has {count} clients"), || {
            self.device(device)["clients"].as_array().unwrap().len() == count
        });
    }
}

/// Waits for something that has to happen. The bound only keeps a failing test from hanging.
pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if happened() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("waited 20 s in vain until {what}");
}

/// One request on a connection of its own: status and body.
pub fn http(socket: &Path, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let mut stream = UnixStream::connect(socket)?;
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(std::io::ErrorKind::InvalidData)?;
    Ok((status, body.to_owned()))
}
