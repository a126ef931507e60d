//! vfio-user messages as bytes: parsed into [`Request`]s, and the bodies of replies.
//!
//! Pure functions over slices. Every length, count and flag is checked here, so that whoever executes a request meets only
//! sizes that are bounded; addresses and indices are for the executor to judge. All numbers are little-endian.

use super::bytes::{u16_at, u32_at, u64_at};
use serde_json::Value;

/// Bytes of a message header.
pub const HEADER: usize = 16;
/// Most bytes of data that one region access may carry; announced to the client.
pub const MAX_TRANSFER: usize = 64 << 10;
/// Most bytes after a header: the data of the longest access and its fixed part.
pub const MAX_BODY: usize = MAX_TRANSFER + 16;
/// Protocol version: major, and highest minor.
pub const VERSION: (u16, u16) = (0, 1);
/// Most descriptors per message; announced to the client.
pub const MAX_FDS: usize = vdev_abi::control::MAX_FDS;

const TYPE_MASK: u32 = 0xF;
const TYPE_REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// Flags of a region: readable, writable, some of it can be mapped, capabilities follow.
pub mod region_flags {
    /// May be read.
    pub const READ: u32 = 1;
    /// May be written.
    pub const WRITE: u32 = 2;
    /// Some of it may be mapped.
    pub const MMAP: u32 = 4;
    /// A capability list belongs to it.
    pub const CAPS: u32 = 8;
}

/// Flags of [`Request::SetIrqs`].
pub mod irq_flags {
    /// No data: the action is for all vectors named.
    pub const DATA_NONE: u32 = 1;
    /// One byte per vector says whether the action is for it.
    pub const DATA_BOOL: u32 = 2;
    /// Descriptors come along.
    pub const DATA_EVENTFD: u32 = 4;
    /// Make interrupts happen, now or through the descriptors.
    pub const ACTION_TRIGGER: u32 = 32;
}

/// The header of a message from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The client's number for it.
    pub id: u16,
    /// Command code.
    pub command: u16,
    /// Bytes after the header.
    pub body: usize,
    /// The client does not wait for a reply.
    pub no_reply: bool,
}

/// Why the bytes of a connection make no sense from here on: it has to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// Shorter than a header, or longer than any message.
    #[error("a message of {0} bytes: 16 to {max} are possible", max = HEADER + MAX_BODY)]
    Size(u32),
    /// A reply to a request that nobody made, or no such type.
    #[error("a message with flags {0:#x} is no request")]
    Type(u32),
}

/// Why a request is refused; the connection goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// For the reply.
    pub errno: i32,
    /// For the log.
    pub reason: String,
}

/// A refusal with this error number.
pub fn refused(errno: i32, reason: impl Into<String>) -> Refused {
    Refused { errno, reason: reason.into() }
}

