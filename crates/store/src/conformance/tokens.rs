//! Tokens: kept, replaced, removed, and there after the process died.

use super::Fixture;
use crate::{Store, StoredToken};

fn token(id: &str, body: &str) -> StoredToken {
    StoredToken { id: id.into(), body: body.into() }
}

fn kept(store: &dyn Store) -> Vec<StoredToken> {
    store.reader().expect("a reader").tokens().expect("tokens")
}

/// AB-16
pub fn a_token_is_kept_until_it_is_removed(fixture: &mut dyn Fixture) {
    let mut store = fixture.make();
    assert_eq!(kept(&*store), []);
    store.write_token(&token("b", r#"{"name":"бета"}"#)).expect("the store is well");
    store.write_token(&token("a", "{}")).expect("the store is well");
    store.write_token(&token("a", r#"{"name":"alpha"}"#)).expect("the store is well");
    let mut store = fixture.reopen(store);
    assert_eq!(kept(&*store), [token("a", r#"{"name":"alpha"}"#), token("b", r#"{"name":"бета"}"#)]);
    let mut reader = store.reader().expect("a reader");
    assert_eq!(reader.token("b").expect("a token"), Some(token("b", r#"{"name":"бета"}"#)));
    assert_eq!(reader.token("c").expect("no token"), None);
    drop(reader);
    assert!(store.remove_token("a").expect("the store is well"));
    assert!(!store.remove_token("a").expect("the store is well"));
    assert_eq!(kept(&*store).len(), 1);
}
