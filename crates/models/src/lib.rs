//! Model architectures, one file per family, recorded as graphs.
