//! Tenants that share hosts: what each of them gets alone, beside others without isolation, under Justitia, and under ours.
//!
//! Hosts hang on one switch, and every tenant has a device of its own on its host's core: [`lab`] is the event loop, [`load`] what
//! tenants do, [`experiments`] the set-ups of Justitia's paper (NSDI 2022) with its published figures, [`table`] what comes out.
//! Everything is modelled: links and cards have the paper's rates, and only ratios mean something.

pub mod experiments;
pub mod lab;
pub mod load;
pub mod table;
