//! `perftest --memory cuda`: memory of a GPU through the CUDA driver, which is found at run time. No test machine has a GPU: a library
//! compiled here has the driver's name and functions, and exports memfds through the same code.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::matrix::{free_port, wait_until_listening};
use tests::{Daemon, binary, missing_program, one_at_a_time, skip};

const LIMIT: Duration = Duration::from_secs(60);

/// A daemon with two devices, and the stand-in in its folder, if it can be compiled.
struct Place {
    daemon: Daemon,
    log: PathBuf,
}

impl Place {
    fn new() -> Option<Place> {
        if missing_program(&["cc"]) {
            return None;
        }
        let mut daemon = Daemon::start();
        daemon.add_device("a", "203.0.113.1");
        daemon.add_device("b", "203.0.113.2");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/libcuda.c");
        let library = daemon.folder().join("libcuda.so.1");
        let output =
            Command::new("cc").args(["-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
        let output = output.expect("cc can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let log = daemon.folder().join("cuda.log");
        Some(Place { daemon, log })
    }

    /// Runs both ends, with the stand-in if it is asked for; what the initiator prints, and whether it succeeded.
    fn perftest(&mut self, words: &[&str], library: bool, no_dma_buf: bool) -> (bool, String) {
        let (port, folder, log) = (free_port().to_string(), self.daemon.folder().to_owned(), self.log.clone());
        let perftest = binary().with_file_name("perftest").display().to_string();
        let settings = |command: &mut Command| {
            if library {
                command.env("LD_LIBRARY_PATH", &folder).env("FAKE_CUDA_LOG", &log);
            }
            if no_dma_buf {
                command.env("FAKE_CUDA_NO_DMA_BUF", "1");
            }
        };
        let common = [perftest.as_str(), words[0], words[1], "--port", &port];
        let mut target = self.daemon.run_with("a", &common, settings);
        wait_until_listening(&mut target, &port);
        let own = [&common[..], &["--iters", "200"], &words[2..], &["127.0.0.1"]].concat();
        let ended = self.daemon.run_with("b", &own, settings).end(LIMIT);
        // One that could not connect leaves the other waiting.
        if target.wait(Duration::from_secs(2)).is_none() {
            target.kill();
        }
        (ended.status.success(), ended.output)
    }

    /// How often the stand-in noted this.
    fn count(&self, what: &str) -> usize {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().filter(|line| line.split(' ').next() == Some(what)).count()
    }
}

#[test]
fn memory_of_a_gpu_is_moved() {
    let _turn = one_at_a_time();
    let Some(mut place) = Place::new() else { return };
    println!("the exporter was a memfd behind a stand-in for CUDA");
    let runs: [&[&str]; 5] = [
        &["write", "bw", "--memory", "cuda:1"],
        &["read", "bw", "--memory", "cuda"],
        &["send", "lat", "--memory", "cuda"],
        &["read", "lat", "--memory", "cuda"],
        &["atomic", "lat", "--memory", "cuda"],
    ];
    for words in runs {
        let (succeeded, output) = place.perftest(words, true, false);
        assert!(succeeded, "{words:?}: {output}");
        assert!(output.lines().any(|line| line.starts_with(|c: char| c == ' ' || c.is_ascii_digit())), "{words:?}: {output}");
    }
    for what in ["retain", "allocate", "export", "free", "release"] {
        assert_eq!(place.count(what), 2 * runs.len(), "each end of each run: {what}");
    }
    let log = std::fs::read_to_string(&place.log).expect("a log");
    assert_eq!(log.matches("retain 0x1").count(), 2, "GPU 1 was asked for once, at both ends:\n{log}");
    for device in ["a", "b"] {
        place.daemon.wait_until_unused(device, LIMIT);
        let counters = place.daemon.device(device)["counters"].clone();
        assert_eq!(counters["revoked_regions"], 0, "everything was ended before it was freed: {counters}");
    }
}

#[test]
fn what_cannot_be_is_explained() {
    let _turn = one_at_a_time();
    let Some(mut place) = Place::new() else { return };
    for (words, no_dma_buf, wanted) in [
        (["write", "bw", "--memory", "cuda:2"], false, "there is no GPU 2: the driver has 2"),
        (["write", "bw", "--memory", "cuda"], true, "cannot export memory as a dma-buf"),
        (["write", "lat", "--memory", "cuda"], false, "use send lat or read lat"),
        (["write", "bw", "--memory", "gpu"], false, "heap, shared, cuda or cuda:N"),
    ] {
        let (succeeded, output) = place.perftest(&words, true, no_dma_buf);
        assert!(!succeeded && output.contains(wanted), "{words:?}: {output}");
    }
    assert_eq!(place.count("allocate"), place.count("free"));
    if Path::new("/dev/nvidiactl").exists() {
        return skip("this machine has NVIDIA's driver, so that it cannot be seen what happens without");
    }
    let (succeeded, output) = place.perftest(&["write", "bw", "--memory", "cuda"], false, false);
    assert!(!succeeded && output.contains("no CUDA driver on this machine"), "{output}");
}
