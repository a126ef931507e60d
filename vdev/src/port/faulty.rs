//! A port that misbehaves on purpose: what another port receives is lost, repeated, reordered or damaged at given rates, from a
//! seed. Faults strike single packets, on the receiving side, so that a burst as sent stays as the sender's ICRC assumes.

use super::{Arrival, Burst, Port, PortCounters, ReceiveBuffers};
use roce::rng::Rng;
use std::os::fd::BorrowedFd;

/// Longest way that a packet is moved back, in packets.
const MAX_DELAY: u64 = 8;

/// Rates between 0 and 1, each the chance of one packet to meet the fault.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Not delivered.
    pub loss: f64,
    /// Delivered after up to eight packets that came later; at the latest when the port has nothing more.
    pub reorder: f64,
    /// Delivered twice.
    pub duplicate: f64,
    /// One bit flipped.
    pub corrupt: f64,
    /// Start of the random sequence.
    pub seed: u64,
}

/// The text of `VRDMA_FAULTS` makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "VRDMA_FAULTS: {what}; expected a comma-separated list such as loss=0.01,reorder=0.01,duplicate=0.01,corrupt=0.001,seed=1 \
     with rates from 0 to 1"
)]
pub struct FaultsError {
    what: String,
}

impl Faults {
    /// What the environment variable `VRDMA_FAULTS` asks for; `None` if it is unset or empty.
    ///
    /// # Errors
    /// It is set to something else.
    pub fn from_env() -> Result<Option<Faults>, FaultsError> {
        match std::env::var("VRDMA_FAULTS") {
            Ok(text) if !text.trim().is_empty() => text.parse().map(Some),
            Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err(FaultsError { what: "is not UTF-8".into() }),
        }
    }
}

impl core::str::FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Faults, FaultsError> {
        let mut faults = Faults { seed: 1, ..Faults::default() };
        for setting in text.split(',') {
            let wrong = || FaultsError { what: format!("{:?} is not understood", setting.trim()) };
            let (name, value) = setting.trim().split_once('=').ok_or_else(wrong)?;
            let rate = match name {
                "loss" => &mut faults.loss,
                "reorder" => &mut faults.reorder,
                "duplicate" => &mut faults.duplicate,
                "corrupt" => &mut faults.corrupt,
                "seed" => {
                    faults.seed = value.parse().map_err(|_| wrong())?;
                    continue;
                }
                _ => return Err(wrong()),
            };
            *rate = value.parse().ok().filter(|rate| (0.0..=1.0).contains(rate)).ok_or_else(wrong)?;
        }
        Ok(faults)
    }
}

/// Another port, with faults.
#[derive(Debug)]
pub struct FaultyPort<P> {
    inner: P,
    victims: Victims,
}

/// Chooses the victims and holds those that are late.
#[derive(Debug)]
struct Victims {
    faults: Faults,
    random: Rng,
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    arrival: Arrival,
    bytes: Vec<u8>,
    /// Packets still to be let past.
    wait: u64,
}

impl<P: Port> FaultyPort<P> {
    /// Wraps `inner`.
    pub fn new(inner: P, faults: Faults) -> FaultyPort<P> {
        FaultyPort { inner, victims: Victims { faults, random: Rng::new(faults.seed), held: Vec::new() } }
    }
}

impl Victims {
    fn strikes(&mut self, rate: f64) -> bool {
        ((self.random.next_u64() >> 11) as f64) < rate * (1u64 << 53) as f64
    }

    fn packet(&mut self, arrival: &Arrival, bytes: &[u8], deliver: &mut dyn FnMut(&Arrival, &[u8])) {
        let faults = self.faults;
        let (lost, late) = (self.strikes(faults.loss), self.strikes(faults.reorder));
        let (twice, damaged) = (self.strikes(faults.duplicate), self.strikes(faults.corrupt));
        if !lost {
            let mut damage = Vec::new();
            let bytes = if damaged {
                damage.extend_from_slice(bytes);
                let bit = self.random.next_u64() as usize % (bytes.len() * 8);
                damage[bit / 8] ^= 1 << (bit % 8);
                &damage
            } else {
                bytes
            };
            if late {
                let wait = 1 + self.random.next_u64() % MAX_DELAY;
                self.held.push(Held { arrival: *arrival, bytes: bytes.to_vec(), wait });
            } else {
                deliver(arrival, bytes);
            }
            if twice {
                deliver(arrival, bytes);
            }
        }
        self.release(deliver, |held| {
            held.wait = held.wait.saturating_sub(1);
            held.wait == 0
        });
    }

