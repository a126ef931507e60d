//! To guests: completions into their rings, events into their event queues, interrupts.
//!
//! A guest tells how far it has read only when it asks for an event, so a completion ring is never known to be full, and nothing
//! waits for room. An event queue holds at most one entry per completion queue; what finds it full waits in the device.

use std::collections::VecDeque;

use rnic::{Completion, CqId, Status};
use roce::Qpn;

use super::{Guest, GuestId, RingMemory};
use crate::datapath::Datapath;
use crate::memory::Memories;
use crate::pci::Interrupts;
use crate::pci::erdma::completion::{AsyncKind, Entry, async_event, completion_event, owner};
use crate::pci::erdma::entry::Ticket;
use crate::pci::erdma::layout::{BLOCK, Context, EQE};

/// What a completion queue was asked for: one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    No,
    Any,
    Solicited,
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(super) id: CqId,
    pub(super) memory: RingMemory,
    pub(super) context: Context,
    pub(super) eqn: usize,
    /// Queue pairs that complete here, send and receive side counted apart.
    pub(super) users: u32,
    depth: u32,
    /// Entries written so far, modulo 2^32.
    pi: u32,
    /// `pi` behind the last entry that was solicited or an error.
    solicited_pi: u32,
    arm: Arm,
    /// In [`EventQueue::waiting`].
    event_waits: bool,
}

impl CompletionQueue {
    pub(super) fn new(id: CqId, memory: RingMemory, context: Context, eqn: usize, depth: u32) -> CompletionQueue {
        let (pi, solicited_pi, arm, event_waits) = (0, 0, Arm::No, false);
        CompletionQueue { id, memory, context, eqn, users: 0, depth, pi, solicited_pi, arm, event_waits }
    }

    /// Writes an entry. One whose memory is gone is lost, as on any device whose DMA fails.
    fn push(&mut self, memories: &mut Memories, entry: impl FnOnce(bool) -> Entry, solicited: bool) {
        let Entry(bytes) = entry(owner(self.pi, self.depth));
        if let Some(at) = self.memory.at(u64::from(self.pi % self.depth) * BLOCK, BLOCK) {
            write_entry(memories, at, &bytes, 4);
        }
        self.pi = self.pi.wrapping_add(1);
        if solicited {
            self.solicited_pi = self.pi;
        }
    }
}

/// Stores an entry, its first `first` bytes last and at once: they hold the owner bit.
fn write_entry(memories: &mut Memories, at: emtt::Segment, bytes: &[u8], first: usize) {
    let behind = emtt::Segment { addr: at.addr + first as u64, len: at.len - first as u64, ..at };
    let _ = memories.write(behind, &bytes[first..]);
    // The guest must not see the owner bit before the rest.
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    let _ = memories.write(at, &bytes[..first]);
}

/// An event queue.
#[derive(Debug)]
pub struct EventQueue {
    pub(super) memory: RingMemory,
    depth: u32,
    pi: u32,
    ci: u32,
    armed: bool,
    /// Completion queues whose event waits for room, each at most once.
    waiting: VecDeque<u32>,
}

impl EventQueue {
    /// Drivers never arm a queue before its first interrupt, so it starts armed.
    pub(super) fn new(memory: RingMemory, depth: u32) -> EventQueue {
        EventQueue { memory, depth, pi: 0, ci: 0, armed: true, waiting: VecDeque::new() }
    }

    /// Consumer indices have 16 bits.
    fn is_full(&self) -> bool {
        self.pi.wrapping_sub(self.ci) & 0xFFFF >= self.depth.min(0xFFFF)
    }

    /// Writes an entry, of which this is the first word. There is room.
    fn push(&mut self, memories: &mut Memories, interrupts: &Interrupts, vector: usize, word: u64) {
        let word = word & !(1 << 31) | u64::from(owner(self.pi, self.depth)) << 31;
        let mut bytes = [0; EQE as usize];
        bytes[..8].copy_from_slice(&word.to_le_bytes());
        if let Some(at) = self.memory.at(u64::from(self.pi % self.depth) * EQE, EQE) {
            write_entry(memories, at, &bytes, 8);
        }
        self.pi = self.pi.wrapping_add(1);
        if std::mem::take(&mut self.armed) {
            interrupts.raise(vector);
        }
    }

    /// The driver has read up to `ci` and may want an interrupt for what comes, or has come since.
    fn doorbell(&mut self, interrupts: &Interrupts, vector: usize, value: u64) {
        self.ci = self.pi.wrapping_sub(self.pi.wrapping_sub(value as u32) & 0xFFFF);
        self.armed |= value >> 31 & 1 == 1;
        if self.armed && self.pi != self.ci {
            self.armed = false;
            interrupts.raise(vector);
        }
    }
}

