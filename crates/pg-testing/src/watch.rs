//! The watch over a server: a shell that waits for this process to be gone, however it went, and then ends the server
//! and removes its folder. A server that nobody ends would stay for ever, with its memory and its disk.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Waits for the end of its input, which comes when this process is gone; or for a word, when all is in order.
const SCRIPT: &str = r#"
read -r word && exit 0
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null && while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
rm -rf "$1"
"#;

#[derive(Debug)]
pub(crate) struct Watch(Child);

impl Watch {
    pub(crate) fn begin(folder: &Path) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "watch"]).arg(folder).current_dir("/");
        // Its own group, so that it outlives what kills the test's.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(shell.spawn().expect("a shell starts"))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(mut input) = self.0.stdin.take() {
            let _ = std::io::Write::write_all(&mut input, b"done\n");
        }
        let _ = self.0.wait();
    }
}
