//! The demo: real kills, nothing lost. Every test lets it run once.

mod shop;

use shop::Shop;

#[test]
fn the_demo_kills_and_loses_nothing() {
    let shop = Shop::new();
    let demo = shop.abide(&["demo", "--json", "--kills", "7", "--shards", "4", "--dir", "shop"]);
    let told = demo.json();
    assert_eq!(demo.code, 0, "{demo:?}");
    assert_eq!(demo.out.lines().count(), 1, "one object and nothing else");
    for (field, expected) in [("kills", 7), ("lost", 0), ("terminal_twice", 0), ("charged_twice", 0), ("problems", 0)] {
        assert_eq!(told[field], expected, "{field} in {told}");
    }
    assert_eq!(told["orders"], 7);
    assert_eq!(told["runs"], 7 + 7 * 3);
    assert_eq!(told["acknowledged"], 14);
    let points = told["kills_by_point"].as_object().unwrap();
    assert!(points.len() >= 3, "{told}");
    // The store stays, and can be looked at.
    let store = format!("sqlite:{}", shop.dir().join("shop/abide.db").display());
    let done = shop.abide(&["--store", &store, "run", "list", "--status", "done"]).ok().out;
    assert_eq!(done.lines().count(), 28, "{done}");
    shop.abide(&["--store", &store, "store", "check"]).ok();
    let again = shop.abide(&["demo", "--dir", "shop"]);
    assert!(again.code == 2 && again.err.contains("code: not_fresh"), "{again:?}");
}

#[test]
fn the_demo_draws_the_life_of_an_order() {
    let shop = Shop::new();
    let told = shop.abide(&["demo", "--kills", "5"]).ok().out;
    for word in ["kill 5 of 5", "pick vase", "cool_off", "14 acknowledgements, 0 lost", "0 ended twice", "█ worked"] {
        let word = word.replace("14", "12");
        assert!(told.contains(&word), "{word:?} is missing in\n{told}");
    }
    assert!(!told.contains('\u{1b}'), "no colour without a terminal");
}
