//! The coflow benchmark format of one hour of a Facebook cluster:
//!
//! ```text
//! PORTS COFLOWS
//! ID ARRIVAL_MS MAPPERS PORT.. REDUCERS PORT:MB..
//! ```
//!
//! MB is what a reducer receives in all, evenly from all mappers.

use super::jobs::GBIT_PER_MB;
use super::{ReadError, lines, number};
use crate::coflow::{Coflow, FlowGroup};
use crate::id::{CoflowId, JobId, SiteId};
use crate::wan::Wan;
use crate::workload::{Job, Workload};
use std::collections::BTreeMap;

/// Most ports, mappers or reducers.
const MAX_PORTS: usize = 10_000;

/// Reads a trace. Port `p` becomes `sites[p % sites.len()]`: with as many sites as ports the switch model of
/// [`big_switch`], with fewer a placement of racks on data centres.
///
/// # Errors
/// [`ReadError`] with the line of the trouble.
///
/// # Panics
/// If `sites` is empty.
pub fn parse(text: &str, sites: &[SiteId]) -> Result<Workload, ReadError> {
    assert!(!sites.is_empty(), "ports must become sites");
    let mut lines = lines(text);
    let (line, head) = lines.next().ok_or_else(|| ReadError::new(0, "the input is empty"))?;
    let mut words = head.split_whitespace();
    let ports: usize = number(line, "number of ports", words.next())?;
    let count: usize = number(line, "number of coflows", words.next())?;
    if ports == 0 || ports > MAX_PORTS {
        return Err(ReadError::new(line, format!("{ports} ports: expected 1 to {MAX_PORTS}")));
    }
    let mut workload = Workload::default();
    for (line, text) in lines {
        workload.jobs.push(coflow(line, text, ports, sites)?);
    }
    if workload.jobs.len() != count {
        return Err(ReadError::new(0, format!("{} coflows where {count} were announced", workload.jobs.len())));
    }
    Ok(workload)
}

fn coflow(line: usize, text: &str, ports: usize, sites: &[SiteId]) -> Result<Job, ReadError> {
    let mut words = text.split_whitespace();
    let id: u64 = number(line, "coflow id", words.next())?;
    let arrival_ms: f64 = number(line, "arrival", words.next())?;
    let site = |word: Option<&str>| -> Result<SiteId, ReadError> {
        let port: usize = number(line, "port", word)?;
        if port >= ports {
            return Err(ReadError::new(line, format!("port {port} of {ports}")));
        }
        Ok(sites[port % sites.len()])
    };
    let mut senders: BTreeMap<SiteId, u32> = BTreeMap::new();
    let mappers: usize = number(line, "number of mappers", words.next())?;
    if mappers == 0 || mappers > MAX_PORTS {
        return Err(ReadError::new(line, format!("{mappers} mappers: expected 1 to {MAX_PORTS}")));
    }
    for _ in 0..mappers {
        *senders.entry(site(words.next())?).or_default() += 1;
    }
    let reducers: usize = number(line, "number of reducers", words.next())?;
    let mut parts = Vec::new();
    for _ in 0..reducers {
        let word = words.next().ok_or_else(|| ReadError::new(line, "a reducer is missing"))?;
        let (port, mb) = word.split_once(':').ok_or_else(|| ReadError::new(line, format!("{word:?} is not PORT:MB")))?;
        let (dst, mb): (SiteId, f64) = (site(Some(port))?, number(line, "volume", Some(mb))?);
        for (&src, &flows) in &senders {
            let volume_gbit = mb * GBIT_PER_MB * f64::from(flows) / mappers as f64;
            parts.push(FlowGroup { src, dst, volume_gbit, flows });
        }
    }
    if let Some(word) = words.next() {
        return Err(ReadError::new(line, format!("{word:?} is too much")));
    }
    let coflow = Coflow::from_groups(CoflowId(id), parts).map_err(|error| ReadError::new(line, error))?;
    Ok(Job::single(JobId(id), arrival_ms / 1e3, coflow))
}

/// A non-blocking switch as a network: each port a site, joined to a hub by a link of `gbps` each way. Returns the ports.
///
/// # Panics
/// If there are no ports, more than a network can have sites, or `gbps` is no proper capacity.
pub fn big_switch(ports: usize, gbps: f64) -> (Wan, Vec<SiteId>) {
    assert!(ports > 0, "a switch without ports");
    let mut wan = Wan::new();
    let sites: Vec<SiteId> = (0..ports).map(|port| wan.add_site(&format!("p{port}")).expect("few enough ports")).collect();
    let hub = wan.add_site("hub").expect("few enough ports");
    for site in &sites {
        wan.add_edge(*site, hub, gbps).expect("a proper capacity");
    }
    (wan, sites)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reducers_receive_evenly_from_all_mappers() {
        let (wan, sites) = big_switch(4, 1.0);
        let workload = parse("4 1\n5 1500 2 0 1 2 2:10.0 1:4\n", &sites).unwrap();
        let job = &workload.jobs[0];
        let groups: Vec<_> = job.stages[0].coflow.groups.iter().map(|g| (g.src.0, g.dst.0, g.volume_gbit)).collect();
        // 10 MB = 0.08 Gbit to port 2, half from each; of the 4 MB to port 1, the half from port 1 is local.
        assert_eq!(groups, [(0, 1, 0.016), (0, 2, 0.04), (1, 2, 0.04)]);
        assert_eq!(job.arrival_s, 1.5);
        workload.check(&wan).unwrap();
    }

    #[test]
    fn bad_lines_are_named() {
        let (_, sites) = big_switch(2, 1.0);
        for (text, line, part) in [
            ("", 0, "empty"),
            ("2 1\n1 0 1 2 1 0:1", 2, "port 2 of 2"),
            ("2 1\n1 0 1 0 1 1=1", 2, "PORT:MB"),
            ("2 1\n1 0 1 0 1 1:x", 2, "no number"),
            ("2 1\n1 0 1 0 1 1:-1", 2, "volume"),
            ("2 1\n1 0 0 1 1:1", 2, "0 mappers"),
            ("2 1\n1 0 1 0 2 1:1", 2, "missing"),
            ("2 2\n1 0 1 0 1 1:1", 0, "announced"),
        ] {
            let error = parse(text, &sites).unwrap_err();
            assert!(error.line == line && error.reason.contains(part), "{text:?} gave {error}");
        }
    }
}
