//! Hands one flow to a controller and follows it to its end: `cargo run -p terra-client --example send -- SOCKET FROM TO BYTES`.

use std::time::Duration;
use terra_client::{Client, Coflow, Flow, Job};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, from, to, bytes] = arguments.as_slice() else {
        return Err("arguments: SOCKET FROM TO BYTES".into());
    };
    let client = Client::new(socket)?;
    let job = client.submit(&Job::new([Coflow::new("send", [Flow::new(from, to, bytes.parse()?)])]))?.job;
    println!("job {job}");
    let done = client.wait(job, Duration::from_millis(200), |progress| println!("{:.0} %", 100.0 * progress.part_sent()))?;
    for one in done.finished {
        println!("{} took {:.3} s", one.stage, one.done_s - one.arrived_s);
    }
    Ok(())
}
