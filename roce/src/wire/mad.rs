//! Management datagrams: the 24-byte header that all of them share (IBA 13.4.2), and the bit fields in what follows.
//!
//! Only communication management uses them here. A datagram is always 256 bytes long.

/// Bytes of a management datagram.
pub const MAD_LEN: usize = 256;
/// Bytes of the header.
pub(super) const HEADER_LEN: usize = 24;

/// Base version of all datagrams.
const BASE_VERSION: u8 = 1;
/// Management class of communication management (IBA 16.7).
const CLASS_CM: u8 = 0x07;
/// Its version.
const CLASS_VERSION: u8 = 2;
/// `Send()`, the only method of the class.
const METHOD_SEND: u8 = 0x03;

/// Why bytes are no communication management datagram. A receiver drops such datagrams silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// Not [`MAD_LEN`] bytes.
    #[error("management datagram of {0} bytes instead of 256")]
    Length(usize),
    /// Another base version, class, class version or method.
    #[error("base version {base}, class {class:#04x} version {version}, method {method:#04x} is not a CM Send")]
    Class {
        /// Base version.
        base: u8,
        /// Management class.
        class: u8,
        /// Class version.
        version: u8,
        /// Method.
        method: u8,
    },
    /// A message that is not supported: alternate paths, or none that the architecture defines.
    #[error("CM attribute {0:#06x} is not supported")]
    Attribute(u16),
    /// A field holds a value that it cannot have.
    #[error("CM message field {0} has a value that it cannot have")]
    Field(&'static str),
}

/// Writes the header of a CM datagram; the rest of it is cleared.
pub(super) fn emit_header(transaction: u64, attribute: u16, out: &mut [u8; MAD_LEN]) {
    out.fill(0);
    out[..4].copy_from_slice(&[BASE_VERSION, CLASS_CM, CLASS_VERSION, METHOD_SEND]);
    out[8..16].copy_from_slice(&transaction.to_be_bytes());
    out[16..18].copy_from_slice(&attribute.to_be_bytes());
}

/// Transaction and attribute of a CM datagram, and the bytes after the header.
pub(super) fn parse_header(bytes: &[u8]) -> Result<(u64, u16, Fields<'_>), MadError> {
    let datagram: &[u8; MAD_LEN] = bytes.try_into().map_err(|_| MadError::Length(bytes.len()))?;
    let &[base, class, version, method, ..] = datagram;
    if (base, class, version, method) != (BASE_VERSION, CLASS_CM, CLASS_VERSION, METHOD_SEND) {
        return Err(MadError::Class { base, class, version, method });
    }
    let header = Fields(&datagram[..HEADER_LEN]);
    Ok((header.u64(8), header.u16(16), Fields(&datagram[HEADER_LEN..])))
}

/// Big-endian fields at fixed places. All places are constants within the datagram, so that none can be missed.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    pub fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut value = [0; N];
        value.copy_from_slice(&self.0[at..at + N]);
        value
    }

    pub fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    /// A 24-bit number and the byte after it.
    pub fn u24_u8(&self, at: usize) -> (u32, u8) {
        let word = self.u32(at);
        (word >> 8, word as u8)
    }
}

/// The counterpart of [`Fields`].
pub(super) struct FieldsMut<'a>(pub &'a mut [u8]);

impl FieldsMut<'_> {
    pub fn bytes(&mut self, at: usize, value: &[u8]) {
        self.0[at..at + value.len()].copy_from_slice(value);
    }

    pub fn u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    pub fn u16(&mut self, at: usize, value: u16) {
        self.bytes(at, &value.to_be_bytes());
    }

    pub fn u32(&mut self, at: usize, value: u32) {
        self.bytes(at, &value.to_be_bytes());
    }

    pub fn u64(&mut self, at: usize, value: u64) {
        self.bytes(at, &value.to_be_bytes());
    }

    /// A 24-bit number and the byte after it.
    pub fn u24_u8(&mut self, at: usize, high: u32, low: u8) {
        self.u32(at, high << 8 | u32::from(low));
    }
}