    fn release(&mut self, deliver: &mut dyn FnMut(&Arrival, &[u8]), due: impl FnMut(&mut Held) -> bool) {
        for held in self.held.extract_if(.., due) {
            deliver(&held.arrival, &held.bytes);
        }
    }
}

impl<P: Port> Port for FaultyPort<P> {
    fn send(&mut self, bursts: &[Burst<'_>]) {
        self.inner.send(bursts);
    }

    fn receive(&mut self, buffers: &mut ReceiveBuffers, deliver: &mut dyn FnMut(&Arrival, &[u8])) -> bool {
        let victims = &mut self.victims;
        let more = self.inner.receive(buffers, &mut |arrival, bytes| {
            for packet in bytes.chunks(arrival.segment_len) {
                victims.packet(&Arrival { segment_len: packet.len(), ..*arrival }, packet, deliver);
            }
        });
        if !more {
            // Nobody may come again for long.
            victims.release(deliver, |_| true);
        }
        more
    }

    fn receive_fd(&self) -> BorrowedFd<'_> {
        self.inner.receive_fd()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings() {
        let faults: Faults = "loss=0.01, reorder=0.5,duplicate=1,corrupt=0,seed=7".parse().unwrap();
        assert_eq!(faults, Faults { loss: 0.01, reorder: 0.5, duplicate: 1.0, corrupt: 0.0, seed: 7 });
        for wrong in ["loss", "loss=2", "loss=-1", "loss=nan", "speed=1", "loss=0.1,,", "seed=x"] {
            let error = wrong.parse::<Faults>().unwrap_err();
            assert!(error.to_string().contains("is not understood"), "{wrong}: {error}");
        }
    }

    /// Sends 10,000 packets through and returns what came out.
    fn through(faults: Faults) -> Vec<Vec<u8>> {
        let mut victims = Victims { faults, random: Rng::new(faults.seed), held: Vec::new() };
        let arrival = Arrival { src: std::net::Ipv4Addr::LOCALHOST.into(), src_port: 1, segment_len: 8, congested: false };
        let mut out = Vec::new();
        let mut deliver = |_: &Arrival, bytes: &[u8]| out.push(bytes.to_vec());
        for n in 0..10_000u64 {
            victims.packet(&arrival, &n.to_be_bytes(), &mut deliver);
        }
        victims.release(&mut deliver, |_| true);
        out
    }

    fn numbers(packets: &[Vec<u8>]) -> Vec<u64> {
        packets.iter().map(|packet| u64::from_be_bytes(packet[..].try_into().unwrap())).collect()
    }

    #[test]
    fn each_fault_does_what_it_says() {
        let none = Faults { seed: 3, ..Faults::default() };
        assert_eq!(numbers(&through(none)), (0..10_000).collect::<Vec<_>>());

        let lost = through(Faults { loss: 0.1, ..none });
        assert!((8_800..9_200).contains(&lost.len()), "{}", lost.len());
        assert!(numbers(&lost).is_sorted());

        let twice = through(Faults { duplicate: 0.1, ..none });
        assert!((10_800..11_200).contains(&twice.len()), "{}", twice.len());

        let mut late = numbers(&through(Faults { reorder: 0.1, ..none }));
        assert!(!late.is_sorted());
        assert!(late.iter().enumerate().all(|(n, &value)| value.abs_diff(n as u64) <= 2 * MAX_DELAY));
        late.sort_unstable();
        assert_eq!(late, (0..10_000).collect::<Vec<_>>());

        let damaged = through(Faults { corrupt: 0.1, ..none });
        let wrong = numbers(&damaged).iter().enumerate().filter(|(n, value)| **value != *n as u64).count();
        assert!((800..1_200).contains(&wrong), "{wrong}");
    }

    #[test]
    fn the_seed_decides() {
        let faults = Faults { loss: 0.1, reorder: 0.1, duplicate: 0.1, corrupt: 0.1, seed: 5 };
        assert_eq!(through(faults), through(faults));
        assert_ne!(through(faults), through(Faults { seed: 6, ..faults }));
    }
}
