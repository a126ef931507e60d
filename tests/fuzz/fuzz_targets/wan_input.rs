//! Fuzzes topologies, traces and saved state of the WAN scheduler; what must hold is in `tests::fuzz::wan_input`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzz::wan_input(bytes));
