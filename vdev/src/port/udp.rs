//! A port over kernel UDP sockets. Bursts are cut by the kernel or the interface (`UDP_SEGMENT`) and merged by the receiving
//! kernel (`UDP_GRO`): that divides the cost of the kernel's packet path by the number of packets.

use super::interface::Interfaces;
use super::receive::ReceiveBuffers;
use super::sockets::{Local, Sender, Senders, receiver};
use super::{Arrival, Burst, MAX_BURST_BYTES, MAX_BURST_PACKETS, Port, PortCounters, PortError};
use roce::wire::{ICRC_LEN, UDP_PORT, icrc};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{SockaddrLike, SockaddrStorage};
use rnic::Transmit;

/// Datagrams per system call.
const MAX_MESSAGES: usize = 16;
/// How long a full sending socket is waited for. Nothing else runs meanwhile; but nothing could be sent either, and loss costs
/// the transport far more.
const PATIENCE_MS: i32 = 1;

/// One local address, through kernel UDP sockets.
#[derive(Debug)]
pub struct UdpPort {
    local: Local,
    receiver: OwnedFd,
    senders: Senders,
    counters: PortCounters,
    /// The system's own count when we last looked.
    overflow_seen: u32,
    /// Cleared when the kernel cannot segment on the way out: then packets go one by one.
    segmentation: bool,
    /// Packets whose ICRC had to be made anew.
    resealed: Vec<u8>,
}

impl UdpPort {
    /// Receives for `ip` from now on.
    ///
    /// # Errors
    /// Why not.
    pub fn open(ip: IpAddr) -> Result<UdpPort, PortError> {
        let interfaces = Interfaces::now().map_err(|source| PortError::System { ip, what: "list of interfaces", source })?;
        let scope = interfaces.holding(ip).map_or(0, |interface| interface.index);
        let local = Local { ip, scope };
        Ok(UdpPort {
            local,
            receiver: receiver(local)?,
            senders: Senders::new(local),
            counters: PortCounters::default(),
            overflow_seen: 0,
            segmentation: true,
            resealed: Vec::new(),
        })
    }

