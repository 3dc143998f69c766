//! What a kernel is made of.

use std::fmt::Write;

use crate::template::expand;

#[cfg(test)]
mod tests;

/// What a kernel is bound to, in order of the bindings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Binding {
    /// `arena: array<f32>`, read and written: inputs, intermediates and outputs of the step.
    Arena,
    /// `p: Params`, a uniform: what is fixed for a dispatch.
    Params,
    /// `scalars`, a uniform: what varies with the step.
    Scalars,
    /// A storage buffer that is only read: name and element type.
    Read(&'static str, &'static str),
    /// A storage buffer that is read and written: name and element type.
    Write(&'static str, &'static str),
}

/// The source of a pipeline: templates, their parameters and bindings.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Kernel {
    /// Name of the family, for reports.
    pub(crate) family: &'static str,
    /// Templates, one after another.
    pub(crate) parts: &'static [&'static str],
    /// Parameters, also constants of the module.
    pub(crate) parameters: Vec<(&'static str, u32)>,
    /// What it is bound to behind [`COMMON`].
    pub(crate) own: &'static [Binding],
}

/// Most scalars of a graph: the prelude finds them in vectors of four.
pub(crate) const SCALARS: usize = 8;

/// What every kernel is bound to first: the prelude names all three.
const COMMON: [Binding; 3] = [Binding::Arena, Binding::Params, Binding::Scalars];

/// Helpers of every kernel.
const PRELUDE: &str = include_str!("kernels/prelude.wgsl");

impl Kernel {
    /// Family and parameters.
    pub(crate) fn name(&self) -> String {
        let mut name = self.family.to_owned();
        for (key, value) in &self.parameters {
            let _ = write!(name, " {}={value}", key.to_lowercase());
        }
        name
    }

    /// A parameter that its family has.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn parameter(&self, name: &str) -> u32 {
        let found = self.parameters.iter().find(|(key, _)| *key == name);
        found.unwrap_or_else(|| panic!("{} has no {name}", self.family)).1
    }

    /// The bindings, in order.
    pub(crate) fn bindings(&self) -> impl Iterator<Item = Binding> {
        COMMON.into_iter().chain(self.own.iter().copied())
    }

    /// The whole WGSL module.
    pub(crate) fn source(&self) -> String {
        let mut out = String::new();
        for (name, value) in &self.parameters {
            let _ = writeln!(out, "const {name}: u32 = {value}u;");
        }
        for (i, binding) in self.bindings().enumerate() {
            let (space, name, ty) = match binding {
                Binding::Arena => ("storage, read_write", "arena", "array<f32>".to_owned()),
                Binding::Params => ("uniform", "p", "Params".to_owned()),
                Binding::Scalars => ("uniform", "scalars", format!("array<vec4<u32>, {}>", SCALARS / 4)),
                Binding::Read(name, ty) => ("storage, read", name, format!("array<{ty}>")),
                Binding::Write(name, ty) => ("storage, read_write", name, format!("array<{ty}>")),
            };
            let _ = writeln!(out, "@group(0) @binding({i}) var<{space}> {name}: {ty};");
        }
        out.push_str(PRELUDE);
        for part in self.parts {
            out.push_str(&expand(part, &self.parameters));
        }
        out
    }
}
