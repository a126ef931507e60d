//! `vrdma wan submit`, `status`, `cancel` and `link`: the controller's API from the command line.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hyper::Method;
use serde_json::{Value, json};
use terra::CoflowId;
use terra::controller::{CoflowState, CoflowStatus, Finished};

use crate::api::Client;
use crate::input::read;
use crate::output::{print, print_json, progress_bar, table};
use crate::place::Place;
use crate::wan::controller::LiveStatus;

/// Longest job that is read, in bytes; the controller takes no longer one.
const MAX_JOB: u64 = 16 << 20;
/// Between two looks at a job that is waited for, and how many of them the controller may be away for.
const LOOK: Duration = Duration::from_millis(100);
const AWAY_LOOKS: u32 = 300;
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

/// Gives a job to the controller, and may wait until it is done.
pub fn submit(place: &Place, file: &Path, wait: bool, as_json: bool) -> Result<()> {
    let body = read(file, MAX_JOB)?.into_bytes();
    let client = client(place)?;
    let answer = client.call(Method::POST, "/v1/jobs", Some(body)).with_context(|| file.display().to_string())?;
    if !wait {
        return if as_json {
            print_json(&answer)
        } else {
            print(format!("job {} with coflows {}\n", answer["job"], answer["coflows"]))
        };
    }
    let ids: Vec<CoflowId> = serde_json::from_value(answer["coflows"].clone()).context("the controller named no coflows")?;
    let done = follow(&client, &ids)?;
    if as_json {
        return print_json(&done);
    }
    let rows = done.iter().map(|one| [one.coflow.to_string(), one.stage.clone(), format!("{:.3}", one.done_s - one.arrived_s)]);
    print(table(["COFLOW", "NAME", "done in[s]"], rows, &[0, 2]))
}

/// Shows how far some coflows are until all are done. A controller that restarts meanwhile is waited for.
pub fn follow(client: &Client, ids: &[CoflowId]) -> Result<Vec<Finished>> {
    let bar = progress_bar(1_000, "permille");
    let mut away = 0;
    loop {
        let status = client.call(Method::GET, "/v1/status", None);
        let LiveStatus { schedule: status, refused } = match status {
            Ok(answer) => serde_json::from_value(answer).context("the controller described itself in an unknown way")?,
            Err(error) if away >= AWAY_LOOKS => return Err(error.into()),
            Err(_) => {
                away += 1;
                std::thread::sleep(LOOK);
                continue;
            }
        };
        away = 0;
        if let Some(one) = refused.iter().find(|one| ids.contains(&one.coflow)) {
            bail!("coflow {} cannot be sent and waits for ever, until it is cancelled: {}", one.coflow, one.reason);
        }
        let done: Vec<Finished> = status.finished.into_iter().filter(|one| ids.contains(&one.coflow)).collect();
        let open: Vec<&CoflowStatus> = status.coflows.iter().filter(|one| ids.contains(&one.coflow)).collect();
        if open.is_empty() {
            bar.finish_and_clear();
            ensure!(done.len() == ids.len(), "the job was cancelled: {} of its {} coflows are done", done.len(), ids.len());
            return Ok(done);
        }
        let left: f64 = open.iter().map(|one| one.left_gbit).sum();
        let all = open.iter().map(|one| one.volume_gbit).sum::<f64>() + done.iter().map(|one| one.volume_gbit).sum::<f64>();
        bar.set_position((1_000.0 * (1.0 - left / all.max(f64::MIN_POSITIVE))) as u64);
        let rate: f64 = open.iter().map(|one| one.rate_gbps).sum();
        bar.set_message(format!("{} of {} coflows done, {rate:.3} Gbit/s", done.len(), ids.len()));
        std::thread::sleep(LOOK);
    }
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
    let status: LiveStatus = serde_json::from_value(answer).context("the controller described itself in an unknown way")?;
    print(text(&status))
}

fn text(LiveStatus { schedule: status, refused }: &LiveStatus) -> String {
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
                CoflowState::Stuck(site) => format!("stuck at {site}"),
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
    for one in refused {
        text += &format!("coflow {}, group {} cannot be sent: {}\n", one.coflow, one.group, one.reason);
    }
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