/// A request, checked as far as its bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Opens the conversation.
    Version {
        /// Minor version that the client speaks; the major one is ours.
        minor: u16,
    },
    /// Guest memory appears.
    DmaMap {
        /// Rights, bits 0 (read) and 1 (write).
        rights: u32,
        /// Where it begins in the object that comes along.
        offset: u64,
        /// Guest-physical address.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// Guest memory goes.
    DmaUnmap {
        /// All of it, whatever the range says.
        all: bool,
        /// Guest-physical address.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// What the device has.
    DeviceInfo,
    /// One region.
    RegionInfo {
        /// Bytes that the client has room for, 32 or more.
        argsz: u32,
        /// Which.
        index: u32,
    },
    /// One kind of interrupt.
    IrqInfo {
        /// Which.
        index: u32,
    },
    /// Interrupts are set up or triggered.
    SetIrqs {
        /// Kind of data and action, see [`irq_flags`].
        flags: u32,
        /// Kind of interrupt.
        index: u32,
        /// First vector.
        start: u32,
        /// Number of vectors.
        count: u32,
        /// With [`irq_flags::DATA_BOOL`], `count` bytes; empty otherwise.
        data: &'a [u8],
    },
    /// Reads from a region.
    RegionRead {
        /// First byte.
        offset: u64,
        /// Which region.
        region: u32,
        /// Bytes, at most [`MAX_TRANSFER`].
        count: usize,
    },
    /// Writes to a region.
    RegionWrite {
        /// First byte.
        offset: u64,
        /// Which region.
        region: u32,
        /// The bytes, at most [`MAX_TRANSFER`].
        data: &'a [u8],
    },
    /// Back to how the device was at the start.
    Reset,
}

/// The header in these bytes.
///
/// # Errors
/// [`BadHeader`].
pub fn header(bytes: &[u8; HEADER]) -> Result<Header, BadHeader> {
    let (size, flags) = (u32_at(bytes, 4), u32_at(bytes, 8));
    let body = (size as usize).checked_sub(HEADER).filter(|&body| body <= MAX_BODY).ok_or(BadHeader::Size(size))?;
    if flags & TYPE_MASK != 0 {
        return Err(BadHeader::Type(flags));
    }
    Ok(Header { id: u16_at(bytes, 0), command: u16_at(bytes, 2), body, no_reply: flags & NO_REPLY != 0 })
}

/// The request in a message.
///
/// # Errors
/// `EINVAL` for what cannot be meant, `ENOTSUP` for what this server does not do: I/O descriptors, migration, dirty pages.
pub fn parse(command: u16, body: &[u8]) -> Result<Request<'_>, Refused> {
    let has = |len: usize| {
        let short = || refused(libc::EINVAL, format!("command {command} has {} bytes after its header, not {len}", body.len()));
        if body.len() < len { Err(short()) } else { Ok(()) }
    };
    match command {
        1 => version(body),
        2 => {
            has(32)?;
            let rights = u32_at(body, 4);
            if rights & !3 != 0 {
                return Err(refused(libc::EINVAL, format!("a DMA map with flags {rights:#x}")));
            }
            Ok(Request::DmaMap { rights, offset: u64_at(body, 8), address: u64_at(body, 16), size: u64_at(body, 24) })
        }
        3 => {
            has(24)?;
            match u32_at(body, 4) {
                0 => Ok(Request::DmaUnmap { all: false, address: u64_at(body, 8), size: u64_at(body, 16) }),
                2 => Ok(Request::DmaUnmap { all: true, address: 0, size: 0 }),
                flags => Err(refused(libc::EINVAL, format!("a DMA unmap with flags {flags:#x}; dirty pages are not tracked"))),
            }
        }
        4 => has(16).map(|()| Request::DeviceInfo),
        5 => {
            has(32)?;
            let argsz = u32_at(body, 0);
            if argsz < 32 {
                return Err(refused(libc::EINVAL, format!("region information needs room for 32 bytes, not {argsz}")));
            }
            Ok(Request::RegionInfo { argsz, index: u32_at(body, 8) })
        }
        7 => has(16).map(|()| Request::IrqInfo { index: u32_at(body, 8) }),
        8 => {
            has(20)?;
            let (flags, count, data) = (u32_at(body, 4), u32_at(body, 16), &body[20..]);
            let expected = if flags & irq_flags::DATA_BOOL != 0 { count as usize } else { 0 };
            if data.len() != expected {
                return Err(refused(libc::EINVAL, format!("{} bytes of data for {count} vectors", data.len())));
            }
            Ok(Request::SetIrqs { flags, index: u32_at(body, 8), start: u32_at(body, 12), count, data })
        }
        9 | 10 => {
            has(16)?;
            let (offset, region, count) = (u64_at(body, 0), u32_at(body, 8), u32_at(body, 12) as usize);
            let data = &body[16..];
            let carried = if command == 10 { count } else { 0 };
            if count > MAX_TRANSFER || data.len() != carried {
                return Err(refused(libc::EINVAL, format!("an access of {count} bytes with {} bytes of data", data.len())));
            }
            if command == 9 {
                Ok(Request::RegionRead { offset, region, count })
            } else {
                Ok(Request::RegionWrite { offset, region, data })
            }
        }
        13 => Ok(Request::Reset),
        other => Err(refused(libc::ENOTSUP, format!("command {other} is not supported"))),
    }
}

