//! An experiment: tenants, what is asked, and every way to run them: alone, without isolation, under Justitia, and under ours.

use super::lab::{Lab, Setup};
use super::load::{Got, Load};
use super::question::{Gots, Question};
use isolation::Policy;
use isolation::baseline::justitia::Parameters;
use std::time::Duration;

/// A set-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// As in the list of experiments: E1 to E21.
    pub id: &'static str,
    /// In words.
    pub what: String,
    /// Hosts and network.
    pub setup: Setup,
    /// What Justitia is set to.
    pub justitia: Parameters,
    /// What there is without isolation.
    pub off: Policy,
    /// The tenants.
    pub loads: Vec<Load>,
    /// What is asked.
    pub questions: Vec<Question>,
}

/// What came out of an experiment: per question, alone (in its unit), without isolation, with Justitia, with ours.
pub type Outcome = Vec<(Question, [f64; 4])>;

/// Until everybody is known and Justitia has found its rate.
pub const WARM_UP_MS: u64 = 10;
/// For how long it is measured.
const MEASURED: Duration = Duration::from_millis(20);

impl Experiment {
    /// One that is run as most are.
    pub fn new(id: &'static str, what: String, setup: Setup, loads: Vec<Load>, questions: Vec<Question>) -> Experiment {
        let max_bytes_per_sec = (setup.card.gbps * 1e9 / 8.0) as u64;
        let justitia = Parameters { max_bytes_per_sec, ..Parameters::default() };
        Experiment { id, what, setup, justitia, off: Policy::Greedy, loads, questions }
    }

    /// Justitia aims at this 99th percentile.
    pub fn with_target(mut self, target: Duration) -> Experiment {
        self.justitia.target = target;
        self
    }

    /// Ours has turns, and Justitia tokens, of so many bytes.
    pub fn with_turns(mut self, bytes: u32) -> Experiment {
        (self.setup.turn_bytes, self.justitia.small_token) = (Some(bytes), bytes);
        self
    }

    /// Justitia's receivers tell of so many tenants after bandwidth.
    pub fn with_reports(mut self, others: u32) -> Experiment {
        self.justitia.reported = Some(others);
        self
    }

    /// The card has a queue of its own for those after latency; ours does without.
    pub fn with_priorities(mut self) -> Experiment {
        (self.off, self.justitia.has_priorities) = (Policy::Priorities, true);
        self
    }

    /// Runs it: every tenant alone (those alike once), then all together under each policy.
    pub fn run(&self) -> Outcome {
        let times = (Duration::from_millis(WARM_UP_MS), MEASURED);
        let run = |policy, loads: &[Load]| Lab::run(&self.setup, policy, loads, times);
        let mut known: Vec<(Load, Got)> = Vec::new();
        let alone: Vec<Got> = self
            .loads
            .iter()
            .map(|load| {
                let load = Load { start: Duration::ZERO, ..load.clone() };
                // All hosts are alike.
                let alike = Load { from: 0, to: 1, ..load.clone() };
                if let Some((_, got)) = known.iter().find(|(other, _)| *other == alike) {
                    return got.clone();
                }
                let got = run(self.off, std::slice::from_ref(&load)).remove(0);
                known.push((alike, got.clone()));
                got
            })
            .collect();
        let shared = [self.off, Policy::Justitia(self.justitia), Policy::Shares].map(|policy| run(policy, &self.loads));
        let gots = |got| Gots { loads: &self.loads, got };
        let alone = gots(&alone);
        let off = gots(&shared[0]);
        self.questions
            .iter()
            .map(|&question| {
                let [first, justitia, ours] = shared.each_ref().map(|got| question.metric.answer(alone, off, gots(got)));
                (question, [question.metric.unit(alone), first, justitia, ours])
            })
            .collect()
    }
}
