//! The kernels of a test under the limits of the machine: a roofline
//! (Williams, Waterman, Patterson: Roofline, an insightful visual performance model, CACM 52/4, 2009).
//!
//! Across are operations for each byte that is read, upwards operations a second, both logarithmic. What reads much for each
//! operation lies under the slope of the memory, what computes much under the level of the arithmetic.

use std::fmt::Write as _;
use std::ops::Range;

use gristmill::Peaks;

use super::kernels::Kernel;

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 420.0;
/// Left, right, top and bottom of the field.
const FIELD: [f64; 4] = [90.0, 890.0, 50.0, 350.0];
/// Pixels of a line of the legend.
const LINE: f64 = 18.0;

const STYLE: &str = "text{font-family:system-ui,sans-serif;font-size:12px;fill:#1c2733}.title{font-size:15px;font-weight:600}\
.grid{stroke:#e3e8ee}.limit{fill:none;stroke:#b03a2e;stroke-width:2}.kernel{fill:#3c78b4;fill-opacity:.65;stroke:#28527a}\
.number{font-size:10px;font-weight:600;text-anchor:middle}";

/// A test and its kernels.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) peaks: Peaks,
    pub(super) kernels: Vec<Kernel>,
}

/// A logarithmic axis.
struct Axis {
    /// Powers of ten.
    range: Range<i32>,
    pixels: [f64; 2],
}

impl Axis {
    /// Covers values above 0.
    fn of(values: impl Iterator<Item = f64>, pixels: [f64; 2]) -> Axis {
        let (low, high) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let low = low.log10().floor() as i32;
        Axis { range: low..(high.log10().ceil() as i32).max(low + 1), pixels }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.log10() - f64::from(self.range.start)) / self.range.len() as f64;
        self.pixels[0] + share * (self.pixels[1] - self.pixels[0])
    }
}

/// The panels one below the other, as an SVG document.
pub(super) fn svg(panels: &[Panel]) -> String {
    let mut body = String::new();
    let mut top = 0.0;
    for panel in panels {
        let _ = writeln!(body, "<g transform=\"translate(0 {top:.0})\">");
        panel.draw(&mut body);
        body.push_str("</g>\n");
        top += HEIGHT + LINE * panel.kernels.len() as f64;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{top:.0}\" viewBox=\"0 0 {WIDTH} {top:.0}\">\n\
         <style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

impl Panel {
    fn draw(&self, out: &mut String) {
        let Peaks { memory_bytes, int_ops, .. } = self.peaks;
        let [left, right, top, bottom] = FIELD;
        let roof = int_ops.unwrap_or(f64::INFINITY);
        let intensities = self.kernels.iter().map(Kernel::intensity);
        // The ridge, where both limits meet, is always to be seen.
        let x = Axis::of(intensities.chain(int_ops.map(|ops| ops / memory_bytes)), [left, right]);
        let across = [x.range.start, x.range.end].map(|power| 10f64.powi(power));
        let limit = |intensity: f64| (intensity * memory_bytes).min(roof);
        let rates = self.kernels.iter().map(|k| k.op_rate);
        let y = Axis::of(rates.chain([limit(across[1])]), [bottom, top]);

        let _ = writeln!(out, "<text class=\"title\" x=\"{left}\" y=\"24\">{}</text>", escaped(&self.title));
        for power in x.range.start..=x.range.end {
            let (at, value) = (x.at(10f64.powi(power)), 10f64.powi(power));
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{at:.1} {top}V{bottom}\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{value}</text>",
                bottom + 18.0
            );
        }
        for power in y.range.start..=y.range.end {
            let (at, value) = (y.at(10f64.powi(power)), 10f64.powi(power) / 1e9);
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                left - 8.0,
                at + 4.0
            );
        }
        let middle = (left + right) / 2.0;
        let _ = writeln!(
            out,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">operations a byte read</text>\
             <text x=\"{left}\" y=\"42\">GOP/s; limits, measured in this run: {:.1} GB/s{}</text>",
            bottom + 36.0,
            memory_bytes / 1e9,
            int_ops.map_or_else(String::new, |ops| format!(", {:.0} GOP/s int8", ops / 1e9))
        );
        // The slope may leave the field at the bottom.
        let first = across[0].max(10f64.powi(y.range.start) / memory_bytes);
        let ridge = (roof / memory_bytes).min(across[1]);
        let mut path = String::new();
        for (i, intensity) in [first, ridge, across[1]].into_iter().enumerate() {
            let step = if i == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{step}{:.1} {:.1}", x.at(intensity), y.at(limit(intensity)));
        }
        let _ = writeln!(out, "<path class=\"limit\" d=\"{path}\"/>");
        for (i, kernel) in self.kernels.iter().enumerate() {
            let (at, up) = (x.at(kernel.intensity()), y.at(kernel.op_rate));
            // An area for the share of the time.
            let radius = 5.0 + 22.0 * kernel.share.sqrt();
            let _ = writeln!(
                out,
                "<circle class=\"kernel\" cx=\"{at:.1}\" cy=\"{up:.1}\" r=\"{radius:.1}\"/>\
                 <text class=\"number\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>\
                 <text x=\"{left}\" y=\"{:.1}\">{}: {}, {:.1}% of the time, {:.1} GB/s, {:.1} GOP/s, {:.0}% of the limit</text>",
                up + 3.5,
                i + 1,
                bottom + 62.0 + LINE * i as f64,
                i + 1,
                escaped(&kernel.name),
                100.0 * kernel.share,
                kernel.byte_rate / 1e9,
                kernel.op_rate / 1e9,
                100.0 * kernel.op_rate / limit(kernel.intensity()),
            );
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_cover_their_values_in_whole_decades() {
        let axis = Axis::of([3.0, 250.0].into_iter(), [0.0, 300.0]);
        assert_eq!((axis.range.clone(), axis.at(1.0), axis.at(1000.0)), (0..3, 0.0, 300.0));
        assert!((axis.at(10.0) - 100.0).abs() < 1e-9);
        assert_eq!(Axis::of([10.0].into_iter(), [0.0, 1.0]).range, 1..2);
    }
}
