//! Fuzzes commands and entries of a guest's driver; what must hold is in `tests::fuzz::erdma_command`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzz::erdma_command(bytes));
