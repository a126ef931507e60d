//! The table of the long run, as it is kept: it can be read again, so that a run can be gone on with.

use ::tests::interop::{Outcome, Path, Role};
use ::tests::matrix::Row;
use std::fmt::Write;

/// Name of the kept table.
pub const NAME: &str = "interop.md";

/// One run to be made.
#[derive(Clone, Copy)]
pub struct Plan {
    pub row: Row,
    pub vrdma: Role,
    pub path: Path,
}

impl Plan {
    /// How its line begins.
    pub fn key(&self) -> String {
        let role = match self.vrdma {
            Role::Server => "server",
            Role::Client => "client",
        };
        let program = format!("{} {}", self.row.program, self.row.options);
        format!("| `{}` | {role} | {} |", program.trim_end(), self.path)
    }
}

/// Lines in the order of their plans.
pub struct Table {
    circumstances: String,
    lines: Vec<Line>,
}

struct Line {
    key: String,
    /// What follows the key, once it was run.
    rest: Option<String>,
}

impl Line {
    fn passed(&self) -> Option<bool> {
        self.rest.as_ref().map(|rest| !rest.contains("| FAILED"))
    }
}

impl Table {
    pub fn new(circumstances: String, plans: &[Plan]) -> Table {
        let lines = plans.iter().map(|plan| Line { key: plan.key(), rest: None });
        Table { circumstances, lines: lines.collect() }
    }

    /// Takes over the results of a kept table, if it was measured with the same versions.
    pub fn resume(&mut self, kept: &str) {
        if !kept.contains(&self.circumstances) {
            println!("the kept table was measured with other versions: it is begun anew");
            return;
        }
        for line in &mut self.lines {
            line.rest =
                kept.lines().find_map(|old| old.strip_prefix(&line.key)).filter(|rest| *rest != NOT_RUN).map(str::to_owned);
        }
    }

    pub fn is_done(&self, plan: &Plan) -> bool {
        let key = plan.key();
        self.lines.iter().any(|line| line.key == key && line.rest.is_some())
    }

    /// Enters what came out, and returns the line.
    pub fn enter(&mut self, plan: &Plan, outcome: &Outcome) -> String {
        let again = match outcome.begun_in_vain {
            0 => String::new(),
            n => format!(" (begun {n} times in vain before)"),
        };
        let result = match &outcome.result {
            Ok(figure) => format!("passed: {figure}{again}"),
            Err(failure) => format!("FAILED: {}{again}", failure.reason.replace('|', "/")),
        };
        let (key, rest) = (plan.key(), format!(" {} | {result} |", outcome.packets));
        let text = format!("{key}{rest}");
        if let Some(line) = self.lines.iter_mut().find(|line| line.key == key) {
            line.rest = Some(rest);
        }
        text
    }

    pub fn all_passed(&self) -> bool {
        self.lines.iter().all(|line| line.passed() == Some(true))
    }

    /// "1 passed, 2 failed, 3 not run".
    pub fn count(&self) -> String {
        let count = |result| self.lines.iter().filter(|line| line.passed() == result).count();
        format!("{} passed, {} failed, {} not run", count(Some(true)), count(Some(false)), count(None))
    }

    pub fn text(&self) -> String {
        let mut text = String::from("# vrdma against Linux soft-RoCE\n\n");
        let _ = writeln!(text, "Written by `tests/vm/run interop` on {}: {}.\n", crate::today(), self.count());
        let _ = writeln!(text, "{}.\n", self.circumstances);
        text.push_str(
            "Each row is one run of an unmodified program on both ends. Where a row has passed, tshark found every packet captured (the\n\
             first 20 000 of a run) well formed, and every ICRC was right. Figures say that it ran; under emulation they say nothing\n\
             about speed.\n\n\
             Nothing is run again because it has failed, with three exceptions. A client that is refused because the server on vrdma\n\
             does not listen yet is started again. `-R` makes perftest connect a second time without knowing that the other side\n\
             listens; if that is refused, perftest before 26.04 goes on with ids that it has freed, and crashes, whatever the device.\n\
             And the server of a pingpong ends at its last receive; if its acknowledgement is lost, soft-RoCE sends again for ever, as\n\
             it takes 7 retries for endless ones. Such a row is begun again, and says how often.\n\n\
             | program | vrdma is | path | packets seen | result |\n|---|---|---|---|---|\n",
        );
        for Line { key, rest } in &self.lines {
            let _ = writeln!(text, "{key}{}", rest.as_deref().unwrap_or(NOT_RUN));
        }
        text
    }
}

/// What follows the key of a row that was not run.
const NOT_RUN: &str = " | not run |";

#[cfg(test)]
mod tests {
    use super::*;
    use ::tests::interop::Failure;
    use ::tests::matrix::Report;
    use std::path::PathBuf;

    fn plans() -> Vec<Plan> {
        let row = Row { program: "rping", options: "-v", report: Report::Pingpong };
        [Role::Server, Role::Client].map(|vrdma| Plan { row, vrdma, path: Path::PLAIN }).to_vec()
    }

    fn outcome(plan: &Plan, result: Result<String, Failure>) -> Outcome {
        Outcome { row: plan.row, vrdma: plan.vrdma, path: plan.path, packets: 3, begun_in_vain: 0, result }
    }

    #[test]
    fn a_failed_row_stays_failed_when_the_run_goes_on() {
        let plans = plans();
        let mut first = Table::new("versions".into(), &plans);
        let failure = Failure { reason: "a | b".into(), state: String::new(), capture: PathBuf::new() };
        first.enter(&plans[0], &outcome(&plans[0], Err(failure)));
        assert_eq!(first.count(), "0 passed, 1 failed, 1 not run");

        let mut second = Table::new("versions".into(), &plans);
        second.resume(&first.text());
        assert!(second.is_done(&plans[0]) && !second.is_done(&plans[1]));
        second.enter(&plans[1], &outcome(&plans[1], Ok("fine".into())));
        assert_eq!(second.count(), "1 passed, 1 failed, 0 not run");
        assert!(!second.all_passed());
        assert!(second.text().contains("| `rping -v` | server | IPv4, MTU 1024 | 3 | FAILED: a / b |"), "{}", second.text());
    }

    #[test]
    fn results_of_other_versions_do_not_count() {
        let plans = plans();
        let mut old = Table::new("old".into(), &plans);
        old.enter(&plans[0], &outcome(&plans[0], Ok("fine".into())));
        let mut new = Table::new("new".into(), &plans);
        new.resume(&old.text());
        assert!(!new.is_done(&plans[0]));
    }
}
