//! The data of FlowGroups at a site: files below one folder, or made-up bytes; and the record of what is in place.
//!
//! Names of files come from others: they are opened below the folder, through no symbolic link. What is in place is recorded after
//! the bytes themselves were written, in one byte per chunk, so that the record never says too much; an agent that is killed reads
//! it again. The system may write the two to the disk in any order: records of before its last start are worth nothing. There are
//! only so many records; without one a group is just received from its beginning.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use terra::agent::{CHUNK_BYTES, Chunks, Group, Part};

/// Longest group whose chunks are recorded, bytes (1 TiB).
const MAX_BYTES: u64 = 1 << 40;

/// Most records that are kept, and the end of their names.
const MAX_RECORDS: usize = 10_000;
const RECORD: &str = ".received";

/// The folders of one agent.
pub struct Folders {
    files: Option<File>,
    state: PathBuf,
    /// Names this start of the system, before the names of records.
    boot: String,
    records: Cell<usize>,
}

/// A FlowGroup at one end.
pub struct Content {
    group: Group,
    parts: Vec<(Part, Option<File>)>,
    record: Option<File>,
}

impl Folders {
    /// Opens both; that of the records is made.
    pub fn open(files: Option<&Path>, state: &Path) -> Result<Self> {
        fs::create_dir_all(state).with_context(|| format!("cannot make {}", state.display()))?;
        let open = |path: &Path| File::open(path).with_context(|| format!("cannot open {}", path.display()));
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("cannot tell this start of the system")?;
        let files = files.map(open).transpose()?;
        let folders = Self { files, state: state.to_owned(), boot: boot.trim().to_owned(), records: Cell::new(0) };
        folders.prune(MAX_RECORDS)?;
        Ok(folders)
    }

    /// Removes records of before the last start of the system, and the oldest until at most so many are left.
    fn prune(&self, most: usize) -> Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.state).with_context(|| format!("cannot list {}", self.state.display()))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.ends_with(RECORD) {
                continue;
            }
            if name.starts_with(&self.boot) {
                kept.push((entry.metadata()?.modified()?, entry.path()));
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        kept.sort();
        let many = kept.len().saturating_sub(most);
        kept.drain(..many).try_for_each(|(_, path)| fs::remove_file(path))?;
        self.records.set(kept.len());
        Ok(())
    }

    /// A group that is to be sent.
    pub fn source(&self, group: Group, parts: &[Part]) -> Result<Content> {
        let file = |part: &Part| {
            let Some(name) = &part.file else { return Ok((part.clone(), None)) };
            let file = self.below(name, OFlag::O_RDONLY)?;
            let length = file.metadata()?.len();
            ensure!(length >= part.bytes, "{name} has {length} bytes, and {} are to be sent", part.bytes);
            Ok((part.clone(), Some(file)))
        };
        Ok(Content { group, parts: parts.iter().map(file).collect::<Result<_>>()?, record: None })
    }

    /// A group that is to be received, and what is there of it.
    pub fn destination(&self, group: Group, parts: &[Part]) -> Result<(Content, Chunks)> {
        let bytes = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.bytes)).filter(|bytes| *bytes <= MAX_BYTES);
        let bytes = bytes.with_context(|| format!("the group is longer than {MAX_BYTES} bytes"))?;
        let mut chunks = Chunks::none(bytes).expect("that is less than the most");
        let token = parts.first().map_or(0, |part| part.token);
        let path = self.state.join(format!("{}-{}-{}-{token}{RECORD}", self.boot, group.0, group.1));
        let known = path.exists();
        if !known && self.records.replace(self.records.get() + 1) >= MAX_RECORDS {
            self.prune(MAX_RECORDS / 2)?;
        }
        let record = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let record = record.with_context(|| format!("cannot open {}", path.display()))?;
        let mut marks = Vec::new();
        (&record).take(chunks.count()).read_to_end(&mut marks)?;
        (0..).zip(&marks).filter(|(_, mark)| **mark == 1).for_each(|(chunk, _)| _ = chunks.add(chunk));
        let file = |part: &Part| {
            let Some(name) = part.to_file.as_ref().or(part.file.as_ref()) else { return Ok((part.clone(), None)) };
            let file = self.below(name, OFlag::O_RDWR | OFlag::O_CREAT)?;
            if !known || file.metadata()?.len() != part.bytes {
                file.set_len(part.bytes)?;
            }
            Ok((part.clone(), Some(file)))
        };
        let parts = parts.iter().map(file).collect::<Result<_>>()?;
        Ok((Content { group, parts, record: Some(record) }, chunks))
    }

    fn below(&self, name: &str, flags: OFlag) -> Result<File> {
        let folder = self.files.as_ref().context("this agent was given no folder for files (--files)")?;
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        let how = if flags.contains(OFlag::O_CREAT) { how.mode(Mode::from_bits_truncate(0o640)) } else { how };
        let file = File::from(
            openat2(folder.as_fd(), name, how)
                .with_context(|| format!("cannot open file {name:?} below the agent's folder"))?,
        );
        ensure!(file.metadata()?.is_file(), "{name:?} is not a file");
        Ok(file)
    }
}

