//! Recording graphs, rewriting them, planning their memory, and the contract of a backend.
