//! The vectors that every SDK must pass (`clients/vectors`), held against the kernel and the messages.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use abide_kernel::{Payload, stable_hash};
use abide_protocol::{ClaimWork, Claims, Ending, Entry, Outcome, Problem, Reported, Reports, Say, Start, Started};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn vectors(name: &str) -> Value {
    let path = format!("{}/../../clients/vectors/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn each<'a>(all: &'a Value, field: &str) -> &'a [Value] {
    all[field].as_array().unwrap()
}

fn hex(hash: u64) -> Value {
    format!("{hash:016x}").into()
}

/// AB-19: hashes are those of the kernel, bit for bit.
#[test]
fn hashes_are_the_kernels() {
    let all = vectors("hashes");
    for case in each(&all, "stable") {
        assert_eq!(hex(stable_hash(case["text"].as_str().unwrap().as_bytes())), case["hash"], "{case}");
    }
    for case in each(&all, "canonical") {
        let payload: Payload = serde_json::from_str(case["json"].as_str().unwrap()).unwrap();
        assert_eq!(hex(payload.canonical_hash()), case["hash"], "{case}");
    }
    for case in each(&all, "inputs").iter().filter(|case| !case["input"].is_null()) {
        let payload: Payload = serde_json::from_value(case["input"]["value"].clone()).unwrap();
        assert_eq!(hex(payload.canonical_hash()), case["hash"], "{case}");
    }
    for case in each(&all, "fingerprints") {
        let parts: Vec<&str> = each(case, "parts").iter().map(|part| part.as_str().unwrap()).collect();
        assert_eq!(hex(stable_hash(parts.join("\0").as_bytes())), case["fingerprint"], "{case}");
    }
}

/// Reads a message, writes it, and reads it again: nothing is lost on the way.
fn passes<T: DeserializeOwned + Serialize>(case: &Value) {
    let text = case["json"].to_string();
    let read: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", case["name"]));
    let written = serde_json::to_string(&read).unwrap();
    let again: T = serde_json::from_str(&written).unwrap();
    assert_eq!(serde_json::to_string(&again).unwrap(), written, "{}", case["name"]);
    contains(&serde_json::from_str(&written).unwrap(), &case["json"], &case["name"]);
}

/// Whether a value is what a field is without it.
fn is_default(value: &Value) -> bool {
    value.is_null() || *value == Value::Bool(false) || value.as_array().is_some_and(Vec::is_empty)
}

/// Whether what was written says all that was read; it may say more or less where those are defaults.
fn contains(written: &Value, read: &Value, name: &Value) {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => {
            for (field, value) in read.iter().filter(|(_, value)| !value.is_null()) {
                match written.get(field) {
                    Some(found) => contains(found, value, name),
                    None => assert!(is_default(value), "{name}: {field} is gone"),
                }
            }
        }
        (Value::Array(written), Value::Array(read)) => {
            assert_eq!(written.len(), read.len(), "{name}");
            written.iter().zip(read).for_each(|(written, read)| contains(written, read, name));
        }
        (written, read) => assert_eq!(written, read, "{name}"),
    }
}

/// AB-19: every message of the vectors is one of the protocol.
#[test]
fn messages_are_the_protocols() {
    let all = vectors("messages");
    for case in all.as_array().unwrap() {
        match case["shape"].as_str().unwrap() {
            "ClaimWork" => passes::<ClaimWork>(case),
            "Claims" => passes::<Claims>(case),
            "Ending" => passes::<Ending>(case),
            "Entry" => passes::<Entry>(case),
            "Outcome" => passes::<Outcome>(case),
            "Problem" => passes::<Problem>(case),
            "Reported" => passes::<Reported>(case),
            "Reports" => passes::<Reports>(case),
            "Say" => passes::<Say>(case),
            "Start" => passes::<Start>(case),
            "Started" => passes::<Started>(case),
            other => panic!("nobody knows the shape {other}"),
        }
    }
}
