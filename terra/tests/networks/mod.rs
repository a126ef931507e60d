//! Small networks by hand that several tests use.

use terra::Wan;

/// Two sites joined by one edge.
pub fn pair(gbps: f64) -> Wan {
    let mut wan = Wan::new();
    let [a, b] = ["a", "b"].map(|name| wan.add_site(name).unwrap());
    wan.add_edge(a, b, gbps).unwrap();
    wan
}

/// a to d over b and over c, each way 1 Gbit/s.
pub fn diamond() -> Wan {
    let mut wan = Wan::new();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| wan.add_site(name).unwrap());
    for (from, to) in [(a, b), (b, d), (a, c), (c, d)] {
        wan.add_edge(from, to, 1.0).unwrap();
    }
    wan
}
