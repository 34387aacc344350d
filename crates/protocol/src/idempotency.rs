//! Idempotency keys: a request that is sent again under the same key gets the first answer.
//!
//! A key carries the time at which the client made it, because the id of a run that it starts does: a UUID of version 7,
//! or a request id of ours. See decision 7.

use std::fmt;
use std::str::FromStr;

use abide_kernel::{RequestId, Timestamp};

/// A key that a client made for one request, with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(u128);

impl IdempotencyKey {
    /// When the client made it, by its clock.
    #[must_use]
    pub fn made_at(self) -> Timestamp {
        Timestamp((self.0 >> 80) as i64)
    }

    /// The request that it stands for, where `digest` tells apart whatever else the request is about, so that one key
    /// used for two things, or by two tenants, never meets.
    #[must_use]
    pub fn request(self, digest: impl FnOnce(&[u8; 16]) -> u128) -> RequestId {
        RequestId::new(self.made_at(), digest(&self.0.to_be_bytes()))
    }
}

/// A text that is no idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadKey {
    /// What was found, cut to a readable length.
    pub found: String,
}

impl BadKey {
    /// What a key looks like.
    pub const EXPECTED: &'static str =
        "a UUID of version 7, like 0193f2c4-a1b2-7c3d-8e4f-5a6b7c8d9e0f, or req_<32 hex digits>";
}

impl fmt::Display for BadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Idempotency-Key: expected {}, found {:?}", Self::EXPECTED, self.found)
    }
}

impl std::error::Error for BadKey {}

impl FromStr for IdempotencyKey {
    type Err = BadKey;

    fn from_str(text: &str) -> Result<Self, BadKey> {
        let bad = || BadKey { found: text.chars().take(80).collect() };
        if let Ok(request) = text.parse::<RequestId>() {
            return Ok(Self(request.0));
        }
        let groups: Vec<&str> = text.split('-').collect();
        let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
        if lengths != [8, 4, 4, 4, 12] || !text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let number = u128::from_str_radix(&groups.concat(), 16).map_err(|_| bad())?;
        let (version, variant) = ((number >> 76) & 0xf, (number >> 62) & 0b11);
        if version == 7 && variant == 0b10 { Ok(Self(number)) } else { Err(bad()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_of_version_7_and_a_request_id_are_keys_and_nothing_else_is() {
        let key: IdempotencyKey = "0193f2c4-a1b2-7c3d-8e4f-5a6b7c8d9e0f".parse().unwrap();
        assert_eq!(key.made_at(), Timestamp(0x0193_f2c4_a1b2));
        assert_eq!("0193F2C4-A1B2-7C3D-8E4F-5A6B7C8D9E0F".parse(), Ok(key));
        let request = RequestId::new(Timestamp(77), 5);
        assert_eq!(request.to_string().parse::<IdempotencyKey>().unwrap().made_at(), Timestamp(77));
        for wrong in [
            "",
            "order-17",
            "0193f2c4-a1b2-4c3d-8e4f-5a6b7c8d9e0f",
            "0193f2c4-a1b2-7c3d-ce4f-5a6b7c8d9e0f",
            "0193f2c4a1b27c3d8e4f5a6b7c8d9e0f",
            "req_1",
            "+193f2c4-a1b2-7c3d-8e4f-5a6b7c8d9e0f",
        ] {
            assert!(wrong.parse::<IdempotencyKey>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_request_keeps_the_keys_time_and_is_told_apart_by_the_digest() {
        let key: IdempotencyKey = "0193f2c4-a1b2-7c3d-8e4f-5a6b7c8d9e0f".parse().unwrap();
        let (one, two) = (key.request(|_| 1), key.request(|_| 2));
        assert_ne!(one, two);
        assert_eq!((one.made_at(), two.made_at()), (key.made_at(), key.made_at()));
    }
}
