//! Fuzzes management datagrams; what must hold is in `tests::fuzz::cm_message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzz::cm_message(bytes));
