//! Fuzzes control messages; what must hold is in `tests::fuzz::control_message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzz::control_message(bytes));
