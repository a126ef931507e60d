//! SENDs to a peer that never posts a receive and asks for patience as short as can be: tried again for ever.

use crate::meet::Peer;
use crate::{Outcome, Words, say};
use tests::verbs::{Address, Buffer, Cq, Patience, Qp, Region, Session, Sge, Work, access, opcode};

/// Bytes of each SEND.
const LEN: u32 = 65536;

/// `--queue-pairs N` between two programs (`--listen PORT`, `--connect HOST:PORT`); the one that connects sends, until one is killed.
pub fn run(words: &Words) -> Outcome<()> {
    let count = words.number("queue-pairs", 16)?;
    let mut peer = Peer::meet(words)?;
    let session = Session::open(None)?;
    let memory = Buffer::private(LEN as usize)?;
    let region = Region::new(&session, &memory, memory.len(), access::ALL)?;
    let cq = Cq::new(&session, std::ffi::c_int::try_from(count * 4)?)?;
    let patience = Patience { timeout: 14, retry_cnt: 7, rnr_retry: 7 };
    let gid = session.gid()?;
    let mut queue_pairs = Vec::new();
    for _ in 0..count {
        let qp = Qp::new(&session, &cq, 4, access::ALL)?;
        let other = peer.swap_address(&Address { gid, qpn: qp.number(), psn: 1 })?;
        qp.connect(&other, 1, 5, patience)?;
        queue_pairs.push(qp);
    }
    peer.swap([0])?;
    if !peer.is_server {
        let sges = vec![Sge { addr: memory.addr(0), length: LEN, lkey: region.lkey() }];
        for qp in &queue_pairs {
            qp.post_send(&[Work { opcode: opcode::SEND, sges: sges.clone(), ..Work::default() }])?;
        }
    }
    say("starving");
    peer.hear()?;
    Err("the other one has said something".into())
}
