//! The scoreboard against a slow, obvious model: a list of packets in the order of sending.

use proptest::prelude::*;
use roce::{Instant, Psn};
use spray::{LostPacket, PathId, Scoreboard};
use std::collections::BTreeMap;

const PATHS: u16 = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    InFlight,
    Lost,
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    path: u8,
    former: Option<u8>,
    bytes: u16,
    /// Its turn among all sendings, which is also its time.
    turn: u64,
    state: State,
    passed: u32,
}

#[derive(Default)]
struct Model {
    /// By distance from the first PSN.
    packets: BTreeMap<u32, Packet>,
    turn: u64,
}

impl Model {
    fn oldest(&self) -> u32 {
        let open = self.packets.iter().find(|(_, packet)| packet.state != State::Done);
        open.map_or(self.packets.len() as u32, |(at, _)| *at)
    }

    fn in_flight(&self) -> impl Iterator<Item = (u32, &Packet)> {
        self.packets.iter().filter(|(_, packet)| packet.state == State::InFlight).map(|(at, packet)| (*at, packet))
    }

    /// In flight on the path of `at`, sent before it: each is overtaken once more. Returns those that are lost by that, in the
    /// order of sending.
    fn overtake(&mut self, at: u32, limit: u32) -> Vec<u32> {
        let this = self.packets[&at];
        let mut before: Vec<(u64, u32)> = self
            .in_flight()
            .filter(|(_, packet)| packet.path == this.path && packet.turn < this.turn)
            .map(|(at, packet)| (packet.turn, at))
            .collect();
        before.sort();
        let mut lost = vec![];
        for (_, at) in before {
            let packet = self.packets.get_mut(&at).unwrap();
            packet.passed += 1;
            if packet.passed >= limit {
                packet.state = State::Lost;
                lost.push(at);
            }
        }
        lost
    }

    fn oldest_on(&self, path: u8) -> Option<u32> {
        let on = self.in_flight().filter(|(_, packet)| packet.path == path);
        on.min_by_key(|(_, packet)| packet.turn).map(|(at, _)| at)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Send { path: u8, bytes: u16 },
    Ack { at: i32, limit: u8 },
    Refuse { at: i32, limit: u8 },
    GiveUp { path: u8 },
    Resend { path: u8 },
}

fn op() -> impl Strategy<Value = Op> {
    let path = 0..PATHS as u8;
    prop_oneof![
        6 => (path.clone(), 1..5000_u16).prop_map(|(path, bytes)| Op::Send { path, bytes }),
        5 => (-3..40, 1..5_u8).prop_map(|(at, limit)| Op::Ack { at, limit }),
        1 => (-3..40, 1..5_u8).prop_map(|(at, limit)| Op::Refuse { at, limit }),
        1 => path.clone().prop_map(|path| Op::GiveUp { path }),
        3 => path.prop_map(|path| Op::Resend { path }),
    ]
}

fn time(turn: u64) -> Instant {
    Instant::from_nanos(turn)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn behaves_as_a_list(
        window in prop_oneof![Just(1_u16), Just(2), Just(30), Just(64), Just(200)],
        first in prop_oneof![any::<u32>(), 0xFF_FFE0_u32..0x100_0000],
        ops in proptest::collection::vec(op(), 1..300),
    ) {
        let first = Psn::new(first);
        let capacity = u32::from(window.next_power_of_two());
        let mut board = Scoreboard::new(window, PATHS, first);
        let mut model = Model::default();
        let distance = |psn: Psn| psn.distance_from(first) as u32;
        for op in ops {
            let oldest = model.oldest();
            let at_of = |at: i32| (i64::from(oldest) + i64::from(at)).max(-1);
            let psn_of = |at: i64| if at < 0 { first.minus(1) } else { first.plus(at as u32) };
            match op {
                Op::Send { path, bytes } => {
                    let sent = model.packets.len() as u32;
                    if sent - oldest == capacity {
                        prop_assert_eq!(board.room(), 0);
                        continue;
                    }
                    model.turn += 1;
                    prop_assert_eq!(board.send(time(model.turn), PathId(path), bytes), first.plus(sent));
                    let turn = model.turn;
                    model.packets.insert(sent, Packet { path, former: None, bytes, turn, state: State::InFlight, passed: 0 });
                }
                Op::Ack { at, limit } => {
                    let mut lost = vec![];
                    let delivered = board.acknowledge(psn_of(at_of(at)), limit, |packet: LostPacket| lost.push(distance(packet.psn)));
                    let at = at_of(at) as u32;
                    let open = model.packets.get(&at).copied().filter(|packet| packet.state != State::Done);
                    prop_assert_eq!(delivered.is_some(), open.is_some());
                    let Some((packet, delivered)) = open.zip(delivered) else { continue };
                    prop_assert_eq!(delivered.path, PathId(packet.path));
                    prop_assert_eq!(delivered.bytes, packet.bytes);
                    prop_assert_eq!(delivered.sent_at, time(packet.turn));
                    prop_assert_eq!(delivered.was_lost, packet.state == State::Lost);
                    if packet.state == State::InFlight {
                        prop_assert_eq!(delivered.former, packet.former.map(PathId));
                        prop_assert_eq!(lost, model.overtake(at, u32::from(limit)));
                    }
                    model.packets.get_mut(&at).unwrap().state = State::Done;
                }
                Op::Refuse { at, limit } => {
                    let mut lost = vec![];
                    let refused = board.refuse(psn_of(at_of(at)), limit, |packet| lost.push(distance(packet.psn)));
                    let at = at_of(at) as u32;
                    let open = model.packets.get(&at).copied().filter(|packet| packet.state == State::InFlight);
                    prop_assert_eq!(refused.map(|refused| distance(refused.psn)), open.map(|_| at));
                    if open.is_some() {
                        prop_assert_eq!(lost, model.overtake(at, u32::from(limit)));
                        model.packets.get_mut(&at).unwrap().state = State::Lost;
                    }
                }
                Op::GiveUp { path } => {
                    let oldest = model.oldest_on(path);
                    prop_assert_eq!(board.oldest_on(PathId(path)), oldest.map(|at| time(model.packets[&at].turn)));
                    prop_assert_eq!(board.give_up(PathId(path)).map(|lost| distance(lost.psn)), oldest);
                    if let Some(at) = oldest {
                        model.packets.get_mut(&at).unwrap().state = State::Lost;
                    }
                }
                Op::Resend { path } => {
                    let lost = model.packets.iter().find(|(_, packet)| packet.state == State::Lost).map(|(at, _)| *at);
                    prop_assert_eq!(board.next_lost().map(|lost| distance(lost.psn)), lost);
                    let Some(at) = lost else { continue };
                    model.turn += 1;
                    board.resend(time(model.turn), PathId(path));
                    let turn = model.turn;
                    let packet = model.packets.get_mut(&at).unwrap();
                    *packet = Packet { former: Some(packet.path), path, turn, state: State::InFlight, passed: 0, ..*packet };
                }
            }
            prop_assert_eq!(board.oldest(), first.plus(model.oldest()));
            prop_assert_eq!(board.next(), first.plus(model.packets.len() as u32));
            prop_assert_eq!(board.in_flight(), model.in_flight().map(|(_, packet)| u64::from(packet.bytes)).sum::<u64>());
            prop_assert_eq!(board.in_flight_packets() as usize, model.in_flight().count());
            let lost = model.packets.values().filter(|packet| packet.state == State::Lost).count();
            prop_assert_eq!(board.lost_packets() as usize, lost);
        }
    }
}
