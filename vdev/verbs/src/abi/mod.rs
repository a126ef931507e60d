//! The binary interface of libibverbs: the structs that programs read and write themselves, and the numbers in them.
//!
//! Written from the documented interface; sizes and offsets are asserted at compile time against the values measured on
//! rdma-core 44, 56 and 65 (x86-64). Names are those of the C interface, so that a reader can look them up in its manual pages.
#![allow(non_camel_case_types)]

pub mod codes;
pub mod device;
pub mod object;
pub mod work;

/// Asserts the size of a struct and the offsets of its fields.
macro_rules! layout {
    ($type:ty: $size:literal $(, $field:ident @ $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(core::mem::offset_of!($type, $field) == $offset);)*
        };
    };
}
pub(crate) use layout;
