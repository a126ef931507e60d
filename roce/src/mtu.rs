//! Path MTU: how many payload bytes one packet carries.

/// One of the five path MTUs of the architecture (IBA 9.7.2; verbs `enum ibv_mtu` uses the same codes 1 to 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes: the largest that fits an Ethernet MTU of 1500.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// All five, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// Payload bytes per packet.
    pub const fn bytes(self) -> usize {
        128 << self as usize
    }

    /// The MTU with this verbs code, 1 to 5.
    pub const fn from_code(code: u8) -> Option<Mtu> {
        match code {
            1 => Some(Mtu::B256),
            2 => Some(Mtu::B512),
            3 => Some(Mtu::B1024),
            4 => Some(Mtu::B2048),
            5 => Some(Mtu::B4096),
            _ => None,
        }
    }

    /// The largest MTU of at most `bytes` payload bytes, if there is one.
    pub fn at_most(bytes: usize) -> Option<Mtu> {
        Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_bytes_agree() {
        for mtu in Mtu::ALL {
            assert_eq!(Mtu::from_code(mtu as u8), Some(mtu));
            assert_eq!(Mtu::at_most(mtu.bytes()), Some(mtu));
        }
        assert_eq!(Mtu::B4096.bytes(), 4096);
        assert_eq!(Mtu::from_code(0), None);
        assert_eq!(Mtu::from_code(6), None);
        assert_eq!(Mtu::at_most(255), None);
        assert_eq!(Mtu::at_most(4095), Some(Mtu::B2048));
    }
}
