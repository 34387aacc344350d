//! Panics: those that are drawn are dealt with and no news; any other is a bug, also where the engine takes it for a step that
//! failed. A world lives on one thread, so what its thread panicked with is the world's; turns that have a thread of their own pass it on.

use std::cell::RefCell;

/// What a call panics with when that is its fate.
pub(crate) const DRAWN: &str = "a call that panics";

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Watches panics of all threads from now on, and prints none.
pub fn watch() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("something that is no text");
        if text != DRAWN {
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            LAST.with(|last| *last.borrow_mut() = Some(format!("{text} ({place})")));
        }
    }));
}

/// Another thread panicked for this one.
pub(crate) fn pass_on(panic: Option<String>) {
    if panic.is_some() {
        LAST.with(|last| *last.borrow_mut() = panic);
    }
}

/// What this thread panicked with since it was last asked, if that was not drawn.
pub fn take() -> Option<String> {
    LAST.with(|last| last.borrow_mut().take())
}
