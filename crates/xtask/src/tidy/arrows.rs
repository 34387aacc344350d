//! Rule: a crate uses only the crates it may. The arrows are the design's; a new crate or a new arrow is a
//! decision, made by changing the table here. What tests use is free, except that nobody uses this crate.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::tree::{Tree, Violation, line_at};

/// The crates, by folder, that a crate's own code may use.
enum MayUse {
    Only(&'static [&'static str]),
    AllButDeveloperTools,
    /// The same, and servers for tests.
    AllWithServers,
}

/// They see everything; nobody sees them.
const DEVELOPER_TOOLS: &[&str] = &["sim", "xtask"];

/// Servers for tests: no product starts one.
const SERVERS: &str = "pg-testing";

const ARROWS: &[(&str, MayUse)] = &[
    ("kernel", MayUse::Only(&[])),
    ("store", MayUse::Only(&["kernel"])),
    ("runtime", MayUse::Only(&["kernel", "store"])),
    ("protocol", MayUse::Only(&["kernel"])),
    // The runtime and its store come with the feature `embedded`.
    ("sdk", MayUse::Only(&["kernel", "protocol", "runtime", "store"])),
    ("server", MayUse::Only(&["kernel", "protocol", "runtime", "store"])),
    ("cli", MayUse::AllButDeveloperTools),
    ("pg-testing", MayUse::Only(&[])),
    ("sim", MayUse::AllWithServers),
    ("xtask", MayUse::AllWithServers),
];

impl MayUse {
    fn allows(&self, used: &str) -> bool {
        match self {
            MayUse::Only(list) => list.contains(&used),
            MayUse::AllButDeveloperTools => !DEVELOPER_TOOLS.contains(&used) && used != SERVERS,
            MayUse::AllWithServers => !DEVELOPER_TOOLS.contains(&used),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Product,
    Tests,
}

/// One line under some `[…dependencies]`, with the package name it stands for.
struct Dependency {
    package: String,
    purpose: Purpose,
    line: usize,
}

struct Manifest<'t> {
    path: &'t str,
    folder: &'t str,
    package: String,
    dependencies: Vec<Dependency>,
}

pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let root = tree.text("Cargo.toml").and_then(|text| DeTable::parse(text).ok());
    let mut manifests = Vec::new();
    for (path, text) in tree.texts() {
        let Some(folder) = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        match DeTable::parse(text) {
            Ok(table) => manifests.push(read(path, folder, text, &table, root.as_ref())),
            Err(error) => {
                let line = error.span().map_or(1, |span| line_at(text, span.start));
                let message = format!("expected TOML, found: {}", error.message());
                violations.push(Violation::new(path, line, message));
            }
        }
    }
    let folders: BTreeMap<&str, &str> =
        manifests.iter().map(|manifest| (manifest.package.as_str(), manifest.folder)).collect();
    for manifest in &manifests {
        violations.extend(check_manifest(manifest, &folders));
    }
    violations
}

fn check_manifest(manifest: &Manifest<'_>, folders: &BTreeMap<&str, &str>) -> Vec<Violation> {
    let Some((user, may_use)) = ARROWS.iter().find(|(folder, _)| *folder == manifest.folder) else {
        let message = format!(
            "expected a crate of the table in crates/xtask/src/tidy/arrows.rs, found {}; add it there",
            manifest.folder,
        );
        return vec![Violation::new(manifest.path, 1, message)];
    };
    let mut violations = Vec::new();
    for dependency in &manifest.dependencies {
        let Some(used) = folders.get(dependency.package.as_str()) else {
            continue;
        };
        let message = match dependency.purpose {
            Purpose::Product if !may_use.allows(used) => {
                format!("{user} may not use {used}; move the code, not the arrow")
            }
            Purpose::Tests if *used == "xtask" => format!("{user} may not use xtask, not even in tests"),
            Purpose::Product | Purpose::Tests => continue,
        };
        violations.push(Violation::new(manifest.path, dependency.line, message));
    }
    violations
}

type Table<'t> = Spanned<DeTable<'t>>;

fn read<'t>(path: &'t str, folder: &'t str, text: &str, table: &Table<'_>, root: Option<&Table<'_>>) -> Manifest<'t> {
    let table = table.get_ref();
    let package = sub_table(table, "package").and_then(|package| string(package, "name")).unwrap_or(folder);
    let shared = root
        .and_then(|root| sub_table(root.get_ref(), "workspace"))
        .and_then(|workspace| sub_table(workspace, "dependencies"));
    // Dependencies of one platform are dependencies.
    let platforms = sub_table(table, "target").into_iter().flat_map(|target| target.values());
    let places = std::iter::once(table).chain(platforms.filter_map(|platform| platform.get_ref().as_table()));
    let mut dependencies = Vec::new();
    for place in places {
        for (section, purpose) in [
            ("dependencies", Purpose::Product),
            ("build-dependencies", Purpose::Product),
            ("dev-dependencies", Purpose::Tests),
        ] {
            for (key, value) in sub_table(place, section).into_iter().flatten() {
                let package = package_of(key.get_ref(), value.get_ref(), shared).to_owned();
                dependencies.push(Dependency { package, purpose, line: line_at(text, key.span().start) });
            }
        }
    }
    Manifest { path, folder, package: package.to_owned(), dependencies }
}

