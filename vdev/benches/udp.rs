//! What the port costs over bare sockets with segmentation offload: bursts over loopback, sent and received by one thread.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rnic::{DeviceId, Transmit};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use vdev::port::{Burst, Port, ReceiveBuffers, UdpPort};

/// Bytes and bytes per packet: a single small one, bursts at path MTU 1024 and 4096.
const BURSTS: [(usize, usize); 4] = [(32, 32), (4112, 4112), (60 * 1040, 1040), (15 * 4112, 4112)];

fn set(socket: &UdpSocket, level: i32, name: i32, value: i32) {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` is readable for `len` bytes.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

/// Nothing but one call to send and one to receive per burst.
fn raw(c: &mut Criterion) {
    let receiver = UdpSocket::bind((Ipv4Addr::new(127, 48, 1, 2), 4791)).unwrap();
    let sender = UdpSocket::bind((Ipv4Addr::new(127, 48, 1, 1), 0xC000)).unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    set(&receiver, libc::SOL_UDP, libc::UDP_GRO, 1);
    let bytes = vec![1; 65536];
    let mut buffer = vec![0; 65536];
    let mut group = c.benchmark_group("udp");
    for (len, segment) in BURSTS {
        set(&sender, libc::SOL_UDP, libc::UDP_SEGMENT, segment as i32);
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("bare sockets", format!("{len} by {segment}")), |b| {
            b.iter(|| {
                sender.send(&bytes[..len]).unwrap();
                assert_eq!(receiver.recv(&mut buffer).unwrap(), len);
            });
        });
    }
    group.finish();
}

fn port(c: &mut Criterion) {
    let (src, dst) = (Ipv4Addr::new(127, 48, 2, 1).into(), Ipv4Addr::new(127, 48, 2, 2).into());
    let (mut sender, mut receiver) = (UdpPort::open(src).unwrap(), UdpPort::open(dst).unwrap());
    let bytes = vec![1; 65536];
    let mut buffers = ReceiveBuffers::new();
    let mut group = c.benchmark_group("udp");
    for (len, segment_len) in BURSTS {
        let transmit = Transmit {
            device: DeviceId(0),
            src,
            dst,
            src_port: 0xC000,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            len,
            segment_len,
        };
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::new("port", format!("{len} by {segment_len}")), |b| {
            b.iter(|| {
                sender.send(&[Burst { transmit: &transmit, bytes: &bytes[..len] }]);
                let mut got = 0;
                while got < len {
                    receiver.receive(&mut buffers, &mut |_, bytes| got += bytes.len());
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, raw, port);
criterion_main!(benches);
