//! The ways to break the code that the suites must notice.

/// A change of one place.
pub(crate) struct Mutation {
    /// What is broken.
    pub(crate) name: &'static str,
    /// Path from the root.
    pub(crate) file: &'static str,
    /// Text that is there exactly once.
    pub(crate) old: &'static str,
    /// What replaces it.
    pub(crate) new: &'static str,
}

const fn mutation(name: &'static str, file: &'static str, old: &'static str, new: &'static str) -> Mutation {
    Mutation { name, file, old, new }
}

/// Ordered by crate, so that few crates are built again from one to the next.
pub(crate) const MUTATIONS: &[Mutation] = &[
    mutation(
        "a row does not see itself",
        "crates/engine/src/step.rs",
        "segment.start as u32 + 1..end as u32 + 1",
        "segment.start as u32..end as u32",
    ),
    mutation(
        "a refused row fails its neighbours",
        "crates/engine/src/step.rs",
        ".filter(|row| own.contains(row)).min()",
        ".min()",
    ),
    mutation(
        "a preempted sequence keeps what it gave up",
        "crates/engine/src/sequence.rs",
        "self.sent = 0;",
        "",
    ),
    mutation(
        "a sequence started over takes what its earlier life drew",
        "crates/engine/src/sequence.rs",
        "self.life += 1;",
        "",
    ),
    mutation(
        "what a lost device held is taken to be there again",
        "crates/engine/src/scheduler.rs",
        "s.holding = Default::default();",
        "",
    ),
    mutation(
        "a step goes ahead of tokens that the host draws",
        "crates/engine/src/engine.rs",
        "&& !self.scheduler.running.iter().any(|s| s.awaits_host())",
        "",
    ),
    mutation(
        "a token drawn on the device is keyed by the position before it",
        "crates/engine/src/step.rs",
        "Some(sampler.policy(end as u64))",
        "Some(sampler.policy(end as u64 - 1))",
    ),
    mutation(
        "a row past the known end is computed",
        "crates/engine/src/sequence.rs",
        "if self.unread > 0 && self.len() >= stop_at.min(self.room) => 0,",
        "if false => stop_at,",
    ),
    mutation(
        "a slot is never given back",
        "crates/engine/src/cache.rs",
        "self.free_slots.extend(slot.take());",
        "",
    ),
    mutation(
        "a session keeps what the device refused behind the end",
        "crates/engine/src/engine/collect.rs",
        "if refused.is_some() {",
        "if false {",
    ),
    mutation(
        "a session starts from a state that is another's",
        "crates/engine/src/session.rs",
        "(live.max(snapshot), snapshot > live)",
        "(live.max(snapshot), false)",
    ),
    mutation(
        "a session shares what differs",
        "crates/engine/src/session.rs",
        ".take_while(|(a, b)| a == b)",
        "",
    ),
    mutation(
        "a session takes the state behind a token that nobody has read",
        "crates/engine/src/session.rs",
        "s.recurrent && s.sent == computed && ",
        "s.recurrent && ",
    ),
    mutation(
        "devices of one memory are each given all of it",
        "crates/engine/src/cache.rs",
        "name.is_some() && memory.name == name",
        "name.is_some() && memory.name == name && false",
    ),
    mutation(
        "scores that are no numbers are told",
        "crates/engine/src/engine/collect.rs",
        "if !rows.iter().fold(false, |found, value| found | unusable(value)) {",
        "if rows.iter().fold(true, |found, value| found | unusable(value)) {",
    ),
    mutation("the state of a chunk is not kept", "crates/engine/src/step.rs", "*last = slot;", ""),
    mutation(
        "a prompt is cut anywhere in a recurrent model",
        "crates/engine/src/scheduler.rs",
        "if budget.recurrent {\n                len",
        "if false {\n                len",
    ),
    mutation(
        "the residual is left out",
        "crates/models/src/blocks.rs",
        "self.b.add(x, ffn(self.norm(&format!(\"blk.{layer}.ffn_norm\"), hidden, x)))",
        "ffn(self.norm(&format!(\"blk.{layer}.ffn_norm\"), hidden, x))",
    ),
    mutation(
        "the one of Gemma's norms is not added",
        "crates/models/src/weights.rs",
        "values.iter_mut().for_each(|v| *v += 1.0);",
        "",
    ),
    mutation(
        "rows of queries and keys are left interleaved",
        "crates/models/src/weights.rs",
        "Some(head) if is_gguf && !self.gguf_order => interleaved(row, head),",
        "Some(_) if is_gguf && !self.gguf_order => row,",
    ),
    mutation(
        "queries and keys are not normed",
        "crates/models/src/blocks.rs",
        "if a.qk_norm {",
        "if false {",
    ),
    mutation(
        "a row without experts is passed on",
        "crates/cpu/src/backend/experts.rs",
        "ctx.refuse(\"route\", REFUSED_LOGITS, self.of_step.then_some(row));",
        "",
    ),
    mutation(
        "a delta rule that recalls what it has not decayed",
        "crates/cpu/src/vector/delta.rs",
        "recall: decay * k,",
        "recall: k,",
    ),
    mutation(
        "epsilon outside the root",
        "crates/cpu/src/vector/norm.rs",
        "(1.0 / (f64::from(squares) / n as f64 + f64::from(eps)).sqrt()) as f32",
        "(1.0 / ((f64::from(squares) / n as f64).sqrt() + f64::from(eps))) as f32",
    ),
    mutation(
        "rotary pairs the wrong way round",
        "crates/cpu/src/vector/rope.rs",
        "let (a, b) = (s.load(x.add(i)), s.load(x.add(half + i)));",
        "let (b, a) = (s.load(x.add(i)), s.load(x.add(half + i)));",
    ),
    mutation(
        "a window one key too wide",
        "crates/cpu/src/attention.rs",
        "(u64::from(self.pos[row]) + 1).saturating_sub(window.into())",
        "u64::from(self.pos[row]).saturating_sub(window.into())",
    ),
    mutation(
        "the last partial block is dropped",
        "crates/cpu/src/attention.rs",
        "let until = self.until[row] as usize;",
        "let until = self.until[row] as usize / BLOCK * BLOCK;",
    ),
    mutation(
        "the wrong kv head is read",
        "crates/cpu/src/attention/tile.rs",
        "self.attention.kv.cell::<E>(block, self.kv_head)",
        "self.attention.kv.cell::<E>(block, 0)",
    ),
    mutation(
        "the pages of the first sequence serve all",
        "crates/cpu/src/attention/cache.rs",
        "self.pages[seq as usize * self.per_seq + index]",
        "self.pages[seq as usize * 0 + index]",
    ),
    mutation(
        "the weights of the last split divide the sum of all",
        "crates/cpu/src/attention/tile.rs",
        "let l = state.merged.l[query];",
        "let l = state.split.l[query];",
    ),
    mutation(
        "splits merge in an order that depends on the threads",
        "crates/cpu/src/attention/tile.rs",
        "for split in 0..merge.splits {",
        "for split in (0..merge.splits).rev() {",
    ),
    mutation(
        "a new sequence starts from a stale slot",
        "crates/cpu/src/vector/conv.rs",
        "if extent > 0 && segments.pos[row] > 0 {",
        "if extent > 0 {",
    ),
    mutation(
        "the state of a convolution is one row late",
        "crates/cpu/src/vector/conv.rs",
        "&ring[(t + 2 + age) % taps]",
        "&ring[(t + 1 + age) % taps]",
    ),
    mutation(
        "of equal experts the last is chosen",
        "crates/cpu/src/vector/select.rs",
        ".then(a.cmp(b))",
        ".then(b.cmp(a))",
    ),
    mutation(
        "chosen experts are not renormalised",
        "crates/cpu/src/backend/experts.rs",
        "if self.renormalise {",
        "if false && self.renormalise {",
    ),
    mutation(
        "experts are summed without the last",
        "crates/cpu/src/vector/elementwise.rs",
        "for (slot, &weight) in weights.iter().enumerate() {",
        "for (slot, &weight) in weights.iter().enumerate().take(weights.len() - 1) {",
    ),
];
