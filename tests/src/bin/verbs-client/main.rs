//! A verbs program for the tests: moves random data and compares it, streams until something breaks, or does what must be
//! refused. It prints one line per finding and ends with status 0 only when all was as expected.
//!
//! `verbs-client MODE [--key value]…`; run with `vrdma run --dev NAME -- verbs-client …`.

mod connection;
mod crowd;
mod data;
mod device_memory;
mod events;
mod lookup;
mod meet;
mod ranges;
mod refused;
mod registration;
mod starved;
mod stream;

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tests::verbs::{Cq, Wc};

/// What every mode may fail with; it is printed once, in `main`.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Longest wait for one completion.
const COMPLETION_LIMIT: Duration = Duration::from_secs(60);

/// The words after the mode, as pairs.
struct Words(HashMap<String, String>);

impl Words {
    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn number(&self, key: &str, default: u64) -> Outcome<u64> {
        self.text(key).map_or(Ok(default), |word| word.parse().map_err(|_| format!("--{key} {word}: not a number").into()))
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mode = words.next().unwrap_or_default();
    let mut pairs = HashMap::new();
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        pairs.insert(key.trim_start_matches("--").to_owned(), value);
    }
    let words = Words(pairs);
    let outcome = match mode.as_str() {
        "crowd" => crowd::run(&words),
        "data" => data::run(&words),
        "device-memory" => device_memory::run(&words),
        "events" => events::run(&words),
        "starved" => starved::run(&words),
        "stream" => stream::run(&words),
        "lookup" => lookup::run(&words),
        "ranges" => ranges::run(),
        "victim" => refused::victim(),
        "refused" => refused::run(&words),
        "registration" => registration::run(&words),
        other => Err(format!("unknown mode {other:?}").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED {error}");
            ExitCode::FAILURE
        }
    }
}

/// Waits for one completion of whatever status.
fn completion(cq: &Cq) -> Outcome<Wc> {
    let deadline = Instant::now() + COMPLETION_LIMIT;
    loop {
        for _ in 0..1000 {
            if let Some(wc) = cq.poll()? {
                return Ok(wc);
            }
        }
        if Instant::now() > deadline {
            return Err(format!("no completion in {COMPLETION_LIMIT:?}").into());
        }
    }
}

/// Prints a line at once, also when standard output is a file.
fn say(line: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
