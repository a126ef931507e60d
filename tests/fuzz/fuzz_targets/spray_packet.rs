//! Fuzzes packets of the spray extension; what must hold is in `tests::fuzz::spray_packet`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzz::spray_packet(bytes));
