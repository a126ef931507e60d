//! The side channel of two test programs: lines over TCP, in step.

use crate::{Outcome, Words};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use tests::verbs::Address;

/// The other program.
pub struct Peer {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    /// Whether this side listened.
    pub is_server: bool,
}

impl Peer {
    /// `--listen PORT` waits for the other, `--connect HOST:PORT` goes there.
    pub fn meet(words: &Words) -> Outcome<Peer> {
        let (stream, is_server) = match (words.text("listen"), words.text("connect")) {
            (Some(port), None) => (TcpListener::bind(format!("0.0.0.0:{port}"))?.accept()?.0, true),
            (None, Some(address)) => (TcpStream::connect(address)?, false),
            _ => return Err("either --listen or --connect".into()),
        };
        stream.set_nodelay(true)?;
        let reader = BufReader::new(stream.try_clone()?);
        Ok(Peer { stream, reader, is_server })
    }

    /// Sends a line.
    pub fn say(&mut self, line: &str) -> Outcome<()> {
        Ok(self.stream.write_all(format!("{line}\n").as_bytes())?)
    }

    /// Receives a line; an error when the other is gone.
    pub fn hear(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err("the other program is gone".into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Sends numbers and receives as many.
    pub fn swap<const N: usize>(&mut self, own: [u64; N]) -> Outcome<[u64; N]> {
        self.say(&own.map(|number| number.to_string()).join(" "))?;
        let line = self.hear()?;
        let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        numbers.try_into().map_err(|_| format!("not {N} numbers: {line}").into())
    }

    /// Exchanges addresses of queue pairs.
    pub fn swap_address(&mut self, own: &Address) -> Outcome<Address> {
        let gid = u128::from_be_bytes(own.gid);
        let [high, low, qpn, psn] = self.swap([(gid >> 64) as u64, gid as u64, own.qpn.into(), own.psn.into()])?;
        let gid = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
        Ok(Address { gid, qpn: u32::try_from(qpn)?, psn: u32::try_from(psn)? })
    }
}
