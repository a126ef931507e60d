//! One end of a connection: a queue pair and the memory that it works on.

use std::rc::Rc;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::verbs::{Buffer, Context, Cq, DeviceChoice, Mr, Pd, Peer, Placement, Port, Qp, QpSizes, Remote};

/// What an endpoint is made of; both ends use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Bytes of memory that messages cycle over.
    pub working_set: usize,
    /// Kind of that memory.
    pub placement: Placement,
    /// Send requests that may be outstanding.
    pub send_depth: u32,
    /// Receives that may be posted.
    pub receive_depth: u32,
    /// Inline bytes wanted per send request.
    pub inline: u32,
}

/// Largest working set: a peer cannot make us take more memory.
const WORKING_SET_MAX: usize = 4 << 30;

/// One end.
#[derive(Debug)]
pub struct Endpoint {
    // In the order in which they end.
    qp: Qp,
    mr: Mr,
    port: Port,
    psn: u32,
    shape: Shape,
}

impl Endpoint {
    /// A new endpoint in INIT.
    pub fn open(context: &Rc<Context>, choice: &DeviceChoice, shape: Shape) -> Result<Endpoint> {
        anyhow::ensure!(shape.working_set <= WORKING_SET_MAX, "a working set of {} bytes is too large", shape.working_set);
        let port = context.port(choice)?;
        let pd = Pd::new(context)?;
        let cq = Cq::new(context, shape.send_depth.saturating_add(shape.receive_depth))?;
        let buffer = Buffer::new(shape.working_set, shape.placement)?;
        let mr = Mr::new(&pd, buffer).with_context(|| format!("cannot register {} bytes", shape.working_set))?;
        let sizes = QpSizes { send: shape.send_depth, receive: shape.receive_depth, inline: shape.inline };
        let qp = Qp::new(&pd, &cq, sizes)?;
        qp.to_init()?;
        // Any start will do, as long as old packets of an earlier connection do not fit.
        let psn = (std::process::id() ^ qp.number().rotate_left(12)) & 0xFF_FFFF;
        Ok(Endpoint { qp, mr, port, psn, shape })
    }

    /// What the peer must know to connect.
    pub fn peer(&self) -> Peer {
        Peer { qpn: self.qp.number(), psn: self.psn, gid: self.port.gid, mtu: self.port.mtu }
    }

    /// What the peer must know to read and write.
    pub fn memory(&self) -> Remote {
        let buffer = self.mr.buffer();
        Remote { addr: buffer.address(), length: buffer.size() as u64, rkey: self.mr.rkey() }
    }

    /// Connects to the peer.
    pub fn connect(&self, peer: &Peer) -> Result<()> {
        self.qp.connect(&self.port, self.psn, peer).context("cannot connect the queue pair")
    }

    /// What it is made of.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Path MTU code of this end.
    pub fn mtu(&self) -> u32 {
        self.port.mtu
    }

    /// The memory.
    pub fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Queue pair and memory, to post.
    pub fn parts(&mut self) -> (&mut Qp, &Mr) {
        (&mut self.qp, &self.mr)
    }
}

/// Offset of message `index` when messages of `size` bytes cycle over `working_set` bytes: each starts a cache line.
pub fn offset(index: u64, size: usize, working_set: usize) -> usize {
    let stride = size.max(1).next_multiple_of(64);
    let slots = (working_set / stride).max(1) as u64;
    usize::try_from(index % slots).unwrap_or(0) * stride
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_cycle_inside_the_working_set() {
        for (size, set) in [(1, 64), (8, 4096), (4096, 16 << 20), (65536, 65536), (100, 1000)] {
            for index in 0..300 {
                let offset = offset(index, size, set);
                assert!(offset + size <= set, "{index} {size} {set}");
                assert_eq!(offset % 64, 0);
            }
        }
        assert_eq!(offset(0, 4096, 8192), offset(2, 4096, 8192));
    }
}
