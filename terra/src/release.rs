//! Which coflows of several jobs may start when: each after those it waits for, and not before its release time.

use crate::workload::Job;
use std::collections::{BTreeMap, BTreeSet};

/// Jobs by keys of the caller's choice; stages by their index in the job.
#[derive(Clone, Debug)]
pub struct Releases<K> {
    jobs: BTreeMap<K, Waiting>,
    /// Stages that wait for nothing but the time, by that time's bits (times are not negative, so bits sort as numbers do).
    due: BTreeSet<(u64, K, usize)>,
}

#[derive(Clone, Debug)]
struct Waiting {
    /// By stage, how many others it waits for.
    before: Vec<usize>,
    unfinished: usize,
}

impl<K: Copy + Ord> Default for Releases<K> {
    fn default() -> Self {
        Self { jobs: BTreeMap::new(), due: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> Releases<K> {
    /// Takes a job in, of which the stages named by `done` are done already. Its dependencies must be free of circles.
    pub fn add(&mut self, key: K, job: &Job, done: &BTreeSet<usize>) {
        let open = |stage: &crate::workload::Stage| stage.after.iter().filter(|before| !done.contains(before)).count();
        let before: Vec<usize> = job.stages.iter().map(open).collect();
        for (index, stage) in job.stages.iter().enumerate().filter(|(index, _)| before[*index] == 0 && !done.contains(index)) {
            self.due.insert((bits(job.arrival_s + stage.coflow.release_s), key, index));
        }
        self.jobs.insert(key, Waiting { before, unfinished: job.stages.len() - done.len() });
    }

    /// Notes that a stage runs already.
    pub fn start(&mut self, key: K, stage: usize) {
        self.due.retain(|(_, other, index)| (*other, *index) != (key, stage));
    }

    /// Forgets a job.
    pub fn remove(&mut self, key: K) {
        self.jobs.remove(&key);
        self.due.retain(|(_, other, _)| *other != key);
    }

    /// When the next stage starts, seconds.
    pub fn next_s(&self) -> Option<f64> {
        self.due.first().map(|(at, ..)| f64::from_bits(*at))
    }

    /// The next stage that may start by now.
    pub fn pop_due(&mut self, now_s: f64) -> Option<(K, usize)> {
        self.next_s().filter(|at_s| *at_s <= now_s)?;
        self.due.pop_first().map(|(_, key, stage)| (key, stage))
    }

    /// Notes that a stage is done now, and makes due what waited for it. Returns whether it was the last of its job.
    ///
    /// # Panics
    /// If the job is not here.
    pub fn done(&mut self, now_s: f64, key: K, job: &Job, stage: usize) -> bool {
        let waiting = self.jobs.get_mut(&key).expect("the job was taken in");
        for (follower, entry) in job.stages.iter().enumerate() {
            let times = entry.after.iter().filter(|before| **before == stage).count();
            if times > 0 {
                waiting.before[follower] -= times;
                if waiting.before[follower] == 0 {
                    let at_s = now_s.max(job.arrival_s + entry.coflow.release_s);
                    self.due.insert((bits(at_s), key, follower));
                }
            }
        }
        waiting.unfinished -= 1;
        waiting.unfinished == 0
    }
}

/// Bits that sort as the times do; -0 is 0.
fn bits(at_s: f64) -> u64 {
    (at_s + 0.0).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coflow::{Coflow, Flow};
    use crate::id::{CoflowId, JobId, SiteId};
    use crate::workload::Stage;

    fn job(arrival_s: f64, after: &[&[usize]]) -> Job {
        let stage = |(index, after): (usize, &&[usize])| {
            let flow = Flow { src: SiteId(0), dst: SiteId(1), volume_gbit: 1.0 };
            Stage { coflow: Coflow::new(CoflowId(index as u64), [flow]).unwrap(), name: String::new(), after: after.to_vec() }
        };
        Job { id: JobId(1), arrival_s, stages: after.iter().enumerate().map(stage).collect() }
    }

    #[test]
    fn stages_start_after_those_they_wait_for() {
        let (first, second) = (job(1.0, &[&[], &[0, 0], &[0, 1]]), job(-0.0, &[&[]]));
        let mut releases = Releases::default();
        releases.add('a', &first, &BTreeSet::new());
        releases.add('b', &second, &BTreeSet::new());
        assert_eq!((releases.next_s(), releases.pop_due(0.5), releases.pop_due(0.5)), (Some(0.0), Some(('b', 0)), None));
        assert!(releases.done(0.5, 'b', &second, 0));
        assert_eq!(releases.pop_due(1.0), Some(('a', 0)));
        assert!(!releases.done(3.0, 'a', &first, 0));
        assert_eq!((releases.pop_due(2.9), releases.pop_due(3.0), releases.pop_due(9.0)), (None, Some(('a', 1)), None));
        // One that was told what is done already goes on from there.
        let mut later = Releases::default();
        later.add('a', &first, &BTreeSet::from([0, 1]));
        assert_eq!(later.pop_due(3.0), Some(('a', 2)));
        assert!(later.done(4.0, 'a', &first, 2));
        releases.remove('a');
        assert_eq!(releases.next_s(), None);
    }
}
