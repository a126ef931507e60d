//! The binary interface of libibverbs: the structs that programs read and write themselves, and the numbers in them.
//!
//! Written from the documented interface; sizes and offsets are asserted at compile time against the values measured on
//! rdma-core 44, 56 and 65 (x86-64), and a test holds them against the headers that are installed. Names are those of the C interface, so that a reader can look them up in its manual pages.
#![allow(non_camel_case_types)]

pub mod codes;
pub mod device;
pub mod extended;
pub mod object;
pub mod work;

/// What a struct looks like in memory, for the test that asks a C compiler.
#[cfg(test)]
pub trait Layout {
    /// The struct in C.
    const NAME: &'static str;
    /// Bytes.
    const SIZE: usize;
    /// Fields in C and their offsets.
    const FIELDS: &'static [(&'static str, usize)];
}

/// Asserts the size of a struct and the offsets of its fields. A field is `name @ offset`, or `name @ offset as "name in C"`
/// where the C interface has another name for it, empty for one that older versions do not have.
macro_rules! layout {
    ($type:ident: $size:literal $(, $field:ident @ $offset:literal $(as $in_c:literal)?)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$type>() == $size);
            $(assert!(core::mem::offset_of!($type, $field) == $offset);)*
        };
        #[cfg(test)]
        impl crate::abi::Layout for $type {
            const NAME: &'static str = stringify!($type);
            const SIZE: usize = $size;
            const FIELDS: &'static [(&'static str, usize)] =
                &[$((layout!(@name $field $($in_c)?), $offset)),*];
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $in_c:literal) => { $in_c };
}
pub(crate) use layout;

#[cfg(test)]
mod headers;
