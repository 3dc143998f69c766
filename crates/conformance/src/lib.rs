//! Conformance cases generated from the op vocabulary.
