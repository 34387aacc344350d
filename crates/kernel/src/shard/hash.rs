//! The hasher of the shard's maps: fixed, so that two machines given the same inputs hold the same maps.
//! A map is looked up; where one is listed, the list is sorted before anything follows from it.

use core::hash::{BuildHasherDefault, Hasher};

use crate::ids::{mix, stable_hash};

/// A map whose order says nothing.
pub(crate) type Map<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<Fixed>>;

/// A hasher without a seed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fixed(u64);

impl Hasher for Fixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = mix(self.0 ^ stable_hash(bytes));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
    }

    fn write_u128(&mut self, value: u128) {
        self.0 = mix(self.0 ^ (value as u64) ^ ((value >> 64) as u64).rotate_left(32));
    }
}
