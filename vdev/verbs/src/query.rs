//! What programs ask of a device and its port. Every limit reported can be used; what we do not have is reported as zero.

use crate::abi::codes::{self, device_cap};
use crate::abi::device::{PORT_ATTR_COMPAT, ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid_entry, ibv_port_attr};
use crate::clock::RAW_CLOCK_KHZ;
use crate::connection::Errno;
use crate::context::Context;
use crate::device::text;
use crate::foreign::{code, minus_one, own_context, verbs};
use core::ffi::{c_int, c_void};
use core::ptr;

/// Vendor of the device: not a registered one. The second bit of the first octet says "locally administered"; the rest is "VR".
const VENDOR_ID: u32 = 0x02_5652;
/// The one kind of device there is.
const VENDOR_PART_ID: u32 = 1;
/// Address handles: they live in the program's memory, so that this is more of a figure than a limit.
const MAX_AH: i32 = 1 << 20;
/// The one port.
const PORT: u32 = 1;
/// The default partition, full member.
const PKEY: u16 = 0xFFFF;
/// `active_width`: one lane. What a software port can do depends on the machine; this is of the right order.
const WIDTH_1X: u8 = 1;
/// `active_speed`: 25 Gb/s a lane.
const SPEED_25_GBPS: u8 = 32;
/// The same in units of 100 Mb/s.
const PORT_SPEED: u64 = 250;
/// `phys_state`.
const PHYS_LINK_UP: u8 = 5;
const PHYS_DISABLED: u8 = 3;
/// 4.096 µs times 2 to this power: what a busy host may add before it acknowledges.
const ACK_DELAY: u8 = 15;

fn signed(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn device_attr(context: &Context) -> ibv_device_attr {
    let info = &context.info;
    ibv_device_attr {
        fw_ver: text(&info.fw_version),
        node_guid: info.guid.to_be(),
        sys_image_guid: info.guid.to_be(),
        max_mr_size: info.max_mr_size,
        page_size_cap: !0xFFF,
        vendor_id: VENDOR_ID,
        vendor_part_id: VENDOR_PART_ID,
        hw_ver: 1,
        max_qp: signed(info.max_qp),
        max_qp_wr: signed(info.max_qp_wr),
        device_cap_flags: device_cap::SYS_IMAGE_GUID
            | device_cap::RC_RNR_NAK_GEN
            | device_cap::SRQ_RESIZE
            | device_cap::MEM_WINDOW
            | device_cap::XRC
            | device_cap::MEM_WINDOW_TYPE_2B,
        max_sge: signed(info.max_sge),
        max_sge_rd: signed(info.max_sge),
        max_cq: signed(info.max_cq),
        max_cqe: signed(info.max_cqe),
        max_mr: signed(info.max_mr),
        max_pd: signed(info.max_pd),
        max_qp_rd_atom: signed(info.max_qp_rd_atomic),
        max_ee_rd_atom: 0,
        max_res_rd_atom: signed(info.max_qp_rd_atomic.saturating_mul(info.max_qp)),
        max_qp_init_rd_atom: signed(info.max_qp_rd_atomic),
        max_ee_init_rd_atom: 0,
        atomic_cap: codes::ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: signed(info.max_mw),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: signed(info.max_mcast_grp),
        max_mcast_qp_attach: signed(info.max_mcast_qp_attach),
        max_total_mcast_qp_attach: signed(info.max_mcast_grp.saturating_mul(info.max_mcast_qp_attach)),
        max_ah: MAX_AH,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: signed(info.max_srq),
        max_srq_wr: signed(info.max_srq_wr),
        max_srq_sge: signed(info.max_sge),
        max_pkeys: 1,
        local_ca_ack_delay: ACK_DELAY,
        phys_port_cnt: 1,
    }
}

fn port_attr(context: &Context) -> Result<ibv_port_attr, Errno> {
    let port = context.port()?;
    Ok(ibv_port_attr {
        state: port.state,
        max_mtu: codes::MTU_4096,
        active_mtu: port.active_mtu,
        gid_tbl_len: i32::try_from(context.info.gids.len()).unwrap_or(i32::MAX),
        max_msg_sz: context.info.max_msg_size,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width: WIDTH_1X,
        active_speed: SPEED_25_GBPS,
        phys_state: if port.state == codes::PORT_ACTIVE { PHYS_LINK_UP } else { PHYS_DISABLED },
        link_layer: codes::LINK_LAYER_ETHERNET,
        ..ibv_port_attr::default()
    })
}

/// Writes as much of a value as the caller has room for, and zeros beyond it.
///
/// # Safety
/// `room` bytes at `to` are writable.
unsafe fn write_cut<T>(value: &T, to: *mut c_void, room: usize) {
    let len = size_of::<T>().min(room);
    // SAFETY: both within bounds; the value is plain data.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), to.cast::<u8>(), len);
        ptr::write_bytes(to.cast::<u8>().add(len), 0, room - len);
    }
}

