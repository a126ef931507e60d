//! From what has happened to what a program gets: events with their parameters, new ids for requests, acknowledgement.

use super::abi::{event, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel, rdma_event_param, rdma_ud_param};
use super::channel::{Channel, Queued};
use super::connect::{depth_limit, random_psn};
use super::devices::CmDevice;
use super::id::{Connection, Id, migrate};
use super::multicast::joined;
use super::{address, qp, result};
use crate::abi::object::ibv_ah_attr;
use crate::connection::Errno;
use crate::context::lock;
use crate::foreign::minus_one;
use core::ffi::{c_char, c_int, c_void};
use core::ptr;
use std::net::SocketAddr;
use vdev_abi::cm::{Address, CmEvent, CmEventKind, CmRequest, Offer, Peer};

/// An event that a program has. The private data that it points to lives here.
#[repr(C)]
struct Event {
    c: rdma_cm_event,
    private_data: Vec<u8>,
    /// The id that waits for the acknowledgement: the listener of a request, else the id itself.
    held: *const Id,
}

/// What is said of an id.
struct Told {
    event: u32,
    status: i32,
    private_data: Vec<u8>,
    about: About,
}

enum About {
    Nothing,
    Connection(Offer),
    Service { qpn: u32, qkey: u32, route: Peer },
    Joined { group: Address, context: *mut c_void },
}

impl Told {
    fn plain(event: u32, status: i32) -> Told {
        Told { event, status, private_data: Vec::new(), about: About::Nothing }
    }
}

/// The next event of a channel; its id is held until it is acknowledged.
///
/// # Errors
/// `EAGAIN`, or what the system says.
pub fn next(channel: &Channel) -> Result<*mut rdma_cm_event, Errno> {
    loop {
        match channel.take()? {
            Queued::Local { id, event, status } => {
                // SAFETY: held when it was taken.
                let id = unsafe { &*id };
                return Ok(hand_out(id, ptr::null_mut(), id, Told::plain(event, status)));
            }
            Queued::Joined { id, group, context } => {
                // SAFETY: held when it was taken.
                let id = unsafe { &*id };
                let about = About::Joined { group, context };
                let told = Told { event: event::MULTICAST_JOIN, status: 0, private_data: Vec::new(), about };
                return Ok(hand_out(id, ptr::null_mut(), id, told));
            }
            Queued::Daemon { device, event } => {
                if let Some(event) = translate(device, event)? {
                    return Ok(event);
                }
            }
        }
    }
}

