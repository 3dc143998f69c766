// binary16 to f32. NATIVE: `unpack2x16float` is known to be exact.

//#if NATIVE == 1
fn half_(bits: u32) -> f32 {
    return unpack2x16float(bits).x;
}
//#end
//#if NATIVE == 0
fn half_(bits: u32) -> f32 {
    return half(bits);
}
//#end
