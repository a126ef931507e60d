//! What experiments came to, line by line.

use super::experiments::{Experiment, Outcome};
use super::question::Question;
use serde::Serialize;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The experiment.
    pub id: &'static str,
    /// Its set-up.
    pub what: String,
    /// What is measured.
    pub metric: &'static str,
    /// What the tenant gets alone: µs, Gb/s or million messages per second; null where that means nothing.
    pub alone: Option<f64>,
    /// Without isolation.
    pub off: f64,
    /// With Justitia.
    pub justitia: f64,
    /// With ours.
    pub ours: f64,
    /// What the paper has without isolation.
    pub published_off: Option<f64>,
    /// What it has with Justitia.
    pub published_justitia: Option<f64>,
    /// What ours has to reach.
    pub bar: String,
    /// Whether it does.
    pub meets_bar: bool,
}

/// The lines of an experiment.
pub fn rows(experiment: &Experiment, outcome: &Outcome) -> Vec<Row> {
    let finite = |value: f64| Some(value).filter(|value| value.is_finite());
    let row = |(question, [alone, off, justitia, ours]): &(Question, [f64; 4])| Row {
        id: experiment.id,
        what: experiment.what.clone(),
        metric: question.metric.name(),
        alone: finite(*alone),
        off: *off,
        justitia: *justitia,
        ours: *ours,
        published_off: question.published.and_then(|(off, _)| off),
        published_justitia: question.published.map(|(_, justitia)| justitia),
        bar: question.bar.to_string(),
        meets_bar: question.bar.is_met(*ours),
    };
    outcome.iter().map(row).collect()
}
