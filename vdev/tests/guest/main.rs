//! Devices of virtual machines, without one: a mock driver plays the guest, over the vfio-user client that Cloud Hypervisor uses,
//! with a memfd as the guest's memory.

mod budget;
mod driver;
mod edges;
mod fast;
mod hostile;
mod large;
mod messages;
#[allow(dead_code)]
#[path = "../daemon/place.rs"]
mod place;
mod ranges;
#[allow(dead_code)]
#[path = "../daemon/raw.rs"]
mod raw;
mod stress;
mod verbs;
mod vmm;