/// Version and capabilities. The latter are optional; what the client can take limits nothing that this server does, as no
/// reply carries more than one descriptor or more data than was asked for.
fn version(body: &[u8]) -> Result<Request<'_>, Refused> {
    if body.len() < 4 {
        return Err(refused(libc::EINVAL, "a version message without a version"));
    }
    let (major, minor, data) = (u16_at(body, 0), u16_at(body, 2), &body[4..]);
    if major != VERSION.0 {
        return Err(refused(libc::ENOTSUP, format!("vfio-user version {major}.{minor}: this server speaks {}.x", VERSION.0)));
    }
    if !data.is_empty() {
        let json = data.strip_suffix(&[0]).ok_or_else(|| refused(libc::EINVAL, "capabilities do not end with a zero byte"))?;
        // The parser bounds how deep it follows.
        let parsed: Result<Value, _> = serde_json::from_slice(json);
        if !parsed.as_ref().is_ok_and(Value::is_object) {
            return Err(refused(libc::EINVAL, "capabilities are no JSON object"));
        }
    }
    Ok(Request::Version { minor })
}

/// A reply: its body follows.
pub fn reply(request: &Header, body: &[u8]) -> Vec<u8> {
    message(request, TYPE_REPLY, 0, body)
}

/// A reply that refuses: nothing follows its header.
pub fn error_reply(request: &Header, errno: i32) -> Vec<u8> {
    message(request, TYPE_REPLY | ERROR, errno.unsigned_abs(), &[])
}

