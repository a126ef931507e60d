//! The names and symbol versions of `libibverbs.so.1`, for the library that stands in its place; `cm::versions` has those of
//! `librdmacm.so.1`.
//!
//! A versioned symbol is a label in front of a jump to the function that the preload library exports under its plain name. The
//! nodes are those of rdma-core 44 to 65. Programs use the public ones. The private ones are what the distribution's drivers and
//! tools need to be loaded at all: they are never called with our devices, and refuse. Names of the interface before version 1.1,
//! which had other structs, are left out: programs of that age do not run on today's systems.

use crate::foreign::{null, set_errno};
use core::ffi::{c_int, c_void};

#[allow(unused_imports)]
use crate::{
    ah::*, channel::*, cq::*, device::*, domain::*, events::*, memory::*, names::*, qp::*, qp_ex::*, query::*, srq::*,
    unsupported::*,
};

/// Takes part in nothing that a device of ours needs.
extern "C" fn refuse() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// See [`refuse`].
extern "C" fn refuse_pointer() -> *mut c_void {
    null(libc::EOPNOTSUPP)
}

/// Memory may be shared with children as it is.
extern "C" fn fork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {}"
    };
}

/// Exports functions of this library under names with a version; `name = function` where the two differ. A name that has two
/// versions gets the first by default, which only matters to a linker.
macro_rules! export {
    ($($node:literal $(and $other:literal)? { $($name:ident $(= $function:ident)?),* $(,)? })*) => {
        $(
            $($crate::versions::export!(@one $node, "@@", $name, $($function)? $name);)*
            $crate::versions::export!(@again [$($other)?] $($name $(= $function)?),*);
        )*
    };
    (@again [] $($rest:tt)*) => {};
    (@again [$node:literal] $($name:ident $(= $function:ident)?),*) => {
        $($crate::versions::export!(@one $node, "@", $name, $($function)? $name);)*
    };
    (@one $node:literal, $at:literal, $name:ident, $function:ident $($rest:ident)?) => {
        core::arch::global_asm!(
            ".text",
            concat!(".globl \"", stringify!($name), ".", $node, "\""),
            concat!(".type \"", stringify!($name), ".", $node, "\", @function"),
            concat!("\"", stringify!($name), ".", $node, "\":"),
            $crate::versions::jump!(),
            concat!(".symver \"", stringify!($name), ".", $node, "\", ", stringify!($name), $at, $node),
            sym $function,
        );
    };
}

pub(crate) use {export, jump};

export! {
    "IBVERBS_1.0" {
        ibv_copy_path_rec_from_kern = refuse, ibv_copy_path_rec_to_kern = refuse, ibv_copy_qp_attr_from_kern = refuse,
        ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_sysfs_path, ibv_rate_to_mult, ibv_read_sysfs_file,
        mult_to_ibv_rate,
    }
    "IBVERBS_1.1" {
        ibv_ack_async_event, ibv_ack_cq_events, ibv_alloc_pd, ibv_attach_mcast, ibv_close_device,
        ibv_copy_ah_attr_from_kern = refuse, ibv_create_ah, ibv_create_ah_from_wc, ibv_create_cq, ibv_create_qp,
        ibv_create_srq, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_ah, ibv_destroy_cq, ibv_destroy_qp, ibv_destroy_srq,
        ibv_detach_mcast, ibv_dofork_range = fork_range, ibv_dontfork_range = fork_range, ibv_event_type_str, ibv_fork_init,
        ibv_free_device_list, ibv_get_async_event, ibv_get_cq_event, ibv_get_device_guid, ibv_get_device_list,
        ibv_get_device_name, ibv_init_ah_from_wc, ibv_modify_qp, ibv_modify_srq, ibv_node_type_str, ibv_open_device,
        ibv_port_state_str, ibv_query_device, ibv_query_gid, ibv_query_pkey, ibv_query_port, ibv_query_qp, ibv_query_srq,
        ibv_rate_to_mbps, ibv_reg_mr, ibv_rereg_mr, ibv_resize_cq, ibv_resolve_eth_l2_from_gid, ibv_wc_status_str,
        mbps_to_ibv_rate,
    }
    "IBVERBS_1.5" {
        ibv_get_pkey_index,
    }
    "IBVERBS_1.6" {
        ibv_qp_to_qp_ex,
    }
    "IBVERBS_1.7" {
        ibv_reg_mr_iova,
    }
    "IBVERBS_1.8" {
        ibv_reg_mr_iova2,
    }
    "IBVERBS_1.9" {
        ibv_get_device_index,
    }
    "IBVERBS_1.10" {
        ibv_import_device, ibv_import_mr, ibv_import_pd, ibv_query_ece, ibv_set_ece, ibv_unimport_mr, ibv_unimport_pd,
    }
    "IBVERBS_1.11" {
        _ibv_query_gid_ex, _ibv_query_gid_table,
    }
    "IBVERBS_1.12" {
        ibv_reg_dmabuf_mr,
    }
    "IBVERBS_1.13" {
        ibv_import_dm, ibv_is_fork_initialized, ibv_unimport_dm,
    }
    "IBVERBS_1.14" {
        ibv_query_qp_data_in_order,
    }
    "IBVERBS_1.15" {
        ibv_alloc_dmah, ibv_dealloc_dmah, ibv_reg_mr_ex,
    }
    "IBVERBS_1.16" {
        ibv_dm_export_dmabuf_fd, ibv_query_port_speed,
    }
    "IBVERBS_1.17" {
        ibv_alloc_buf, ibv_free_buf, ibv_reg_buf_mr,
    }
    "IBVERBS_1.18" {
        _ibv_query_comp_cntr_caps, ibv_create_comp_cntr, ibv_destroy_comp_cntr, ibv_export_buf_dmabuf_fd, ibv_inc_comp_cntr,
        ibv_inc_err_comp_cntr, ibv_qp_attach_comp_cntr, ibv_read_comp_cntr, ibv_read_err_comp_cntr, ibv_set_comp_cntr,
        ibv_set_err_comp_cntr,
    }
    "VRDMA_1.0" {
        vrdma_revoke_dmabuf,
    }
    "IBVERBS_PRIVATE_34" {
        verbs_register_driver_34 = refuse,
    }
    "IBVERBS_PRIVATE_65" {
        verbs_register_driver_65 = refuse,
    }
    "IBVERBS_PRIVATE_34" and "IBVERBS_PRIVATE_65" {
        ibv_query_gid_type,
    }
}

