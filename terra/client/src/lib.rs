//! For programs that move data between sites: hand their coflows to a live controller (`vrdma wan controller`), follow them, and
//! cancel them.
//!
//! ```no_run
//! use std::time::Duration;
//! use terra_client::{Client, Coflow, Flow, Job};
//!
//! # fn main() -> Result<(), terra_client::ClientError> {
//! let client = Client::new("/run/vrdma/wan.sock")?;
//! let map = Coflow::new("map", [Flow::new("HK", "LA", 5_000_000_000)]).with_deadline_s(60.0);
//! let reduce = Coflow::new("reduce", [Flow::new("LA", "NY", 1_000_000)]).after(["map"]);
//! let job = client.submit(&Job::new([map, reduce]))?.job;
//! client.wait(job, Duration::from_millis(200), |progress| println!("{:.0} %", 100.0 * progress.part_sent()))?;
//! # Ok(())
//! # }
//! ```
//!
//! Calls block. The protocol is HTTP/JSON on a Unix socket, as `tools/wan-openapi.yaml` describes it; all checks are the controller's,
//! and its words are in [`ClientError::Refused`]. What agents of sites say is not part of this crate.
#![forbid(unsafe_code)]

mod http;

use hyper::Method;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use terra::controller::{CoflowStatus, Finished, Status};
use terra::{CoflowId, JobId};

pub use http::ClientError;

/// Bytes that go from one site to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Flow {
    /// Name of the sending site.
    pub from: String,
    /// Name of the receiving site; a flow within one site takes no time.
    pub to: String,
    /// How much, above 0.
    pub bytes: u64,
}

/// Flows that count as done together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Coflow {
    /// Its name, different from those of the others of its job unless it is empty.
    pub name: String,
    /// What is to be sent.
    pub flows: Vec<Flow>,
    /// Importance, above 0; 1 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// By when it should be done, seconds after it could start. Whether that is promised is in its [`CoflowStatus`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
    /// Names of coflows of the job that must be done before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
}

/// Coflows that belong together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Job {
    /// Its number, chosen by the controller if absent. With a number of one's own a job can be submitted again when the answer was
    /// lost: a second one of the same number is refused.
    #[serde(rename = "job", skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Its coflows.
    pub coflows: Vec<Coflow>,
}

/// What the controller calls a job and its coflows.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Submitted {
    /// The job.
    pub job: JobId,
    /// Its coflows, in the order in which they were given.
    pub coflows: Vec<CoflowId>,
}

/// How far a job is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Coflows that wait or run.
    pub open: Vec<CoflowStatus>,
    /// Coflows that are done, as far as the controller remembers them: the last thousand of all jobs.
    pub finished: Vec<Finished>,
}

/// Speaks to one controller. Connects at each call, so that a restart of the controller goes unnoticed between calls.
#[derive(Debug)]
pub struct Client {
    http: http::Http,
}

impl Flow {
    /// A flow of so many bytes.
    pub fn new(from: &str, to: &str, bytes: u64) -> Self {
        Self { from: from.to_owned(), to: to.to_owned(), bytes }
    }
}

impl Coflow {
    /// A coflow of these flows, without deadline, that waits for no other.
    pub fn new(name: &str, flows: impl IntoIterator<Item = Flow>) -> Self {
        let flows = flows.into_iter().collect();
        Self { name: name.to_owned(), flows, weight: None, deadline_s: None, after: Vec::new() }
    }

    /// The same with a weight.
    pub fn with_weight(self, weight: f64) -> Self {
        Self { weight: Some(weight), ..self }
    }

    /// The same with a deadline, seconds after it could start.
    pub fn with_deadline_s(self, deadline_s: f64) -> Self {
        Self { deadline_s: Some(deadline_s), ..self }
    }

    /// The same, waiting for others of its job.
    pub fn after<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        Self { after: names.into_iter().map(str::to_owned).collect(), ..self }
    }
}

impl Job {
    /// A job whose number the controller chooses.
    pub fn new(coflows: impl IntoIterator<Item = Coflow>) -> Self {
        Self { number: None, coflows: coflows.into_iter().collect() }
    }
}