impl Content {
    /// The bytes of a chunk.
    pub fn read(&self, chunk: u64, bytes: &mut [u8]) -> Result<()> {
        self.each(chunk, bytes.len(), |file, offset, at, range| {
            let bytes = &mut bytes[range];
            match file {
                Some(file) => file.read_exact_at(bytes, offset).context("cannot read a file that is to be sent"),
                None => {
                    make_up(self.group, at, bytes);
                    Ok(())
                }
            }
        })
    }

    /// Puts a chunk in place: writes it, or, if its bytes are made up, compares it.
    pub fn place(&self, chunk: u64, bytes: &[u8]) -> Result<()> {
        self.each(chunk, bytes.len(), |file, offset, at, range| {
            let bytes = &bytes[range];
            match file {
                Some(file) => file.write_all_at(bytes, offset).context("cannot write a file that is received"),
                None => {
                    let mut wanted = vec![0; bytes.len()];
                    make_up(self.group, at, &mut wanted);
                    ensure!(wanted == bytes, "chunk {chunk} of coflow {} is not what was sent", self.group.0);
                    Ok(())
                }
            }
        })?;
        let record = self.record.as_ref().expect("a group that is received has a record");
        record.write_all_at(&[1], chunk).context("cannot record what was received")
    }

    /// Everything is in place: brings it to the disk.
    pub fn sync(&self) -> Result<()> {
        self.parts.iter().filter_map(|(_, file)| file.as_ref()).try_for_each(File::sync_data)?;
        Ok(self.record.as_ref().map_or(Ok(()), File::sync_data)?)
    }

    /// The pieces of a chunk: file, offset in it, offset in the group, range in the chunk.
    fn each(
        &self,
        chunk: u64,
        length: usize,
        mut piece: impl FnMut(Option<&File>, u64, u64, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let start = chunk * CHUNK_BYTES;
        let end = start + length as u64;
        let mut part_start = 0;
        for (part, file) in &self.parts {
            let part_end = part_start + part.bytes;
            let (from, to) = (start.max(part_start), end.min(part_end));
            if from < to {
                piece(file.as_ref(), from - part_start, from, (from - start) as usize..(to - start) as usize)?;
            }
            part_start = part_end;
        }
        ensure!(end <= part_start, "chunk {chunk} lies behind the end of coflow {}", self.group.0);
        Ok(())
    }
}

/// Bytes that every agent makes up in the same way, from the group and their place in it.
fn make_up(group: Group, at: u64, bytes: &mut [u8]) {
    let seed = group.0.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ group.1 as u64;
    let (mut word, mut skip) = (at / 8, (at % 8) as usize);
    let mut rest = bytes;
    while !rest.is_empty() {
        // SplitMix64.
        let mut z = seed.wrapping_add(word.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let made = (z ^ (z >> 31)).to_le_bytes();
        let count = (8 - skip).min(rest.len());
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&made[skip..skip + count]);
        (word, skip, rest) = (word + 1, 0, later);
    }
}

#[cfg(test)]
mod tests {
    use terra::CoflowId;

