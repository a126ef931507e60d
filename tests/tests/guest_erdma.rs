//! A virtual machine with a stock kernel and the mainline `erdma` driver, unmodified, on a device of the daemon.

use std::time::Duration;

use tests::vm::{Guest, GuestOptions, Image};
use tests::{Daemon, one_at_a_time, skip};

const MAC: &str = "52:54:00:00:00:0a";
const IP: &str = "203.0.113.10";
/// Emulation on a busy machine takes its time.
const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn a_guest_with_the_mainline_driver_moves_data() {
    let _turn = one_at_a_time();
    let Some(image) = Image::or_skip() else { return };
    let Some(module) = tests::erdma::module() else { return skip("no erdma module (tests/vm/erdma builds it)") };
    let mut daemon = Daemon::start();
    let socket = daemon.folder().join("vm0.vfio");
    let added = daemon.cli(&["dev", "add", "vm0", "--ip", IP, "--mac", MAC, "--vfio-user", socket.to_str().unwrap()]);
    assert!(added.status.success(), "{}", added.output);

    let device = format!("{{\"driver\":\"vfio-user-pci\",\"socket\":{{\"type\":\"unix\",\"path\":{socket:?}}}}}");
    let net = format!("virtio-net-pci,netdev=net,mac={MAC},romfile=");
    let qemu = ["-netdev", "user,id=net", "-device", &net, "-device", &device].map(str::to_owned).to_vec();
    let guest = Guest::boot(&image, None, &GuestOptions { memory_mib: 512, qemu, ..GuestOptions::default() });
    std::fs::copy(module, guest.folder().join("erdma.ko")).expect("the shared folder is writable");
    let before = daemon.device("vm0")["vm"]["memory"].clone();
    assert!(before["mapped_bytes"].as_u64().unwrap() >= 512 << 20 && before["pinned_bytes"] == 0, "{before}");

    guest.succeed(&format!(
        "ip link set eth0 up && ip addr add {IP}/24 dev eth0 && modprobe -a ib_uverbs rdma_ucm && insmod /mnt/job/erdma.ko"
    ));
    let found =
        guest.succeed("for n in $(seq 100); do ibv_devinfo | grep PORT_ACTIVE && exit; sleep 0.1; done; dmesg | tail; exit 1");
    assert!(found.contains("PORT_ACTIVE"), "{found}");
    // Index of the GID that is the device's address.
    let gid = "gid=$(grep -l ffff:cb00:710a /sys/class/infiniband/*/ports/1/gids/* | sed 's,.*/,,')";
    // `-c` compares what arrives.
    let pingpong = guest.run(
        &format!("{gid}; ibv_rc_pingpong -g $gid -c -n 20 & sleep 2; ibv_rc_pingpong -g $gid -c -n 20 127.0.0.1 && wait $!"),
        LIMIT,
    );
    assert!(pingpong.status.success() && pingpong.output.contains("20 iters"), "{}", pingpong.output);
    // The connection managers of both ends talk through QP1.
    let rping = guest.run(&format!("rping -s -C 3 -v -a {IP} & sleep 2; rping -c -C 3 -v -a {IP}; wait $!"), LIMIT);
    assert!(rping.output.contains("server ping data: rdma-ping-2"), "{}", rping.output);
    // The module goes and comes, and the device is as new.
    let again = guest.run("rmmod erdma && insmod /mnt/job/erdma.ko && ibv_devinfo | grep erdma", LIMIT);
    assert!(again.status.success(), "{}", again.output);

    drop(guest);
    let end = std::time::Instant::now() + LIMIT;
    while daemon.device("vm0")["vm"]["connected"] != false {
        assert!(std::time::Instant::now() < end, "the daemon sees that the VMM is gone");
        std::thread::sleep(Duration::from_millis(10));
    }
    let after = &daemon.device("vm0")["vm"];
    assert_eq!((&after["memory"]["pinned_bytes"], &after["qps"]), (&0.into(), &0.into()), "{after}");
}
