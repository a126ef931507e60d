//! Files that commands read: text of bounded length.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Reads a text file of bounded length.
pub fn read(path: &Path, limit: u64) -> Result<String> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let kind = file.metadata().with_context(|| format!("cannot read {name}"))?;
    ensure!(kind.is_file(), "cannot read {name}: it is not a file");
    let mut text = String::new();
    file.take(limit + 1).read_to_string(&mut text).with_context(|| format!("cannot read {name}"))?;
    ensure!(text.len() as u64 <= limit, "{name} is longer than {limit} bytes");
    Ok(text)
}
