use conformance::{Report, cases, judge};
use gristmill_gpu::{GpuBackend, GpuOptions, Profile};
fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let profile =
        if std::env::args().nth(2).as_deref() == Some("full") { Profile::Adapter } else { Profile::WebGpu };
    let options = GpuOptions { profile, ..GpuOptions::default() };
    let b = pollster::block_on(GpuBackend::open("gpu", &options)).unwrap();
    let mut report = Report::default();
    let mut n = 0;
    for c in cases::all().iter().filter(|c| c.name().contains(&filter)) {
        let t = std::time::Instant::now();
        let before = report.failures.len();
        judge(&b, c, &mut report);
        let bad = report.failures.len() - before;
        if t.elapsed().as_secs_f32() > 0.5 || bad > 0 {
            println!("{:.2}s {} {}", t.elapsed().as_secs_f32(), c.name(), bad);
        }
        n += 1;
    }
    println!("{n} cases");
    for f in report.failures.iter().take(40) {
        println!("{f:?}");
    }
    for f in report.unsupported.iter().take(10) {
        println!("{f:?}");
    }
}
