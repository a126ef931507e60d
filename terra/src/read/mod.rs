//! Readers of topologies and traces. Their input is hostile: everything is bounded and every error names its line.

pub mod fb2010;
pub mod gml;
pub mod jobs;
pub mod links;

use std::io::Read;
use thiserror::Error;

/// Longest input read, bytes.
pub const MAX_INPUT_BYTES: usize = 64 << 20;

/// What is wrong with an input, and where.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("Line {line}: {reason}")]
pub struct ReadError {
    /// Line number, from 1; 0 if the input as a whole is wrong.
    pub line: usize,
    /// What is wrong, with the offending value.
    pub reason: String,
}

impl ReadError {
    pub(crate) fn new(line: usize, reason: impl ToString) -> Self {
        Self { line, reason: reason.to_string() }
    }
}

/// Reads all text of an input, which must be UTF-8 and not longer than [`MAX_INPUT_BYTES`].
///
/// # Errors
/// [`ReadError`] of line 0 for input that cannot be read, is too long or no text.
pub fn text(input: impl Read) -> Result<String, ReadError> {
    let mut text = String::new();
    let limit = MAX_INPUT_BYTES as u64 + 1;
    input.take(limit).read_to_string(&mut text).map_err(|error| ReadError::new(0, error))?;
    if text.len() > MAX_INPUT_BYTES {
        return Err(ReadError::new(0, format!("input is longer than {MAX_INPUT_BYTES} bytes")));
    }
    Ok(text)
}

/// Lines that say something, with their numbers: no empty ones, no comments (from `#` on at the start of a line).
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// A number from a word.
pub(crate) fn number<T: std::str::FromStr>(line: usize, what: &str, word: Option<&str>) -> Result<T, ReadError> {
    let word = word.ok_or_else(|| ReadError::new(line, format!("{what} is missing")))?;
    word.parse().map_err(|_| ReadError::new(line, format!("{what} {word:?} is no number of its kind")))
}
