//! The daemon, in this process, seen from its API and from clients of its rings.

mod api;
mod connections;
mod hostile;
mod lifecycle;
mod place;
mod raw;
mod traffic;
