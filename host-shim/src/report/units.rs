//! Figures as people read them: with a unit, and digits in groups.

use core::fmt;

/// A count, digits in groups of three.
#[derive(Clone, Copy, Debug)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::with_capacity(digits.len() * 4 / 3);
        for (i, digit) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

/// A size, in the largest binary unit that leaves at least 1.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        match (self.0.max(1).ilog2() / 10) as usize {
            0 => f.pad(&format!("{} B", self.0)),
            unit => {
                let value = self.0 as f64 / (1u64 << (10 * unit)) as f64;
                f.pad(&format!("{value:.1} {}", UNITS[unit - 1]))
            }
        }
    }
}

/// A time span given in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Span(pub u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        let text = match self.0 {
            0..1_000 => format!("{} ns", self.0),
            1_000..1_000_000 => format!("{:.1} us", ns / 1e3),
            1_000_000..1_000_000_000 => format!("{:.1} ms", ns / 1e6),
            _ => format!("{:.2} s", ns / 1e9),
        };
        f.pad(&text)
    }
}

/// A count and what is counted, in the right number.
#[derive(Clone, Copy, Debug)]
pub struct Many<'a>(pub u64, pub &'a str, pub &'a str);

impl fmt::Display for Many<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", Count(self.0), if self.0 == 1 { self.1 } else { self.2 })
    }
}

/// Text that stays on its line and leaves the terminal alone, whatever is in it: control characters are escaped.
#[derive(Clone, Copy, Debug)]
pub struct OneLine<T>(pub T);

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        /// Escapes on the way.
        struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl fmt::Write for Escaping<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                text.chars().try_for_each(|char| match char.is_control() {
                    true => write!(self.0, "{}", char.escape_debug()),
                    false => self.0.write_char(char),
                })
            }
        }
        write!(Escaping(f), "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped() {
        let texts: Vec<_> =
            [0, 7, 999, 1_000, 1_234_567, u64::MAX].map(|count| Count(count).to_string()).into();
        assert_eq!(texts, ["0", "7", "999", "1,000", "1,234,567", "18,446,744,073,709,551,615"]);
        assert_eq!(format!("{:>8}|", Count(1_000)), "   1,000|");
    }

    #[test]
    fn units_change_at_their_limits() {
        let sizes: Vec<_> =
            [0, 1023, 1024, 1536, (1 << 20) - 1, 1 << 32, u64::MAX].map(|n| Bytes(n).to_string()).into();
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1024.0 KiB", "4.0 GiB", "16.0 EiB"]);
        let spans: Vec<_> = [0, 999, 1_000, 1_500_000, 61_000_000_000].map(|n| Span(n).to_string()).into();
        assert_eq!(spans, ["0 ns", "999 ns", "1.0 us", "1.5 ms", "61.00 s"]);
        assert_eq!(OneLine("ü\n\t\u{1b}'\"\\").to_string(), "ü\\n\\t\\u{1b}'\"\\");
        assert_eq!(Many(1, "hit", "hits").to_string(), "1 hit");
        assert_eq!(Many(1_000, "miss", "misses").to_string(), "1,000 misses");
    }
}
