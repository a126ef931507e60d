//! What passed a guest's port: a capture by tcpdump, dissected by tshark, with the ICRC of each packet checked.

use super::packets::{self, Packet};
use super::{Image, Port, Switch};
use crate::Program;
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long tcpdump may take to start or to stop.
const LIMIT: Duration = Duration::from_secs(30);
/// Packets kept of one capture: what a dissection looks at is bounded.
const MAX_PACKETS: u32 = 20_000;
/// What tshark may find: else it guesses at more protocols inside of payloads, and calls data malformed that is none of them.
const PROTOCOLS: &str = "frame,eth,ethertype,ip,ipv6,udp,infiniband";
/// What is no sound RoCEv2 packet, as a display filter of tshark. A payload that looks like an Ethernet type is still taken for
/// what that type says: what is inside of a payload does not count.
const UNSOUND: &str = "!infiniband || \
    ((_ws.malformed || _ws.expert.severity == error) && !(frame.protocols matches \"infiniband:[^_]\"))";
/// How long a capture must not have grown to hold all that passed.
const SETTLED: Duration = Duration::from_millis(300);

/// A running capture of the RoCEv2 packets that pass a port.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Program,
    file: PathBuf,
    image: Image,
}

/// What a capture holds.
#[derive(Debug)]
pub struct Captured {
    /// Each packet.
    pub packets: Vec<Packet>,
    /// What is wrong with some of them, by tshark and by the ICRC; empty if nothing is.
    pub complaints: Vec<String>,
    /// The capture itself, until the next one with the same folder.
    pub file: PathBuf,
}

impl Captured {
    /// In one line, for runs that failed: the connection manager's messages with their times, how many packets of each kind
    /// went to which queue pair, and when the last one passed.
    pub fn story(&self) -> String {
        packets::story(&self.packets)
    }
}

impl Capture {
    /// Captures until [`Capture::stop`], the first 20 000 packets of the run; files lie in `folder`.
    pub fn start(image: &Image, switch: &Switch, port: &Port, folder: &Path) -> Capture {
        let file = folder.join("capture.pcap");
        let limit = MAX_PACKETS.to_string();
        let name = file.to_str().expect("a path of the temporary directory is text");
        let mut words = image.program("tcpdump");
        let options =
            ["-i", &port.tap, "-w", name, "-U", "--immediate-mode", "-s", "0", "-B", "16384", "-c", &limit, "-Z", "root"];
        words.extend(options.iter().chain(&["udp", "port", "4791"]).map(|&word| word.to_owned()));
        let mut tcpdump = Program::start("tcpdump", folder, switch.command(&words));
        tcpdump.wait_for_output("listening on", LIMIT);
        Capture { tcpdump, file, image: image.clone() }
    }

    /// Ends the capture and looks at it.
    pub fn stop(mut self) -> Captured {
        let size = || std::fs::metadata(&self.file).map_or(0, |file| file.len());
        let mut before = u64::MAX;
        while before != size() {
            before = size();
            std::thread::sleep(SETTLED);
        }
        if self.tcpdump.is_running() {
            self.tcpdump.signal(Signal::SIGINT);
        }
        self.tcpdump.succeed(LIMIT);
        let packets = packets::read_pcap(&std::fs::read(&self.file).expect("tcpdump wrote a file"));
        let mut complaints = self.dissect();
        let bad = packets.iter().enumerate().filter_map(|(n, packet)| Some((n, packet.check_icrc().err()?)));
        complaints.extend(bad.map(|(n, complaint)| format!("packet {}: {complaint}", n + 1)));
        Captured { packets, complaints, file: self.file }
    }

    /// The packets that tshark finds unsound.
    fn dissect(&self) -> Vec<String> {
        let words = self.image.program("tshark");
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["-r".as_ref(), self.file.as_os_str()]).args([
            "--only-protocols",
            PROTOCOLS,
            // RoCEv2 leaves it out, over IPv6 as well.
            "-o",
            "udp.ignore_ipv6_zero_checksum:TRUE",
            "-Y",
            UNSOUND,
        ]);
        let output = command.output().expect("tshark can be started");
        assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).lines().map(|line| format!("tshark: {}", line.trim())).collect()
    }
}
