//! What passed a guest's port: a capture by tcpdump, dissected by tshark, with the ICRC of each packet checked.

use super::{Image, Port, Switch};
use crate::Program;
use nix::sys::signal::Signal;
use roce::wire::icrc::{Flow, Ipv4Fields, Prefix};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
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
pub struct Packets {
    /// Each packet, from the IP header on.
    pub packets: Vec<Vec<u8>>,
    /// What is wrong with some of them, by tshark and by the ICRC; empty if nothing is.
    pub complaints: Vec<String>,
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
    pub fn stop(mut self) -> Packets {
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
        let packets = read_pcap(&std::fs::read(&self.file).expect("tcpdump wrote a file"));
        let mut complaints = self.dissect();
        let bad = packets.iter().enumerate().filter_map(|(n, packet)| Some((n, check_icrc(packet).err()?)));
        complaints.extend(bad.map(|(n, complaint)| format!("packet {}: {complaint}", n + 1)));
        Packets { packets, complaints }
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

/// The packets of a pcap file of Ethernet frames in this machine's byte order, without their Ethernet headers.
fn read_pcap(bytes: &[u8]) -> Vec<Vec<u8>> {
    const FILE_HEADER: usize = 24;
    const RECORD_HEADER: usize = 16;
    const ETHERNET: usize = 14;
    let mut packets = Vec::new();
    let mut rest = bytes.get(FILE_HEADER..).unwrap_or_default();
    while let Some((header, after)) = rest.split_at_checked(RECORD_HEADER) {
        let len = u32::from_ne_bytes(header[8..12].try_into().expect("4 bytes")) as usize;
        let Some((frame, next)) = after.split_at_checked(len) else { break };
        packets.push(frame.get(ETHERNET..).unwrap_or_default().to_vec());
        rest = next;
    }
    packets
}

/// Checks the ICRC of a whole IP packet, with IPv4's identification and flags as its header has them.
fn check_icrc(packet: &[u8]) -> Result<(), String> {
    let short = || format!("too short: {packet:02x?}");
    let be16 = |at: usize| packet.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]])).ok_or_else(short);
    let address = |at: usize, len: usize| packet.get(at..at + len).ok_or_else(short);
    let (src, dst, udp, hidden): (IpAddr, IpAddr, usize, _) = match packet.first() {
        Some(0x45) => {
            let ip = |at| address(at, 4).map(|octets| <[u8; 4]>::try_from(octets).expect("4 bytes"));
            let dont_fragment = be16(6)? & 0x4000 != 0;
            let fields = Ipv4Fields { id: be16(4)?, dont_fragment };
            (Ipv4Addr::from(ip(12)?).into(), Ipv4Addr::from(ip(16)?).into(), 20, Some(fields))
        }
        Some(0x60..=0x6F) => {
            let ip = |at| address(at, 16).map(|octets| <[u8; 16]>::try_from(octets).expect("16 bytes"));
            (Ipv6Addr::from(ip(8)?).into(), Ipv6Addr::from(ip(24)?).into(), 40, None)
        }
        _ => return Err(format!("no plain IP header: {:02x?}", &packet[..packet.len().min(20)])),
    };
    // A short frame is padded by Ethernet; the UDP length tells where the packet ends.
    let end = udp + usize::from(be16(udp + 4)?);
    let payload = packet.get(udp + 8..end).ok_or_else(short)?;
    let flow = Flow { src, dst, src_port: be16(udp)? };
    let found = Prefix::new(&flow, payload.len()).and_then(|prefix| prefix.identify(0, payload)).map_err(|e| e.to_string())?;
    if found == hidden { Ok(()) } else { Err(format!("the ICRC stands for {found:?}, the header says {hidden:?}")) }
}
