//! Two network namespaces joined by one veth pair or several: the wire between two daemons.

use crate::{Daemon, DaemonOptions};
use serde_json::Value;
use std::collections::BTreeMap;
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
    /// Address of the first end on the link of [`Self::with_links`] that lies aside.
    pub const ASIDE: &'static str = "198.18.255.1";
    /// IPv6 addresses of the two ends.
    pub const IPV6: [&'static str; 2] = ["2001:db8::1", "2001:db8::2"];

    /// Two namespaces that nothing joins yet.
    fn apart() -> NetnsPair {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("vt{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let pair = NetnsPair { names: [format!("{id}a"), format!("{id}b")] };
        for name in &pair.names {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
        }
        pair
    }

    /// Makes the pair with `links` links of this Ethernet MTU between the two. The IPv4 addresses are on `lo`, and packets to the other
    /// one go over the link that a hash of addresses and ports says, as with ECMP in a fabric. One more link, to [`Self::ASIDE`], is
    /// not among them. Needs root.
    pub fn with_links(mtu: u32, links: usize) -> NetnsPair {
        let pair = Self::apart();
        let [a, b] = &pair.names;
        for link in 0..=links {
            ip(&format!("-n {a} link add wire{link} mtu {mtu} type veth peer name wire{link} mtu {mtu} netns {b}"));
        }
        for (end, name) in pair.names.iter().enumerate() {
            for link in 0..=links {
                let number = if link == links { ASIDE } else { link };
                ip(&format!("-n {name} addr add {}/30 dev wire{link}", on_link(number, end)));
                ip(&format!("-n {name} link set wire{link} up"));
            }
            ip(&format!("-n {name} addr add {}/32 dev lo", Self::IPV4[end]));
            ip(&format!("netns exec {name} sysctl -q -w net.ipv4.fib_multipath_hash_policy=1"));
            let ways: String =
                (0..links).map(|link| format!(" nexthop via {} dev wire{link}", on_link(link, 1 - end))).collect();
            ip(&format!("-n {name} route add {}/32 src {}{ways}", Self::IPV4[1 - end], Self::IPV4[end]));
        }
        for link in 0..=links {
            pair.names.iter().for_each(|name| wait_until_up(name, &format!("wire{link}")));
        }
        pair
    }

    /// From now on what goes over a link of [`Self::with_links`] is lost on the way, in both directions, and nobody is told.
    pub fn lose_silently(&self, link: usize) {
        for (end, name) in self.names.iter().enumerate() {
            // The other end drops frames for a station that it is not.
            let peer = on_link(link, 1 - end);
            ip(&format!("-n {name} neigh replace {peer} lladdr 02:00:00:00:00:01 dev wire{link} nud permanent"));
        }
    }

    /// Packets that left an end over each link of [`Self::with_links`], all looked at together.
    pub fn sent_over_links(&self, end: usize) -> Vec<u64> {
        let all: Value = serde_json::from_str(&ip(&format!("-n {} -j -s link show", self.names[end]))).expect("JSON");
        let all = all.as_array().expect("a list").iter();
        let link = |one: &Value| one["ifname"].as_str()?.strip_prefix("wire")?.parse::<usize>().ok();
        let sent: BTreeMap<usize, u64> =
            all.filter_map(|one| Some((link(one)?, one["stats64"]["tx"]["packets"].as_u64().expect("a count")))).collect();
        sent.into_values().collect()
    }

    /// Makes the pair, both interfaces with this Ethernet MTU. Needs root.
    pub fn new(mtu: u32) -> NetnsPair {
        let pair = Self::apart();
        let [a, b] = &pair.names;
        ip(&format!("-n {a} link add wire mtu {mtu} type veth peer name wire mtu {mtu} netns {b}"));
        for (name, (v4, v6)) in pair.names.iter().zip(Self::IPV4.iter().zip(Self::IPV6)) {
            ip(&format!("-n {name} addr add {v4}/24 dev wire"));
            // Without `nodad` the address could not be bound for the first second or two.
            ip(&format!("-n {name} addr add {v6}/64 dev wire nodad"));
            ip(&format!("-n {name} link set wire up"));
        }
        pair.names.iter().for_each(|name| wait_until_up(name, "wire"));
        pair
    }

    /// Name of a namespace, `end` being 0 or 1.
    pub fn name(&self, end: usize) -> &str {
        &self.names[end]
    }

    /// A daemon in a namespace, without devices.
    pub fn daemon(&self, end: usize) -> Daemon {
        self.daemon_with(end, DaemonOptions::default())
    }

    /// A daemon in a namespace, started this way, without devices.
    pub fn daemon_with(&self, end: usize, options: DaemonOptions) -> Daemon {
        Daemon::start_with(DaemonOptions { netns: Some(self.name(end).to_owned()), ..options })
    }

    /// A daemon in each namespace, the first with device `a`, the second with `b`, both with the IPv4 address there.
    pub fn daemons(&self) -> [Daemon; 2] {
        self.daemons_with([DaemonOptions::default(), DaemonOptions::default()])
    }

    /// [`Self::daemons`], each started its way.
    pub fn daemons_with(&self, options: [DaemonOptions; 2]) -> [Daemon; 2] {
        let [of_a, of_b] = options;
        [self.daemon_with_device(0, of_a, "a"), self.daemon_with_device(1, of_b, "b")]
    }

    fn daemon_with_device(&self, end: usize, options: DaemonOptions, device: &str) -> Daemon {
        let mut daemon = self.daemon_with(end, options);
        daemon.add_device(device, Self::IPV4[end]);
        daemon
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

/// Number of the link that lies aside in addresses.
const ASIDE: usize = 255;

/// Address of an end of a link.
fn on_link(link: usize, end: usize) -> String {
    format!("198.18.{link}.{}", end + 1)
}

/// The kernel says a second or so after the second end was set up that both are running; until then a port on them is down.
pub(crate) fn wait_until_up(name: &str, interface: &str) {
    let deadline = Instant::now() + UP_LIMIT;
    while !ip(&format!("-n {name} link show {interface}")).contains("state UP") {
        assert!(Instant::now() < deadline, "the veth pair is not up after {UP_LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn ip(words: &str) -> String {
    run(Command::new("ip").args(words.split(' ')))
}

/// Runs a command that must succeed; what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().expect("the command can be started");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
