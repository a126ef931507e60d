//! Our own topology format, one statement a line:
//!
//! ```text
//! # comment
//! site NAME
//! edge NAME NAME GBPS     both directions, each with this capacity
//! link NAME NAME GBPS     from the first to the second only
//! ```

use super::{ReadError, lines, number};
use crate::wan::{Wan, WanError};
use std::fmt::Write;

/// Longest site name, bytes.
const MAX_NAME: usize = 64;

/// Reads a network.
///
/// # Errors
/// [`ReadError`] with the line; a network that is not connected is refused too.
pub fn parse(text: &str) -> Result<Wan, ReadError> {
    let mut wan = Wan::new();
    for (line, statement) in lines(text) {
        let at = |error: WanError| ReadError::new(line, error);
        let mut words = statement.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let mut name = || {
            let name = words.next().ok_or_else(|| ReadError::new(line, "a site name is missing"))?;
            if name.len() > MAX_NAME {
                return Err(ReadError::new(line, format!("a site name is longer than {MAX_NAME} bytes")));
            }
            Ok(name)
        };
        match kind {
            "site" => {
                wan.add_site(name()?).map_err(at)?;
            }
            "edge" | "link" => {
                let (a, b) = (wan.site(name()?).map_err(at)?, wan.site(name()?).map_err(at)?);
                let gbps = number(line, "capacity", words.next())?;
                if kind == "edge" { wan.add_edge(a, b, gbps).map(drop) } else { wan.add_link(a, b, gbps).map(drop) }
                    .map_err(at)?;
            }
            other => return Err(ReadError::new(line, format!("{other:?} is neither site, edge nor link"))),
        }
        if let Some(word) = words.next() {
            return Err(ReadError::new(line, format!("{word:?} is too much")));
        }
    }
    wan.check_connected().map_err(|error| ReadError::new(0, error))?;
    Ok(wan)
}

/// Writes a network such that [`parse`] gives it back.
pub fn write(wan: &Wan) -> String {
    let mut text = String::new();
    for site in wan.sites() {
        writeln!(text, "site {site}").expect("writing to a string");
    }
    for link in wan.links() {
        let (from, to) = (wan.name(link.from), wan.name(link.to));
        writeln!(text, "link {from} {to} {}", link.capacity_gbps).expect("writing to a string");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let wan = parse("site a\n site b # no comment here\n").unwrap_err();
        assert_eq!((wan.line, wan.reason.as_str()), (2, "\"#\" is too much"));
        let wan = parse("# x\nsite a\nsite b\nsite c\nedge a b 5\nlink b c 0.25\nlink c a 1\n").unwrap();
        assert_eq!(parse(&write(&wan)).unwrap(), wan);
    }

    #[test]
    fn bad_input_names_its_line() {
        for (text, line, part) in [
            ("site a\nsite a", 2, "twice"),
            ("site a\nedge a b 1", 2, "Unknown site \"b\""),
            ("site a\nsite b\nedge a b 0", 3, "Capacity 0"),
            ("site a\nsite b\nedge a b NaN", 3, "Capacity NaN"),
            ("site a\nsite b\nedge a b", 3, "capacity is missing"),
            ("site a\nsite b\nedge a b x", 3, "no number"),
            ("site a\nsite b\nedge a b 1\nlink b a 1", 4, "Second link"),
            ("road a b", 1, "\"road\""),
            ("site a\nsite b\nlink a b 1", 0, "No way from \"b\" to \"a\""),
            ("", 0, "at least two sites"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.line == line && error.reason.contains(part), "{text:?} gave {error}");
        }
    }
}