fn message(request: &Header, flags: u32, errno: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(HEADER + body.len()).expect("replies are as short as requests");
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend(request.id.to_le_bytes());
    bytes.extend(request.command.to_le_bytes());
    bytes.extend(size.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(errno.to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Body of the reply to [`Request::Version`].
pub fn version_body(minor: u16) -> Vec<u8> {
    let capabilities = serde_json::json!({
        "capabilities": { "max_msg_fds": MAX_FDS, "max_data_xfer_size": MAX_TRANSFER, "pgsizes": 4096 }
    });
    let mut body = Vec::new();
    body.extend(VERSION.0.to_le_bytes());
    body.extend(minor.min(VERSION.1).to_le_bytes());
    body.extend(capabilities.to_string().bytes());
    body.push(0);
    body
}

/// Words one after the other: the body of many replies.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Body of the reply to [`Request::RegionInfo`]: `areas` are offset and length of what can be mapped. They are left out, and
/// the room needed is named, when the client has too little.
pub fn region_body(argsz: u32, index: u32, size: u64, areas: &[(u64, u64)]) -> Vec<u8> {
    const FIXED: usize = 32;
    let needed = if areas.is_empty() { FIXED } else { FIXED + 16 + 16 * areas.len() };
    let fits = argsz as usize >= needed;
    let mut flags = region_flags::READ | region_flags::WRITE;
    if size == 0 {
        flags = 0;
    } else if !areas.is_empty() {
        flags |= region_flags::MMAP | region_flags::CAPS;
    }
    let capability = if areas.is_empty() || !fits { 0 } else { FIXED as u32 };
    let mut body = words(&[needed as u32, flags, index, capability]);
    body.extend(size.to_le_bytes());
    body.extend(0u64.to_le_bytes());
    if capability != 0 {
        // Sparse mmap: id 1, version 1, no next one.
        body.extend([1, 0, 1, 0]);
        body.extend(words(&[0, areas.len() as u32, 0]));
        for (offset, len) in areas {
            body.extend(offset.to_le_bytes());
            body.extend(len.to_le_bytes());
        }
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(size: u32, flags: u32) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(&7u16.to_le_bytes());
        bytes[2..4].copy_from_slice(&9u16.to_le_bytes());
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        bytes[8..12].copy_from_slice(&flags.to_le_bytes());
        bytes
    }

    /// VU-01.
    #[test]
    fn sizes_of_messages_are_bounded() {
        assert_eq!(header(&bytes(40, 0x10)), Ok(Header { id: 7, command: 9, body: 24, no_reply: true }));
        assert!(header(&bytes((HEADER + MAX_BODY) as u32, 0)).is_ok());
        for size in [0, 15, (HEADER + MAX_BODY) as u32 + 1, u32::MAX] {
            assert_eq!(header(&bytes(size, 0)), Err(BadHeader::Size(size)));
        }
        assert_eq!(header(&bytes(16, 1)), Err(BadHeader::Type(1)));
    }

    /// VU-03.
    #[test]
    fn versions_and_capabilities_are_checked() {
        let version = |major: u16, json: &[u8]| {
            let mut body = major.to_le_bytes().to_vec();
            body.extend([5, 0]);
            body.extend(json);
            parse(1, &body).map(|request| request == Request::Version { minor: 5 })
        };
        for good in [&b""[..], b"{}\0", br#"{"capabilities":{"max_msg_fds":8}}"#.as_slice()] {
            let terminated = if good.ends_with(b"}") { [good, b"\0"].concat() } else { good.to_vec() };
            assert_eq!(version(0, &terminated), Ok(true));
        }
        assert_eq!(version(99, b"").unwrap_err().errno, libc::ENOTSUP);
        let deep = [vec![b'['; 60_000], vec![0]].concat();
        for bad in [&b"{}"[..], b"\0", b"[]\0", b"{\"a\":\0", b"{\"a\":1e999999}\0", b"\xff\0", &deep] {
            assert_eq!(version(0, bad).unwrap_err().errno, libc::EINVAL, "{:?}", &bad[..bad.len().min(20)]);
        }
        assert!(parse(1, &[0; 3]).is_err());
    }

    #[test]
    fn counts_agree_with_data() {
        let access = |count: u32, data: usize| {
            let mut body = vec![0; 16 + data];
            body[12..16].copy_from_slice(&count.to_le_bytes());
            body
        };
        assert!(matches!(parse(9, &access(MAX_TRANSFER as u32, 0)), Ok(Request::RegionRead { count: MAX_TRANSFER, .. })));
        assert!(matches!(parse(10, &access(8, 8)), Ok(Request::RegionWrite { data: [0, 0, 0, 0, 0, 0, 0, 0], .. })));
        for (command, count, data) in [(9, MAX_TRANSFER as u32 + 1, 0), (9, u32::MAX, 0), (9, 4, 4), (10, 8, 7), (10, 0, 1)] {
            assert_eq!(parse(command, &access(count, data)).unwrap_err().errno, libc::EINVAL);
        }
        let mut irqs = vec![0; 20];
        irqs[4] = irq_flags::DATA_BOOL as u8;
        irqs[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse(8, &irqs).is_err());
    }

    #[test]
    fn what_is_not_done_is_refused() {
        for command in [0, 6, 11, 12, 14, 15, 16, 17, 18, 19, u16::MAX] {
            assert_eq!(parse(command, &[0; 64]).unwrap_err().errno, libc::ENOTSUP, "{command}");
        }
        for command in [2, 3, 4, 5, 7, 8, 9, 10] {
            assert_eq!(parse(command, &[0; 15]).unwrap_err().errno, libc::EINVAL, "{command}");
        }
        let mut map = [0; 32];
        map[4] = 4;
        assert_eq!(parse(2, &map).unwrap_err().errno, libc::EINVAL);
        map[4] = 1;
        assert_eq!(parse(3, &map).unwrap_err().errno, libc::EINVAL);
    }

    /// VU-04.
    #[test]
    fn little_room_is_told_how_much_is_needed() {
        let areas = [(0x80000, 0x1000), (0x90000, 0x2000)];
        let short = region_body(32, 0, 1 << 22, &areas);
        assert_eq!((short.len(), u32_at(&short, 0), u32_at(&short, 4), u32_at(&short, 12)), (32, 80, 15, 0));
        let full = region_body(80, 0, 1 << 22, &areas);
        assert_eq!((full.len(), u32_at(&full, 12), u64_at(&full, 16)), (80, 32, 1 << 22));
        assert_eq!((u16_at(&full, 32), u32_at(&full, 40), u64_at(&full, 64), u64_at(&full, 72)), (1, 2, 0x90000, 0x2000));
        let plain = region_body(32, 7, 256, &[]);
        assert_eq!((plain.len(), u32_at(&plain, 0), u32_at(&plain, 4)), (32, 32, 3));
        assert_eq!(u32_at(&region_body(32, 1, 0, &[]), 4), 0);
    }
}