    use super::*;

    const GROUP: Group = (CoflowId(7), 2);

    fn part(bytes: u64, file: Option<&str>, to_file: Option<&str>) -> Part {
        Part { bytes, token: 1, file: file.map(str::to_owned), to_file: to_file.map(str::to_owned) }
    }

    #[test]
    fn files_and_made_up_bytes_arrive_and_are_remembered() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let data: Vec<u8> = (0..300_000u32).map(|at| (at % 241) as u8).collect();
        fs::write(a.path().join("x"), &data).unwrap();
        let parts = [part(1_000, None, None), part(300_000, Some("x"), Some("y")), part(77, None, None)];
        let source = Folders::open(Some(a.path()), &a.path().join("state")).unwrap().source(GROUP, &parts).unwrap();
        let folders = Folders::open(Some(b.path()), &b.path().join("state")).unwrap();
        let (content, mut chunks) = folders.destination(GROUP, &parts).unwrap();
        assert_eq!((chunks.count(), chunks.held_bytes()), (3, 0));
        for chunk in [2, 0] {
            let mut bytes = vec![0; chunks.length(chunk) as usize];
            source.read(chunk, &mut bytes).unwrap();
            content.place(chunk, &bytes).unwrap();
            chunks.add(chunk);
        }
        // As after a kill.
        let (content, again) = folders.destination(GROUP, &parts).unwrap();
        assert_eq!(again, chunks);
        let mut bytes = vec![0; CHUNK_BYTES as usize];
        source.read(1, &mut bytes).unwrap();
        content.place(1, &bytes).unwrap();
        content.sync().unwrap();
        assert_eq!(fs::read(b.path().join("y")).unwrap(), data);
        source.read(0, &mut bytes).unwrap();
        bytes[999] ^= 1;
        assert!(content.place(0, &bytes).is_err(), "made-up bytes are compared");
        // Of two records the older one goes, and others of another start of the system.
        let other: Vec<Part> = parts.iter().map(|part| Part { token: 3, ..part.clone() }).collect();
        fs::write(b.path().join("state/0-7-2-1.received"), [1; 3]).unwrap();
        folders.destination(GROUP, &other).unwrap();
        folders.prune(1).unwrap();
        assert_eq!(fs::read_dir(b.path().join("state")).unwrap().count(), 1);
        assert_eq!(folders.destination(GROUP, &parts).unwrap().1.held_bytes(), 0);
        // Another job of the same number has received nothing.
        let other: Vec<Part> = parts.iter().map(|part| Part { token: 2, ..part.clone() }).collect();
        assert_eq!(folders.destination(GROUP, &other).unwrap().1.held_bytes(), 0);
    }

    #[test]
    fn names_do_not_lead_out_of_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("in");
        fs::create_dir(&inside).unwrap();
        fs::write(dir.path().join("secret"), "x").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), inside.join("link")).unwrap();
        let folders = Folders::open(Some(&inside), &dir.path().join("state")).unwrap();
        for name in ["../secret", "link", "/etc/passwd", "", ".", "a/../../secret", "no/such"] {
            assert!(folders.source(GROUP, &[part(1, Some(name), None)]).is_err(), "{name:?}");
            assert!(folders.destination(GROUP, &[part(1, None, Some(name))]).is_err(), "{name:?}");
        }
        assert_eq!(fs::read(dir.path().join("secret")).unwrap(), b"x");
        let none = Folders::open(None, &dir.path().join("state")).unwrap();
        assert!(none.source(GROUP, &[part(1, Some("x"), None)]).is_err());
    }
}
