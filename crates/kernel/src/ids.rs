//! Identities. Each is its own type; those a person meets have a prefixed text form.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time::Timestamp;

/// How many slots there are; a slot belongs to a run id for good, which shard serves it is configuration.
pub const SLOTS: u16 = 4_096;

/// A hash that never changes between releases: eight bytes at a time, mixed. Slots and derived ids depend on it.
#[must_use]
pub fn stable_hash(bytes: &[u8]) -> u64 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut hash = 0x9e37_79b9_7f4a_7c15 ^ bytes.len() as u64;
    for chunk in chunks {
        hash = mix(hash ^ u64::from_le_bytes(*chunk));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hash ^ u64::from_le_bytes(last))
}

/// Spreads the bits of `value` over all positions.
#[must_use]
pub fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Where a run belongs: a stable hash of its home key, twelve bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub u16);

impl Slot {
    /// The slot of a key.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        Self((stable_hash(key) % u64::from(SLOTS)) as u16)
    }
}

/// A shard of a store: what one node owns at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(pub u16);

/// Which shard serves a slot, as the store is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardMap {
    shards: u16,
}

impl ShardMap {
    /// A map over `shards` shards, each with an equal range of slots.
    ///
    /// # Panics
    /// When `shards` is zero or exceeds the number of slots.
    #[must_use]
    pub fn new(shards: u16) -> Self {
        assert!(shards > 0 && shards <= SLOTS, "a store has 1 to {SLOTS} shards, not {shards}");
        Self { shards }
    }

    /// The shard that serves `slot`.
    #[must_use]
    pub fn home(self, slot: Slot) -> ShardId {
        ShardId((u32::from(slot.0) * u32::from(self.shards) / u32::from(SLOTS)) as u16)
    }

    /// The first slot that a shard serves.
    #[must_use]
    pub fn first_slot(self, shard: ShardId) -> Slot {
        Slot((u32::from(shard.0) * u32::from(SLOTS)).div_ceil(u32::from(self.shards)) as u16)
    }

    /// How many shards there are.
    #[must_use]
    pub fn count(self) -> u16 {
        self.shards
    }

    /// All shards, in order.
    pub fn all(self) -> impl Iterator<Item = ShardId> {
        (0..self.shards).map(ShardId)
    }
}

/// A run: 48 bits of time, 12 bits of slot, 68 bits that make it unique. Later runs sort later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u128);

const ENTROPY_BITS: u32 = 68;
const SLOT_BITS: u32 = 12;

impl RunId {
    /// Puts an id together. Only the low 68 bits of `entropy` count.
    #[must_use]
    pub fn new(at: Timestamp, slot: Slot, entropy: u128) -> Self {
        let time = (at.0.max(0) as u128) & ((1 << 48) - 1);
        let low = entropy & ((1u128 << ENTROPY_BITS) - 1);
        Self((time << (SLOT_BITS + ENTROPY_BITS)) | (u128::from(slot.0) << ENTROPY_BITS) | low)
    }

    /// The slot carried in the id.
    #[must_use]
    pub fn slot(self) -> Slot {
        Slot(((self.0 >> ENTROPY_BITS) & u128::from(SLOTS - 1)) as u16)
    }

    /// When the id was made.
    #[must_use]
    pub fn made_at(self) -> Timestamp {
        Timestamp((self.0 >> (SLOT_BITS + ENTROPY_BITS)) as i64)
    }
}

/// A request made by a client. A retry carries the same one and gets the first answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u128);

impl RequestId {
    /// Puts an id together from the client's clock and 80 random bits.
    #[must_use]
    pub fn new(at: Timestamp, entropy: u128) -> Self {
        Self(((at.0.max(0) as u128) << 80) | (entropy & ((1 << 80) - 1)))
    }

    /// When the client made it, by the client's clock.
    #[must_use]
    pub fn made_at(self) -> Timestamp {
        Timestamp((self.0 >> 80) as i64)
    }

    /// A request that belongs to this one: the `n`-th of a batch, a child, an internal follow-up.
    #[must_use]
    pub fn derive(self, salt: u64) -> Self {
        let low = u128::from(mix((self.0 as u64) ^ mix(salt)));
        Self((self.0 & !u128::from(u64::MAX)) | low)
    }
}

macro_rules! hex_text {
    ($name:ident, $prefix:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{:032x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                let bad = || BadId { expected: concat!($prefix, "<32 hex digits>"), found: text.chars().take(80).collect() };
                let hex = text.strip_prefix($prefix).ok_or_else(bad)?;
                // `from_str_radix` would also take a sign, and digits in upper case would be a second spelling.
                if hex.len() != 32 || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
                    return Err(bad());
                }
                u128::from_str_radix(hex, 16).map(Self).map_err(|_| bad())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = alloc::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

hex_text!(RunId, "run_");
hex_text!(RequestId, "req_");

/// An envelope that was set aside as a dead letter: its number in the store, which is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LetterId(pub u64);

impl LetterId {
    /// What its text form begins with.
    pub const PREFIX: &'static str = "letter_";
}

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, self.0)
    }
}

