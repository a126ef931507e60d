//! How results and errors are printed.

use std::io::{ErrorKind, Write};

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};

/// The reader of our output has closed it: there is nobody left to tell anything.
#[derive(Debug, thiserror::Error)]
#[error("the reader of the output has gone")]
pub struct ReaderGone;

/// Prints to standard output. Fails with [`ReaderGone`] when nobody reads it any more.
pub fn print(text: impl AsRef<str>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_ref().as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        other => Ok(other?),
    }
}

/// Prints one JSON value.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    print(serde_json::to_string_pretty(value)? + "\n")
}

/// How far `len` pieces of work have come, and what is said of it. On a terminal only; elsewhere nothing is drawn.
pub fn progress_bar(len: u64, pieces: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(&format!("{{bar:40}} {{pos}}/{{len}} {pieces}  {{msg}}"));
    ProgressBar::new(len).with_style(style.expect("the template is sound"))
}

/// A table without lines: a header row, then rows; columns with an index in `right` are aligned to the right.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>, right: &[usize]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header).add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    lines.concat()
}

/// An error and its causes in one line, without saying anything twice.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn causes_are_chained_once() {
        let error = Err::<(), _>(anyhow::anyhow!("no such file")).context("cannot open x: no such file").context("demo");
        assert_eq!(sentence(&error.unwrap_err()), "demo: cannot open x: no such file");
    }

    #[test]
    fn tables_have_no_trailing_blanks() {
        let text = table(["NAME", "N"], [["a".to_owned(), "10".to_owned()], ["long".to_owned(), "5".to_owned()]], &[1]);
        assert_eq!(text, "NAME   N\na     10\nlong   5\n");
    }
}
