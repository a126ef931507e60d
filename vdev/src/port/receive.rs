//! Buffers for received datagrams, shared by all ports of a datapath thread, and the call that fills them.

use super::Arrival;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Datagrams per call. Few, so that the buffers stay in the cache: a merged datagram holds up to 64 KiB by itself.
const SLOTS: usize = 4;
/// The longest datagram.
const SLOT_BYTES: usize = 65536;
/// Room for the three control messages asked for.
const CONTROL_BYTES: usize = 96;
/// Congestion experienced, in the last two bits of the traffic class (RFC 3168).
const CE: u8 = 3;

/// Aligned as control messages must be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Where datagrams land. Reused for every call; what arrives is handed on before the next.
pub struct ReceiveBuffers {
    bytes: Box<[u8]>,
    controls: [Control; SLOTS],
    names: [MaybeUninit<libc::sockaddr_storage>; SLOTS],
}

impl core::fmt::Debug for ReceiveBuffers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ReceiveBuffers of {} bytes", self.bytes.len())
    }
}

impl Default for ReceiveBuffers {
    fn default() -> Self {
        ReceiveBuffers::new()
    }
}

/// What one call brought.
pub(super) struct Received {
    /// Datagrams, merged ones counted once.
    pub(super) datagrams: usize,
    /// The system's count of dropped datagrams of this socket, if it told.
    pub(super) overflow: Option<u32>,
}

impl ReceiveBuffers {
    /// Takes memory as it is first used.
    pub fn new() -> ReceiveBuffers {
        ReceiveBuffers {
            bytes: vec![0; SLOTS * SLOT_BYTES].into_boxed_slice(),
            controls: [Control([0; CONTROL_BYTES]); SLOTS],
            names: [MaybeUninit::zeroed(); SLOTS],
        }
    }

    /// Whether a call that brought so many datagrams may have left some.
    pub(super) fn is_all(&self, datagrams: usize) -> bool {
        datagrams == SLOTS
    }

    /// Receives without waiting and hands each datagram on.
    ///
    /// # Errors
    /// The system's; `WouldBlock` when nothing has arrived.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>, deliver: &mut dyn FnMut(&Arrival, &[u8])) -> io::Result<Received> {
        let mut ranges = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; SLOTS];
        for (range, slot) in ranges.iter_mut().zip(self.bytes.chunks_exact_mut(SLOT_BYTES)) {
            *range = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
        }
        // SAFETY: all-zero headers are valid.
        let mut headers: [libc::mmsghdr; SLOTS] = unsafe { core::mem::zeroed() };
        for (n, header) in headers.iter_mut().enumerate() {
            header.msg_hdr.msg_name = self.names[n].as_mut_ptr().cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_iov = &raw mut ranges[n];
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = self.controls[n].0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
        // SAFETY: all pointers are to memory of `self` or this frame, with their true lengths.
        let got = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), SLOTS as _, libc::MSG_DONTWAIT as _, core::ptr::null_mut())
        };
        let datagrams = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        let mut overflow = None;
        for (n, header) in headers[..datagrams].iter().enumerate() {
            // SAFETY: the kernel has filled the header, whose control and name memory is still there.
            let (source, segment, dropped, class) = unsafe {
                let header = &header.msg_hdr;
                (source(header), segment(header), dropped(header), traffic_class(header))
            };
            overflow = dropped.or(overflow);
            let len = header.msg_len as usize;
            let slot = &self.bytes[n * SLOT_BYTES..][..len.min(SLOT_BYTES)];
            if let Some((src, src_port)) = source
                && !slot.is_empty()
            {
                let segment_len = segment.filter(|&segment| segment > 0).unwrap_or(len);
                let congested = class.is_some_and(|class| class & CE == CE);
                deliver(&Arrival { src, src_port, segment_len, congested }, slot);
            }
        }
        Ok(Received { datagrams, overflow })
    }
}

/// # Safety
/// The kernel has filled `header`, and its name memory is there.
unsafe fn source(header: &libc::msghdr) -> Option<(IpAddr, u16)> {
    let name = header.msg_name;
    // SAFETY: the name memory is a `sockaddr_storage`, which has room and alignment for each kind; the family says which it is.
    unsafe {
        match i32::from((*name.cast::<libc::sockaddr_storage>()).ss_family) {
            libc::AF_INET => {
                let v4 = &*name.cast::<libc::sockaddr_in>();
                Some((Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into(), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                let v6 = &*name.cast::<libc::sockaddr_in6>();
                Some((Ipv6Addr::from(v6.sin6_addr.s6_addr).into(), u16::from_be(v6.sin6_port)))
            }
            _ => None,
        }
    }
}

/// The value in the control message of this kind.
///
/// # Safety
/// The kernel has filled `header`, and its control memory is there; messages of this kind hold a `T`, of which all bits are valid.
unsafe fn control<T>(header: &libc::msghdr, level: i32, kind: i32) -> Option<T> {
    // SAFETY: the macros stay within the control memory that the kernel has filled.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(head) = message.as_ref() {
            if (head.cmsg_level, head.cmsg_type) == (level, kind) {
                return Some(libc::CMSG_DATA(message).cast::<T>().read_unaligned());
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    None
}

/// # Safety
/// As [`control`].
unsafe fn segment(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the caller's promise.
    unsafe { control::<u32>(header, libc::SOL_UDP, libc::UDP_GRO) }.map(|segment| segment as usize)
}

/// # Safety
/// As [`control`].
unsafe fn dropped(header: &libc::msghdr) -> Option<u32> {
    // SAFETY: the caller's promise.
    unsafe { control(header, libc::SOL_SOCKET, libc::SO_RXQ_OVFL) }
}

/// # Safety
/// As [`control`].
unsafe fn traffic_class(header: &libc::msghdr) -> Option<u8> {
    // SAFETY: the caller's promise; IPv4 tells a byte, IPv6 an integer.
    unsafe {
        control(header, libc::IPPROTO_IP, libc::IP_TOS)
            .or_else(|| control::<u32>(header, libc::IPPROTO_IPV6, libc::IPV6_TCLASS).map(|class| class as u8))
    }
}
