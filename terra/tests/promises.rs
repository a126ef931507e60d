//! Promised deadlines outlive restarts of the controller, absence of agents and growth of the network.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod networks;

use networks::pair;
use serde_json::{Value, json};
use terra::controller::{Config, Controller, Report, Saved};
use terra::workload::{Job, coflow_id};
use terra::{Coflow, CoflowId, Flow, JobId, SiteId};

const A: SiteId = SiteId(0);
/// 6 Gbit within 10 s: two of these do not fit a link of 1 Gbit/s.
const VOLUME_GBIT: f64 = 6.0;

fn job(id: u64) -> Job {
    let flow = Flow { src: A, dst: SiteId(1), volume_gbit: VOLUME_GBIT };
    let coflow = Coflow::new(coflow_id(JobId(id), 0), [flow]).and_then(|coflow| coflow.with_deadline(10.0)).unwrap();
    Job::single(JobId(id), 0.0, coflow)
}

/// With job 5, whose deadline is promised.
fn controller() -> Controller {
    let mut controller = Controller::new(pair(1.0), Config::default(), 0.0);
    controller.join(0.0, A).unwrap();
    controller.submit(0.0, job(5)).unwrap();
    assert_eq!(promised(&controller), [(5, Some(true))]);
    controller
}

fn promised(controller: &Controller) -> Vec<(u64, Option<bool>)> {
    controller.status().coflows.iter().map(|one| (one.job.0, one.promised)).collect()
}

fn restored(saved: &Value) -> Result<Controller, String> {
    let saved: Saved = serde_json::from_value(saved.clone()).map_err(|error| error.to_string())?;
    Controller::restore(&saved, Config::default(), 1.0).map_err(|error| error.to_string())
}

#[test]
fn a_promise_survives_a_restart() {
    let saved = serde_json::to_value(controller().save()).unwrap();
    let mut again = restored(&saved).unwrap();
    // A job that comes while no agent is there yet, and whose number is lower, takes nothing from it.
    again.submit(1.0, job(2)).unwrap();
    let orders = again.join(1.0, A).unwrap();
    assert_eq!(promised(&again), [(2, Some(false)), (5, Some(true))]);
    // 6 Gbit in the 9 s that are left: more than the rate of before.
    let rate = |id: u64| {
        let groups = orders.groups.iter().filter(|group| group.coflow == CoflowId(id));
        groups.flat_map(|group| &group.paths).map(|path| path.rate_gbps).sum::<f64>()
    };
    assert!(rate(5000) >= VOLUME_GBIT / 9.0, "{orders:?}");
    // Without what was saved of the promise, the first in the order of numbers would have been promised.
    let mut lost = saved;
    lost["jobs"][0]["stages"][0]["groups"][0].as_object_mut().unwrap().remove("promised").unwrap();
    let mut without = restored(&lost).unwrap();
    without.submit(1.0, job(2)).unwrap();
    without.join(1.0, A).unwrap();
    assert_eq!(promised(&without), [(2, Some(true)), (5, Some(false))]);
}

#[test]
fn a_promise_is_not_kept_beyond_what_is_possible() {
    let saved = controller().save();
    let mut late = Controller::restore(&saved, Config::default(), 5.0).unwrap();
    late.join(5.0, A).unwrap();
    // 6 Gbit in 5 s over 1 Gbit/s.
    assert_eq!(promised(&late), [(5, Some(false))]);
    // Once its deadline has passed, nothing is set aside any more, though its agent is not back.
    let mut gone = Controller::restore(&saved, Config::default(), 11.0).unwrap();
    gone.submit(11.0, job(2)).unwrap();
    gone.join(11.0, A).unwrap();
    assert_eq!(promised(&gone), [(2, Some(true)), (5, Some(false))]);
}

#[test]
fn a_promise_survives_the_absence_of_an_agent() {
    let mut controller = controller();
    controller.leave(1.0, A).unwrap();
    controller.submit(1.0, job(2)).unwrap();
    controller.join(2.0, A).unwrap();
    assert_eq!(promised(&controller), [(2, Some(false)), (5, Some(true))]);
    // Cancelled while paused, it holds nothing back.
    controller.leave(2.0, A).unwrap();
    controller.cancel(2.0, JobId(5)).unwrap();
    controller.join(2.5, A).unwrap();
    assert_eq!(promised(&controller), [(2, Some(true))]);
}

#[test]
fn a_promise_survives_a_new_site_but_not_a_lost_link() {
    let mut controller = controller();
    controller.submit(0.0, job(2)).unwrap();
    let mut wan = controller.wan().clone();
    let c = wan.add_site("c").unwrap();
    wan.add_edge(c, A, 1.0).unwrap();
    controller.set_network(1.0, &wan).unwrap();
    assert_eq!(promised(&controller), [(2, Some(false)), (5, Some(true))]);
    let d = wan.add_site("d").unwrap();
    wan.add_edge(d, c, 1.0).unwrap();
    wan.set_capacity(wan.link_between(A, SiteId(1)).unwrap(), 0.1).unwrap();
    controller.set_network(1.0, &wan).unwrap();
    assert_eq!(promised(&controller), [(2, Some(false)), (5, Some(false))]);
    assert!(controller.exchange(1.0, A, &Report { epoch: controller.last_epoch(), ..Report::default() }).is_ok());
}

#[test]
fn saved_promises_are_checked() {
    let good = serde_json::to_value(controller().save()).unwrap();
    assert_eq!(serde_json::to_value(restored(&good).unwrap().save()).unwrap()["jobs"], good["jobs"]);
    let lane = "/jobs/0/stages/0/groups/0/promised/0";
    for (pointer, value, part) in [
        (format!("{lane}/gbps"), json!(1.5), "does not fit"),
        (format!("{lane}/gbps"), json!(-0.5), "does not fit"),
        (format!("{lane}/sites"), json!(["b", "a"]), "does not fit"),
        (format!("{lane}/sites"), json!(["a", "z"]), "Unknown site"),
        (format!("{lane}/sites"), json!(["a"]), "cannot go over"),
        (format!("{lane}/sites"), json!(["a", "b", "a"]), "cannot go over"),
        ("/jobs/0/stages/0/deadline_s".to_owned(), Value::Null, "promised no deadline"),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(&pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        let error = restored(&bad).map(drop).expect_err(&pointer);
        assert!(error.contains(part), "{pointer}: {error}");
    }
}