export! {
    "IBVERBS_PRIVATE_34" and "IBVERBS_PRIVATE_65" {
        __ioctl_final_num_attrs = refuse, __verbs_log = refuse, _verbs_init_and_alloc_context = refuse_pointer,
        execute_ioctl = refuse, ibv_cmd_advise_mr = refuse, ibv_cmd_alloc_dm = refuse, ibv_cmd_alloc_mw = refuse,
        ibv_cmd_alloc_pd = refuse, ibv_cmd_attach_mcast = refuse, ibv_cmd_close_xrcd = refuse, ibv_cmd_create_ah = refuse,
        ibv_cmd_create_counters = refuse, ibv_cmd_create_cq = refuse, ibv_cmd_create_cq_ex = refuse,
        ibv_cmd_create_cq_ex2 = refuse, ibv_cmd_create_flow = refuse, ibv_cmd_create_flow_action_esp = refuse,
        ibv_cmd_create_qp = refuse, ibv_cmd_create_qp_ex = refuse, ibv_cmd_create_qp_ex2 = refuse,
        ibv_cmd_create_rwq_ind_table = refuse, ibv_cmd_create_srq = refuse, ibv_cmd_create_srq_ex = refuse,
        ibv_cmd_create_wq = refuse, ibv_cmd_dealloc_mw = refuse, ibv_cmd_dealloc_pd = refuse, ibv_cmd_dereg_mr = refuse,
        ibv_cmd_destroy_ah = refuse, ibv_cmd_destroy_counters = refuse, ibv_cmd_destroy_cq = refuse,
        ibv_cmd_destroy_flow = refuse, ibv_cmd_destroy_flow_action = refuse, ibv_cmd_destroy_qp = refuse,
        ibv_cmd_destroy_rwq_ind_table = refuse, ibv_cmd_destroy_srq = refuse, ibv_cmd_destroy_wq = refuse,
        ibv_cmd_detach_mcast = refuse, ibv_cmd_free_dm = refuse, ibv_cmd_get_context = refuse, ibv_cmd_modify_cq = refuse,
        ibv_cmd_modify_flow_action_esp = refuse, ibv_cmd_modify_qp = refuse, ibv_cmd_modify_qp_ex = refuse,
        ibv_cmd_modify_srq = refuse, ibv_cmd_modify_wq = refuse, ibv_cmd_open_qp = refuse, ibv_cmd_open_xrcd = refuse,
        ibv_cmd_poll_cq = refuse, ibv_cmd_post_recv = refuse, ibv_cmd_post_send = refuse, ibv_cmd_post_srq_recv = refuse,
        ibv_cmd_query_context = refuse, ibv_cmd_query_device_any = refuse, ibv_cmd_query_mr = refuse,
        ibv_cmd_query_port = refuse, ibv_cmd_query_qp = refuse, ibv_cmd_query_srq = refuse, ibv_cmd_read_counters = refuse,
        ibv_cmd_reg_dm_mr = refuse, ibv_cmd_reg_dmabuf_mr = refuse, ibv_cmd_reg_mr = refuse, ibv_cmd_req_notify_cq = refuse,
        ibv_cmd_rereg_mr = refuse, ibv_cmd_resize_cq = refuse, ibv_read_ibdev_sysfs_file = refuse,
        ibv_wr_opcode_str = refuse_pointer, verbs_allow_disassociate_destroy = refuse, verbs_init_cq = refuse,
        verbs_open_device = refuse_pointer, verbs_set_ops = refuse, verbs_uninit_context = refuse,
    }
    "IBVERBS_PRIVATE_65" {
        ibv_cmd_alloc_dmah = refuse, ibv_cmd_create_comp_cntr = refuse, ibv_cmd_destroy_comp_cntr = refuse,
        ibv_cmd_export_dmabuf_fd = refuse, ibv_cmd_free_dmah = refuse, ibv_cmd_inc_comp_cntr = refuse,
        ibv_cmd_inc_err_comp_cntr = refuse, ibv_cmd_qp_attach_comp_cntr = refuse, ibv_cmd_query_comp_cntr_caps = refuse,
        ibv_cmd_query_port_speed = refuse, ibv_cmd_read_comp_cntr = refuse, ibv_cmd_read_err_comp_cntr = refuse,
        ibv_cmd_reg_mr_ex = refuse, ibv_cmd_set_comp_cntr = refuse, ibv_cmd_set_err_comp_cntr = refuse,
        ibv_dmabuf_heap_alloc = refuse_pointer, ibv_dmabuf_heap_cc_shared_init = refuse, ibv_dmabuf_heap_destroy = refuse,
        ibv_dmabuf_heap_free = refuse,
    }
}
