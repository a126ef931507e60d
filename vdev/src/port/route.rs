//! What fits through the way to a peer, as far as the kernel's routes know: a tunnel, or a narrower link that has told so.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;

use super::path_mtu;
use roce::Mtu;
use roce::wire::UDP_PORT;

/// The route takes less than was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "path MTU {} does not fit the route from {src} to {dst}, which takes packets of {packet} bytes: use {}",
    asked.bytes(), most.map_or("another route".to_owned(), |most| format!("{} or less", most.bytes()))
)]
pub struct TooNarrow {
    src: IpAddr,
    dst: IpAddr,
    asked: Mtu,
    /// Longest IP packet in bytes.
    packet: u32,
    most: Option<Mtu>,
}

/// Checks a path MTU against the route. No route, or none that is known, is no error: packets find out.
///
/// # Errors
/// [`TooNarrow`].
pub fn check_route(src: IpAddr, dst: IpAddr, asked: Mtu) -> Result<(), TooNarrow> {
    let Some(packet) = route_mtu(src, dst) else { return Ok(()) };
    let most = path_mtu(packet, dst.is_ipv6());
    if most.is_some_and(|most| asked <= most) { Ok(()) } else { Err(TooNarrow { src, dst, asked, packet, most }) }
}

/// Longest IP packet in bytes. Nothing is sent: connecting a datagram socket only looks the route up.
fn route_mtu(src: IpAddr, dst: IpAddr) -> Option<u32> {
    let socket = UdpSocket::bind((src, 0)).ok()?;
    socket.connect((dst, UDP_PORT)).ok()?;
    let (level, option) = if dst.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let mut mtu: libc::c_int = 0;
    let mut len = size_of_val(&mtu) as libc::socklen_t;
    // SAFETY: value and length are writable and belong together.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut mtu).cast(), &raw mut len) };
    if rc == 0 { u32::try_from(mtu).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_takes_every_path_mtu_and_an_address_of_nobody_is_not_judged() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(check_route(ip("127.0.0.1"), ip("127.0.0.2"), Mtu::B4096), Ok(()));
        assert_eq!(check_route(ip("203.0.113.77"), ip("203.0.113.78"), Mtu::B4096), Ok(()));
    }
}
