//! Chores of the repository: `cargo xtask full` and friends.
fn main() {}
