//! Replays the stored fuzz inputs, and simple variations of each: every prefix, and every byte changed.

use std::fs;
use std::path::Path;
use tests::fuzz::TARGETS;

#[test]
fn stored_inputs_and_their_variations_hold() {
    for (name, target) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let mut files: Vec<_> =
            fs::read_dir(&folder).expect("each target has a corpus").map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() >= 3, "{} holds too little", folder.display());
        for file in files {
            let input = fs::read(&file).unwrap();
            println!("{}", file.display());
            target(&input);
            for len in 0..input.len() {
                target(&input[..len]);
            }
            for at in 0..input.len() {
                for change in [0x01, 0x80, 0xFF] {
                    let mut varied = input.clone();
                    varied[at] ^= change;
                    target(&varied);
                }
            }
        }
    }
}
