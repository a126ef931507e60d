//! Fuzzes the memory of a queue pair; what must hold is in `tests::fuzz::send_entry`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzz::send_entry(bytes));
