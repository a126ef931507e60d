//! `rdma_getaddrinfo`: names and services to addresses, by the C library's resolver.

use super::abi::{rai, rdma_addrinfo, space};
use super::id::QPT_UD;
use crate::abi::codes::QPT_RC;
use crate::foreign::minus_one;
use core::ffi::{c_char, c_int};
use core::ptr;
use libc::{addrinfo, sockaddr, socklen_t};

/// A copy of an address in the C library's memory.
///
/// # Safety
/// `len` bytes at `address` are readable.
unsafe fn copy(address: *const sockaddr, len: socklen_t) -> *mut sockaddr {
    // SAFETY: per contract; as many bytes are allocated.
    unsafe {
        let to = libc::malloc(len as usize).cast::<u8>();
        if !to.is_null() {
            ptr::copy_nonoverlapping(address.cast::<u8>(), to, len as usize);
        }
        to.cast()
    }
}

/// Port space and queue pair type from what is wanted of them; the one decides the other.
fn service(wanted: Option<&rdma_addrinfo>) -> (u32, u32) {
    let (port_space, qp_type) = wanted.map_or((0, 0), |w| (w.ai_port_space.cast_unsigned(), w.ai_qp_type.cast_unsigned()));
    match (port_space, qp_type) {
        (0, QPT_UD) => (space::UDP, QPT_UD),
        (0, 0) => (space::TCP, QPT_RC),
        (0, other) => (space::TCP, other),
        (space::UDP, 0) => (space::UDP, QPT_UD),
        (other, 0) => (other, QPT_RC),
        both => both,
    }
}