/// A dependency may be renamed where it is used or, when it is inherited, in the workspace.
fn package_of<'t>(key: &'t str, value: &'t DeValue<'_>, shared: Option<&'t DeTable<'_>>) -> &'t str {
    let renamed = |value: &'t DeValue<'_>| value.as_table().and_then(|table| string(table, "package"));
    let inherited = || shared.and_then(|shared| shared.get(key)).and_then(|value| renamed(value.get_ref()));
    renamed(value).or_else(inherited).unwrap_or(key)
}

fn sub_table<'t, 'i>(table: &'t DeTable<'i>, key: &str) -> Option<&'t DeTable<'i>> {
    table.get(key).and_then(|value| value.get_ref().as_table())
}

fn string<'t>(table: &'t DeTable<'_>, key: &str) -> Option<&'t str> {
    table.get(key).and_then(|value| value.get_ref().as_str())
}

#[cfg(test)]
mod tests {
    use super::super::tree::shown;
    use super::*;

    const KERNEL: (&str, &str) = ("crates/kernel/Cargo.toml", "[package]\nname = \"abide-kernel\"\n");
    const STORE: &str =
        "[package]\nname = \"abide-store\"\n[dependencies]\nabide-kernel.workspace = true\nserde = \"1\"\n";

    #[test]
    fn the_arrows_of_the_design_are_allowed() {
        let cli = "[package]\nname = \"abide-cli\"\n[dependencies]\nabide-store = {}\nabide-kernel = {}\n";
        let tree = Tree::of(&[KERNEL, ("crates/store/Cargo.toml", STORE), ("crates/cli/Cargo.toml", cli)]);
        assert!(check(&tree).is_empty());
    }

    #[test]
    fn an_arrow_against_the_design_is_refused_at_its_line() {
        let kernel = "[package]\nname = \"abide-kernel\"\n\n[dependencies]\nserde = \"1\"\nabide-store = {}\n";
        let tree = Tree::of(&[("crates/kernel/Cargo.toml", kernel), ("crates/store/Cargo.toml", STORE)]);
        assert_eq!(
            shown(&check(&tree)),
            ["crates/kernel/Cargo.toml:6: kernel may not use store; move the code, not the arrow"]
        );
    }

    #[test]
    fn a_renamed_or_platform_or_build_dependency_is_still_an_arrow() {
        let root = "[workspace.dependencies]\ndisk = { package = \"abide-store\", path = \"crates/store\" }\n";
        for dependency in [
            "[dependencies]\ndisk.workspace = true",
            "[dependencies]\nother = { package = \"abide-store\" }",
            "[build-dependencies]\nabide-store = {}",
            "[target.'cfg(unix)'.dependencies]\nabide-store = {}",
        ] {
            let kernel = format!("[package]\nname = \"abide-kernel\"\n{dependency}\n");
            let tree = Tree::of(&[
                ("Cargo.toml", root),
                ("crates/kernel/Cargo.toml", &kernel),
                ("crates/store/Cargo.toml", STORE),
            ]);
            assert_eq!(check(&tree).len(), 1, "{dependency}");
        }
    }

    #[test]
    fn tests_may_use_anything_but_xtask() {
        let xtask = ("crates/xtask/Cargo.toml", "[package]\nname = \"xtask\"\n");
        let sim = ("crates/sim/Cargo.toml", "[package]\nname = \"abide-sim\"\n");
        let kernel = "[package]\nname = \"abide-kernel\"\n\
                      [dev-dependencies]\nabide-sim = {}\nabide-store = {}\nxtask = {}\n";
        let tree = Tree::of(&[xtask, sim, ("crates/kernel/Cargo.toml", kernel), ("crates/store/Cargo.toml", STORE)]);
        assert_eq!(shown(&check(&tree)), ["crates/kernel/Cargo.toml:6: kernel may not use xtask, not even in tests"]);
    }

    #[test]
    fn nobody_uses_the_developer_tools() {
        let sim = ("crates/sim/Cargo.toml", "[package]\nname = \"abide-sim\"\n");
        for user in ["cli", "sdk", "xtask"] {
            let path = format!("crates/{user}/Cargo.toml");
            let text = "[package]\nname = \"user\"\n[dependencies]\nabide-sim = {}\n";
            assert_eq!(check(&Tree::of(&[sim, (&path, text)])).len(), 1, "{user}");
        }
    }

    #[test]
    fn an_unknown_crate_and_a_broken_manifest_are_reported() {
        let tree = Tree::of(&[("crates/util/Cargo.toml", "[package]\nname = \"abide-util\"\n")]);
        assert!(shown(&check(&tree))[0].contains("found util"));
        let tree = Tree::of(&[("crates/store/Cargo.toml", "[package]\nname = \n")]);
        assert!(shown(&check(&tree))[0].starts_with("crates/store/Cargo.toml:2: expected TOML"));
    }
}
