//! `vrdma wan submit`, `status`, `cancel` and `link`: the controller's API from the command line.

use std::path::Path;

use anyhow::{Context, Result};
use hyper::Method;
use serde_json::{Value, json};
use terra::controller::{CoflowState, CoflowStatus, Status};

use crate::api::Client;
use crate::input::read;
use crate::output::{print, print_json, table};
use crate::place::Place;

/// Longest job that is read, in bytes; the controller takes no longer one.
const MAX_JOB: u64 = 16 << 20;
/// Coflows that are done and shown.
const SHOWN: usize = 10;

fn client(place: &Place) -> Result<Client> {
    Client::at(place.wan_socket()?, "vrdma wan controller --topology NAME")
}

/// Calls, and prints the answer: as it is, or as a sentence.
fn call(
    place: &Place,
    method: Method,
    path: &str,
    body: Option<Vec<u8>>,
    as_json: bool,
    text: fn(&Value) -> String,
) -> Result<()> {
    let answer = client(place)?.call(method, path, body)?;
    if as_json { print_json(&answer) } else { print(text(&answer) + "\n") }
}

/// Gives a job to the controller.
pub fn submit(place: &Place, file: &Path, as_json: bool) -> Result<()> {
    let body = read(file, MAX_JOB)?.into_bytes();
    let text = |answer: &Value| format!("job {} with coflows {}", answer["job"], answer["coflows"]);
    call(place, Method::POST, "/v1/jobs", Some(body), as_json, text).with_context(|| file.display().to_string())
}

/// Ends a job.
pub fn cancel(place: &Place, job: u64, as_json: bool) -> Result<()> {
    call(place, Method::DELETE, &format!("/v1/jobs/{job}"), None, as_json, |answer| {
        format!("job {} is cancelled", answer["job"])
    })
}

/// Changes what a link carries.
pub fn set_link(place: &Place, from: &str, to: &str, gbps: f64, as_json: bool) -> Result<()> {
    let body = serde_json::to_vec(&json!({ "from": from, "to": to, "gbps": gbps }))?;
    call(place, Method::PATCH, "/v1/links", Some(body), as_json, |answer| format!("{} directions are changed", answer["links"]))
}

/// Shows everything.
pub fn status(place: &Place, as_json: bool) -> Result<()> {
    let answer = client(place)?.call(Method::GET, "/v1/status", None)?;
    if as_json {
        return print_json(&answer);
    }
    let status: Status = serde_json::from_value(answer).context("the controller described itself in an unknown way")?;
    print(text(&status))
}

fn text(status: &Status) -> String {
    let here: Vec<&str> = status.agents.iter().filter(|(_, here)| **here).map(|(site, _)| site.as_str()).collect();
    let settled = if status.settled { "all agents follow their orders" } else { "agents have orders under way" };
    let mut text =
        format!("epoch {}, {settled}; agents of {} sites: {}\n\n", status.epoch, status.agents.len(), here.join(", "));
    let seconds = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    let open = status.coflows.iter().map(|one: &CoflowStatus| {
        [
            one.job.to_string(),
            one.coflow.to_string(),
            one.stage.clone(),
            match &one.state {
                CoflowState::Waiting => "waiting".to_owned(),
                CoflowState::Paused(site) => format!("no agent at {site}"),
                CoflowState::Running => "running".to_owned(),
            },
            format!("{:.0}", 100.0 * (1.0 - one.left_gbit / one.volume_gbit.max(f64::MIN_POSITIVE))),
            format!("{:.3}", one.left_gbit),
            format!("{:.3}", one.rate_gbps),
            seconds(one.ends_in_s),
            seconds(one.deadline_in_s),
            one.promised.map_or("-", |promised| if promised { "yes" } else { "NO" }).to_owned(),
        ]
    });
    let header =
        ["JOB", "COFLOW", "NAME", "STATE", "sent[%]", "left[Gbit]", "rate[Gbit/s]", "ends in[s]", "deadline in[s]", "promised"];
    text += &table(header, open, &[0, 1, 4, 5, 6, 7, 8]);
    if !status.finished.is_empty() {
        let done = status.finished.iter().rev().take(SHOWN).map(|one| {
            let cct_s = one.done_s - one.arrived_s;
            let met = one.deadline_s.map_or("-", |deadline_s| if cct_s <= deadline_s { "yes" } else { "NO" });
            [one.job.to_string(), one.coflow.to_string(), one.stage.clone(), format!("{cct_s:.3}"), met.to_owned()]
        });
        text += "\n";
        text += &table(["JOB", "COFLOW", "NAME", "done in[s]", "in time"], done, &[0, 1, 3]);
    }
    text
}