/// The id of an endpoint, held.
fn id_of(device: &'static CmDevice, endpoint: u32) -> Option<&'static Id> {
    let ids = lock(&device.ids);
    let id = ids.get(&endpoint)?;
    // SAFETY: live while it stands in the table, and from then on because it is held.
    let id = unsafe { &*id.0 };
    id.hold();
    Some(id)
}

/// `None` for events of ids that have ended meanwhile.
fn translate(device: &'static CmDevice, event: CmEvent) -> Result<Option<*mut rdma_cm_event>, Errno> {
    if let CmEventKind::ConnectRequest { listener, peer, offer, private_data } = event.kind {
        let Some(listener) = id_of(device, listener) else { return Ok(None) };
        let request = Request { device, endpoint: event.endpoint, peer, offer };
        let id = match new_id(listener, &request) {
            Ok(id) => id,
            Err(error) => {
                listener.release();
                let _ = device.call_done(CmRequest::Destroy { endpoint: event.endpoint });
                return Err(error);
            }
        };
        let told = Told { event: event::CONNECT_REQUEST, status: 0, private_data, about: About::Connection(offer) };
        return Ok(Some(hand_out(id, listener.c(), listener, told)));
    }
    let Some(id) = id_of(device, event.endpoint) else { return Ok(None) };
    let told = match event.kind {
        CmEventKind::ConnectRequest { .. } => return Ok(None),
        CmEventKind::ConnectResponse { offer, private_data } => on_response(id, offer, private_data),
        CmEventKind::Established => Told::plain(event::ESTABLISHED, 0),
        CmEventKind::Resolved { qpn, qkey, private_data } => {
            let route = id.state().connection.map(|connection| connection.peer);
            match route {
                Some(route) => {
                    Told { event: event::ESTABLISHED, status: 0, private_data, about: About::Service { qpn, qkey, route } }
                }
                None => Told::plain(event::UNREACHABLE, -libc::EPROTO),
            }
        }
        CmEventKind::Rejected { reason, private_data } => {
            qp::fail(id);
            let about = About::Connection(Offer::default());
            Told { event: event::REJECTED, status: i32::from(reason), private_data, about }
        }
        CmEventKind::Unreachable => {
            qp::fail(id);
            Told::plain(event::UNREACHABLE, -libc::ETIMEDOUT)
        }
        CmEventKind::NoService { status } => Told::plain(event::UNREACHABLE, i32::from(status)),
        CmEventKind::Disconnected => Told::plain(event::DISCONNECTED, 0),
        CmEventKind::TimewaitExit => Told::plain(event::TIMEWAIT_EXIT, 0),
    };
    Ok(Some(hand_out(id, ptr::null_mut(), id, told)))
}

/// The peer accepts: the queue pair of the id, if it has one, is connected here, and the peer told.
fn on_response(id: &Id, offer: Offer, private_data: Vec<u8>) -> Told {
    if let Some(connection) = &mut id.state().connection {
        connection.theirs = Some(offer);
    }
    let about = About::Connection(offer);
    if !qp::has_one(id) {
        return Told { event: event::CONNECT_RESPONSE, status: 0, private_data, about };
    }
    let established = qp::connect(id).and_then(|()| {
        let (device, endpoint) = id.endpoint()?;
        device.call_done(CmRequest::Establish { endpoint })
    });
    match established {
        Ok(()) => Told { event: event::ESTABLISHED, status: 0, private_data, about },
        Err(error) => {
            qp::fail(id);
            if let Ok((device, endpoint)) = id.endpoint() {
                let _ = device.call_done(CmRequest::Reject { endpoint, private_data: Vec::new() });
            }
            Told { event: event::CONNECT_ERROR, status: -error.0, private_data, about }
        }
    }
}

struct Request {
    device: &'static CmDevice,
    endpoint: u32,
    peer: Peer,
    offer: Offer,
}

/// The id of a request that has arrived at a listener.
fn new_id(listener: &Id, request: &Request) -> Result<&'static Id, Errno> {
    // SAFETY: the listener is held, and its C part is live.
    let (channel, context, space) = unsafe {
        let c = listener.c();
        ((*c).channel, (*c).context, (*c).ps)
    };
    let (local_port, traffic_class) = {
        let state = listener.state();
        (state.local.map_or(0, |local| local.port()), state.traffic_class)
    };
    let Request { device, endpoint, peer, offer } = *request;
    let active_mtu = u8::try_from(device.context().port()?.active_mtu).unwrap_or(0);
    let id = Id::create(channel, context, space)?;
    let mut state = id.state();
    id.enter(&mut state, device, endpoint);
    state.device = Some(device);
    state.traffic_class = traffic_class;
    id.set_local(&mut state, SocketAddr::new(address::ip(peer.local), local_port));
    id.set_remote(&mut state, SocketAddr::new(address::ip(peer.remote), peer.port));
    // The sender's answers are the receiver's questions: what one can have outstanding the other has to be able to answer. A program
    // may connect a queue pair of its own with this before it accepts.
    let limit = depth_limit(device);
    let ours = Offer {
        starting_psn: random_psn(),
        responder_resources: offer.initiator_depth.min(limit),
        initiator_depth: offer.responder_resources.min(limit),
        ..offer
    };
    let peer = Peer { path_mtu: peer.path_mtu.min(active_mtu), ..peer };
    state.connection = Some(Connection { peer, ours, theirs: Some(offer), is_passive: true });
    drop(state);
    // SAFETY: just made.
    unsafe { device.show_in(id.c()) };
    if listener.is_synchronous() {
        // SAFETY: null stands for a channel of its own.
        if let Err(error) = unsafe { migrate(id, ptr::null_mut()) } {
            // SAFETY: nobody else knows it.
            unsafe { super::id::destroy(id) };
            return Err(error);
        }
    }
    Ok(id)
}

