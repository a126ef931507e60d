//! Senders that share one link and keep to what they are asked: in rounds of a fluid model, as the link takes no more than it can.

use isolation::incast::{Incast, Source};
use roce::{Gid, Instant};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// A sender as the receiver knows it: which host it is on, what it wants (bytes per second), and whether it keeps to what it is asked.
#[derive(Clone, Copy)]
struct Sender {
    host: u8,
    wants: f64,
    listens: bool,
}

fn sender(host: u8, wants: f64) -> Sender {
    Sender { host, wants, listens: true }
}

struct World {
    link: f64,
    incast: Incast,
    now: Instant,
    sources: Vec<Source>,
}

impl World {
    fn new(link: f64) -> World {
        World {
            link,
            incast: Incast::new(link as u64),
            now: Instant::from_nanos(1_000_000),
            sources: vec![Source::default(); 64],
        }
    }

    /// Lets these send for a time; returns what arrived of each, in bytes per second, in the last tenth of it.
    fn run(&mut self, senders: &[Sender], time: Duration) -> Vec<f64> {
        let rounds = 20_000;
        let step = time / rounds;
        let mut got = vec![0.0; senders.len()];
        let mut carried = 0.0;
        for round in 0..rounds {
            let offered: Vec<f64> = senders
                .iter()
                .zip(&self.sources)
                .map(|(sender, source)| {
                    let asked = self.incast.asked(source).map_or(f64::INFINITY, |rate| rate as f64);
                    sender.wants.min(if sender.listens { asked } else { f64::INFINITY })
                })
                .collect();
            let fits = (self.link / offered.iter().sum::<f64>()).min(1.0);
            self.now = self.now + step;
            for (n, (sender, offered)) in senders.iter().zip(&offered).enumerate() {
                let arrived = offered * fits;
                let gid = Gid::from(IpAddr::from(Ipv4Addr::new(10, 0, 0, sender.host)));
                carried += arrived * step.as_secs_f64();
                self.incast.on_arrival(self.now, carried as u64);
                carried = carried.fract();
                self.incast.on_data(gid, &mut self.sources[n]);
                if round >= rounds / 10 * 9 {
                    got[n] += arrived / f64::from(rounds / 10);
                }
            }
        }
        got
    }
}

/// Slow and fast links: what is asked for depends on what the link takes, and not on the time.
const LINKS: [f64; 3] = [62.5e6, 1.25e9, 12.5e9];

/// Long enough for some hundred periods.
fn while_on(link: f64) -> Duration {
    Duration::from_secs_f64(2e8 / link)
}

#[test]
fn many_share_evenly_and_leave_the_link_room() {
    for link in LINKS {
        let mut world = World::new(link);
        let got =
            world.run(&[sender(0, f64::MAX), sender(1, f64::MAX), sender(2, f64::MAX), sender(3, f64::MAX)], while_on(link));
        for part in &got {
            assert!((part / (link / 4.0) - 1.0).abs() < 0.02, "{got:?} of {link}");
        }
        let all = got.iter().sum::<f64>() / link;
        assert!((0.98..0.999).contains(&all), "{all} of the link");
    }
}

#[test]
fn what_some_do_not_want_the_others_get() {
    for link in LINKS {
        let mut world = World::new(link);
        let senders = [sender(0, link * 0.05), sender(1, link * 0.15), sender(2, f64::MAX), sender(3, f64::MAX)];
        let got = world.run(&senders, while_on(link));
        for (part, share) in got.iter().zip([0.05, 0.15, 0.397, 0.397]) {
            assert!((part / link - share).abs() < 0.015, "{got:?} of {link}");
        }
    }
}

#[test]
fn more_connections_of_one_sender_give_no_more() {
    let link = LINKS[1];
    let mut senders = vec![sender(0, f64::MAX); 16];
    senders.push(sender(1, f64::MAX));
    let got = World::new(link).run(&senders, while_on(link));
    let (many, one) = (got[..16].iter().sum::<f64>(), got[16]);
    assert!((many / one - 1.0).abs() < 0.03, "16 connections get {many}, 1 gets {one}");
}

#[test]
fn new_ones_find_room_and_who_stays_gets_it_back() {
    let link = LINKS[1];
    let mut world = World::new(link);
    let few = [sender(0, f64::MAX), sender(1, f64::MAX)];
    let many: Vec<Sender> = (0..32).map(|host| sender(host, f64::MAX)).collect();
    world.run(&few, while_on(link));
    // Ten periods or so: they do not wait until the rate has gone down step by step.
    let got = world.run(&many, Duration::from_secs_f64(10.0 * 524_288.0 / link));
    assert!(got.iter().sum::<f64>() < link * 0.999, "the link is full with {}", got.iter().sum::<f64>() / link);
    let got = world.run(&few, while_on(link));
    assert!(got.iter().sum::<f64>() > link * 0.98, "two alone get {got:?}");
}

/// Nobody is asked for less than an equal part, whatever the others do.
#[test]
fn who_does_not_listen_takes_no_more_than_without_being_asked() {
    let link = LINKS[1];
    let mut senders = [sender(0, link * 2.0), sender(1, f64::MAX), sender(2, f64::MAX)];
    senders[0].listens = false;
    let mut world = World::new(link);
    world.run(&senders, while_on(link));
    for source in &world.sources[..3] {
        let asked = world.incast.asked(source).expect("the link is full") as f64;
        assert!(asked >= link * 0.994 / 3.0 - 1.0, "{asked}");
    }
}

#[test]
fn nothing_is_asked_of_one_sender_or_on_a_link_that_is_not_full() {
    let link = LINKS[1];
    for senders in [vec![sender(0, f64::MAX); 4], vec![sender(0, link * 0.3), sender(1, link * 0.6)]] {
        let mut world = World::new(link);
        let got = world.run(&senders, while_on(link));
        assert_eq!(world.incast.asked(&world.sources[0]), None, "{got:?}");
    }
    // Nor after a time in which nothing came.
    let mut world = World::new(link);
    let both = [sender(0, f64::MAX), sender(1, f64::MAX)];
    world.run(&both, while_on(link));
    assert!(world.incast.asked(&world.sources[0]).is_some());
    world.now = world.now + Duration::from_secs(5);
    world.run(&both[..1], while_on(link));
    assert_eq!(world.incast.asked(&world.sources[0]), None);
}
