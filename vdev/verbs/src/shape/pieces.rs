//! One long request as several shorter ones: which bytes of which buffers each has.

use crate::abi::work::ibv_sge;

/// Bytes of a request.
pub fn length(buffers: &[ibv_sge]) -> u64 {
    buffers.iter().map(|buffer| u64::from(buffer.length)).sum()
}

/// `len` bytes of these buffers from `start` on. There are as many.
pub fn part(buffers: &[ibv_sge], start: u64, len: u64, part: &mut Vec<ibv_sge>) {
    part.clear();
    let (mut skip, mut left) = (start, len);
    for &ibv_sge { addr, length, lkey } in buffers {
        let available = u64::from(length).saturating_sub(skip);
        let taken = available.min(left);
        if taken > 0 {
            // Both are below the length of one buffer.
            part.push(ibv_sge { addr: addr.wrapping_add(skip), length: taken as u32, lkey });
        }
        skip = skip.saturating_sub(u64::from(length));
        left -= taken;
        if left == 0 {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(of: &[(u64, u32)]) -> Vec<ibv_sge> {
        of.iter().map(|&(addr, length)| ibv_sge { addr, length, lkey: length }).collect()
    }

    #[test]
    fn parts_put_together_are_the_whole() {
        let whole = buffers(&[(1000, 5), (2000, 0), (3000, 11), (4000, 1), (5000, 7)]);
        let byte_of = |sges: &[ibv_sge]| -> Vec<(u64, u32)> {
            sges.iter().flat_map(|sge| (0..u64::from(sge.length)).map(|n| (sge.addr + n, sge.lkey))).collect()
        };
        assert_eq!(length(&whole), 24);
        for size in 1..=25u64 {
            let (mut all, mut at, mut room) = (Vec::new(), 0, Vec::new());
            while at < 24 {
                let len = size.min(24 - at);
                part(&whole, at, len, &mut room);
                assert_eq!(length(&room), len);
                all.extend(byte_of(&room));
                at += len;
            }
            assert_eq!(all, byte_of(&whole), "in pieces of {size}");
        }
    }
}