/// Makes the C event.
fn hand_out(id: &Id, listener: *mut rdma_cm_id, held: &Id, told: Told) -> *mut rdma_cm_event {
    let Told { event, status, private_data, about } = told;
    let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
    // SAFETY: null pointers and zeros are valid in every field.
    let zero: rdma_cm_event = unsafe { core::mem::zeroed() };
    let mut boxed =
        Box::new(Event { c: rdma_cm_event { id: id.c(), listen_id: listener, event, status, ..zero }, private_data, held });
    let data = if len == 0 { ptr::null() } else { boxed.private_data.as_ptr().cast() };
    boxed.c.param = match about {
        // SAFETY: the C part of an id that is in use is live.
        About::Connection(offer) if unsafe { (*id.c()).ps } == super::abi::space::TCP => rdma_event_param {
            conn: rdma_conn_param {
                private_data: data,
                private_data_len: len,
                // As the receiver sees it, see `new_id`.
                responder_resources: offer.initiator_depth,
                initiator_depth: offer.responder_resources,
                flow_control: u8::from(offer.flow_control),
                retry_count: offer.retry_count,
                rnr_retry_count: offer.rnr_retry_count,
                srq: u8::from(offer.srq),
                qp_num: offer.qpn,
            },
        },
        About::Service { qpn, qkey, route } => rdma_event_param {
            ud: rdma_ud_param { private_data: data, private_data_len: len, ah_attr: ah_attr(id, &route), qp_num: qpn, qkey },
        },
        // SAFETY: the C part of an id that is in use is live.
        About::Joined { group, context } => rdma_event_param { ud: unsafe { joined(id, group, context) } },
        _ => rdma_event_param {
            ud: rdma_ud_param {
                private_data: data,
                private_data_len: len,
                ah_attr: ibv_ah_attr::default(),
                qp_num: 0,
                qkey: 0,
            },
        },
    };
    Box::into_raw(boxed).cast()
}

/// How to reach the other end of a path.
pub fn ah_attr(id: &Id, path: &Peer) -> ibv_ah_attr {
    let local = address::ip(path.local);
    let index = id.state().device.and_then(|device| device.ips.iter().position(|ip| *ip == local)).unwrap_or(0);
    let mut attr = ibv_ah_attr { is_global: 1, port_num: 1, ..ibv_ah_attr::default() };
    attr.grh.dgid = address::gid_words(path.remote);
    attr.grh.sgid_index = u8::try_from(index).unwrap_or(0);
    attr.grh.hop_limit = 64;
    attr.grh.traffic_class = path.traffic_class;
    attr
}

/// Acknowledges an event, which ends with that.
///
/// # Safety
/// It came from [`next`] and was not acknowledged yet.
pub unsafe fn acknowledge(event: *mut rdma_cm_event) {
    // SAFETY: per contract; the id is live as it waits for this.
    unsafe {
        let event = Box::from_raw(event.cast::<Event>());
        (*event.held).release();
    }
}

calls! {
    /// Waits for an event (or does not, where the descriptor is non-blocking).
    fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int,
        => {
            if channel.is_null() || event.is_null() {
                return minus_one(libc::EINVAL);
            }
            result(next(&Channel::keep(channel)).map(|found| event.write(found)))
        } else minus_one(libc::ENODEV);

    /// Acknowledges an event, so that its id may be destroyed.
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int,
        => {
            if event.is_null() {
                return minus_one(libc::EINVAL);
            }
            acknowledge(event);
            0
        } else minus_one(libc::ENODEV);
}

/// Name of an event, as its `enum` spells it.
#[cfg_attr(not(versioned), unsafe(no_mangle))]
pub extern "C" fn rdma_event_str(event: u32) -> *const c_char {
    let name = match event {
        0 => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        1 => c"RDMA_CM_EVENT_ADDR_ERROR",
        2 => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        3 => c"RDMA_CM_EVENT_ROUTE_ERROR",
        4 => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        5 => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        6 => c"RDMA_CM_EVENT_CONNECT_ERROR",
        7 => c"RDMA_CM_EVENT_UNREACHABLE",
        8 => c"RDMA_CM_EVENT_REJECTED",
        9 => c"RDMA_CM_EVENT_ESTABLISHED",
        10 => c"RDMA_CM_EVENT_DISCONNECTED",
        11 => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        12 => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        13 => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        14 => c"RDMA_CM_EVENT_ADDR_CHANGE",
        15 => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}