impl Guest {
    /// Sends the event of a completion queue if it was asked for and is due.
    fn notify(&mut self, memories: &mut Memories, cqn: u32, since: u32) {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        let due = match cq.arm {
            Arm::No => false,
            Arm::Any => cq.pi.wrapping_sub(since) & 0xFF_FFFF != 0,
            // Solicited entries beyond `since`: fewer than a ring's worth, or the guest has lost them anyway.
            Arm::Solicited => {
                let beyond = cq.solicited_pi.wrapping_sub(since) & 0xFF_FFFF;
                beyond != 0 && beyond <= cq.pi.wrapping_sub(since) & 0xFF_FFFF
            }
        };
        if !due {
            return;
        }
        cq.arm = Arm::No;
        let Some(eq) = self.eqs[cq.eqn].as_mut() else { return };
        if !eq.is_full() {
            eq.push(memories, &self.interrupts, cq.eqn, completion_event(cqn, cq.pi, false));
        } else if !std::mem::replace(&mut cq.event_waits, true) {
            eq.waiting.push_back(cqn);
        }
    }

    fn complete(&mut self, memories: &mut Memories, cqn: u32, entry: impl FnOnce(bool) -> Entry, solicited: bool) {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        let before = cq.pi;
        cq.push(memories, entry, solicited);
        self.notify(memories, cqn, before);
    }
}

impl Datapath {
    /// Writes a completion of a guest's queue.
    pub(in crate::datapath) fn write_guest_completion(&mut self, id: CqId, completion: &Completion) {
        let Some(&(index, cqn)) = self.guests.cq_by_id.get(&id) else { return };
        let Some(&(_, number)) = self.guests.qp_by_number.get(&completion.qpn) else { return };
        let Some(guest) = self.guests.table[index as usize].as_deref_mut() else { return };
        let solicited = completion.solicited || completion.status != Status::Success;
        let ipv6 = guest.ipv6;
        guest.complete(&mut self.memories, cqn, |owner| Entry::of(completion, number, ipv6, owner), solicited);
        if let Some(qp) = guest.qps.get_mut(&number)
            && std::mem::take(&mut qp.is_full)
        {
            // There is room for what the core had no room for.
            qp.queue(&mut self.guests.ready, index, number);
        }
    }

    /// Completes a send entry that makes no sense.
    pub(super) fn complete_bad_send(&mut self, index: u32, number: u32, cqn: u32, ticket: Ticket) {
        if let Some(guest) = self.guests.table[index as usize].as_deref_mut() {
            guest.complete(&mut self.memories, cqn, |owner| Entry::of_bad_send(ticket, number, owner), true);
        }
    }

    /// A completion queue's doorbell on a page of `context`: it asks for an event.
    pub fn arm_guest_cq(&mut self, id: GuestId, context: Context, value: u64) {
        let Some(guest) = self.guests.get_mut(id) else { return };
        let cqn = (value >> 32) as u32 & 0xFF_FFFF;
        let Some(cq) = guest.cqs.get_mut(&cqn).filter(|cq| cq.context == context) else { return };
        if value >> 31 & 1 == 0 {
            return;
        }
        cq.arm = if value >> 30 & 1 == 1 { Arm::Solicited } else { Arm::Any };
        // Entries that the guest has not seen count too.
        let ci = value as u32 & 0xFF_FFFF;
        guest.notify(&mut self.memories, cqn, ci);
    }

    /// An event queue's doorbell; 0 is that of asynchronous events.
    pub fn guest_eq_doorbell(&mut self, id: GuestId, eqn: usize, value: u64) {
        let Some(guest) = self.guests.get_mut(id) else { return };
        let Guest { eqs, cqs, interrupts, .. } = guest;
        let Some(eq) = eqs[eqn].as_mut() else { return };
        eq.doorbell(interrupts, eqn, value);
        while !eq.is_full()
            && let Some(cqn) = eq.waiting.pop_front()
        {
            // One that has been destroyed meanwhile has no event.
            if let Some(cq) = cqs.get_mut(&cqn) {
                cq.event_waits = false;
                eq.push(&mut self.memories, interrupts, eqn, completion_event(cqn, cq.pi, false));
            }
        }
    }

    /// Tells a guest what happened to a queue pair. False if it is no guest's.
    pub(in crate::datapath) fn send_guest_event(&mut self, qpn: Qpn, kind: Option<AsyncKind>) -> bool {
        let Some(&(index, number)) = self.guests.qp_by_number.get(&qpn) else { return false };
        if let (Some(kind), Some(guest)) = (kind, self.guests.table[index as usize].as_deref_mut())
            && let Some(eq) = guest.eqs[0].as_mut()
            // A guest that reads none of thousands needs no more.
            && !eq.is_full()
        {
            eq.push(&mut self.memories, &guest.interrupts, 0, async_event(kind, number, false));
        }
        true
    }
}
