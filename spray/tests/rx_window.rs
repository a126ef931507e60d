//! The receive window against a slow, obvious model: the set of all PSNs that were taken.

use proptest::prelude::*;
use roce::Psn;
use roce::wire::spray_ext::{MAP_WORDS, MAX_WINDOW};
use spray::{Arrival, RxWindow};
use std::collections::BTreeSet;

/// Distances from the first PSN, which does not wrap as the number itself does.
struct Model {
    first: Psn,
    capacity: u32,
    expected: u32,
    taken: BTreeSet<u32>,
}

impl Model {
    fn classify(&self, at: i64) -> Arrival {
        match u32::try_from(at) {
            Ok(at) if at >= self.expected + self.capacity => Arrival::Outside,
            Ok(at) if at >= self.expected && !self.taken.contains(&at) => Arrival::New,
            _ => Arrival::Duplicate,
        }
    }

    fn take(&mut self, at: i64, count: u32) -> Arrival {
        let arrival = self.classify(at);
        if arrival != Arrival::New {
            return arrival;
        }
        let at = at as u32;
        if count == 0 || at + count > self.expected + self.capacity {
            return Arrival::Outside;
        }
        self.taken.extend(at..at + count);
        Arrival::New
    }

    fn advance(&mut self) -> u32 {
        let before = self.expected;
        while self.taken.contains(&self.expected) {
            self.expected += 1;
        }
        self.expected - before
    }

    fn psn(&self, at: i64) -> Psn {
        if at < 0 { self.first.minus(at.unsigned_abs() as u32) } else { self.first.plus(at as u32) }
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// This far from the expected PSN, so many PSNs.
    Take(i32, u32),
    /// So many in order.
    Run(u32),
    Advance,
    Pass,
    Map(u32),
}

fn op(capacity: u32) -> impl Strategy<Value = Op> {
    let edge = capacity as i32;
    prop_oneof![
        6 => (-4..edge / 4 + 8, Just(1)).prop_map(|(at, count)| Op::Take(at, count)),
        2 => (edge - 4..edge + 4, 0..4_u32).prop_map(|(at, count)| Op::Take(at, count)),
        1 => (-edge * 2..edge * 2, 0..40_u32).prop_map(|(at, count)| Op::Take(at, count)),
        2 => (1..capacity).prop_map(Op::Run),
        4 => Just(Op::Advance),
        2 => Just(Op::Pass),
        2 => (0..capacity).prop_map(Op::Map),
    ]
}

fn case() -> impl Strategy<Value = (u16, u32, Vec<Op>)> {
    let capacity = prop_oneof![Just(1_u16), Just(64), Just(100), Just(512), Just(MAX_WINDOW)];
    let first = prop_oneof![any::<u32>(), 0xFF_FF00_u32..0x100_0000];
    (capacity, first).prop_flat_map(|(packets, first)| {
        let capacity = u32::from(packets).next_power_of_two().max(64);
        (Just(packets), Just(first), proptest::collection::vec(op(capacity), 1..200))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn behaves_as_a_set((packets, first, ops) in case()) {
        let mut window = RxWindow::new(packets, Psn::new(first));
        let capacity = u32::from(packets).next_power_of_two().max(64);
        prop_assert_eq!(window.capacity(), capacity);
        let mut model = Model { first: Psn::new(first), capacity, expected: 0, taken: BTreeSet::new() };
        for op in ops {
            match op {
                Op::Take(at, count) => {
                    let at = i64::from(model.expected) + i64::from(at);
                    prop_assert_eq!(window.classify(model.psn(at)), model.classify(at));
                    prop_assert_eq!(window.take(model.psn(at), count), model.take(at, count));
                }
                Op::Run(count) => {
                    for n in 0..i64::from(count) {
                        let at = i64::from(model.expected) + n;
                        prop_assert_eq!(window.take(model.psn(at), 1), model.take(at, 1));
                    }
                }
                Op::Advance => prop_assert_eq!(window.advance(), model.advance()),
                Op::Pass => {
                    let has_next = model.taken.contains(&model.expected);
                    prop_assert_eq!(window.has_next(), has_next);
                    prop_assert_eq!(window.pass(), has_next);
                    model.expected += u32::from(has_next);
                }
                Op::Map(newest) => {
                    let newest = model.expected + newest;
                    let map = window.map(model.psn(i64::from(newest)));
                    let told: BTreeSet<u32> =
                        map.received().map(|distance| model.expected + distance - 1).filter(|at| *at >= model.expected).collect();
                    let cut = usize::from(map.offset()) != 0 || map.words().len() == MAP_WORDS;
                    let held: BTreeSet<u32> = model.taken.range(model.expected..).copied().collect();
                    prop_assert!(told.is_subset(&held), "{told:?} of {held:?}");
                    prop_assert!(cut || told == held, "{told:?} of {held:?}");
                    // The packet that the acknowledgement is about is in it, wherever it lies.
                    if held.contains(&newest) {
                        prop_assert!(told.contains(&newest), "{newest} in {told:?}");
                    }
                }
            }
            prop_assert_eq!(window.expected(), model.psn(i64::from(model.expected)));
            prop_assert_eq!(window.has_gap(), model.taken.range(model.expected..).next().is_some());
        }
    }
}

/// A whole window in reverse order: nothing is complete before the last, which completes all of it.
#[test]
fn reverse_order_completes_at_once() {
    for packets in [64, 256, MAX_WINDOW] {
        let first = Psn::new(0xFF_FFF0);
        let mut window = RxWindow::new(packets, first);
        for n in (1..u32::from(packets)).rev() {
            assert_eq!(window.take(first.plus(n), 1), Arrival::New);
            assert_eq!(window.advance(), 0);
        }
        assert_eq!(window.take(first, 1), Arrival::New);
        let mut passed = 0;
        while window.has_gap() {
            passed += window.advance();
        }
        assert_eq!(passed, u32::from(packets));
        assert_eq!(window.map(first.plus(5)).words().len(), 0, "nothing beyond the cumulative PSN");
    }
}
