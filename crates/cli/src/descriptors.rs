//! File descriptors: a server with thousands of connections needs as many, and most systems give a process few unless it
//! asks.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Asks for as many file descriptors as the process may have.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Without more of them it serves fewer at once, and says so when somebody is turned away.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}
