//! A guest with an IOMMU and a device behind it, in which pvdma's own test of pinning through VFIO runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tests::vm::{Guest, GuestOptions, Image};
use tests::{one_at_a_time, skip};

/// How long the test may take in the guest. It takes seconds; emulation on a busy machine takes its time.
const LIMIT: Duration = Duration::from_secs(180);

#[test]
fn a_device_behind_an_iommu_reaches_what_is_pinned() {
    let _turn = one_at_a_time();
    let Some(image) = Image::find() else {
        return skip("no guest image (tests/vm/image makes it, and needs a way to a Debian mirror)");
    };
    let program = pvdma_test();
    let options = GuestOptions {
        qemu: ["-device", "intel-iommu,intremap=off", "-device", "edu"].map(str::to_owned).to_vec(),
        kernel: "intel_iommu=on".into(),
        bin: program.parent().map(ToOwned::to_owned),
        ..GuestOptions::default()
    };
    let guest = Guest::boot(&image, None, &options);
    let name = program.file_name().expect("a program has a name").to_string_lossy();
    // QEMU's edu device is 1234:11e8. Few maps per container, so that the test meets the limit.
    let script = format!(
        "set -e
        modprobe vfio_iommu_type1 allow_unsafe_interrupts=1 dma_entry_limit=4
        modprobe vfio-pci
        device=$(grep -l 0x11e8 /sys/bus/pci/devices/*/device)
        device=${{device%/device}}
        echo vfio-pci >$device/driver_override
        echo ${{device##*/}} >/sys/bus/pci/drivers_probe
        PVDMA_VFIO_DEVICE=$device /mnt/bin/{name} --ignored --nocapture --test-threads 1"
    );
    let ended = guest.run(&script, LIMIT);
    let reached = ended.output.contains("the device reached what was pinned");
    assert!(ended.status.success() && reached, "{}\n{}", ended.status, ended.output);
}

/// The test program of pvdma, built if need be; with the features of the whole workspace, as its tests are.
fn pvdma_test() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--workspace", "--test", "vfio", "--no-run", "--quiet", "--message-format=json"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("cargo can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let programs = messages.filter(|message| message["target"]["name"] == "vfio");
    let path = programs.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
    path.unwrap_or_else(|| panic!("the test was not built: {}", output.status))
}