impl Progress {
    /// Whether all is done.
    pub fn is_done(&self) -> bool {
        self.open.is_empty()
    }

    /// The part of all volume that was sent, 0 to 1.
    pub fn part_sent(&self) -> f64 {
        let done: f64 = self.finished.iter().map(|one| one.volume_gbit).sum();
        let (all, left) = self.open.iter().fold((done, 0.0), |(all, left), one| (all + one.volume_gbit, left + one.left_gbit));
        if all > 0.0 { 1.0 - left / all } else { 1.0 }
    }
}

impl Client {
    /// A client of the controller that serves, or will serve, at this socket.
    ///
    /// # Errors
    /// [`ClientError::Runtime`].
    pub fn new(socket: impl Into<PathBuf>) -> Result<Self, ClientError> {
        Ok(Self { http: http::Http::new(socket.into())? })
    }

    /// Hands a job in. When this returns, the job survives a restart of the controller.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the job is no good (status 400) or its number is taken (409).
    pub fn submit(&self, job: &Job) -> Result<Submitted, ClientError> {
        self.http.call(Method::POST, "/v1/jobs", Some(job))
    }

    /// Everything that the controller shows: network, agents, coflows.
    ///
    /// # Errors
    /// [`ClientError`] if no controller answers.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.http.call(Method::GET, "/v1/status", None::<&()>)
    }

    /// How far a job is.
    ///
    /// # Errors
    /// [`ClientError::UnknownJob`] if the controller knows nothing of it: it never was, was cancelled, or ended long ago.
    pub fn progress(&self, job: JobId) -> Result<Progress, ClientError> {
        let Status { coflows, finished, .. } = self.status()?;
        let open: Vec<_> = coflows.into_iter().filter(|one| one.job == job).collect();
        let finished: Vec<_> = finished.into_iter().filter(|one| one.job == job).collect();
        if open.is_empty() && finished.is_empty() { Err(ClientError::UnknownJob(job)) } else { Ok(Progress { open, finished }) }
    }

    /// Asks again and again, every so often, until a job is done; `follow` is told each time how far it is.
    ///
    /// # Errors
    /// As [`Client::progress`]; a job that someone cancels meanwhile becomes unknown.
    pub fn wait(&self, job: JobId, every: Duration, mut follow: impl FnMut(&Progress)) -> Result<Progress, ClientError> {
        loop {
            let progress = self.progress(job)?;
            follow(&progress);
            if progress.is_done() {
                return Ok(progress);
            }
            std::thread::sleep(every);
        }
    }

    /// Ends a job, whatever it has sent.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with status 404 if no such job waits or runs.
    pub fn cancel(&self, job: JobId) -> Result<(), ClientError> {
        self.http.call::<serde::de::IgnoredAny>(Method::DELETE, &format!("/v1/jobs/{job}"), None::<&()>).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_written_as_the_api_reads_them() {
        let first = Coflow::new("a", [Flow::new("x", "y", 7)]).with_weight(2.0).with_deadline_s(3.0);
        let job = Job::new([first, Coflow::new("", []).after(["a"])]);
        let text = r#"{"coflows":[{"name":"a","flows":[{"from":"x","to":"y","bytes":7}],"weight":2.0,"deadline_s":3.0},"#
            .to_owned()
            + r#"{"name":"","flows":[],"after":["a"]}]}"#;
        assert_eq!(serde_json::to_string(&job).unwrap(), text);
        let numbered = serde_json::to_string(&Job { number: Some(5), coflows: Vec::new() }).unwrap();
        assert_eq!(numbered, r#"{"job":5,"coflows":[]}"#);
    }

    #[test]
    fn an_absent_controller_is_named() {
        let client = Client::new("/nowhere/wan.sock").unwrap();
        let error = client.status().unwrap_err();
        assert!(
            matches!(&error, ClientError::Unreachable { .. }) && error.to_string().contains("/nowhere/wan.sock"),
            "{error}"
        );
    }
}
