//! The controller's API as other programs meet it: the client library, and what is refused.

#[allow(dead_code)] // Each test file uses a part of it.
mod vrdma;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use terra::JobId;
use terra::controller::CoflowState;
use terra_client::{Client, ClientError, Coflow, Flow, Job};
use vrdma::Vrdma;

/// A controller of SWAN that is killed when dropped.
struct Controller {
    vrdma: Vrdma,
    process: Child,
}

impl Controller {
    fn start() -> Controller {
        let vrdma = Vrdma::new();
        let mut command = vrdma.command(&["wan", "controller", "--topology", "swan"]);
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("the controller serves at"), "{line}");
        Controller { vrdma, process }
    }

    fn client(&self) -> Client {
        Client::new(self.vrdma.dir().join("wan.sock")).unwrap()
    }

    /// One call with a body as it is: status and answer.
    fn call(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(self.vrdma.dir().join("wan.sock")).unwrap();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn agent(&self, method: &str, site: &str, body: &Value) -> Value {
        let (code, answer) = self.call(method, &format!("/v1/agents/{site}"), &body.to_string());
        assert_eq!(code, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[test]
fn a_program_submits_follows_and_cancels() {
    let controller = Controller::start();
    let client = controller.client();
    let map = Coflow::new("map", [Flow::new("HK", "LA", 1_000_000_000)]).with_deadline_s(600.0);
    let reduce = Coflow::new("reduce", [Flow::new("HK", "NY", 1_000)]).after(["map"]).with_weight(2.0);
    let submitted = client.submit(&Job::new([map, reduce])).unwrap();
    let job = submitted.job;
    let progress = client.progress(job).unwrap();
    assert_eq!((progress.is_done(), progress.part_sent(), submitted.coflows.len()), (false, 0.0, 2));
    assert_eq!(progress.open[0].state, CoflowState::Paused("HK".into()));
    let orders = controller.agent("POST", "HK", &Value::Null);
    let report = |bytes: u64| {
        let coflow = submitted.coflows[0];
        json!({"epoch": orders["epoch"], "sent": [{"coflow": coflow, "group": 0, "bytes": bytes}]})
    };
    controller.agent("PUT", "HK", &report(250_000_000));
    let progress = client.progress(job).unwrap();
    assert!((progress.part_sent() - 0.25).abs() < 1e-3, "{progress:?}");
    assert_eq!((progress.open[0].promised, &progress.open[1].state), (Some(true), &CoflowState::Waiting));
    // The first ends while somebody waits for both; then the second.
    let mut seen = Vec::new();
    let done = client.wait(job, Duration::from_millis(1), |progress| {
        seen.push(progress.part_sent());
        let next = if progress.finished.is_empty() { (0, 1_000_000_000) } else { (1, 1_000) };
        let coflow = submitted.coflows[next.0];
        let epoch = client.status().unwrap().epoch;
        controller.agent("PUT", "HK", &json!({"epoch": epoch, "sent": [{"coflow": coflow, "group": 0, "bytes": next.1}]}));
    });
    let done = done.unwrap();
    assert!(done.is_done() && done.finished.len() == 2 && done.part_sent() == 1.0, "{done:?}");
    assert!(seen.len() >= 3 && seen.is_sorted(), "{seen:?}");
    let other = client.submit(&Job { number: Some(77), coflows: vec![Coflow::new("", [Flow::new("LA", "NY", 1)])] }).unwrap();
    assert_eq!(other.job, JobId(77));
    client.cancel(other.job).unwrap();
    assert!(matches!(client.progress(other.job), Err(ClientError::UnknownJob(JobId(77)))));
    assert!(matches!(client.cancel(other.job), Err(ClientError::Refused { status: 404, .. })));
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let controller = Controller::start();
    let client = controller.client();
    let job = Job { number: Some(1), coflows: vec![Coflow::new("a", [Flow::new("HK", "LA", 1_000_000_000)])] };
    client.submit(&job).unwrap();
    let first = controller.agent("POST", "HK", &Value::Null);
    controller.agent("PUT", "HK", &json!({"epoch": first["epoch"]}));
    let (file, before) = (controller.vrdma.dir().join("wan.json"), client.status().unwrap());
    let saved = |path| {
        let mut value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        value["now_s"].take();
        value
    };
    let state = saved(&file);
    let of = |coflows: Vec<Coflow>| serde_json::to_string(&Job::new(coflows)).unwrap();
    let circle = of(vec![Coflow::new("a", []).after(["b"]), Coflow::new("b", []).after(["a"])]);
    let unknown_site = of(vec![Coflow::new("", [Flow::new("HK", "XX", 1)])]);
    let zero = of(vec![Coflow::new("", [Flow::new("HK", "LA", 0)])]);
    let duplicate = serde_json::to_string(&job).unwrap();
    let stale = first["epoch"].as_u64().unwrap() + 1_000;
    let stale = json!({"epoch": stale, "sent": [{"coflow": 1000, "group": 0, "bytes": 5e8}]}).to_string();
    let negative = json!({"epoch": first["epoch"], "sent": [{"coflow": 1000, "group": 0, "bytes": -1.0}]}).to_string();
    let unknown_neighbour = json!({"epoch": first["epoch"], "silent": ["XX"]}).to_string();
    for (what, method, path, body, code, part) in [
        ("disconnected graph", "PUT", "/v1/network", "site a\nsite b\nsite c\nedge a b 1\n", 400, "No way"),
        ("zero capacity", "PUT", "/v1/network", "site a\nsite b\nedge a b 0\n", 400, "Capacity 0"),
        ("unknown site of a link", "PUT", "/v1/network", "site a\nsite b\nedge a z 1\n", 400, "Unknown site"),
        ("negative capacity", "PATCH", "/v1/links", r#"{"from":"HK","to":"LA","gbps":-1}"#, 400, "Capacity -1"),
        ("no such link", "PATCH", "/v1/links", r#"{"from":"HK","to":"FL","gbps":1}"#, 400, "No way"),
        ("unknown site", "POST", "/v1/jobs", &unknown_site, 400, "Unknown site \"XX\""),
        ("zero volume", "POST", "/v1/jobs", &zero, 400, "volume 0"),
        ("duplicate id", "POST", "/v1/jobs", &duplicate, 409, "Job 1 appears twice"),
        ("circle", "POST", "/v1/jobs", &circle, 400, "waits for itself"),
        ("no JSON", "POST", "/v1/jobs", "{", 400, "the body is wrong"),
        ("stale epoch", "PUT", "/v1/agents/HK", &stale, 409, "epoch"),
        ("negative volume", "PUT", "/v1/agents/HK", &negative, 400, "cannot have sent"),
        ("unknown neighbour", "PUT", "/v1/agents/HK", &unknown_neighbour, 404, "Unknown site \"XX\""),
        ("not joined", "PUT", "/v1/agents/LA", r#"{"epoch":0}"#, 409, "join"),
        ("unknown job", "DELETE", "/v1/jobs/9", "", 404, "No job 9"),
    ] {
        let (found, answer) = controller.call(method, path, body);
        let error: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{what}: {error}: {answer}"));
        let error = error["error"].as_str().unwrap_or_else(|| panic!("{what}: {answer}"));
        assert!(found == code && error.contains(part), "{what}: {found} {error}");
        assert_eq!(saved(&file), state, "{what} changed what is saved");
        let now = client.status().unwrap();
        assert_eq!((&now.coflows, &now.links, now.epoch), (&before.coflows, &before.links, before.epoch), "{what}");
    }
}
