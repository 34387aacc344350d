//! Golden transcripts: commands in, facts and answers out, as text. Every transcript runs over one shard and over
//! four, where its header does not say `# shards: 1`. `UPDATE_TRANSCRIPTS=1` rewrites the files.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::script::Script;

fn replay(text: &str, shards: u16) -> String {
    let mut script = Script::new(shards, text.contains("# notify"));
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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the folder of transcripts")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "txt"))
        .collect();
    files.sort();
    files
}

fn compare(path: &Path, wanted: &str, found: &str, shards: u16) {
    for (number, (want, have)) in wanted.lines().zip(found.lines()).enumerate() {
        assert_eq!(
            want,
            have,
            "{}:{} over {shards} shards",
            path.display(),
            number + 1
        );
    }
    assert_eq!(
        wanted.lines().count(),
        found.lines().count(),
        "{} over {shards} shards",
        path.display()
    );
}

#[test]
fn every_transcript_says_what_it_said() {
    let files = transcripts();
    assert!(!files.is_empty());
    for path in files {
        let text = fs::read_to_string(&path).expect("a transcript");
        let found = replay(&text, 1);
        if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
            fs::write(&path, &found).expect("the transcript is rewritten");
        } else {
            compare(&path, &text, &found, 1);
        }
        if !text.contains("# shards: 1") {
            compare(&path, &found, &replay(&text, 4), 4);
        }
    }
}
