//! GF(2^w) for small w, element by element: the arithmetic that builds the named matrices. Bulk arithmetic is elsewhere
//! (`field` for w = 8, the XOR codes for bit matrices).

/// Smallest supported w.
pub const MIN_W: usize = 2;
/// Largest supported w.
pub const MAX_W: usize = 11;

/// Primitive polynomials for w = 2, 3, …: Peterson and Weldon's, the defaults of gf-complete. For w = 8 it is the
/// polynomial of [`super::field`].
const POLYNOMIALS: [u32; MAX_W - MIN_W + 1] = [0x7, 0xb, 0x13, 0x25, 0x43, 0x89, 0x11d, 0x211, 0x409, 0x805];

/// The field GF(2^w).
#[derive(Clone, Copy, Debug)]
pub struct Galois {
    w: usize,
    polynomial: u32,
}

impl Galois {
    /// The field of 2^w elements, or `None` unless w is in [`MIN_W`]..=[`MAX_W`].
    pub fn new(w: usize) -> Option<Galois> {
        let polynomial = *POLYNOMIALS.get(w.checked_sub(MIN_W)?)?;
        Some(Galois { w, polynomial })
    }

    /// Product, by shift and add.
    pub fn multiply(self, a: u32, b: u32) -> u32 {
        let (mut a, mut b, mut product) = (a, b, 0);
        while b != 0 {
            if b & 1 != 0 {
                product ^= a;
            }
            a <<= 1;
            if a >> self.w != 0 {
                a ^= self.polynomial;
            }
            b >>= 1;
        }
        product
    }

    /// Multiplicative inverse (a^(2^w − 2)); 0 for 0, which callers never pass.
    pub fn inverse(self, a: u32) -> u32 {
        // The exponent is 2 + 4 + … + 2^(w − 1).
        let squares = std::iter::successors(Some(a), |x| Some(self.multiply(*x, *x)));
        squares.skip(1).take(self.w - 1).fold(1, |product, square| self.multiply(product, square))
    }

    /// Multiplication by `a` as a w × w bit matrix: column c is a · 2^c, so bit r of it is the entry in row r.
    pub fn columns(self, a: u32) -> impl Iterator<Item = u32> {
        (0..self.w).scan(a, move |x, _| {
            let column = *x;
            *x = self.multiply(*x, 2);
            Some(column)
        })
    }

    /// Number of ones in the bit matrix of `a`: the cost of multiplying by it in a bit-matrix code.
    pub fn ones(self, a: u32) -> u32 {
        self.columns(a).map(u32::count_ones).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::field;
    use super::*;

    #[test]
    fn every_field_has_inverses_and_two_generates_it() {
        for w in MIN_W..=MAX_W {
            let field = Galois::new(w).unwrap();
            let mut x = 1;
            for i in 1..1 << w {
                assert_eq!(field.multiply(i, field.inverse(i)), 1, "w = {w}");
                x = field.multiply(x, 2);
                assert_eq!(x == 1, i == (1 << w) - 1, "the order of 2, w = {w}");
            }
        }
        assert!(Galois::new(1).is_none() && Galois::new(12).is_none() && Galois::new(0).is_none());
    }

    #[test]
    fn eight_bits_are_the_field_of_the_codes() {
        let galois = Galois::new(8).unwrap();
        for a in 0..=255u8 {
            for b in (0..=255u8).step_by(7) {
                assert_eq!(galois.multiply(a.into(), b.into()), field::multiply(a, b).into());
            }
        }
    }
}