    /// Sends bursts that leave from one socket with equal marks.
    fn send_alike(&mut self, bursts: &[Burst<'_>]) {
        let first = bursts[0].transmit;
        let is_ipv4 = self.local.ip.is_ipv4();
        let sender = self.senders.get(first.src_port);
        let sender = sender.and_then(|s| s.mark(is_ipv4, first.traffic_class, first.hop_limit).map(|()| s));
        let sender = match sender {
            Ok(sender) => sender,
            Err(error) => return bursts.iter().for_each(|_| self.counters.count_failure(&error)),
        };
        let mut at = 0;
        while at < bursts.len() {
            let sent = if self.segmentation && sender.port == first.src_port {
                let until = bursts.len().min(at + MAX_MESSAGES);
                send_messages(sender, self.local, &bursts[at..until])
            } else {
                send_resealed(sender, self.local, &bursts[at], self.segmentation, &mut self.resealed).map(|()| 1)
            };
            match sent {
                Ok(sent) => {
                    for burst in &bursts[at..at + sent] {
                        self.counters.sent_packets += packets(burst) as u64;
                        self.counters.sent_bytes += burst.bytes.len() as u64;
                    }
                    at += sent;
                }
                Err(error) if error.raw_os_error() == Some(libc::EIO) && self.segmentation => {
                    tracing::warn!(ip = %self.local.ip, "the interface cannot segment; packets go one by one, which is slow");
                    self.segmentation = false;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && wait_writable(sender) => {}
                Err(error) => {
                    self.counters.count_failure(&error);
                    tracing::debug!(ip = %self.local.ip, %error, "a burst was not sent");
                    at += 1;
                }
            }
        }
    }
}

impl PortCounters {
    fn count_failure(&mut self, error: &io::Error) {
        let counter = match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => &mut self.send_congested,
            // EINVAL: a segment longer than the interface takes.
            Some(libc::EMSGSIZE | libc::EINVAL) => &mut self.send_too_long,
            // EPERM and EACCES: a firewall, or a broadcast address.
            Some(
                libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EADDRNOTAVAIL | libc::EACCES | libc::EPERM,
            ) => &mut self.send_unreachable,
            _ => &mut self.send_failed,
        };
        *counter += 1;
    }
}

impl Port for UdpPort {
    fn send(&mut self, bursts: &[Burst<'_>]) {
        let alike = |a: &Burst<'_>, b: &Burst<'_>| {
            let marks = |t: &Transmit| (t.src_port, t.traffic_class, t.hop_limit);
            marks(a.transmit) == marks(b.transmit)
        };
        for run in bursts.chunk_by(alike) {
            self.send_alike(run);
        }
    }

    fn receive(&mut self, buffers: &mut ReceiveBuffers, deliver: &mut dyn FnMut(&Arrival, &[u8])) -> bool {
        let counters = &mut self.counters;
        let received = buffers.receive(self.receiver.as_fd(), &mut |arrival, bytes| {
            counters.received_packets += bytes.len().div_ceil(arrival.segment_len) as u64;
            counters.received_bytes += bytes.len() as u64;
            deliver(arrival, bytes);
        });
        match received {
            Ok(received) => {
                if let Some(seen) = received.overflow {
                    self.counters.receive_overflow += u64::from(seen.wrapping_sub(self.overflow_seen));
                    self.overflow_seen = seen;
                }
                buffers.is_all(received.datagrams)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            // An error that an earlier packet met on its way; reading it has cleared it.
            Err(error) => {
                tracing::debug!(ip = %self.local.ip, %error, "receive");
                true
            }
        }
    }

    fn receive_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

fn packets(burst: &Burst<'_>) -> usize {
    burst.bytes.len().div_ceil(burst.transmit.segment_len.max(1))
}

fn wait_writable(sender: &Sender) -> bool {
    let mut ready = libc::pollfd { fd: sender.fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, writable.
    unsafe { libc::poll(&raw mut ready, 1, PATIENCE_MS) == 1 }
}

/// The control message that asks for segmentation.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 24]);

/// Sends bursts as they are, each in one message; returns how many the system took, 1 or more.
fn send_messages(sender: &Sender, local: Local, bursts: &[Burst<'_>]) -> io::Result<usize> {
    // Filled as far as there are bursts: clearing all of it would cost as much as a small packet.
    let mut names = [const { MaybeUninit::<SockaddrStorage>::uninit() }; MAX_MESSAGES];
    let mut ranges = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_MESSAGES];
    let mut controls = [const { MaybeUninit::<Control>::uninit() }; MAX_MESSAGES];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_MESSAGES];
    for (n, burst) in bursts.iter().enumerate() {
        let (transmit, bytes) = (burst.transmit, burst.bytes);
        assert!(bytes.len() <= MAX_BURST_BYTES && packets(burst) <= MAX_BURST_PACKETS, "a burst of {} bytes", bytes.len());
        let name = &*names[n].write(SocketAddr::into(local.at(transmit.dst, UDP_PORT)));
        // SAFETY: an all-zero header is valid.
        let header = &mut headers[n].write(unsafe { core::mem::zeroed() }).msg_hdr;
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.len();
        header.msg_iov = ranges[n].write(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
        header.msg_iovlen = 1;
        if bytes.len() > transmit.segment_len {
            let segment = u16::try_from(transmit.segment_len).expect("a segment shorter than a burst");
            header.msg_control = controls[n].write(Control([0; 24])).0.as_mut_ptr().cast();
            // SAFETY: arithmetic only.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(2) } as _;
            // SAFETY: the control memory has room for one message of 2 bytes, and is aligned.
            unsafe {
                let message = libc::CMSG_FIRSTHDR(header);
                (*message).cmsg_level = libc::SOL_UDP;
                (*message).cmsg_type = libc::UDP_SEGMENT;
                (*message).cmsg_len = libc::CMSG_LEN(2) as _;
                libc::CMSG_DATA(message).cast::<u16>().write_unaligned(segment);
            }
        }
    }
    // SAFETY: all pointers are to memory of this frame or of the bursts, with their true lengths; the kernel only reads them.
    let sent = unsafe {
        libc::sendmmsg(sender.fd.as_raw_fd(), headers.as_mut_ptr().cast(), bursts.len() as _, libc::MSG_DONTWAIT as _)
    };
    match usize::try_from(sent) {
        Ok(sent) if sent > 0 => Ok(sent),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends a burst whose packets will not travel as its ICRCs assume: from another source port, or each by itself and so with
/// identification 0. The ICRCs are made anew.
fn send_resealed(
    sender: &Sender,
    local: Local,
    burst: &Burst<'_>,
    segmentation: bool,
    resealed: &mut Vec<u8>,
) -> io::Result<()> {
    let transmit = burst.transmit;
    let flow = icrc::Flow { src: transmit.src, dst: transmit.dst, src_port: sender.port };
    resealed.clear();
    resealed.extend_from_slice(burst.bytes);
    for (n, packet) in resealed.chunks_mut(transmit.segment_len.max(1)).enumerate() {
        let Some(covered) = packet.len().checked_sub(ICRC_LEN) else { continue };
        let id = if segmentation { n as u16 } else { 0 };
        let icrc = icrc::compute(&flow, id, &packet[..covered]);
        packet[covered..].copy_from_slice(&icrc.to_le_bytes());
    }
    if segmentation {
        return send_messages(sender, local, &[Burst { transmit, bytes: resealed }]).map(|_| ());
    }
    let singles: Vec<Burst<'_>> = resealed.chunks(transmit.segment_len.max(1)).map(|bytes| Burst { transmit, bytes }).collect();
    let mut at = 0;
    while at < singles.len() {
        match send_messages(sender, local, &singles[at..singles.len().min(at + MAX_MESSAGES)]) {
            Ok(sent) => at += sent,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && wait_writable(sender) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
