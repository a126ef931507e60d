//! Polynomials over GF(2) modulo the Ethernet CRC-32 polynomial: what CRC registers are.
//!
//! The bit order is that of the reflected CRC: bit 31 is the coefficient of x^0, bit 0 that of x^31. Shifting a register
//! over one message bit multiplies it by x, so a difference between two registers can be followed forwards and backwards
//! through any number of equal message bytes.

const POLYNOMIAL: u32 = 0xEDB8_8320;

/// The polynomial 1.
pub(super) const ONE: u32 = 1 << 31;

const fn times_x(a: u32) -> u32 {
    a >> 1 ^ if a & 1 != 0 { POLYNOMIAL } else { 0 }
}

/// The inverse of [`times_x`]: the top bit tells whether the polynomial was subtracted.
const fn over_x(a: u32) -> u32 {
    if a & ONE != 0 { (a ^ POLYNOMIAL) << 1 | 1 } else { a << 1 }
}

const fn bytewise_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut a = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            a = times_x(a);
            bit += 1;
        }
        table[byte] = a;
        byte += 1;
    }
    table
}

static TABLE: [u32; 256] = bytewise_table();

/// `a` times x^8.
const fn times_x8(a: u32, table: &[u32; 256]) -> u32 {
    a >> 8 ^ table[(a & 0xFF) as usize]
}

/// What each value of a message byte contributes to a register `zeros` bytes later.
pub(super) const fn contributions(zeros: usize) -> [u32; 256] {
    let table = bytewise_table();
    let mut out = table;
    let mut byte = 0;
    while byte < 256 {
        let mut count = 0;
        while count < zeros {
            out[byte] = times_x8(out[byte], &table);
            count += 1;
        }
        byte += 1;
    }
    out
}

/// x^(-step * i) for each i below `N`; `step` in bits.
const fn inverse_powers<const N: usize>(step: usize) -> [u32; N] {
    let mut out = [ONE; N];
    let mut i = 1;
    while i < N {
        let mut a = out[i - 1];
        let mut bit = 0;
        while bit < step {
            a = over_x(a);
            bit += 1;
        }
        out[i] = a;
        i += 1;
    }
    out
}

const LOW: usize = 64;
static INVERSE_LOW: [u32; LOW] = inverse_powers(32);
static INVERSE_HIGH: [u32; 257] = inverse_powers(32 * LOW);

/// `a` times x^(-32 * words), for up to 2^14 words.
///
/// # Panics
/// If `words` is larger.
pub(super) fn over_words(a: u32, words: usize) -> u32 {
    product(a, product(INVERSE_LOW[words % LOW], INVERSE_HIGH[words / LOW]))
}

/// Product modulo the polynomial.
fn product(a: u32, b: u32) -> u32 {
    // In reflected order the coefficient of x^k of the full product lies at bit 62 - k; one shift brings x^0 to the top.
    let full = carryless_product(a, b) << 1;
    let low = (0..4).fold(full as u32, |a, _| times_x8(a, &TABLE));
    (full >> 32) as u32 ^ low
}

/// Product without carries. Integer multiplications of operands that have only every fourth bit set cannot carry into a
/// bit that counts: at most 8 ones meet at one place, and 4 bits hold that sum.
fn carryless_product(a: u32, b: u32) -> u64 {
    const HOLES: u64 = 0x1111_1111_1111_1111;
    let (a, b) = (u64::from(a), u64::from(b));
    let mut out = 0;
    for lane in 0..4 {
        let mut sum = 0;
        for i in 0..4 {
            sum ^= (a & HOLES << i).wrapping_mul(b & HOLES << ((lane + 4 - i) % 4));
        }
        out |= sum & HOLES << lane;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Schoolbook multiplication, bit by bit.
    fn slow_product(a: u32, b: u32) -> u32 {
        let (mut sum, mut shifted) = (0, a);
        for k in 0..32 {
            if b & ONE >> k != 0 {
                sum ^= shifted;
            }
            shifted = times_x(shifted);
        }
        sum
    }

    proptest::proptest! {
        #[test]
        fn product_is_the_schoolbook_one(a: u32, b: u32) {
            assert_eq!(product(a, b), slow_product(a, b));
            assert_eq!(product(a, ONE), a);
        }

        #[test]
        fn going_back_undoes_going_forward(a: u32, words in 0_usize..=1 << 14) {
            let forward = (0..words * 4).fold(a, |a, _| times_x8(a, &TABLE));
            assert_eq!(over_words(forward, words), a);
        }
    }

    #[test]
    fn all_ones_do_not_carry() {
        assert_eq!(product(u32::MAX, u32::MAX), slow_product(u32::MAX, u32::MAX));
    }
}
