//! What is to be moved: transfers between hosts, and which have to wait for which.

use roce::rng::Rng;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a transfer is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// RDMA WRITE with immediate data, by the host that has the bytes.
    #[default]
    Write,
    /// SEND, by the host that has the bytes.
    Send,
    /// RDMA READ, by the host that wants them.
    Read,
}

/// Bytes to be moved from one host to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// Host that has the bytes.
    pub src: u32,
    /// Host that is to have them.
    pub dst: u32,
    /// How many.
    pub bytes: u32,
    /// How they are moved.
    pub operation: Operation,
    /// Not before this time, in microseconds.
    pub start_us: f64,
    /// Transfers that must have arrived before; indices, all smaller than its own.
    pub after: Vec<u32>,
}

/// Patterns of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Every host sends to one other, and receives from one other.
    Permutation,
    /// All others send to one host.
    Incast,
    /// Every host sends to every other.
    AllToAll,
    /// All-reduce in a ring: every host passes the n-th part of its bytes on 2 (n - 1) times, each after it got the one before.
    RingAllReduce,
    /// All-reduce in a binary tree: all bytes up to the root, then down from it.
    TreeAllReduce,
    /// What a file lists.
    Trace,
}

/// The transfers of a pattern among these hosts, at least two, in the order given. `bytes` is the length of each transfer, except
/// for the ring, where it is what is to be reduced.
pub fn generate(pattern: Pattern, hosts: &[u32], bytes: u32, operation: Operation, rng: &mut Rng) -> Vec<Transfer> {
    let transfer = |src, dst, bytes, after| Transfer { src, dst, bytes, operation, start_us: 0.0, after };
    let n = hosts.len();
    match pattern {
        Pattern::Permutation => {
            let to = cyclic_permutation(n, rng);
            (0..n).map(|i| transfer(hosts[i], hosts[to[i]], bytes, vec![])).collect()
        }
        Pattern::Incast => hosts[1..].iter().map(|&src| transfer(src, hosts[0], bytes, vec![])).collect(),
        Pattern::AllToAll => {
            // Each host begins with its neighbour, so that not all send to the first one at first.
            let pairs = (1..n).flat_map(|step| (0..n).map(move |i| (i, (i + step) % n)));
            pairs.map(|(i, j)| transfer(hosts[i], hosts[j], bytes, vec![])).collect()
        }
        Pattern::RingAllReduce => {
            let part = bytes.div_ceil(n as u32);
            let steps = (0..2 * (n - 1)).flat_map(|step| (0..n).map(move |i| (step, i)));
            let came_before =
                |step: usize, i: usize| if step == 0 { vec![] } else { vec![((step - 1) * n + (i + n - 1) % n) as u32] };
            steps.map(|(step, i)| transfer(hosts[i], hosts[(i + 1) % n], part, came_before(step, i))).collect()
        }
        Pattern::TreeAllReduce => {
            // Host i has the children 2 i + 1 and 2 i + 2. Upwards the last host comes first, so that children precede parents.
            let up_of = |i: usize| (n - 1 - i) as u32;
            let children = |i: usize| [2 * i + 1, 2 * i + 2].into_iter().filter(move |&child| child < n);
            let up = (1..n).rev().map(|i| transfer(hosts[i], hosts[(i - 1) / 2], bytes, children(i).map(up_of).collect()));
            // Downwards host i's transfer from its parent is the one before n - 1 + i.
            let down_of = |i: usize| (n - 2 + i) as u32;
            let down = (1..n).map(|i| {
                let parent = (i - 1) / 2;
                let after = if parent == 0 { children(0).map(up_of).collect() } else { vec![down_of(parent)] };
                transfer(hosts[parent], hosts[i], bytes, after)
            });
            up.chain(down).collect()
        }
        Pattern::Trace => Vec::new(),
    }
}

/// A random permutation of one cycle: nobody maps to itself (Sattolo's shuffle).
fn cyclic_permutation(n: usize, rng: &mut Rng) -> Vec<usize> {
    let mut to: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        to.swap(i, rng.below(i as u64) as usize);
    }
    to
}

/// Why a trace cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct TraceError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the trace: {}", self.line, self.reason)
    }
}

/// Lines that a trace may have.
pub const MAX_TRANSFERS: usize = 4_000_000;

/// Reads a trace: a line per transfer with `start_us,src,dst,bytes` and, if it has to wait for others, a fifth field with their
/// numbers, separated by blanks. Transfers are numbered from 0; empty lines and those that begin with `#` do not count.
///
/// # Errors
/// The first line that is wrong: hosts beyond `hosts`, more than 2^31 bytes, a time that is not a number of microseconds, or a
/// transfer that waits for itself or a later one.
pub fn parse_trace(text: &str, hosts: u32, operation: Operation) -> Result<Vec<Transfer>, TraceError> {
    let mut transfers = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let transfer = parse_line(line, hosts, operation, transfers.len());
        transfers.push(transfer.map_err(|reason| TraceError { line: index + 1, reason })?);
    }
    Ok(transfers)
}

