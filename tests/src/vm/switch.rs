//! A network namespace with a bridge: guests plug in through taps, and the host's own end is an address on the bridge.

use super::Image;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A namespace with a bridge in it, which is removed when this is dropped. The host's end is `192.0.2.1` and `2001:db8::1`, that
/// of the guest in port N (counted from 0) `192.0.2.10+N` and `2001:db8::10+N`.
#[derive(Debug)]
pub struct Switch {
    name: String,
    ports: Vec<Port>,
}

/// A socket of the switch for one guest.
#[derive(Clone, Debug)]
pub struct Port {
    /// The tap, in the namespace of the switch.
    pub tap: String,
    /// Ethernet address of the guest.
    pub mac: String,
    /// IPv4 address of the guest.
    pub ipv4: String,
    /// IPv6 address of the guest.
    pub ipv6: String,
}

impl Port {
    /// The GID of the guest's IPv4 address, as the kernel prints it.
    pub fn ipv4_gid(&self) -> String {
        let address: Ipv4Addr = self.ipv4.parse().expect("an IPv4 address");
        full_gid(address.to_ipv6_mapped())
    }

    /// The GID of the guest's IPv6 address, as the kernel prints it.
    pub fn ipv6_gid(&self) -> String {
        full_gid(self.ipv6.parse().expect("an IPv6 address"))
    }
}

/// All eight groups in full.
fn full_gid(address: Ipv6Addr) -> String {
    address.segments().map(|group| format!("{group:04x}")).join(":")
}

impl Switch {
    /// The host's IPv4 address.
    pub const IPV4: &'static str = "192.0.2.1";
    /// The host's IPv6 address.
    pub const IPV6: &'static str = "2001:db8::1";

    /// A switch with this many ports. Needs root.
    pub fn new(ports: u32) -> Switch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("vm{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let ports = (0..ports).map(|n| Port {
            tap: format!("tap{n}"),
            mac: format!("52:54:00:00:00:{:02x}", 10 + n),
            ipv4: format!("192.0.2.{}", 10 + n),
            ipv6: format!("2001:db8::{}", 10 + n),
        });
        let switch = Switch { name, ports: ports.collect() };
        ip(&format!("netns add {}", switch.name));
        switch.ip("link set lo up");
        switch.ip("link add bridge type bridge forward_delay 0 mcast_snooping 0");
        switch.ip(&format!("addr add {}/24 dev bridge", Self::IPV4));
        switch.ip(&format!("addr add {}/64 dev bridge nodad", Self::IPV6));
        for port in &switch.ports {
            switch.ip(&format!("tuntap add {} mode tap vnet_hdr", port.tap));
            switch.ip(&format!("link set {} master bridge up", port.tap));
        }
        switch.ip("link set bridge up");
        switch
    }

    /// Name of the namespace.
    pub fn netns(&self) -> &str {
        &self.name
    }

    /// A port, counted from 0.
    pub fn port(&self, n: usize) -> &Port {
        &self.ports[n]
    }

    /// Sets the Ethernet MTU of the bridge and of all taps; guests set their own.
    pub fn set_mtu(&self, mtu: u32) {
        for port in &self.ports {
            self.ip(&format!("link set {} mtu {mtu}", port.tap));
        }
        self.ip(&format!("link set bridge mtu {mtu}"));
    }

    /// Drops this share of the RoCEv2 packets of both directions from now on, at random; 0 for none.
    pub fn set_loss(&self, image: &Image, per_mille: u32) {
        // Between bridge and tap: a sender on the host does not notice, as it would at its own socket.
        let rule = format!("udp dport 4791 numgen random mod 1000 < {per_mille} drop");
        let rules = format!(
            "table bridge loss
            delete table bridge loss
            table bridge loss {{
                chain in {{ type filter hook prerouting priority 0; {rule}; }}
                chain out {{ type filter hook output priority 0; {rule}; }}
            }}"
        );
        let words = [image.program("nft"), vec![rules]].concat();
        let output = self.command(&words).output().expect("nft can be started");
        assert!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A command in the namespace, not yet started.
    pub fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).args(words);
        command
    }

    /// Runs `ip` with these words in the namespace.
    pub fn ip(&self, words: &str) {
        ip(&format!("-n {} {words}", self.name));
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn ip(words: &str) {
    let output = Command::new("ip").args(words.split(' ')).output().expect("ip can be started");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_written_as_the_kernel_does() {
        let port = Port { tap: String::new(), mac: String::new(), ipv4: "192.0.2.10".into(), ipv6: "2001:db8::10".into() };
        assert_eq!(port.ipv4_gid(), "0000:0000:0000:0000:0000:ffff:c000:020a");
        assert_eq!(port.ipv6_gid(), "2001:0db8:0000:0000:0000:0000:0000:0010");
    }
}
