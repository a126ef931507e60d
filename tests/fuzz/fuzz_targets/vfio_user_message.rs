//! Fuzzes vfio-user messages; what must hold is in `tests::fuzz::vfio_user_message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tests::fuzz::vfio_user_message(bytes));
