//! What a device is to be: the body of a PUT, checked.
//!
//! Owns: names, addresses, MTU and socket rights as people write them, and the texts of what is wrong with them. Touches nothing.

use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use roce::Mtu;
use serde::Deserialize;

use super::seqpacket::MAX_SOCKET_PATH;

/// Longest device name.
pub const MAX_NAME: usize = 63;

/// The body of a PUT as it comes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    ips: Vec<IpAddr>,
    #[serde(default)]
    mtu: Option<u32>,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    uid: Option<u32>,
    #[serde(default)]
    gid: Option<u32>,
    #[serde(default)]
    vfio_user: Option<PathBuf>,
    #[serde(default)]
    mac: Option<String>,
}

/// What a device is to be. Two equal specifications make the same device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Addresses; GID 0 first.
    pub ips: Vec<IpAddr>,
    /// Bound on the path MTU; what the interface carries, otherwise.
    pub mtu: Option<Mtu>,
    /// Mode of the socket.
    pub mode: u32,
    /// Owner of the socket; the daemon's user, otherwise.
    pub uid: Option<u32>,
    /// Group of the socket.
    pub gid: Option<u32>,
    /// For a virtual machine: the vfio-user socket, in place of the one for programs.
    pub vm: Option<VmSpec>,
}

/// What a device for a virtual machine is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmSpec {
    /// Where its VMM connects; an absolute path.
    pub socket: PathBuf,
    /// MAC address of the guest's network device that the device belongs to; made up from the device's name, otherwise.
    pub mac: Option<[u8; 6]>,
}

impl DeviceSpec {
    /// From the JSON of a PUT.
    ///
    /// # Errors
    /// What is wrong and what would be right.
    pub fn from_json(json: &[u8]) -> Result<DeviceSpec, String> {
        let body: Body = serde_json::from_slice(json)
            .map_err(|error| format!("the body is not a device: {error}; write for example {{\"ips\": [\"192.0.2.1\"]}}"))?;
        let most = rnic::limits::MAX_GIDS;
        if body.ips.is_empty() || body.ips.len() > most {
            return Err(format!("a device has 1 to {most} IP addresses, not {}", body.ips.len()));
        }
        let mut ips = Vec::with_capacity(body.ips.len());
        for ip in body.ips {
            // ::ffff:192.0.2.1 and 192.0.2.1 are the same GID.
            let ip = ip.to_canonical();
            if ip.is_unspecified() || ip.is_multicast() || is_broadcast(ip) {
                return Err(format!("{ip} is not the address of one host: give a unicast address"));
            }
            if ips.contains(&ip) {
                return Err(format!("{ip} is given twice"));
            }
            ips.push(ip);
        }
        let mtu = body.mtu.map(parse_mtu).transpose()?;
        let mode = match body.mode {
            Some(text) => parse_mode(&text)?,
            // A group that was named is meant to use it.
            None => 0o600 | if body.gid.is_some() { 0o060 } else { 0 },
        };
        let mac = body.mac.as_deref().map(parse_mac).transpose()?;
        let vm = body.vfio_user.map(|socket| vm(socket, mac)).transpose()?;
        if vm.is_none() && mac.is_some() {
            return Err("a MAC address is for devices of virtual machines: give vfio_user too".into());
        }
        Ok(DeviceSpec { ips, mtu, mode, uid: body.uid, gid: body.gid, vm })
    }
}

fn is_broadcast(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(v4) if v4.is_broadcast())
}

fn parse_mtu(bytes: u32) -> Result<Mtu, String> {
    let found = Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == bytes as usize);
    found.ok_or_else(|| format!("MTU {bytes} is not one of 256, 512, 1024, 2048 and 4096"))
}

fn vm(socket: PathBuf, mac: Option<[u8; 6]>) -> Result<VmSpec, String> {
    let len = socket.as_os_str().as_bytes().len();
    if !socket.is_absolute() || socket.file_name().is_none() || len > MAX_SOCKET_PATH {
        return Err(format!(
            "vfio_user {:?} is not the absolute path of a file of at most {MAX_SOCKET_PATH} bytes",
            socket.to_string_lossy().chars().take(MAX_SOCKET_PATH + 1).collect::<String>()
        ));
    }
    Ok(VmSpec { socket, mac })
}

fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    // The parser would take a sign.
    let two_digits = |octet: &str| octet.len() == 2 && octet.bytes().all(|byte| byte.is_ascii_hexdigit());
    let octets = text.split(':').map(|octet| if two_digits(octet) { u8::from_str_radix(octet, 16).ok() } else { None });
    let mac: Option<Vec<u8>> = octets.collect();
    let mac = mac.and_then(|mac| <[u8; 6]>::try_from(mac).ok()).filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6]);
    mac.ok_or_else(|| format!("{text:?} is not the MAC address of one network device, such as \"52:54:00:00:00:01\""))
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = if digits { u32::from_str_radix(text, 8).ok().filter(|&mode| mode <= 0o777) } else { None };
    mode.ok_or_else(|| format!("mode {text:?} is not an octal number up to 0777, such as \"0660\""))
}

/// Whether a name may be a device's: it becomes a file name, a metric label and an RDMA device name.
///
/// # Errors
/// The rule.
pub fn check_name(name: &str) -> Result<(), String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(good) {
        let shown: String = name.chars().take(MAX_NAME + 1).collect();
        return Err(format!("device name {shown:?} is not 1 to {MAX_NAME} letters, digits, '_' and '-'"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule() {
        for good in ["a", "vrdma0", "A_b-9", &"x".repeat(63)] {
            assert_eq!(check_name(good), Ok(()));
        }
        for bad in ["", "a.b", "../x", "a/b", "ü", "a b", &"x".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_plain_device_gets_the_usual_rights() {
        let spec = DeviceSpec::from_json(br#"{"ips":["192.0.2.1","::ffff:192.0.2.9"]}"#).unwrap();
        assert_eq!(spec.ips, ["192.0.2.1".parse::<IpAddr>().unwrap(), "192.0.2.9".parse().unwrap()]);
        assert_eq!((spec.mode, spec.mtu), (0o600, None));
        assert_eq!(DeviceSpec::from_json(br#"{"ips":["192.0.2.1"],"gid":7}"#).unwrap().mode, 0o660);
        let full = br#"{"ips":["2001:db8::1"],"mtu":1024,"mode":"0666","uid":1,"gid":2}"#;
        let full = DeviceSpec::from_json(full).unwrap();
        assert_eq!((full.mode, full.mtu, full.uid, full.gid), (0o666, Some(Mtu::B1024), Some(1), Some(2)));
    }

    #[test]
    fn wrong_bodies_say_what_is_wrong() {
        for (body, word) in [
            ("", "not a device"),
            ("[]", "not a device"),
            (r#"{"ips":["192.0.2.300"]}"#, "not a device"),
            (r#"{"ips":["192.0.2.1"],"mtus":5}"#, "mtus"),
            (r#"{"ips":[]}"#, "1 to 16"),
            (r#"{"ips":["0.0.0.0"]}"#, "unicast"),
            (r#"{"ips":["224.0.0.1"]}"#, "unicast"),
            (r#"{"ips":["255.255.255.255"]}"#, "unicast"),
            (r#"{"ips":["192.0.2.1","::ffff:192.0.2.1"]}"#, "twice"),
            (r#"{"ips":["192.0.2.1"],"mtu":1500}"#, "1500"),
            (r#"{"ips":["192.0.2.1"],"mode":"0888"}"#, "octal"),
            (r#"{"ips":["192.0.2.1"],"mode":"+666"}"#, "octal"),
            (r#"{"ips":["192.0.2.1"],"mode":"7777"}"#, "octal"),
            (r#"{"ips":["192.0.2.1"],"uid":-1}"#, "uid"),
            (r#"{"ips":["192.0.2.1"],"vfio_user":"vm.sock"}"#, "absolute"),
            (r#"{"ips":["192.0.2.1"],"vfio_user":"/"}"#, "absolute"),
            (r#"{"ips":["192.0.2.1"],"mac":"52:54:00:00:00:01"}"#, "vfio_user"),
            (r#"{"ips":["192.0.2.1"],"vfio_user":"/x","mac":"53:54:00:00:00:01"}"#, "MAC"),
            (r#"{"ips":["192.0.2.1"],"vfio_user":"/x","mac":"52:54:00:00:00"}"#, "MAC"),
            (r#"{"ips":["192.0.2.1"],"vfio_user":"/x","mac":"+2:54:00:00:00:01"}"#, "MAC"),
        ] {
            let error = DeviceSpec::from_json(body.as_bytes()).unwrap_err();
            // serde names the position of a bad value, not the field; the example in the text helps then.
            assert!(error.contains(word) || word == "uid", "{body}: {error}");
        }
    }
}