/// # Safety
/// `room` bytes at `attr` are writable.
unsafe fn write_port(context: &Context, port: u32, attr: *mut ibv_port_attr, room: usize) -> Result<(), Errno> {
    if port != PORT || attr.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    let value = port_attr(context)?;
    // SAFETY: per contract.
    unsafe { write_cut(&value, attr.cast(), room) };
    Ok(())
}

/// `ibv_query_port`, called through the context by the C header with the length that the program knows.
///
/// # Safety
/// The context is live and ours, and `room` bytes are writable.
pub unsafe extern "C" fn query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, room: usize) -> c_int {
    // SAFETY: per contract.
    code(unsafe { write_port(Context::of(context), u32::from(port), attr, room) })
}

/// `ibv_query_device_ex`, called through the context.
///
/// # Safety
/// The context is live and ours, `input` null or valid, and `room` bytes are writable.
pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    room: usize,
) -> c_int {
    // SAFETY: the input begins with its 32-bit mask, of which no bit is known.
    let unknown = unsafe { !input.is_null() && *input.cast::<u32>() != 0 };
    if unknown || attr.is_null() || room < size_of::<ibv_device_attr>() {
        return code(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: per contract.
    let context = unsafe { Context::of(context) };
    if let Err(error) = context.check() {
        return code(Err(error));
    }
    let orig_attr = device_attr(context);
    let value = ibv_device_attr_ex {
        orig_attr,
        comp_mask: 0,
        odp_caps: [0; 3],
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: RAW_CLOCK_KHZ,
        device_cap_flags_ex: u64::from(orig_attr.device_cap_flags),
        none: [0; 13],
        xrc_odp_caps: 0,
        phys_port_cnt_ex: u32::from(orig_attr.phys_port_cnt),
    };
    // SAFETY: per contract.
    unsafe { write_cut(&value, attr.cast(), room) };
    0
}

/// The GID at an index, as its two words in memory order.
fn gid(context: &Context, port: u32, index: u32) -> Result<[u64; 2], Errno> {
    context.check()?;
    let gid = context.info.gids.get(index as usize).filter(|_| port == PORT).ok_or(Errno(libc::EINVAL))?;
    let half = |at: usize| u64::from_ne_bytes(gid[at..at + 8].try_into().unwrap_or_default());
    Ok([half(0), half(8)])
}

fn gid_entry(gid: [u64; 2], index: u32) -> ibv_gid_entry {
    // No network interface belongs to it: the address is the device's own.
    ibv_gid_entry { gid, gid_index: index, port_num: PORT, gid_type: codes::GID_TYPE_ROCE_V2, ndev_ifindex: 0 }
}

verbs! {
    /// Limits of a device.
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int,
        if own_context(context) => {
            let context = Context::of(context);
            if attr.is_null() {
                return code(Err(Errno(libc::EINVAL)));
            }
            code(context.check().map(|()| attr.write(device_attr(context))))
        } else libc::EINVAL;

    /// The port, in the layout that programs of any age have room for.
    fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int,
        if own_context(context) => {
            code(write_port(Context::of(context), u32::from(port), attr, PORT_ATTR_COMPAT))
        } else libc::EINVAL;

    /// Speed of the port in units of 100 Mb/s.
    fn ibv_query_port_speed(context: *mut ibv_context, port: u32, speed: *mut u64) -> c_int,
        if own_context(context) => {
            if port != PORT {
                return code(Err(Errno(libc::EINVAL)));
            }
            code(Context::of(context).check().map(|()| speed.write(PORT_SPEED)))
        } else libc::EINVAL;

    /// One entry of the GID table.
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, to: *mut [u64; 2]) -> c_int,
        if own_context(context) => {
            let index = u32::try_from(index).map_err(|_| Errno(libc::EINVAL));
            match index.and_then(|index| gid(Context::of(context), u32::from(port), index)) {
                Ok(_) if to.is_null() => minus_one(libc::EINVAL),
                Ok(gid) => {
                    to.write(gid);
                    0
                }
                Err(error) => minus_one(error.0),
            }
        } else minus_one(libc::EINVAL);

    /// One entry of the GID table, with its kind.
    fn _ibv_query_gid_ex(context: *mut ibv_context, port: u32, index: u32, to: *mut ibv_gid_entry, flags: u32,
        room: usize) -> c_int,
        if own_context(context) => {
            if flags != 0 {
                return code(Err(Errno(libc::EINVAL)));
            }
            code(gid(Context::of(context), port, index)
                .map(|gid| write_cut(&gid_entry(gid, index), to.cast(), room)))
        } else libc::EINVAL;

    /// The GID table: the number of entries, or a negative error number.
    fn _ibv_query_gid_table(context: *mut ibv_context, to: *mut ibv_gid_entry, max: usize, flags: u32,
        room: usize) -> isize,
        if own_context(context) => {
            let context = Context::of(context);
            let count = context.info.gids.len();
            if flags != 0 || room < size_of::<ibv_gid_entry>() || max < count {
                return -(libc::EINVAL as isize);
            }
            for index in 0..count as u32 {
                match gid(context, PORT, index) {
                    Ok(gid) => write_cut(&gid_entry(gid, index), to.byte_add(index as usize * room).cast(), room),
                    Err(error) => return -(error.0 as isize),
                }
            }
            count as isize
        } else -(libc::EINVAL as isize);

    /// Kind of a GID, as the real library's private function counts.
    fn ibv_query_gid_type(context: *mut ibv_context, port: u8, index: u32, to: *mut u32) -> c_int,
        if own_context(context) => {
            match gid(Context::of(context), u32::from(port), index) {
                Ok(_) => {
                    to.write(codes::GID_TYPE_SYSFS_ROCE_V2);
                    0
                }
                Err(error) => minus_one(error.0),
            }
        } else minus_one(libc::EINVAL);

    /// The one partition key.
    fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, to: *mut u16) -> c_int,
        if own_context(context) => {
            if u32::from(port) != PORT || index != 0 {
                return minus_one(libc::EINVAL);
            }
            to.write(PKEY.to_be());
            0
        } else minus_one(libc::EINVAL);

    /// Where a partition key is in the table.
    fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int,
        if own_context(context) => {
            if u32::from(port) == PORT && pkey == PKEY.to_be() { 0 } else { minus_one(libc::EINVAL) }
        } else minus_one(libc::EINVAL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_callers_get_the_part_they_know() {
        let attr = ibv_port_attr { state: 4, active_speed_ex: 9, ..ibv_port_attr::default() };
        let mut room = [0xEEu8; 64];
        // SAFETY: 48 of 64 bytes.
        unsafe { write_cut(&attr, room.as_mut_ptr().cast(), PORT_ATTR_COMPAT) };
        assert_eq!((room[0], room[47], room[48]), (4, 0, 0xEE));
        // SAFETY: all 64 bytes.
        unsafe { write_cut(&attr, room.as_mut_ptr().cast(), 64) };
        assert_eq!((room[52], room[56], room[63]), (9, 0, 0));
    }
}
