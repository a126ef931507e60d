//! What two agents that are neighbours on a path tell each other, beside the data.

use super::Group;
use serde::{Deserialize, Serialize};

/// Most flows of one FlowGroup that agents move.
pub const MAX_PARTS: usize = 10_000;

/// One flow of a FlowGroup. The parts of a group lie one after the other in its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// How long it is.
    pub bytes: u64,
    /// Chosen when the job was submitted: tells its data from that of an earlier job with the same number.
    #[serde(default)]
    pub token: u64,
    /// File at the source, below the folder that its agent was given. Without it the bytes are made up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// File at the destination, below the folder that its agent was given; `file` if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_file: Option<String>,
}

/// A message. Those of a stream arrive in order, or the stream has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Message {
    /// Towards the destination: chunks of this group will come; what is there of it already?
    Begin {
        /// The group.
        group: Group,
        /// What it consists of.
        parts: Vec<Part>,
    },
    /// Towards the source: these chunks are in place.
    Have {
        /// The group.
        group: Group,
        /// The first of them.
        first: u64,
        /// How many.
        count: u64,
    },
    /// Towards the source: all was said about what is in place; chunks may come.
    Ready {
        /// The group.
        group: Group,
    },
    /// Towards the source: this group cannot be received.
    Refused {
        /// The group.
        group: Group,
        /// Why not.
        reason: String,
    },
    /// To the neighbour before: a slot of the window is free again.
    Free {
        /// The slot.
        slot: u32,
    },
    /// Nothing new: the sender is there.
    Alive,
}

/// What goes with the data of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its group.
    pub group: Group,
    /// Which chunk of the group.
    pub chunk: u64,
    /// How many bytes.
    pub length: u32,
    /// Checksum of these, CRC-32 (IEEE 802.3); whoever does the I/O sets and checks it.
    pub crc: u32,
    /// Slot of the receiver's window in which they lie.
    pub slot: u32,
}

/// Bytes of a header on the wire.
pub const HEADER_BYTES: usize = 40;

impl Header {
    /// On the wire, little-endian.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.group.0.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.group.1 as u64).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.chunk.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.crc.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.slot.to_le_bytes());
        bytes
    }

    /// From the wire; any bytes are some header, and the agent checks what it says.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Self {
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Self {
            group: (crate::CoflowId(long(0)), usize::try_from(long(8)).unwrap_or(usize::MAX)),
            chunk: long(16),
            length: short(24),
            crc: short(28),
            slot: short(32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CoflowId;

    #[test]
    fn headers_come_back_and_messages_are_strict() {
        let header = Header { group: (CoflowId(1 << 40), 3), chunk: 1 << 33, length: 7, crc: 0xDEAD_BEEF, slot: 31 };
        assert_eq!(Header::from_bytes(&header.to_bytes()), header);
        let begin = Message::Begin { group: header.group, parts: vec![Part { bytes: 5, token: 9, file: None, to_file: None }] };
        let text = serde_json::to_string(&begin).unwrap();
        assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), begin);
        assert!(serde_json::from_str::<Message>(r#"{"free":{"slot":1,"x":2}}"#).is_err());
    }
}
