//! A real device behind an IOMMU does the DMA: it reaches what is pinned, nothing else, and never memory of a former region.
//!
//! Needs QEMU's `edu` device bound to `vfio-pci` in a machine with an IOMMU, its sysfs path in `PVDMA_VFIO_DEVICE`, and no
//! more than [`ENTRIES`] maps per container. `tests/tests/guest_vfio.rs` boots such a machine and runs this in it.

mod guest;

use guest::{BLOCK, Guest, MIB, READ_WRITE, range};
use nix::errno::Errno;
use pvdma::{Config, GpaRange, Instant, MapCache, PinError, Protection, RegionInit, VfioPinner};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;
use vfio_ioctls::{VfioContainer, VfioDevice, VfioOps};

const NOW: Instant = Instant::from_nanos(0);
/// The guest's memory: within the 28 bits of address that the device has.
const BASE: u64 = 16 * MIB;
const LEN: u64 = 16 * BLOCK;
/// Maps per container (`dma_entry_limit`).
const ENTRIES: u64 = 4;

/// QEMU's educational PCI device: it copies between memory and a buffer of its own.
struct Edu(VfioDevice);

impl Edu {
    const BAR: u32 = 0;
    const CONFIG: u32 = 7;
    const BUFFER: u64 = 0x40000;

    fn new(path: &std::path::Path, container: Arc<dyn VfioOps>) -> Edu {
        let device = VfioDevice::new(path, container, false).expect("the device is bound to vfio-pci");
        // Memory space and bus master.
        device.region_write(Edu::CONFIG, &[6, 0], 4);
        let edu = Edu(device);
        assert_eq!(edu.read(0) & 0xFFFF, 0x00ED, "an edu device");
        edu
    }

    fn read(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.0.region_read(Edu::BAR, &mut word, at);
        u32::from_le_bytes(word)
    }

    fn write(&self, at: u64, value: u64) {
        let word = u32::try_from(value).expect("registers are used in 32 bits here");
        self.0.region_write(Edu::BAR, &word.to_le_bytes(), at);
    }

    fn copy(&self, from: u64, to: u64, bytes: u64, command: u64) {
        for (at, value) in [(0x80, from), (0x88, to), (0x90, bytes), (0x98, command)] {
            self.write(at, value);
        }
        while self.read(0x98) & 1 != 0 {
            sleep(Duration::from_millis(5));
        }
    }

    /// The device reads one byte of memory.
    fn load(&self, gpa: u64) {
        self.copy(gpa, Edu::BUFFER, 1, 1);
    }

    /// The device writes that byte to memory.
    fn store(&self, gpa: u64) {
        self.copy(Edu::BUFFER, gpa, 1, 3);
    }
}

fn block(at: u64) -> GpaRange {
    range(BASE + at * BLOCK, BLOCK)
}

#[test]
#[ignore = "runs in a guest that has such a device: the test guest_vfio"]
fn a_device_reaches_what_is_pinned_and_nothing_else() {
    let path = PathBuf::from(std::env::var_os("PVDMA_VFIO_DEVICE").expect("PVDMA_VFIO_DEVICE names a device for VFIO"));
    let container = Arc::new(VfioContainer::new(None).expect("VFIO type 1"));
    let edu = Edu::new(&path, container.clone());
    let pinner = Arc::new(VfioPinner::new(container));
    let cache = MapCache::new(Config { max_idle: Duration::ZERO, ..Config::default() }, pinner);
    let memory = Guest::new(LEN);
    cache.map(memory.at(BASE, 0, LEN)).expect("free");
    let at = |offset: u64| BASE + offset;

    // Both ways within a pinned range that crosses two blocks.
    memory.write(BLOCK - 1, 0x5A);
    let guard = cache.pin(NOW, range(at(BLOCK - 8), 16), READ_WRITE).expect("mapped");
    assert_eq!(memory.resident(), 2 * BLOCK);
    edu.load(at(BLOCK - 1));
    edu.store(at(BLOCK + 3));
    assert_eq!(memory.read(BLOCK + 3), 0x5A);

    // Not beyond it, although the guest's memory goes on there.
    edu.store(at(2 * BLOCK));
    assert_eq!(memory.read(2 * BLOCK), 0);

    // Idle blocks are within reach until they are released.
    drop(guard);
    edu.store(at(BLOCK + 4));
    assert_eq!(memory.read(BLOCK + 4), 0x5A);
    assert_eq!(cache.release_idle(NOW), 2 * BLOCK);
    edu.store(at(BLOCK + 5));
    assert_eq!(memory.read(BLOCK + 5), 0, "out of reach");

    // H2: other memory comes to the same address while a registration lives.
    let old = cache.pin(NOW, block(0), READ_WRITE).expect("mapped");
    cache.unmap(range(BASE, LEN)).expect("all can be unpinned");
    edu.store(at(100));
    assert_eq!(memory.read(100), 0, "nothing is pinned any more");
    let successor = Guest::new(LEN);
    cache.map(successor.at(BASE, 0, LEN)).expect("free again");
    let new = cache.pin(NOW, block(0), READ_WRITE).expect("mapped");
    edu.store(at(100));
    assert_eq!((memory.read(100), successor.read(100)), (0, 0x5A));
    assert!(old.is_stale() && !new.is_stale());

    // H6: the container has few maps. Idle blocks make room; held ones do not.
    let held: Vec<_> = (1..ENTRIES).map(|at| cache.pin(NOW, block(at), READ_WRITE).expect("a map is left")).collect();
    let error = cache.pin(NOW, block(ENTRIES), READ_WRITE).expect_err("no map is left");
    let PinError::Pinner { source, .. } = error else { panic!("{error}") };
    assert_eq!((source.errno, source.limit), (Errno::ENOSPC, true), "{source}");
    drop(held);
    let _more = cache.pin(NOW, block(ENTRIES), READ_WRITE).expect("block 1 makes room");
    assert_eq!(cache.stats().evictions_room, 1);
    edu.store(at(ENTRIES * BLOCK));
    edu.store(at(BLOCK));
    assert_eq!((successor.read(ENTRIES * BLOCK), successor.read(BLOCK)), (0x5A, 0));

    // Rights that the guest did not give are not given to the device.
    let rom = Guest::new(BLOCK);
    cache.map(RegionInit { protection: Protection::READ, ..rom.at(128 * MIB, 0, BLOCK) }).expect("free");
    let error = cache.pin(NOW, range(128 * MIB, 1), Protection::READ).expect_err("read-only");
    assert!(matches!(error, PinError::Pinner { ref source, .. } if source.errno == Errno::EACCES), "{error}");
    println!("the device reached what was pinned");
}
