//! Streams until something breaks, and says what the program then sees: error completions, asynchronous events, errors of
//! calls. The other side only lends its memory.

use crate::meet::Peer;
use crate::{Outcome, Words, say};
use std::time::{Duration, Instant};
use tests::verbs::{Address, Buffer, Cq, Patience, Qp, Region, Session, Sge, Work, access, mask, opcode, send_flag, state};

/// Requests in flight.
const DEPTH: u64 = 8;
/// `enum ibv_event_type`: the device is gone.
const DEVICE_FATAL: u32 = 8;

/// `--memory private|shared`, or `stuck` for the side that lends: pages that nobody will ever bring.
/// `--size BYTES`, `--limit SECONDS`: fails if nothing breaks within the limit (a hang); `--count N`: ends well after N.
pub fn run(words: &Words) -> Outcome<()> {
    let size = usize::try_from(words.number("size", 1 << 20)?)?;
    let count = words.number("count", u64::MAX)?;
    let deadline = Instant::now() + Duration::from_secs(words.number("limit", 30)?);
    let mut peer = Peer::meet(words)?;
    let session = Session::open(None)?;
    let memory = if words.text("memory") == Some("shared") { Buffer::shared(size)? } else { Buffer::private(size)? };
    let region = Region::new(&session, &memory, size, access::ALL)?;
    let cq = Cq::new(&session, 64)?;
    let qp = Qp::new(&session, &cq, 16, access::ALL)?;
    let own = Address { gid: session.gid()?, qpn: qp.number(), psn: 7 };
    let other = peer.swap_address(&own)?;
    // Eight attempts of 67 ms each.
    qp.connect(&other, own.psn, 3, Patience { timeout: 14, retry_cnt: 7, rnr_retry: 7 })?;
    let [rkey, remote_addr] = peer.swap([region.rkey().into(), memory.addr(0)])?;
    if peer.is_server {
        let _stuck = if words.text("memory") == Some("stuck") { Some(memory.hold_back()?) } else { None };
        // Lends its memory until the other one ends or is killed.
        say("lending");
        let _ = peer.hear();
        return Ok(());
    }
    let sge = Sge { addr: memory.addr(0), length: u32::try_from(size)?, lkey: region.lkey() };
    let work = Work {
        opcode: opcode::WRITE,
        flags: send_flag::SIGNALED,
        remote_addr,
        rkey: u32::try_from(rkey)?,
        sges: vec![sge],
        ..Work::default()
    };
    let mut posted = 0;
    let mut done = 0;
    while done < count {
        while posted < count && posted - done < DEPTH {
            if let Err(error) = qp.post_send(&[Work { wr_id: posted, ..work.clone() }]) {
                say(&format!("post error {error}"));
                return after_the_break(&session, &qp);
            }
            posted += 1;
        }
        match cq.poll() {
            Ok(Some(wc)) if wc.status == 0 => {
                if done == 0 {
                    say("streaming");
                }
                done += 1;
            }
            Ok(Some(wc)) => {
                say(&format!("completion {} status {} vendor {}", wc.wr_id, wc.status, wc.vendor_err));
                flushed(&cq, wc.wr_id, posted, deadline)?;
                return after_the_break(&session, &qp);
            }
            Ok(None) => {
                if event_waits(&session) {
                    return after_the_break(&session, &qp);
                }
            }
            Err(error) => {
                say(&format!("poll error {error}"));
                return after_the_break(&session, &qp);
            }
        }
        if Instant::now() > deadline {
            return Err(format!("nothing broke; {done} done of {posted} posted, QP state {:?}", qp.state()).into());
        }
    }
    say(&format!("OK {done} messages"));
    Ok(())
}

/// After the first error all requests that are left must be flushed, in order.
fn flushed(cq: &Cq, first: u64, posted: u64, deadline: Instant) -> Outcome<()> {
    const FLUSH: u32 = 5;
    let mut next = first + 1;
    while next < posted {
        match cq.poll() {
            Ok(Some(wc)) if (wc.wr_id, wc.status) == (next, FLUSH) => next += 1,
            Ok(Some(wc)) => return Err(format!("expected request {next} flushed, got {wc:?}").into()),
            // The device may be gone altogether.
            Err(_) => return Ok(()),
            Ok(None) if Instant::now() > deadline => return Err(format!("request {next} of {posted} was not flushed").into()),
            Ok(None) => {}
        }
    }
    say("flushed");
    Ok(())
}

fn event_waits(session: &Session) -> bool {
    let mut fd = libc::pollfd { fd: session.async_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor is passed and it lives.
    unsafe { libc::poll(&mut fd, 1, 0) > 0 }
}

/// Tells all events that come within a while; after a fatal one, every call must fail rather than hang.
fn after_the_break(session: &std::rc::Rc<Session>, qp: &Qp) -> Outcome<()> {
    let patience = Instant::now() + Duration::from_millis(500);
    let mut fatal = false;
    while Instant::now() < patience && !fatal {
        if event_waits(session) {
            let event = session.async_event()?;
            say(&format!("async event {event}"));
            fatal = event == DEVICE_FATAL;
        }
    }
    if fatal {
        calls_fail(session, qp)?;
    } else {
        let found = qp.state()?;
        if found != state::ERR {
            return Err(format!("the QP is in state {found}, not in error").into());
        }
    }
    say("end");
    Ok(())
}

fn calls_fail(session: &std::rc::Rc<Session>, qp: &Qp) -> Outcome<()> {
    let memory = Buffer::private(4096)?;
    let attr = tests::verbs::QpAttr { qp_state: state::ERR, ..Default::default() };
    let answers = [
        ("alloc_pd", session.another_pd().err()),
        ("reg_mr", Region::new(session, &memory, 4096, access::ALL).err()),
        ("create_cq", Cq::new(session, 16).err()),
        ("modify_qp", qp.modify(attr, mask::STATE).err()),
        ("query_qp", qp.state().err()),
    ];
    for (call, error) in answers {
        match error {
            Some(error) => say(&format!("{call} error {error}")),
            None => return Err(format!("{call} works without a daemon").into()),
        }
    }
    Ok(())
}
