//! Listening, connecting, answering, ending.

use super::abi::{MAX_DEPTH, UDP_QKEY, rdma_cm_id, rdma_conn_param, space};
use super::devices::CmDevice;
use super::id::{Connection, Id};
use super::resolve::{PACKET_LIFETIME, bind_if_unbound};
use super::{address, qp, result};
use crate::abi::codes::event as async_event;
use crate::connection::Errno;
use crate::foreign::minus_one;
use core::ffi::{c_int, c_void};
use vdev_abi::cm::{CmRequest, Offer, Peer};

/// `enum ibv_qp_type`: unreliable connection.
const QPT_UC: u32 = 3;
/// `enum ibv_event_type`: the first packet has arrived.
const COMM_EST: u32 = async_event::QP_FATAL + 3;

/// Bytes that a program passes.
unsafe fn bytes(data: *const c_void, len: u8) -> Result<Vec<u8>, Errno> {
    match (data.is_null(), len) {
        (_, 0) => Ok(Vec::new()),
        (true, _) => Err(Errno(libc::EINVAL)),
        // SAFETY: the caller says that so many bytes are there.
        (false, len) => Ok(unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()),
    }
}

fn is_datagram(id: &Id) -> bool {
    // SAFETY: the C part is live.
    unsafe { (*id.c()).ps == space::UDP }
}

/// 24 random bits: where a queue pair begins to count.
pub fn random_psn() -> u32 {
    let mut word = [0u8; 4];
    // SAFETY: four writable bytes. Without them the number is 0, which is as good a start as any for a peer that is not hostile.
    unsafe { libc::getrandom(word.as_mut_ptr().cast(), word.len(), 0) };
    u32::from_ne_bytes(word) & 0xFF_FFFF
}

/// READs and atomics that a queue pair of this device can have outstanding, or answer.
pub fn depth_limit(device: &CmDevice) -> u8 {
    u8::try_from(device.context().info.max_qp_rd_atomic).unwrap_or(MAX_DEPTH)
}

/// What a program gives with a call; all that the device can where it gives nothing.
struct Parameters {
    offer: Offer,
    private_data: Vec<u8>,
}

/// # Safety
/// `given` is null or valid.
unsafe fn parameters(id: &Id, given: *const rdma_conn_param) -> Result<Parameters, Errno> {
    let limit = id.state().device.map_or(0, depth_limit);
    // SAFETY: per contract; what an id shows is live.
    let (given, qp) = unsafe { (given.as_ref(), (*id.c()).qp.as_ref()) };
    let mut offer = Offer {
        qpn: qp.map_or(0, |qp| qp.qp_num),
        starting_psn: random_psn(),
        responder_resources: limit,
        initiator_depth: limit,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: qp.is_some_and(|qp| !qp.srq.is_null()),
    };
    let Some(given) = given else { return Ok(Parameters { offer, private_data: Vec::new() }) };
    let depth = |wanted: u8| if wanted == MAX_DEPTH { limit } else { wanted.min(limit) };
    offer.responder_resources = depth(given.responder_resources);
    offer.initiator_depth = depth(given.initiator_depth);
    offer.flow_control = given.flow_control != 0;
    offer.retry_count = given.retry_count.min(7);
    offer.rnr_retry_count = given.rnr_retry_count.min(7);
    if qp.is_none() {
        offer.qpn = given.qp_num;
        offer.srq = given.srq != 0;
    }
    // SAFETY: per contract.
    Ok(Parameters { offer, private_data: unsafe { bytes(given.private_data, given.private_data_len) }? })
}

/// # Safety
/// `given` is null or valid.
unsafe fn connect(id: &Id, given: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: per contract.
    let Parameters { offer, private_data } = unsafe { parameters(id, given) }?;
    let (device, endpoint) = id.endpoint()?;
    let (local, remote, traffic_class, ack_timeout) = {
        let state = id.state();
        match (state.local, state.remote) {
            (Some(local), Some(remote)) => (local, remote, state.traffic_class, state.ack_timeout),
            _ => return Err(Errno(libc::EINVAL)),
        }
    };
    // SAFETY: the C part is live.
    let unreliable = unsafe { (*id.c()).qp_type == QPT_UC };
    let peer = Peer {
        local: address::gid(local.ip()),
        remote: address::gid(remote.ip()),
        port: remote.port(),
        unreliable,
        path_mtu: u8::try_from(device.context().port()?.active_mtu).unwrap_or(0),
        ack_timeout: ack_timeout.unwrap_or(PACKET_LIFETIME),
        traffic_class,
    };
    // Known before the answer can come.
    id.state().connection = Some(Connection { peer, ours: offer, theirs: None, is_passive: false });
    device.call_done(CmRequest::Connect { endpoint, to: peer, offer, private_data })?;
    id.complete()
}

