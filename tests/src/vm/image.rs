//! The guest image: where it lies, and how its programs run on the host.

use std::path::{Path, PathBuf};
use std::process::Command;

/// An image that `tests/vm/image` made.
#[derive(Clone, Debug)]
pub struct Image {
    folder: PathBuf,
}

impl Image {
    /// The image, or `None` if it is absent or older than what it is made from.
    pub fn find() -> Option<Image> {
        Self::from_script(&["--find"])
    }

    /// The image for a test that runs as root in network namespaces, or `None` after the test was skipped.
    pub fn or_skip() -> Option<Image> {
        if lacks_network() {
            return None;
        }
        let image = Self::find();
        if image.is_none() {
            crate::skip("no guest image (tests/vm/image makes it, and needs a way to a Debian mirror)");
        }
        image
    }

    /// The same, but an image that is absent is made: about 190 MB of packages are fetched. If that fails, the script says why on
    /// standard error.
    pub fn make_or_skip() -> Option<Image> {
        if lacks_network() {
            return None;
        }
        let image = Self::from_script(&[]);
        if image.is_none() {
            crate::skip(
                "no guest image, and it cannot be made (QEMU, kernel and programs come from a Debian mirror; see above)",
            );
        }
        image
    }

    fn from_script(words: &[&str]) -> Option<Image> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("vm/image");
        let output = Command::new(script).args(words).stderr(std::process::Stdio::inherit()).output().ok()?;
        let folder = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim_end());
        (output.status.success() && folder.join("initramfs").is_file()).then_some(Image { folder })
    }

    /// What the guest boots: a file of the image.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The guest's root.
    pub fn root(&self) -> PathBuf {
        self.file("root")
    }

    /// The words that run a program of the image on the host, with the image's own libraries: both ends of a test then run the
    /// same programs, whatever the host has installed.
    pub fn program(&self, name: &str) -> Vec<String> {
        let root = self.root();
        let place = ["usr/bin", "usr/sbin"].iter().map(|folder| root.join(folder).join(name)).find(|path| path.is_file());
        let program = place.unwrap_or_else(|| panic!("{name} is not in the image {}", self.folder.display()));
        let words =
            [root.join("lib64/ld-linux-x86-64.so.2"), "--library-path".into(), root.join("usr/lib/x86_64-linux-gnu"), program];
        words.iter().map(|word| word.to_str().expect("the path of the image is text").to_owned()).collect()
    }

    /// Version of a package of the image.
    pub fn version(&self, package: &str) -> String {
        let list = std::fs::read_to_string(self.file("versions")).expect("the image has a list of versions");
        let line = list.lines().find_map(|line| line.strip_prefix(package)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{package} is not in the image")).to_owned()
    }

    /// Release of the guest's kernel.
    pub fn kernel(&self) -> String {
        let list = std::fs::read_to_string(self.file("versions")).expect("the image has a list of versions");
        let name = list.lines().find_map(|line| line.strip_prefix("linux-binary-")).expect("the image has a kernel");
        name.split(' ').next().unwrap_or_default().to_owned()
    }
}

/// Whether something is absent that networks of guests need; then the test was skipped.
fn lacks_network() -> bool {
    if crate::need_root("network namespaces and taps") || crate::missing_program(&["ip"]) {
        return true;
    }
    let absent = !Path::new("/dev/net/tun").exists();
    if absent {
        crate::skip("no /dev/net/tun for taps");
    }
    absent
}
