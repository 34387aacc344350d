//! Golden transcripts: commands in, facts and answers out, as text. Every transcript runs over one shard and over
//! four, where its header does not say `# shards: 1`. `UPDATE_TRANSCRIPTS=1` rewrites the files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::script::Script;

fn replay(text: &str, shards: u16) -> String {
    let mut script = Script::new(shards, text.contains("# notify"), text.contains("# shards: 1"));
    let mut out = String::new();
    for line in text.lines() {
        let kept = line.is_empty() || line.starts_with('#');
        let Some(command) = line.strip_prefix("> ") else {
            if kept {
                out.push_str(line);
                out.push('\n');
            }
            continue;
        };
        out.push_str(line);
        out.push('\n');
        for came in script.obey(command) {
            out.push_str("  ");
            out.push_str(&came);
            out.push('\n');
        }
    }
    out
}

fn transcripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel/transcripts");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the folder of transcripts")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "txt"))
        .collect();
    files.sort();
    files
}

/// The first line that differs, if there is one.
fn difference(path: &Path, wanted: &str, found: &str, shards: u16) -> Option<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (mut wants, mut haves) = (wanted.lines(), found.lines());
    for number in 1.. {
        match (wants.next(), haves.next()) {
            (None, None) => return None,
            (want, have) if want == have => {}
            (want, have) => {
                return Some(format!(
                    "{name}:{number} over {shards} shards:\n  expected {want:?}\n  found    {have:?}"
                ));
            }
        }
    }
    None
}

#[test]
fn every_transcript_says_what_it_said() {
    let files = transcripts();
    assert!(!files.is_empty());
    let mut differences = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).expect("a transcript");
        let found = replay(&text, 1);
        if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
            fs::write(&path, &found).expect("the transcript is rewritten");
        } else {
            differences.extend(difference(&path, &text, &found, 1));
        }
        if !text.contains("# shards: 1") {
            differences.extend(difference(&path, &found, &replay(&text, 4), 4));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