/// # Safety
/// `given` is null or valid.
unsafe fn accept(id: &Id, given: *const rdma_conn_param) -> Result<(), Errno> {
    // SAFETY: per contract.
    let Parameters { mut offer, private_data } = unsafe { parameters(id, given) }?;
    let (device, endpoint) = id.endpoint()?;
    if is_datagram(id) {
        let serve = CmRequest::Serve { endpoint, qpn: offer.qpn, qkey: UDP_QKEY, private_data };
        return device.call_done(serve);
    }
    {
        let mut state = id.state();
        let connection = state.connection.as_mut().filter(|connection| connection.is_passive).ok_or(Errno(libc::EINVAL))?;
        // Never more than the peer has asked for.
        offer.responder_resources = offer.responder_resources.min(connection.ours.responder_resources);
        offer.initiator_depth = offer.initiator_depth.min(connection.ours.initiator_depth);
        offer.starting_psn = connection.ours.starting_psn;
        connection.ours = offer;
    }
    // Before the peer is told, as it may send at once.
    qp::connect(id)?;
    if let Err(error) = device.call_done(CmRequest::Accept { endpoint, offer, private_data }) {
        qp::fail(id);
        return Err(error);
    }
    id.complete()
}

fn listen(id: &Id, backlog: c_int) -> Result<(), Errno> {
    bind_if_unbound(id)?;
    let endpoints = id.state().endpoints.clone();
    for (device, endpoint) in endpoints {
        device.call_done(CmRequest::Listen { endpoint, backlog: u32::try_from(backlog).unwrap_or(0) })?;
    }
    Ok(())
}

/// # Safety
/// `len` bytes at `data` are readable.
unsafe fn reject(id: &Id, data: *const c_void, len: u8) -> Result<(), Errno> {
    // SAFETY: per contract.
    let private_data = unsafe { bytes(data, len) }?;
    let (device, endpoint) = id.endpoint()?;
    device.call_done(CmRequest::Reject { endpoint, private_data })
}

fn establish(id: &Id) -> Result<(), Errno> {
    let (device, endpoint) = id.endpoint()?;
    device.call_done(CmRequest::Establish { endpoint })
}

fn disconnect(id: &Id) -> Result<(), Errno> {
    let (device, endpoint) = id.endpoint()?;
    if is_datagram(id) {
        return Err(Errno(libc::EINVAL));
    }
    let connected = id.state().connection.is_some_and(|connection| connection.theirs.is_some());
    if !connected {
        return Err(Errno(libc::EINVAL));
    }
    qp::fail(id);
    device.call_done(CmRequest::Disconnect { endpoint })?;
    id.complete()
}

calls! {
    /// Takes requests from now on.
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int,
        => { result(Id::of(id).and_then(|id| listen(id, backlog))) } else minus_one(libc::ENODEV);

    /// Asks the peer whose address was resolved.
    fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int,
        => { result(Id::of(id).and_then(|id| connect(id, param))) } else minus_one(libc::ENODEV);

    /// Accepts a request.
    fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int,
        => { result(Id::of(id).and_then(|id| accept(id, param))) } else minus_one(libc::ENODEV);

    /// Refuses a request, or the peer's answer.
    fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int,
        => { result(Id::of(id).and_then(|id| reject(id, data, len))) } else minus_one(libc::ENODEV);

    /// Refuses a request for want of an enhancement; peers here are told no other reason.
    fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int,
        => { result(Id::of(id).and_then(|id| reject(id, data, len))) } else minus_one(libc::ENODEV);

    /// Completes a connection whose queue pair the program has connected itself.
    fn rdma_establish(id: *mut rdma_cm_id) -> c_int,
        => {
            result(Id::of(id).and_then(|id| if qp::has_one(id) { Err(Errno(libc::EINVAL)) } else { establish(id) }))
        } else minus_one(libc::ENODEV);

    /// Tells of an asynchronous event: that data has arrived before the message that completes the connection.
    fn rdma_notify(id: *mut rdma_cm_id, event: u32) -> c_int,
        => {
            result(Id::of(id).and_then(|id| if event == COMM_EST { establish(id) } else { Err(Errno(libc::EINVAL)) }))
        } else minus_one(libc::ENODEV);

    /// Ends a connection: the queue pair goes to the error state, the peer is told.
    fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int,
        => { result(Id::of(id).and_then(disconnect)) } else minus_one(libc::ENODEV);
}