fn parse_line(line: &str, hosts: u32, operation: Operation, number: usize) -> Result<Transfer, String> {
    if number >= MAX_TRANSFERS {
        return Err(format!("more than {MAX_TRANSFERS} transfers"));
    }
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let (start, src, dst, bytes, after) = match fields[..] {
        [start, src, dst, bytes] => (start, src, dst, bytes, ""),
        [start, src, dst, bytes, after] => (start, src, dst, bytes, after),
        _ => return Err(format!("{} fields instead of start_us,src,dst,bytes[,after]", fields.len())),
    };
    let start_us = start.parse::<f64>().ok().filter(|us| (0.0..=1e9).contains(us));
    let start_us = start_us.ok_or_else(|| format!("start_us is {start:?}, not a number from 0 to 1e9"))?;
    let host = |name: &str, text: &str| {
        let host = text.parse::<u32>().ok().filter(|&host| host < hosts);
        host.ok_or_else(|| format!("{name} is {text:?}, not a host from 0 to {}", hosts - 1))
    };
    let (src, dst) = (host("src", src)?, host("dst", dst)?);
    if src == dst {
        return Err(format!("src and dst are both {src}"));
    }
    let bytes = bytes
        .parse::<u32>()
        .ok()
        .filter(|&bytes| bytes <= 1 << 31)
        .ok_or_else(|| format!("bytes is {bytes:?}, not a number up to 2^31"))?;
    let before = |text: &str| {
        let before = text.parse::<u32>().ok().filter(|&before| (before as usize) < number);
        before.ok_or_else(|| format!("after names {text:?}, which is no transfer before number {number}"))
    };
    let after = after.split_whitespace().map(before).collect::<Result<Vec<u32>, String>>()?;
    Ok(Transfer { src, dst, bytes, operation, start_us, after })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pattern: Pattern, n: u32) -> Vec<Transfer> {
        let hosts: Vec<u32> = (0..n).map(|i| 100 + i).collect();
        let transfers = generate(pattern, &hosts, 1000, Operation::Write, &mut Rng::new(3));
        for (number, transfer) in transfers.iter().enumerate() {
            assert_ne!(transfer.src, transfer.dst, "{pattern:?}");
            for &before in &transfer.after {
                assert!((before as usize) < number, "{pattern:?}: {number} after {before}");
                assert_eq!(
                    transfers[before as usize].dst, transfer.src,
                    "{pattern:?}: what it waits for arrives where it starts"
                );
            }
        }
        transfers
    }

    #[test]
    fn patterns_have_their_sizes() {
        for n in [2, 3, 7, 16] {
            assert_eq!(all(Pattern::Permutation, n).len() as u32, n);
            assert_eq!(all(Pattern::Incast, n).len() as u32, n - 1);
            assert_eq!(all(Pattern::AllToAll, n).len() as u32, n * (n - 1));
            assert_eq!(all(Pattern::RingAllReduce, n).len() as u32, 2 * n * (n - 1));
            assert_eq!(all(Pattern::TreeAllReduce, n).len() as u32, 2 * (n - 1));
        }
    }

    #[test]
    fn a_permutation_gives_everyone_one_of_each() {
        let transfers = all(Pattern::Permutation, 50);
        let mut to: Vec<u32> = transfers.iter().map(|transfer| transfer.dst).collect();
        to.sort_unstable();
        assert_eq!(to, (100..150).collect::<Vec<_>>());
    }

    /// Follows who has whose contribution: at the end everybody has everybody's.
    #[test]
    fn all_reduce_reduces_all() {
        for n in [2_usize, 3, 6, 11] {
            let tree = all(Pattern::TreeAllReduce, n as u32);
            let mut has: Vec<Vec<bool>> = (0..n).map(|i| (0..n).map(|j| i == j).collect()).collect();
            for transfer in &tree {
                let (src, dst) = (transfer.src as usize - 100, transfer.dst as usize - 100);
                let sent = has[src].clone();
                has[dst].iter_mut().zip(sent).for_each(|(part, sent)| *part |= sent);
            }
            assert!(has.iter().flatten().all(|&part| part), "tree of {n}");
            // In the ring, what a host passes on in a step is the part that it got in the one before, reduced.
            let ring = all(Pattern::RingAllReduce, n as u32);
            assert!(ring.iter().skip(n).all(|transfer| transfer.after.len() == 1));
        }
    }

    #[test]
    fn traces_are_read_and_refused() {
        let text = "# demo\n0,0,1,4096\n\n 2.5, 1 ,2,0,0\n3,2,0,8,0 1\n";
        let transfers = parse_trace(text, 3, Operation::Send).unwrap();
        assert_eq!(transfers.len(), 3);
        assert_eq!((transfers[1].start_us, transfers[1].bytes, transfers[1].after.clone()), (2.5, 0, vec![0]));
        assert_eq!(transfers[2].after, [0, 1]);
        for (text, part) in [
            ("0,0,1", "3 fields"),
            ("0,0,3,1", "dst is \"3\", not a host from 0 to 2"),
            ("x,0,1,1", "start_us"),
            ("NaN,0,1,1", "start_us"),
            ("-1,0,1,1", "start_us"),
            ("0,1,1,1", "both 1"),
            ("0,0,1,3000000000", "bytes"),
            ("0,0,1,1,0", "no transfer before number 0"),
        ] {
            let error = parse_trace(text, 3, Operation::Write).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("line 1"), "{text}: {error}");
        }
    }
}
