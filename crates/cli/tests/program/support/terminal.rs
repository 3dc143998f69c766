//! Pseudo-terminals.

use std::ffi::CString;
use std::fs::File;
use std::process::Stdio;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A terminal, and what is on its other side.
pub(crate) struct Terminal {
    /// Keys are written here, and what is shown is read.
    pub(crate) other: File,
    name: CString,
}

impl Terminal {
    pub(crate) fn open() -> Terminal {
        let other = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&other).expect("it is ours");
        unlockpt(&other).expect("it opens");
        let name = ptsname(&other, vec![]).expect("it has a name");
        Terminal { other: File::from(other), name }
    }

    /// The terminal, for a program.
    pub(crate) fn end(&self) -> Stdio {
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        File::from(rustix::fs::open(self.name.as_c_str(), flags, Mode::empty()).expect("a terminal")).into()
    }
}
