//! A job as people write it: JSON with coflows of flows in bytes between named sites.
//!
//! ```json
//! {"coflows": [{"name": "map", "flows": [{"from": "HK", "to": "LA", "bytes": 5000000000}]},
//!              {"name": "reduce", "after": ["map"], "deadline_s": 60, "flows": [{"from": "LA", "to": "NY", "bytes": 1000000}]}]}
//! ```

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use terra::agent::{Group, MAX_PARTS, Part};
use terra::workload::{Job, MAX_STAGES, Stage, coflow_id};
use terra::{Coflow, Flow, JobId, Wan};

/// Greatest number of a job, so that each of its coflows has one too.
const MAX_JOB: u64 = 1 << 48;
/// Gbit of one byte.
const GBIT_PER_BYTE: f64 = 8e-9;

/// A job.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Its number; chosen by the controller if absent. Submitting the same number twice is refused.
    pub job: Option<u64>,
    coflows: Vec<CoflowSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CoflowSpec {
    #[serde(default)]
    name: String,
    flows: Vec<FlowSpec>,
    /// 1 if absent.
    weight: Option<f64>,
    /// Seconds after it could start.
    deadline_s: Option<f64>,
    /// Names of others of the job that must be done first.
    #[serde(default)]
    after: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowSpec {
    from: String,
    to: String,
    bytes: u64,
    /// What is sent, below the folder of the source's agent; made up if it is absent.
    file: Option<String>,
    /// Where it goes, below the folder of the destination's agent; `file` if it is absent.
    to_file: Option<String>,
}

impl JobSpec {
    /// The job, with this number if it has none of its own.
    pub fn job(&self, wan: &Wan, free: JobId) -> Result<Job> {
        let id = self.job.map_or(free, JobId);
        ensure!(id.0 <= MAX_JOB, "job {id}: numbers go up to {MAX_JOB}");
        let count = self.coflows.len();
        ensure!((1..=MAX_STAGES).contains(&count), "job {id} has {count} coflows: 1 to {MAX_STAGES} are possible");
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, coflow) in self.coflows.iter().enumerate().filter(|(_, coflow)| !coflow.name.is_empty()) {
            ensure!(names.insert(&coflow.name, index).is_none(), "job {id}: coflow {:?} appears twice", coflow.name);
        }
        let stage = |(index, spec): (usize, &CoflowSpec)| {
            let known = |name: &String| names.get(name.as_str()).copied().with_context(|| format!("unknown coflow {name:?}"));
            let after = spec.after.iter().map(known).collect::<Result<_>>()?;
            Ok(Stage { coflow: spec.coflow(wan, id, index)?, name: spec.name.clone(), after })
        };
        let stages = self.coflows.iter().enumerate().map(stage).collect::<Result<_>>().with_context(|| format!("job {id}"))?;
        Ok(Job { id, arrival_s: 0.0, stages })
    }
}

impl JobSpec {
    /// What each FlowGroup of the job consists of. The job was made from this.
    pub fn parts(&self, wan: &Wan, job: &Job, token: u64) -> BTreeMap<Group, Vec<Part>> {
        let mut parts: BTreeMap<Group, Vec<Part>> = BTreeMap::new();
        for (spec, stage) in self.coflows.iter().zip(&job.stages) {
            for (index, group) in stage.coflow.groups.iter().enumerate() {
                let own = |flow: &&FlowSpec| flow.from == wan.name(group.src) && flow.to == wan.name(group.dst);
                let part =
                    |flow: &FlowSpec| Part { bytes: flow.bytes, token, file: flow.file.clone(), to_file: flow.to_file.clone() };
                parts.insert((stage.coflow.id, index), spec.flows.iter().filter(own).map(part).collect());
            }
        }
        parts
    }
}

impl CoflowSpec {
    fn coflow(&self, wan: &Wan, job: JobId, index: usize) -> Result<Coflow> {
        let flow = |flow: &FlowSpec| {
            Ok(Flow { src: wan.site(&flow.from)?, dst: wan.site(&flow.to)?, volume_gbit: flow.bytes as f64 * GBIT_PER_BYTE })
        };
        ensure!(self.flows.len() <= MAX_PARTS, "a coflow has {} flows: at most {MAX_PARTS} are possible", self.flows.len());
        let flows: Vec<Flow> = self.flows.iter().map(flow).collect::<Result<_>>()?;
        let mut coflow = Coflow::new(coflow_id(job, index), flows)?;
        if let Some(weight) = self.weight {
            coflow = coflow.with_weight(weight)?;
        }
        if let Some(deadline_s) = self.deadline_s {
            coflow = coflow.with_deadline(deadline_s)?;
        }
        Ok(coflow)
    }
}

#[cfg(test)]
mod tests {
    use terra::topology::Known;

    use super::*;

    #[test]
    fn bad_jobs_are_named() {
        let wan = Known::Swan.wan();
        let made =
            |text: &str| serde_json::from_str::<JobSpec>(text).map_err(Into::into).and_then(|spec| spec.job(&wan, JobId(4)));
        let good = made(
            r#"{"coflows":[{"name":"m","flows":[{"from":"HK","to":"LA","bytes":125000000}]},{"after":["m"],"flows":[]}]}"#,
        );
        let job = good.unwrap();
        assert_eq!((job.id, job.stages[0].coflow.groups[0].volume_gbit, &job.stages[1].after), (JobId(4), 1.0, &vec![0]));
        for (text, part) in [
            (r#"{"coflows":[]}"#, "0 coflows"),
            (r#"{"coflows":[{"flows":[{"from":"HK","to":"XX","bytes":1}]}]}"#, "Unknown site \"XX\""),
            (r#"{"coflows":[{"flows":[{"from":"HK","to":"LA","bytes":0}]}]}"#, "volume 0"),
            (r#"{"coflows":[{"flows":[{"from":"HK","to":"LA","bytes":-1}]}]}"#, "invalid value"),
            (r#"{"coflows":[{"flows":[],"after":["x"]}]}"#, "unknown coflow \"x\""),
            (r#"{"coflows":[{"name":"a","flows":[]},{"name":"a","flows":[]}]}"#, "appears twice"),
            (r#"{"coflows":[{"flows":[],"weight":0}]}"#, "weight 0"),
            (r#"{"coflows":[{"flows":[],"deadline_s":-1}]}"#, "deadline -1"),
            (r#"{"job":999999999999999,"coflows":[{"flows":[]}]}"#, "numbers go up to"),
            (r#"{"coflows":[{"flows":[],"priority":1}]}"#, "unknown field"),
        ] {
            let error = format!("{:#}", made(text).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
