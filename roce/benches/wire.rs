//! Time per packet of parsing, emitting, and the ICRC.

#![allow(missing_docs, reason = "the macros of criterion define undocumented items")]

use core::net::IpAddr;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roce::wire::icrc::{self, Flow, Prefix};
use roce::wire::{Bth, Headers, ICRC_LEN, Opcode, Reth};
use roce::{Psn, Qpn, Rkey};
use std::hint::black_box;

const PAYLOADS: [usize; 3] = [64, 1024, 4096];

fn write_only(payload: usize) -> Headers {
    let bth =
        Bth { pad: Bth::pad_for(payload), ack_req: true, ..Bth::new(Opcode::RcWriteOnly, Qpn::new(0x1234), Psn::new(0x5678)) };
    Headers { reth: Some(Reth { va: 0x7F00_1234_5678, rkey: Rkey(0x9ABC), length: payload as u32 }), ..Headers::new(bth) }
}

fn flow(v6: bool) -> Flow {
    let ip = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let (src, dst) = if v6 { (ip("2001:db8::1"), ip("2001:db8::2")) } else { (ip("192.0.2.1"), ip("192.0.2.2")) };
    Flow { src, dst, src_port: 0xC123 }
}

/// A packet with the ICRC of the given IPv4 identification.
fn packet(flow: &Flow, payload: usize, ip_id: u16) -> Vec<u8> {
    let headers = write_only(payload);
    let mut packet = vec![0x5A; headers.len() + payload];
    headers.emit(&mut packet);
    let icrc = icrc::compute(flow, ip_id, &packet);
    packet.extend(icrc.to_le_bytes());
    packet
}

fn headers(c: &mut Criterion) {
    let mut group = c.benchmark_group("headers");
    let write = write_only(64);
    let mut buf = [0; 64];
    group.bench_function("emit", |b| b.iter(|| black_box(&write).emit(black_box(&mut buf))));
    let bytes = packet(&flow(false), 64, 0);
    group.bench_function("parse", |b| b.iter(|| Headers::parse(black_box(&bytes))));
    group.finish();
}

fn icrc_single(c: &mut Criterion) {
    let mut group = c.benchmark_group("icrc");
    for payload in PAYLOADS {
        group.throughput(Throughput::Bytes(payload as u64));
        for (name, flow) in [("ipv4", flow(false)), ("ipv6", flow(true))] {
            let good = packet(&flow, payload, 0);
            let without_icrc = &good[..good.len() - ICRC_LEN];
            group.bench_function(BenchmarkId::new(format!("compute {name}"), payload), |b| {
                b.iter(|| icrc::compute(black_box(&flow), 0, black_box(without_icrc)));
            });
            group.bench_function(BenchmarkId::new(format!("check {name}"), payload), |b| {
                b.iter(|| icrc::check(black_box(&flow), black_box(&good)));
            });
        }
        let flow = flow(false);
        let numbered = packet(&flow, payload, 0xBEEF);
        group.bench_function(BenchmarkId::new("check ipv4 with identification", payload), |b| {
            b.iter(|| icrc::check(black_box(&flow), black_box(&numbered)));
        });
    }
    group.finish();
}

fn icrc_burst(c: &mut Criterion) {
    let mut group = c.benchmark_group("icrc in a burst");
    for payload in PAYLOADS {
        group.throughput(Throughput::Bytes(payload as u64));
        let flow = flow(false);
        let numbered = packet(&flow, payload, 7);
        let without_icrc = &numbered[..numbered.len() - ICRC_LEN];
        let prefix = Prefix::new(&flow, numbered.len()).expect("a good length");
        group.bench_function(BenchmarkId::new("compute", payload), |b| {
            b.iter(|| prefix.compute(black_box(7), black_box(without_icrc)));
        });
        for (what, likely_id) in [("check with the likely identification", 7), ("check with another identification", 0)] {
            group.bench_function(BenchmarkId::new(what, payload), |b| {
                b.iter(|| prefix.check(black_box(likely_id), black_box(&numbered)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, headers, icrc_single, icrc_burst);
criterion_main!(benches);
