//! Many queue pairs in one program, all busy until it is killed.

use crate::{Outcome, Words, say};
use tests::verbs::{Address, Buffer, Cq, Patience, Qp, Region, Session, Sge, Work, access, opcode, send_flag};

/// Bytes of each WRITE.
const LEN: u32 = 4096;
/// Requests in flight per queue pair.
const DEPTH: usize = 2;

/// `--queue-pairs N`, each connected with itself, WRITE without end.
pub fn run(words: &Words) -> Outcome<()> {
    let count = usize::try_from(words.number("queue-pairs", 100)?)?;
    let session = Session::open(None)?;
    let memory = Buffer::private(2 * LEN as usize)?;
    let region = Region::new(&session, &memory, memory.len(), access::ALL)?;
    let cq = Cq::new(&session, std::ffi::c_int::try_from(2 * count * DEPTH)?)?;
    let gid = session.gid()?;
    let patience = Patience { timeout: 14, retry_cnt: 7, rnr_retry: 7 };
    let mut queue_pairs = Vec::new();
    for _ in 0..count {
        let qp = Qp::new(&session, &cq, 4, access::ALL)?;
        qp.connect(&Address { gid, qpn: qp.number(), psn: 1 }, 1, 3, patience)?;
        queue_pairs.push(qp);
    }
    let write = |wr_id| Work {
        wr_id,
        opcode: opcode::WRITE,
        flags: send_flag::SIGNALED,
        remote_addr: memory.addr(LEN as usize),
        rkey: region.rkey(),
        sges: vec![Sge { addr: memory.addr(0), length: LEN, lkey: region.lkey() }],
        ..Work::default()
    };
    for (number, qp) in queue_pairs.iter().enumerate() {
        qp.post_send(&vec![write(number as u64); DEPTH])?;
    }
    let mut done = 0;
    loop {
        let wc = crate::completion(&cq)?;
        if wc.status != 0 {
            return Err(format!("{wc:?}").into());
        }
        queue_pairs[usize::try_from(wc.wr_id)?].post_send(&[write(wc.wr_id)])?;
        done += 1;
        if done == count * DEPTH {
            say("streaming");
        }
    }
}
