//! What kind of traffic a queue pair has, found from what it posts.
//!
//! Messages of at most [`SMALL_BYTES`] with few outstanding wait for one another: somebody waits for each. Small ones with many
//! outstanding are after a rate. All others are after bandwidth. One message does not decide: [`STEADY`] in a row that say
//! the same do; only a large message moves a queue pair out of the latency class at once, as it would hold up everybody.

/// A class of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Class {
    /// Small and sparse; goes first, within what all together may take for that.
    Latency,
    /// Small and many.
    MessageRate,
    /// Large. What a queue pair is until it has shown otherwise.
    #[default]
    Bandwidth,
}

impl Class {
    /// All, in the order of their numbers.
    pub const ALL: [Class; 3] = [Class::Latency, Class::MessageRate, Class::Bandwidth];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Latency => "latency",
            Class::MessageRate => "message-rate",
            Class::Bandwidth => "bandwidth",
        }
    }
}

/// Longest message that counts as small, in bytes. Justitia's public code has 1 KiB for its latency class; requests and replies of
/// key-value stores are longer now and then, and 4 KiB is one packet.
pub const SMALL_BYTES: u32 = 4096;

/// Most outstanding requests, the new one included, that count as few.
pub const FEW: u32 = 4;

/// So many requests in a row of another class change a queue pair's class.
pub const STEADY: u8 = 8;

/// Finds the class of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Classifier {
    class: Class,
    candidate: Class,
    seen: u8,
}

impl Classifier {
    /// The class as of now.
    pub fn class(&self) -> Class {
        self.class
    }

    /// A request of `bytes` was posted, and `outstanding` are now, this one included.
    #[inline]
    pub fn note(&mut self, bytes: u32, outstanding: u32) {
        let shown = match (bytes <= SMALL_BYTES, outstanding <= FEW) {
            (true, true) => Class::Latency,
            (true, false) => Class::MessageRate,
            (false, _) => Class::Bandwidth,
        };
        if shown == self.class {
            self.seen = 0;
            return;
        }
        self.seen = if shown == self.candidate { self.seen + 1 } else { 1 };
        self.candidate = shown;
        let at_once = shown == Class::Bandwidth && self.class == Class::Latency;
        if at_once || self.seen >= STEADY {
            (self.class, self.seen) = (shown, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(posts: &[(u32, u32, usize)]) -> Class {
        let mut classifier = Classifier::default();
        for &(bytes, outstanding, times) in posts {
            for _ in 0..times {
                classifier.note(bytes, outstanding);
            }
        }
        classifier.class()
    }

    #[test]
    fn classes_are_found() {
        assert_eq!(after(&[]), Class::Bandwidth);
        assert_eq!(after(&[(16, 1, 8)]), Class::Latency);
        assert_eq!(after(&[(SMALL_BYTES, FEW, 8)]), Class::Latency);
        assert_eq!(after(&[(16, 64, 8)]), Class::MessageRate);
        assert_eq!(after(&[(1 << 20, 1, 8)]), Class::Bandwidth);
        assert_eq!(after(&[(0, 1, 8)]), Class::Latency, "no bytes at all");
    }

    #[test]
    fn a_few_of_another_kind_change_nothing() {
        assert_eq!(after(&[(16, 1, 7)]), Class::Bandwidth);
        assert_eq!(after(&[(16, 1, 8), (16, 64, 7), (16, 1, 1), (16, 64, 7)]), Class::Latency);
        assert_eq!(after(&[(1 << 20, 1, 8), (16, 1, 7), (1 << 20, 1, 1), (16, 1, 7)]), Class::Bandwidth);
    }

    #[test]
    fn one_large_message_ends_the_latency_class() {
        assert_eq!(after(&[(16, 1, 8), (SMALL_BYTES + 1, 1, 1)]), Class::Bandwidth);
    }
}
