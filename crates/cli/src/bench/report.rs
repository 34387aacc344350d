//! Figures of several rounds: medians with their smallest and largest, as text or as one JSON object.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Figures by name, one value per round.
#[derive(Debug, Default)]
pub(crate) struct Report {
    order: Vec<String>,
    values: BTreeMap<String, Vec<f64>>,
}

impl Report {
    pub(crate) fn add(&mut self, name: &str, value: f64) {
        if !self.values.contains_key(name) {
            self.order.push(name.to_owned());
        }
        self.values.entry(name.to_owned()).or_default().push(value);
    }

    pub(crate) fn median(&self, name: &str) -> f64 {
        let mut values = self.values.get(name).cloned().unwrap_or_default();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Prints every figure: its median, and, where rounds differ, its smallest and largest.
    #[expect(clippy::print_stdout, reason = "figures are what the command is for")]
    pub(crate) fn print(&self, json: bool, settings: &[(&str, Value)]) {
        if json {
            let mut object: Map<String, Value> =
                settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            for name in &self.order {
                let values = &self.values[name];
                object.insert(name.clone(), json!(rounded(self.median(name))));
                if values.len() > 1 {
                    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
                    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    object.insert(format!("{name}_min"), json!(rounded(least)));
                    object.insert(format!("{name}_max"), json!(rounded(most)));
                }
            }
            println!("{}", Value::Object(object));
            return;
        }
        for (name, value) in settings {
            println!("{name:24} {value}");
        }
        for name in &self.order {
            let values: Vec<String> = self.values[name].iter().map(|value| rounded(*value).to_string()).collect();
            println!("{name:24} {:>14}   rounds: {}", rounded(self.median(name)), values.join(", "));
        }
    }
}

fn rounded(value: f64) -> f64 {
    if value.abs() >= 100.0 { value.round() } else { (value * 1_000.0).round() / 1_000.0 }
}

/// Memory that the process holds now, in MiB.
pub(crate) fn resident_mb() -> f64 {
    resident_mb_of(std::process::id())
}

/// Memory that a process holds now, in MiB.
pub(crate) fn resident_mb_of(process: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(f64::NAN);
    kib / 1_024.0
}
