//! Fuzzes UDP payloads; what must hold is in `tests::fuzz::wire_parse`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzz::wire_parse(bytes));
