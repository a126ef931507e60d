//! Topologies in GML: `graph [ node [ id label ] edge [ source target bandwidth ] ]`, other keys are passed over. Edges are
//! taken both ways, each with the full bandwidth, which is in Mbit/s.

use super::ReadError;
use crate::id::SiteId;
use crate::wan::Wan;
use std::collections::BTreeMap;

/// Deepest nesting that is read.
const MAX_DEPTH: usize = 16;

/// Reads a network.
///
/// # Errors
/// [`ReadError`] with the line of the trouble; a network that is not connected is refused too.
pub fn parse(text: &str) -> Result<Wan, ReadError> {
    let tokens = tokens(text)?;
    let mut reader = Reader { tokens: &tokens, at: 0, wan: Wan::new(), ids: BTreeMap::new(), graphs: 0 };
    while reader.at < tokens.len() {
        let (line, key) = reader.next()?;
        if key == "graph" {
            reader.graphs += 1;
            if reader.graphs > 1 {
                return Err(ReadError::new(line, "a second graph"));
            }
            reader.graph()?;
        } else {
            reader.skip_value(0)?;
        }
    }
    reader.wan.check_connected().map_err(|error| ReadError::new(0, error))?;
    Ok(reader.wan)
}

struct Reader<'a> {
    tokens: &'a [(usize, String)],
    at: usize,
    wan: Wan,
    ids: BTreeMap<String, SiteId>,
    graphs: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Result<(usize, &str), ReadError> {
        let last = self.tokens.last().map_or(0, |(line, _)| *line);
        let (line, word) = self.tokens.get(self.at).ok_or_else(|| ReadError::new(last, "the input ends too early"))?;
        self.at += 1;
        Ok((*line, word))
    }

    fn open(&mut self) -> Result<usize, ReadError> {
        match self.next()? {
            (line, "[") => Ok(line),
            (line, other) => Err(ReadError::new(line, format!("{other:?} where [ was expected"))),
        }
    }

    fn graph(&mut self) -> Result<(), ReadError> {
        self.open()?;
        // Edges may come before the nodes they name.
        let mut edges = Vec::new();
        loop {
            let (line, key) = self.next()?;
            match key {
                "]" => break,
                "node" => {
                    let mut fields = self.fields(["id", "label"])?;
                    let id = fields[0].take().ok_or_else(|| ReadError::new(line, "a node without id"))?;
                    let name = fields[1].take().unwrap_or_else(|| id.clone());
                    let site = self.wan.add_site(&name).map_err(|error| ReadError::new(line, error))?;
                    if self.ids.insert(id.clone(), site).is_some() {
                        return Err(ReadError::new(line, format!("node id {id} appears twice")));
                    }
                }
                "edge" => edges.push((line, self.fields(["source", "target", "bandwidth"])?)),
                _ => self.skip_value(0)?,
            }
        }
        for (line, fields) in edges {
            let [Some(a), Some(b), Some(mbps)] = fields else {
                return Err(ReadError::new(line, "an edge needs source, target and bandwidth"));
            };
            let site = |id: &str| self.ids.get(id).copied().ok_or_else(|| ReadError::new(line, format!("unknown node {id:?}")));
            let mbps: f64 = super::number(line, "bandwidth", Some(&mbps))?;
            self.wan.add_edge(site(&a)?, site(&b)?, mbps / 1e3).map_err(|error| ReadError::new(line, error))?;
        }
        Ok(())
    }

    /// The values of some keys of a list; keys of other names are passed over.
    fn fields<const N: usize>(&mut self, keys: [&str; N]) -> Result<[Option<String>; N], ReadError> {
        self.open()?;
        let mut values = [const { None }; N];
        loop {
            let key = self.next()?.1.to_owned();
            if key == "]" {
                return Ok(values);
            }
            match keys.iter().position(|wanted| *wanted == key) {
                Some(index) => values[index] = Some(self.next()?.1.to_owned()),
                None => self.skip_value(0)?,
            }
        }
    }

    fn skip_value(&mut self, depth: usize) -> Result<(), ReadError> {
        let (line, value) = self.next()?;
        if value != "[" {
            return Ok(());
        }
        if depth == MAX_DEPTH {
            return Err(ReadError::new(line, "lists are nested too deep"));
        }
        while self.next()?.1 != "]" {
            self.skip_value(depth + 1)?;
        }
        Ok(())
    }
}

/// Words, brackets, and texts without their quotation marks.
fn tokens(text: &str) -> Result<Vec<(usize, String)>, ReadError> {
    let mut tokens = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut rest = line.trim_start();
        while !rest.is_empty() && !rest.starts_with('#') {
            let token;
            if let Some(quoted) = rest.strip_prefix('"') {
                let end = quoted.find('"').ok_or_else(|| ReadError::new(index + 1, "a text does not end on its line"))?;
                (token, rest) = (&quoted[..end], &quoted[end + 1..]);
            } else if rest.starts_with(['[', ']']) {
                (token, rest) = rest.split_at(1);
            } else {
                let end = rest.find(|c: char| c.is_whitespace() || "[]\"".contains(c)).unwrap_or(rest.len());
                (token, rest) = rest.split_at(end);
            }
            tokens.push((index + 1, token.to_owned()));
            rest = rest.trim_start();
        }
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_graph_is_read() {
        let text = "Creator \"x y\"\ngraph [\n label \"t\" meta [ a 1 b [ c 2 ] ]\n edge [ source 1 target 2 bandwidth 2500 ]\n\
                    node [ id 1 label \"New York\" ] node [ id 2 ]\n]\n";
        let wan = parse(text).unwrap();
        assert_eq!(wan.sites(), ["New York", "2"]);
        assert_eq!(wan.capacities(), [2.5, 2.5]);
    }

    #[test]
    fn bad_graphs_name_their_line() {
        for (text, part) in [
            ("graph [ node [ id 1 ]", "ends too early"),
            ("graph [ node [ label \"a\" ] ]", "without id"),
            ("graph [ node [ id 1 ] node [ id 2 ] edge [ source 1 target 3 bandwidth 1 ] ]", "unknown node \"3\""),
            ("graph [ node [ id 1 ] node [ id 2 ] edge [ source 1 target 2 ] ]", "needs source"),
            ("graph [ node [ id 1 ] node [ id 2 ] edge [ source 1 target 2 bandwidth 0 ] ]", "Capacity 0"),
            ("graph [ node [ id 1 ] node [ id 2 ] ]", "No way"),
            ("graph [ label \"x", "does not end"),
            ("graph graph", "was expected"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.reason.contains(part), "{text:?} gave {error}");
        }
        let deep = format!("x {}", "[ a ".repeat(100_000));
        assert!(parse(&deep).unwrap_err().reason.contains("too deep"));
    }
}
