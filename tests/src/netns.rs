//! Two network namespaces joined by a veth pair: the wire between two daemons.

use crate::{Daemon, DaemonOptions};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long the kernel may take to bring both ends up.
const UP_LIMIT: Duration = Duration::from_secs(10);

/// Two namespaces, `192.0.2.1` (and `2001:db8::1`) in the first and `192.0.2.2` (`2001:db8::2`) in the second.
#[derive(Debug)]
pub struct NetnsPair {
    names: [String; 2],
}

impl NetnsPair {
    /// IPv4 addresses of the two ends.
    pub const IPV4: [&'static str; 2] = ["192.0.2.1", "192.0.2.2"];
    /// IPv6 addresses of the two ends.
    pub const IPV6: [&'static str; 2] = ["2001:db8::1", "2001:db8::2"];

    /// Makes the pair, both interfaces with this Ethernet MTU. Needs root.
    pub fn new(mtu: u32) -> NetnsPair {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("vt{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let names = [format!("{id}a"), format!("{id}b")];
        let pair = NetnsPair { names };
        let [a, b] = &pair.names;
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        ip(&format!("-n {a} link add wire mtu {mtu} type veth peer name wire mtu {mtu} netns {b}"));
        for (name, (v4, v6)) in pair.names.iter().zip(Self::IPV4.iter().zip(Self::IPV6)) {
            ip(&format!("-n {name} addr add {v4}/24 dev wire"));
            // Without `nodad` the address could not be bound for the first second or two.
            ip(&format!("-n {name} addr add {v6}/64 dev wire nodad"));
            ip(&format!("-n {name} link set lo up"));
            ip(&format!("-n {name} link set wire up"));
        }
        for name in &pair.names {
            wait_until_up(name);
        }
        pair
    }

    /// Name of a namespace, `end` being 0 or 1.
    pub fn name(&self, end: usize) -> &str {
        &self.names[end]
    }

    /// A daemon in a namespace, without devices.
    pub fn daemon(&self, end: usize) -> Daemon {
        let netns = Some(self.name(end).to_owned());
        Daemon::start_with(DaemonOptions { netns, ..DaemonOptions::default() })
    }

    /// A daemon in each namespace, the first with device `a`, the second with `b`, both with the IPv4 address there.
    pub fn daemons(&self) -> [Daemon; 2] {
        [0, 1].map(|end| {
            let mut daemon = self.daemon(end);
            daemon.add_device(["a", "b"][end], Self::IPV4[end]);
            daemon
        })
    }

    /// Runs `ip` with these words in a namespace.
    pub fn ip(&self, end: usize, words: &str) {
        ip(&format!("-n {} {words}", self.names[end]));
    }
}

impl Drop for NetnsPair {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// The kernel says a second or so after the second end was set up that both are running; until then a port on them is down.
fn wait_until_up(name: &str) {
    let deadline = Instant::now() + UP_LIMIT;
    while !ip(&format!("-n {name} link show wire")).contains("state UP") {
        assert!(Instant::now() < deadline, "the veth pair is not up after {UP_LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn ip(words: &str) -> String {
    let output = Command::new("ip").args(words.split(' ')).output().expect("ip can be started");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
