//! Sites of a wide-area network: one network namespace each, joined by links that carry only so much.
//!
//! A site reaches its neighbours, each over the link to it, and nobody else: what goes further has to be relayed.

use crate::netns::{ip, run, wait_until_up};
use nix::sched::{CloneFlags, setns};
use std::collections::BTreeMap;
use std::fs::File;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// Ethernet MTU of all links: RoCE packets of 4096 bytes fit.
const MTU: u32 = 9000;
/// What a link queues at most, as time.
const QUEUE: &str = "100ms";
/// Between two samples.
const SAMPLE: Duration = Duration::from_millis(2);

/// Namespaces, removed when dropped.
#[derive(Debug)]
pub struct Sites {
    id: String,
    names: Vec<String>,
}

impl Sites {
    /// Makes sites and links between them, which carry so many Mbit/s in each direction. Each site has so many addresses. Needs root.
    pub fn new(names: &[&str], links: &[(&str, &str, u32)], addresses: usize) -> Sites {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("vw{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let sites = Sites { id, names: names.iter().map(|&name| name.to_owned()).collect() };
        for name in names {
            let netns = sites.netns(name);
            ip(&format!("netns add {netns}"));
            ip(&format!("-n {netns} link set lo up"));
            for number in 0..addresses {
                ip(&format!("-n {netns} addr add {}/32 dev lo", sites.address(name, number)));
            }
        }
        for &(a, b, mbit) in links {
            let (at_a, at_b) = (sites.netns(a), sites.netns(b));
            ip(&format!("-n {at_a} link add to-{b} mtu {MTU} type veth peer name to-{a} mtu {MTU} netns {at_b}"));
            for (from, to) in [(a, b), (b, a)] {
                let netns = sites.netns(from);
                ip(&format!("-n {netns} link set to-{to} up"));
                ip(&format!("-n {netns} route add {} dev to-{to} src {}", sites.addresses(to), sites.address(from, 0)));
                let shape = format!("-n {netns} qdisc add dev to-{to} root tbf rate {mbit}mbit burst 20kb latency {QUEUE}");
                run(Command::new("tc").args(shape.split(' ')));
            }
        }
        for &(a, b, _) in links {
            wait_until_up(&sites.netns(a), &format!("to-{b}"));
            wait_until_up(&sites.netns(b), &format!("to-{a}"));
        }
        sites
    }

    /// The namespace of a site.
    pub fn netns(&self, site: &str) -> String {
        format!("{}{site}", self.id)
    }

    /// An address of a site.
    pub fn address(&self, site: &str, number: usize) -> String {
        format!("10.99.{}.{}", self.number(site), number + 1)
    }

    fn addresses(&self, site: &str) -> String {
        format!("10.99.{}.0/24", self.number(site))
    }

    fn number(&self, site: &str) -> usize {
        1 + self.names.iter().position(|name| name == site).expect("a site of this network")
    }

    /// From now on what goes over a link is lost on the way, in both directions, and nobody is told.
    pub fn cut(&self, a: &str, b: &str) {
        for (from, to) in [(a, b), (b, a)] {
            let netns = self.netns(from);
            ip(&format!("netns exec {netns} nft add table netdev cut"));
            let chain =
                format!("add chain netdev cut c {{ type filter hook ingress device to-{to} priority 0 ; policy drop ; }}");
            run(Command::new("ip").args(["netns", "exec", &netns, "nft", &chain]));
        }
    }

    /// The link carries again what it did.
    pub fn mend(&self, a: &str, b: &str) {
        for site in [a, b] {
            ip(&format!("netns exec {} nft delete table netdev cut", self.netns(site)));
        }
    }

    /// Does something at a site.
    pub fn at<T: Send>(&self, site: &str, action: impl FnOnce() -> T + Send) -> T {
        let netns = File::open(format!("/run/netns/{}", self.netns(site))).expect("the namespace is there");
        let inside = move || {
            setns(netns, CloneFlags::CLONE_NEWNET).expect("a thread may enter");
            action()
        };
        std::thread::scope(|scope| scope.spawn(inside).join()).expect("it does not panic")
    }

    /// Begins to watch what a site sends over its links.
    pub fn watch(&self, site: &str) -> Watch {
        let netns = File::open(format!("/run/netns/{}", self.netns(site))).expect("the namespace is there");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let sampler = std::thread::spawn(move || {
            setns(netns, CloneFlags::CLONE_NEWNET).expect("the thread may enter");
            let mut samples: Vec<Sample> = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let text = std::fs::read_to_string("/proc/thread-self/net/dev").expect("procfs is mounted");
                samples.push(Sample { at: SystemTime::now(), sent: sent(&text) });
                std::thread::sleep(SAMPLE);
            }
            samples
        });
        Watch { stop, sampler }
    }
}

/// Bytes that left over each link, by the site at its other end.
fn sent(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, counts) = line.trim().strip_prefix("to-")?.split_once(':')?;
        Some((name.to_owned(), counts.split_whitespace().nth(8)?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// What was sent until some time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When.
    pub at: SystemTime,
    /// Bytes, by the site at the other end of the link.
    pub sent: BTreeMap<String, u64>,
}

/// Watches a site.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    sampler: JoinHandle<Vec<Sample>>,
}

impl Watch {
    /// Ends, and gives what was seen.
    pub fn end(self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        self.sampler.join().expect("the sampler does not panic")
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", &self.netns(name)]).status();
        }
    }
}
