//! The end that measures.

use std::rc::Rc;

use anyhow::{Result, bail};

use crate::endpoint::{Endpoint, Shape};
use crate::exchange::{Answer, Ask, Link, VERSION};
use crate::verbs::{Context, DeviceChoice, Remote};

/// A connected endpoint, the target's memory and the link to the target.
#[derive(Debug)]
pub struct Initiator {
    /// Own end.
    pub endpoint: Endpoint,
    /// The target's memory.
    pub remote: Remote,
    /// The target's process; only means something on the same host.
    pub target_pid: i32,
    pub(crate) link: Link,
    context: Rc<Context>,
    choice: DeviceChoice,
}

impl Initiator {
    /// Opens the device and connects to a target.
    pub fn start(mut link: Link, choice: &DeviceChoice, shape: Shape) -> Result<Initiator> {
        let context = Context::open(choice)?;
        let (endpoint, remote, target_pid) = join(&mut link, &context, choice, shape)?;
        Ok(Initiator { endpoint, remote, target_pid, link, context, choice: choice.clone() })
    }

    /// Replaces the connection by one of another shape.
    pub fn reshape(&mut self, shape: Shape) -> Result<()> {
        (self.endpoint, self.remote, self.target_pid) = join(&mut self.link, &self.context, &self.choice, shape)?;
        Ok(())
    }

    /// Name of the device in use.
    pub fn device(&self) -> &str {
        self.context.name()
    }
}

fn join(link: &mut Link, context: &Rc<Context>, choice: &DeviceChoice, shape: Shape) -> Result<(Endpoint, Remote, i32)> {
    let endpoint = Endpoint::open(context, choice, shape)?;
    link.send(&Ask::Open { version: VERSION, shape })?;
    let Answer::Opened { peer, memory, pid } = link.answer()? else { bail!("the other end did not open its side") };
    endpoint.connect(&peer)?;
    link.send(&Ask::Connect { peer: endpoint.peer(), memory: endpoint.memory() })?;
    link.expect(&Answer::Ready)?;
    Ok((endpoint, memory, pid))
}
