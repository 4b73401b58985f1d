//! GF(2^8) with polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d) and generator 2: the field of ISA-L, Jerasure
//! (w = 8) and the Linux RAID-6 driver.

/// Low eight bits of the field's polynomial 0x11d.
const POLYNOMIAL: u8 = 0x1d;

/// Product, by shift and add: the definition that tests compare this family with.
pub const fn multiply(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a, b, 0u8);
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        let overflow = a & 0x80 != 0;
        a <<= 1;
        if overflow {
            a ^= POLYNOMIAL;
        }
        b >>= 1;
    }
    product
}

/// `base` to the power `exponent`.
pub const fn power(base: u8, exponent: u32) -> u8 {
    let (mut result, mut square, mut rest) = (1u8, base, exponent);
    while rest != 0 {
        if rest & 1 != 0 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        rest >>= 1;
    }
    result
}

/// Multiplicative inverse (a^254); 0 for 0, which callers never pass.
pub const fn inverse(a: u8) -> u8 {
    power(a, 254)
}

/// `PRODUCTS[c][x]` = c · x.
pub static PRODUCTS: [[u8; 256]; 256] = products();

const fn products() -> [[u8; 256]; 256] {
    let mut table = [[0u8; 256]; 256];
    let mut c = 0;
    while c < 256 {
        // Rows are linear: c·(x ^ 2^b) = c·x ^ c·2^b. Doubling keeps compile time short.
        let mut width = 1;
        while width < 256 {
            let head = multiply(c as u8, width as u8);
            let mut x = 0;
            while x < width {
                table[c][width + x] = head ^ table[c][x];
                x += 1;
            }
            width *= 2;
        }
        c += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_equal_the_definition_and_every_element_has_its_inverse() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                assert_eq!(PRODUCTS[a as usize][b as usize], multiply(a, b));
            }
            if a != 0 {
                assert_eq!(multiply(a, inverse(a)), 1);
            }
        }
    }

    #[test]
    fn two_generates_the_field() {
        let mut seen = [false; 256];
        for i in 0..255 {
            seen[power(2, i) as usize] = true;
        }
        assert_eq!(seen.iter().filter(|s| **s).count(), 255);
        // Known products in this field (0x11d): 2·0x80 = 0x1d, 0x8e is 1/2.
        assert_eq!(multiply(2, 0x80), 0x1d);
        assert_eq!(inverse(2), 0x8e);
    }
}
