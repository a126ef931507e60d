//! Tenants that share hosts: what each of them gets alone, beside others without isolation, under Justitia, and under ours.
//!
//! Hosts hang on one switch, or two, and every tenant has a device of its own on its host's core: [`lab`] is the event loop, [`card`] what
//! things take, [`load`] what tenants do, [`experiments`] how they are compared, [`paper`] the set-ups of Justitia's paper (NSDI 2022) with
//! its published figures, [`table`] what comes out; [`husky`] has pairs of attackers and victims, [`search`] draws such at random.
//! Everything is modelled: links and cards have the paper's rates, and only ratios mean something.

pub mod card;
mod ends;
pub mod experiments;
pub mod husky;
pub mod lab;
pub mod load;
pub mod paper;
pub mod question;
pub mod search;
pub mod switch;
pub mod table;