/// An error code of `getaddrinfo`, or -1 with `errno`.
///
/// # Safety
/// Texts are null or C strings, hints null or valid, `to` writable.
unsafe fn resolve(node: *const c_char, port: *const c_char, hints: *const rdma_addrinfo, to: *mut *mut rdma_addrinfo) -> c_int {
    // SAFETY: per contract.
    let wanted = unsafe { hints.as_ref() };
    if to.is_null() || (node.is_null() && port.is_null() && wanted.is_none()) {
        return minus_one(libc::EINVAL);
    }
    let flags = wanted.map_or(0, |wanted| wanted.ai_flags);
    let is_passive = flags & rai::PASSIVE != 0;
    let (port_space, qp_type) = service(wanted);
    // SAFETY: null pointers and zeros are valid in every field.
    let mut entry: rdma_addrinfo = unsafe { core::mem::zeroed() };
    entry.ai_flags = flags;
    entry.ai_port_space = port_space.cast_signed();
    entry.ai_qp_type = qp_type.cast_signed();
    if node.is_null() && port.is_null() {
        entry.ai_family = wanted.map_or(0, |wanted| wanted.ai_family);
    } else {
        // SAFETY: as above.
        let mut ask: addrinfo = unsafe { core::mem::zeroed() };
        ask.ai_flags = if is_passive { libc::AI_PASSIVE } else { 0 };
        ask.ai_flags |= if flags & rai::NUMERICHOST != 0 { libc::AI_NUMERICHOST } else { 0 };
        ask.ai_family = wanted.map_or(libc::AF_UNSPEC, |wanted| wanted.ai_family);
        ask.ai_socktype = if port_space == space::UDP { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
        let mut found: *mut addrinfo = ptr::null_mut();
        // SAFETY: per contract; the answer is freed below.
        let error = unsafe { libc::getaddrinfo(node, port, &ask, &mut found) };
        if error != 0 {
            return error;
        }
        // SAFETY: a successful answer has at least one entry.
        unsafe {
            entry.ai_family = (*found).ai_family;
            let (address, len) = (copy((*found).ai_addr, (*found).ai_addrlen), (*found).ai_addrlen);
            if is_passive {
                (entry.ai_src_addr, entry.ai_src_len) = (address, len);
            } else {
                (entry.ai_dst_addr, entry.ai_dst_len) = (address, len);
            }
            libc::freeaddrinfo(found);
        }
    }
    if let Some(wanted) = wanted {
        // SAFETY: addresses in hints are as long as they say.
        unsafe {
            if entry.ai_src_addr.is_null() && wanted.ai_src_len > 0 && !wanted.ai_src_addr.is_null() {
                entry.ai_src_addr = copy(wanted.ai_src_addr, wanted.ai_src_len);
                entry.ai_src_len = wanted.ai_src_len;
            }
            if entry.ai_dst_addr.is_null() && wanted.ai_dst_len > 0 && !wanted.ai_dst_addr.is_null() {
                entry.ai_dst_addr = copy(wanted.ai_dst_addr, wanted.ai_dst_len);
                entry.ai_dst_len = wanted.ai_dst_len;
            }
        }
    }
    // SAFETY: room for one entry; per contract.
    unsafe {
        let memory = libc::malloc(size_of::<rdma_addrinfo>()).cast::<rdma_addrinfo>();
        if memory.is_null() {
            return minus_one(libc::ENOMEM);
        }
        memory.write(entry);
        to.write(memory);
    }
    0
}

calls! {
    /// Resolves a name and a service; the answer is freed with `rdma_freeaddrinfo`.
    fn rdma_getaddrinfo(node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo,
        to: *mut *mut rdma_addrinfo) -> c_int,
        => { resolve(node, service, hints, to) } else minus_one(libc::ENODEV);

    /// Frees an answer.
    fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) -> (),
        => {
            let mut next = info;
            while !next.is_null() {
                let entry = next;
                next = (*entry).ai_next;
                libc::free((*entry).ai_src_addr.cast());
                libc::free((*entry).ai_dst_addr.cast());
                libc::free((*entry).ai_route);
                libc::free((*entry).ai_connect);
                libc::free(entry.cast());
            }
        } else ();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(node: Option<&core::ffi::CStr>, hints: &rdma_addrinfo) -> Result<rdma_addrinfo, c_int> {
        let mut found = ptr::null_mut();
        let node = node.map_or(ptr::null(), core::ffi::CStr::as_ptr);
        // SAFETY: C strings, hints and room for the answer, which is copied out of its memory.
        match unsafe { resolve(node, c"7174".as_ptr(), hints, &mut found) } {
            // SAFETY: a successful answer is an entry.
            0 => Ok(unsafe { found.read() }),
            error => Err(error),
        }
    }

    fn hints(flags: c_int, port_space: u32) -> rdma_addrinfo {
        // SAFETY: null pointers and zeros are valid in every field.
        let zero: rdma_addrinfo = unsafe { core::mem::zeroed() };
        rdma_addrinfo { ai_flags: flags, ai_port_space: port_space.cast_signed(), ..zero }
    }

    #[test]
    fn the_side_decides_which_address_is_meant() {
        let client = ask(Some(c"192.0.2.7"), &hints(rai::NUMERICHOST, space::TCP)).expect("a numeric address");
        // SAFETY: addresses of the answer.
        unsafe {
            assert_eq!(super::super::address::read(client.ai_dst_addr), Ok("192.0.2.7:7174".parse().unwrap()));
        }
        assert!(client.ai_src_addr.is_null());
        assert_eq!((client.ai_family, client.ai_qp_type), (libc::AF_INET, QPT_RC.cast_signed()));
        let server = ask(Some(c"192.0.2.7"), &hints(rai::PASSIVE, space::UDP)).expect("a numeric address");
        // SAFETY: as above.
        unsafe {
            assert_eq!(super::super::address::read(server.ai_src_addr), Ok("192.0.2.7:7174".parse().unwrap()));
        }
        assert!(server.ai_dst_addr.is_null());
        assert_eq!(server.ai_qp_type, QPT_UD.cast_signed());
    }

    #[test]
    fn what_cannot_be_resolved_is_told_as_the_resolver_does() {
        assert_eq!(ask(Some(c"no-address"), &hints(rai::NUMERICHOST, 0)).err(), Some(libc::EAI_NONAME));
    }
}
