//! `vrdma wan controller`, as users and agents meet it, over its socket and across kills.

#[allow(dead_code)] // Each test file uses a part of it.
mod vrdma;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use vrdma::Vrdma;

const JOB: &str = r#"{"job": 7, "coflows": [
    {"name": "map", "flows": [{"from": "HK", "to": "LA", "bytes": 640000000}], "deadline_s": 3600},
    {"name": "reduce", "after": ["map"], "flows": [{"from": "LA", "to": "NY", "bytes": 1000}]}]}"#;

/// A controller that is killed when dropped.
struct Controller(Child);

impl Controller {
    fn start(vrdma: &Vrdma, args: &[&str]) -> Controller {
        let args = [&["wan", "controller"], args].concat();
        let mut child = vrdma.command(&args).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("the controller serves at"), "{line}");
        Controller(child)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// One call, as an agent makes it: status and answer.
fn call(vrdma: &Vrdma, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let mut stream = UnixStream::connect(vrdma.dir().join("wan.sock")).unwrap();
    let body = body.to_string();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

fn file(vrdma: &Vrdma, name: &str, text: &str) -> String {
    let path = vrdma.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_job_is_sent_across_a_kill_of_the_controller() {
    let vrdma = Vrdma::new();
    let job = file(&vrdma, "job.json", JOB);
    vrdma.fail(&["wan", "status"], &["wan.sock", "vrdma wan controller"]);
    let controller = Controller::start(&vrdma, &["--topology", "swan"]);
    assert_eq!(vrdma.succeed(&["wan", "submit", &job]), "job 7 with coflows [7000,7001]\n");
    assert!(vrdma.succeed(&["wan", "status"]).contains("no agent at HK"));
    let (code, orders) = call(&vrdma, "POST", "/v1/agents/HK", &Value::Null);
    assert_eq!(code, 200);
    let group = &orders["groups"][0];
    let rate: f64 = group["paths"].as_array().unwrap().iter().map(|path| path["gbps"].as_f64().unwrap()).sum();
    assert_eq!((group["to"].as_str(), group["paths"][0]["sites"][0].as_str()), (Some("LA"), Some("HK")));
    // Both ways out of Hong Kong.
    assert!((rate - 10.24).abs() < 1e-3, "{orders}");
    let report = json!({"epoch": orders["epoch"], "sent": [{"coflow": 7000, "group": 0, "bytes": 320e6}]});
    assert_eq!(call(&vrdma, "PUT", "/v1/agents/HK", &report).0, 200);
    // The link of one of them dies: the orders that follow do without it.
    vrdma.succeed(&["wan", "link", "HK", "LA", "0"]);
    let (_, orders) = call(&vrdma, "PUT", "/v1/agents/HK", &report);
    let sites: Vec<&Value> = orders["groups"][0]["paths"].as_array().unwrap().iter().map(|path| &path["sites"]).collect();
    assert!(!sites.is_empty() && sites.iter().all(|sites| sites.as_array().unwrap().len() > 2), "{orders}");
    let before = vrdma.json(&["wan", "status", "--json"]);
    assert_eq!(before["coflows"][0]["left_gbit"].as_f64(), Some(2.56));
    // The last progress may be unsaved, all else is there; the agent is told to join again.
    drop(controller);
    let controller = Controller::start(&vrdma, &[]);
    let report = json!({"epoch": orders["epoch"], "sent": [{"coflow": 7000, "group": 0, "bytes": 640e6}]});
    let (code, error) = call(&vrdma, "PUT", "/v1/agents/HK", &report);
    assert!(code == 409 && error["error"].as_str().unwrap().contains("join"), "{error}");
    let (_, again) = call(&vrdma, "POST", "/v1/agents/HK", &Value::Null);
    assert!(again["epoch"].as_u64() > orders["epoch"].as_u64(), "{again}");
    let report = json!({"epoch": again["epoch"], "sent": [{"coflow": 7000, "group": 0, "bytes": 640e6}]});
    assert_eq!(call(&vrdma, "PUT", "/v1/agents/HK", &report).0, 200);
    let text = vrdma.succeed(&["wan", "status"]);
    assert!(text.contains("no agent at LA") && text.contains("done in[s]"), "{text}");
    drop(controller);
    let _controller = Controller::start(&vrdma, &[]);
    let status = vrdma.json(&["wan", "status", "--json"]);
    assert_eq!((status["finished"][0]["coflow"].as_u64(), status["coflows"].as_array().unwrap().len()), (Some(7000), 1));
    assert_eq!(vrdma.succeed(&["wan", "cancel", "7"]), "job 7 is cancelled\n");
    vrdma.fail(&["wan", "cancel", "7"], &["No job 7"]);
}

#[test]
fn what_is_wrong_is_refused_and_changes_nothing() {
    let vrdma = Vrdma::new();
    vrdma.fail(&["wan", "controller"], &["wan.json", "--topology"]);
    let controller = Controller::start(&vrdma, &["--topology", "swan"]);
    vrdma.fail(&["wan", "controller"], &["serves", "already"]);
    let job = file(&vrdma, "job.json", JOB);
    vrdma.succeed(&["wan", "submit", &job]);
    let status = || {
        let mut status = vrdma.json(&["wan", "status", "--json"]);
        // Time goes on.
        status["coflows"][0]["deadline_in_s"].take();
        status
    };
    let before = status();
    for (text, part) in [
        (JOB, "Job 7 appears twice"),
        ("{", "the body is wrong"),
        (r#"{"coflows":[{"flows":[{"from":"HK","to":"XX","bytes":1}]}]}"#, "Unknown site \"XX\""),
        (r#"{"coflows":[{"flows":[{"from":"HK","to":"LA","bytes":0}]}]}"#, "volume 0"),
        (r#"{"coflows":[{"name":"a","flows":[],"after":["b"]},{"name":"b","flows":[],"after":["a"]}]}"#, "waits for itself"),
    ] {
        vrdma.fail(&["wan", "submit", &file(&vrdma, "bad.json", text)], &["bad.json", part]);
    }
    vrdma.fail(&["wan", "link", "HK", "FL", "1"], &["HK", "FL"]);
    vrdma.fail(&["wan", "link", "HK", "XX", "1"], &["Unknown site"]);
    vrdma.fail(&["wan", "link", "HK", "LA", "1e-9"], &["Capacity"]);
    for (method, path, body, code) in [
        ("PUT", "/v1/agents/HK", json!({"epoch": 0}), 409),
        ("PUT", "/v1/agents/XX", json!({"epoch": 0}), 404),
        ("POST", "/v1/agents/XX", Value::Null, 404),
        ("PUT", "/v1/agents/HK", json!({"epoch": "x"}), 400),
        ("PUT", "/v1/network", json!("site a"), 400),
    ] {
        let (found, error) = call(&vrdma, method, path, &body);
        assert!(found == code && error["error"].is_string(), "{method} {path}: {found} {error}");
    }
    assert_eq!(status(), before);
    drop(controller);
    file(&vrdma, "wan.json", "{\"format\": 1}");
    vrdma.fail(&["wan", "controller"], &["wan.json", "not a controller's state"]);
}

/// Paths and methods of the served API and of its description are the same.
#[test]
fn description_and_api_agree() {
    let text = include_str!("../wan-openapi.yaml");
    let mut described = Vec::new();
    let mut path = "";
    for line in text.lines().skip_while(|line| *line != "paths:").skip(1).take_while(|line| line.starts_with(' ')) {
        let word = line.trim().trim_end_matches(':');
        match line.len() - line.trim_start().len() {
            2 => path = word,
            4 => described.push((path.to_owned(), word.to_uppercase())),
            _ => {}
        }
    }
    let vrdma = Vrdma::new();
    let _controller = Controller::start(&vrdma, &["--topology", "swan"]);
    let mut paths: Vec<&String> = described.iter().map(|(path, _)| path).collect();
    paths.dedup();
    let mut served = Vec::new();
    for path in paths {
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH"] {
            let mut stream = UnixStream::connect(vrdma.dir().join("wan.sock")).unwrap();
            let named = path.replace("{site}", "XX").replace("{job}", "1");
            write!(stream, "{method} {named} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            // What is not there has no body.
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(!head.contains(" 404 ") || body.contains("error"), "{method} {path}");
            if !head.contains(" 405 ") {
                served.push((path.clone(), method.to_owned()));
            }
        }
    }
    described.sort();
    served.sort();
    assert_eq!(described, served);
}
