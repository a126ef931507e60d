//! Random numbers from a seed. Own code, because a workload made from a seed today must be the same for ever: the streams of
//! random number crates change between their versions. SplitMix64 and textbook transforms; nothing here is secret.

/// A stream of random numbers, the same for the same seed.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A stream.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `0..bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no random number");
        // High half of the product: the bias is below bound / 2^64.
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in 0 (included) to 1 (excluded).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponential with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Log-normal with this median; `sigma` is the standard deviation of the logarithm.
    pub fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        median * (sigma * radius * (std::f64::consts::TAU * self.unit()).cos()).exp()
    }

    /// `true` with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_what_they_were() {
        let mut random = Random::new(0);
        // The published first outputs of SplitMix64 for seed 0.
        assert_eq!([random.bits(), random.bits()], [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4]);
    }

    #[test]
    fn distributions_have_their_moments() {
        let mut random = Random::new(1);
        let n = 20_000;
        let mean = (0..n).map(|_| random.exponential(3.0)).sum::<f64>() / f64::from(n);
        assert!((mean - 3.0).abs() < 0.1, "{mean}");
        let below = (0..n).filter(|_| random.log_normal(5.0, 2.0) < 5.0).count();
        assert!((9_700..10_300).contains(&below), "{below} of {n} below the median");
        assert!((0..n).all(|_| random.below(7) < 7));
    }
}