impl FromStr for LetterId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId { expected: "letter_<number>", found: text.chars().take(80).collect() };
        let number = text.strip_prefix(Self::PREFIX).and_then(|digits| digits.parse().ok()).map(Self);
        // One spelling only: no sign and no leading zeros.
        number.filter(|letter| letter.to_string() == text).ok_or_else(bad)
    }
}

impl Serialize for LetterId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LetterId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = alloc::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// An id whose text form is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadId {
    /// The form that was expected.
    pub expected: &'static str,
    /// The text that was found, cut to a readable length.
    pub found: String,
}

impl fmt::Display for BadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected an id of the form {}, found {:?}", self.expected, self.found)
    }
}

impl core::error::Error for BadId {}

/// A claim: the run and the number of the claim within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClaimId {
    /// The run the claimed attempt belongs to.
    pub run: RunId,
    /// Which claim of that run, counted from 1 over all epochs and steps.
    pub number: u32,
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "claim_{:032x}_{}", self.run.0, self.number)
    }
}

impl FromStr for ClaimId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let parse = || {
            let (run, number) = text.strip_prefix("claim_")?.split_once('_')?;
            // Only the one form that is written: no sign, no capitals, no zeros before.
            let run = u128::from_str_radix(run, 16).ok().filter(|value| alloc::format!("{value:032x}") == run)?;
            let number: u32 = number.parse().ok().filter(|value: &u32| value.to_string() == number)?;
            Some(Self { run: RunId(run), number })
        };
        let expected = "claim_ and 32 hexadecimal digits, _ and a number";
        parse().ok_or_else(|| BadId { expected, found: text.chars().take(80).collect() })
    }
}

/// The hash of a claim's secret token: all that is ever stored of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenHash(pub u128);

impl Serialize for TokenHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", self.0))
    }
}

impl<'de> Deserialize<'de> for TokenHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = alloc::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map(Self).map_err(|error| serde::de::Error::custom(error.to_string()))
    }
}

/// A position in a shard's log, counted from 1 without gaps. Zero means "before the first".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// The position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A run's revision: how many journal rows it has. It is the run's state version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rev(pub u64);

/// Which ownership of a shard a writer acts under. Acquiring a shard bumps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardEpoch(pub u64);

/// A hash of a workflow's definition, pinned by a run at its start or first claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u64);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = alloc::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map(Self).map_err(|error| serde::de::Error::custom(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_serves_its_first_slot_and_not_the_one_before() {
        for count in [1, 3, 4, 7, 100, SLOTS] {
            let map = ShardMap::new(count);
            for shard in map.all() {
                let first = map.first_slot(shard);
                assert_eq!(map.home(first), shard);
                assert!(first.0 == 0 || map.home(Slot(first.0 - 1)) < shard);
            }
        }
    }

    #[test]
    fn a_run_id_carries_its_slot_and_sorts_by_time() {
        let early = RunId::new(Timestamp(1_000), Slot(4_095), u128::MAX);
        let late = RunId::new(Timestamp(1_001), Slot(0), 0);
        assert!(early < late);
        assert_eq!(early.slot(), Slot(4_095));
        assert_eq!(late.made_at(), Timestamp(1_001));
        let text = early.to_string();
        assert_eq!(text.parse::<RunId>(), Ok(early));
        assert!(text.to_uppercase().parse::<RunId>().is_err());
        assert!("run_+0000000000000000000000000000000".parse::<RunId>().is_err());
        assert!("".parse::<RunId>().is_err());
    }

    #[test]
    fn every_slot_has_a_home_and_every_shard_has_slots() {
        let map = ShardMap::new(4);
        let homes: alloc::vec::Vec<_> = (0..SLOTS).map(|slot| map.home(Slot(slot)).0).collect();
        assert!(homes.is_sorted());
        assert_eq!(homes[0], 0);
        assert_eq!(homes[usize::from(SLOTS) - 1], 3);
        assert_eq!(homes.iter().filter(|home| **home == 2).count(), 1_024);
    }

    #[test]
    fn the_stable_hash_never_changes() {
        assert_eq!(stable_hash(b""), 0xe220_a839_7b1d_cdaf);
        assert_eq!(Slot::of(b"order-17"), Slot::of(b"order-17"));
    }

    /// A derived request is made at the same time, differs by its salt, and is the same in every release.
    #[test]
    fn a_derived_request_keeps_its_time() {
        let request = RequestId::new(Timestamp(1_000), 7);
        let derived = request.derive(1);
        assert_eq!(derived.made_at(), request.made_at());
        assert_ne!(derived, request.derive(2));
        assert_eq!(derived.to_string(), "req_0000000003e80000df2bbb9538aae818");
    }

    #[test]
    fn a_claim_has_one_spelling() {
        let claim = ClaimId { run: RunId(0xab), number: 7 };
        assert_eq!(claim.to_string(), "claim_000000000000000000000000000000ab_7");
        assert_eq!(claim.to_string().parse(), Ok(claim));
        for wrong in [
            "claim_000000000000000000000000000000AB_7",
            "claim_ab_7",
            "claim_000000000000000000000000000000ab_07",
            "claim_000000000000000000000000000000ab_+7",
            "run_000000000000000000000000000000ab_7",
        ] {
            let error = wrong.parse::<ClaimId>().unwrap_err().to_string();
            assert!(error.starts_with("expected an id of the form claim_") && error.contains(wrong), "{error}");
        }
    }
}
