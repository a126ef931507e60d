//! Arms, completes and polls in ever other orders: no completion may be missed.

use crate::{Outcome, Words, say};
use std::time::Duration;
use tests::verbs::{Address, Buffer, Cq, Patience, Qp, Region, Session, Sge, Work, access, opcode, send_flag};

/// A completion that shows neither by polling nor by an event in this time is lost.
const STALL: Duration = Duration::from_secs(20);

/// `--rounds N`: one WRITE each, by a queue pair that is connected with itself, waited for as `ibv_get_cq_event(3)` shows it.
pub fn run(words: &Words) -> Outcome<()> {
    let rounds = words.number("rounds", 1000)?;
    let session = Session::open(None)?;
    let memory = Buffer::private(4096)?;
    let region = Region::new(&session, &memory, memory.len(), access::ALL)?;
    let cq = Cq::with_events(&session, 16)?;
    let qp = Qp::new(&session, &cq, 4, access::ALL)?;
    let patience = Patience { timeout: 14, retry_cnt: 7, rnr_retry: 7 };
    qp.connect(&Address { gid: session.gid()?, qpn: qp.number(), psn: 1 }, 1, 3, patience)?;
    let mut seed = 1u64;
    let mut events = 0u64;
    for wr_id in 0..rounds {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (arm_first, delay) = (seed >> 63 == 1, seed >> 40 & 0x3FF);
        if arm_first {
            cq.arm()?;
        }
        qp.post_send(&[Work {
            wr_id,
            opcode: opcode::WRITE,
            flags: send_flag::SIGNALED,
            remote_addr: memory.addr(2048),
            rkey: region.rkey(),
            sges: vec![Sge { addr: memory.addr(0), length: 8, lkey: region.lkey() }],
            ..Work::default()
        }])?;
        for _ in 0..delay {
            std::hint::spin_loop();
        }
        let wc = loop {
            cq.arm()?;
            if let Some(wc) = cq.poll()? {
                break wc;
            }
            if !cq.event(STALL)? {
                return Err(format!("round {wr_id}: neither a completion nor an event in {STALL:?}").into());
            }
            events += 1;
        };
        if (wc.wr_id, wc.status) != (wr_id, 0) {
            return Err(format!("round {wr_id}: {wc:?}").into());
        }
    }
    if events == 0 {
        return Err("no completion was waited for".into());
    }
    say(&format!("OK {rounds} rounds, {events} events"));
    Ok(())
}
