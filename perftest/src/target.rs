//! The passive end: opens what the initiator asks for, receives, and answers ping-pongs.

use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};

use crate::endpoint::{Endpoint, offset};
use crate::exchange::{Answer, Ask, Link, LinkError, VERSION};
use crate::latency;
use crate::verbs::{Context, DeviceChoice, Operation, Remote};
use crate::wait::Wait;

/// Serves one initiator until it closes the link.
pub fn serve(mut link: Link, choice: &DeviceChoice) -> Result<()> {
    allow_process_vm();
    let mut target = Target { context: Context::open(choice)?, choice: choice.clone(), endpoint: None, remote: None };
    loop {
        let ask = match link.receive() {
            Ok(ask) => ask,
            Err(LinkError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let answer = match target.carry_out(ask, &mut link) {
            Ok(answer) => answer,
            Err(error) => {
                // The initiator prints the cause too: it is the end that people look at.
                link.send(&Answer::Failed(format!("{error:#}")))?;
                return Err(error);
            }
        };
        link.send(&answer)?;
    }
}

/// Lets a sibling measure `process_vm_writev` into this process where the system restricts that to parents.
fn allow_process_vm() {
    // SAFETY: a number as its only argument. Where the call is unknown nothing needs to be allowed.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
}

struct Target {
    context: Rc<Context>,
    choice: DeviceChoice,
    endpoint: Option<Endpoint>,
    remote: Option<Remote>,
}

impl Target {
    fn carry_out(&mut self, ask: Ask, link: &mut Link) -> Result<Answer> {
        match ask {
            Ask::Open { version, shape } => {
                ensure!(version == VERSION, "the ends have different versions of perftest: {version} and {VERSION}");
                self.endpoint = None;
                let endpoint = self.endpoint.insert(Endpoint::open(&self.context, &self.choice, shape)?);
                let pid = i32::try_from(std::process::id())?;
                Ok(Answer::Opened { peer: endpoint.peer(), memory: endpoint.memory(), pid })
            }
            Ask::Connect { peer, memory } => {
                self.endpoint.as_mut().context("no endpoint is open")?.connect(&peer)?;
                self.remote = Some(memory);
                Ok(Answer::Ready)
            }
            Ask::Receive { count, length } => {
                let endpoint = self.endpoint.as_mut().context("no endpoint is open")?;
                receive(endpoint, count, length, link)?;
                Ok(Answer::Done)
            }
            Ask::PingPong { operation, length, count } => {
                let endpoint = self.endpoint.as_mut().context("no endpoint is open")?;
                let remote = self.remote.context("not connected")?;
                match operation {
                    Operation::Write => latency::write::answer(endpoint, &remote, length, count, link)?,
                    Operation::Send => latency::send::answer(endpoint, length, count, link)?,
                    other => anyhow::bail!("{other:?} is no ping-pong"),
                }
                Ok(Answer::Done)
            }
        }
    }
}

/// Receives `count` messages, keeping the receive queue full.
fn receive(endpoint: &mut Endpoint, count: u64, length: u32, link: &mut Link) -> Result<()> {
    let shape = endpoint.shape();
    ensure!(length as usize <= shape.working_set, "a message of {length} bytes does not fit");
    let (qp, mr) = endpoint.parts();
    let place = |index| offset(index, length as usize, shape.working_set);
    let mut posted = 0;
    while posted < count.min(u64::from(shape.receive_depth)) {
        qp.post_receive(mr, posted, place(posted), length)?;
        posted += 1;
    }
    link.send(&Answer::Ready)?;
    let cq = qp.cq().clone();
    let mut wait = Wait::for_completions();
    let mut received = 0;
    while received < count {
        let arrived = cq.poll(|_| ())? as u64;
        if arrived == 0 {
            wait.nothing()?;
            continue;
        }
        wait.found();
        received += arrived;
        while posted < count && posted - received < u64::from(shape.receive_depth) {
            qp.post_receive(mr, posted, place(posted), length)?;
            posted += 1;
        }
    }
    Ok(())
}
