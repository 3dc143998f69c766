// The KV cache: [heads][blocks][16 positions] rows of ROW words: keys, values and, when they are halves (HALF), the
// factors that undo the scaling of both.

fn kv_row(pages_at: u32, blocks: u32, head: u32, position: u32) -> u32 {
    let block = word(pages_at + position / 16u);
    return ((head * blocks + block) * 16u + position % 16u) * ROW;
}
