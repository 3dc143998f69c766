//! Sizes as people read them.

use std::fmt;

/// A number of bytes, shown in the unit a reader grasps: `640 B`, `1.5 KiB`, `12.0 MiB`, `2.21 GiB`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        let scaled = |shift: u32| n as f64 / (1u64 << shift) as f64;
        let text = match n {
            0..1024 => format!("{n} B"),
            1024..1_048_576 => format!("{:.1} KiB", scaled(10)),
            1_048_576..1_073_741_824 => format!("{:.1} MiB", scaled(20)),
            _ => format!("{:.2} GiB", scaled(30)),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::ByteSize;

    #[test]
    fn sizes_have_a_unit_and_a_width() {
        let shown = [0, 1023, 1536, 12 << 20, 5 << 30].map(|n| ByteSize(n).to_string());
        assert_eq!(shown, ["0 B", "1023 B", "1.5 KiB", "12.0 MiB", "5.00 GiB"]);
        assert_eq!(format!("{:>8}|", ByteSize(7)), "     7 B|");
    }
}
