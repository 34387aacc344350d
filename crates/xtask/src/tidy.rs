//! `cargo xtask tidy`: what must stay true of the tree and no compiler checks. One file per rule, each a
//! function from the tree to the places that break it; a rule reads nothing but the tree, so its tests can
//! make one up.

mod markdown;
mod tokens;
mod tree;

mod architecture;
mod arrows;
mod bans;
mod documents;
mod hosts;
mod openings;
mod purity;
mod sizes;

use std::path::Path;

use anyhow::{Result, ensure};

use tree::{Tree, Violation};

type Rule = fn(&Tree) -> Vec<Violation>;

const RULES: &[Rule] = &[
    arrows::check,
    purity::check,
    sizes::check,
    documents::check,
    architecture::check,
    bans::check,
    hosts::check,
    openings::check,
];

pub(crate) fn perform(root: &Path) -> Result<()> {
    let tree = Tree::load(root)?;
    let mut violations: Vec<Violation> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    violations.sort();
    for violation in &violations {
        println!("{violation}");
    }
    ensure!(violations.is_empty(), "the tree is not tidy: expected no violation, found {}", violations.len());
    eprintln!("xtask: {} files, all tidy", tree.len());
    Ok(())
}
