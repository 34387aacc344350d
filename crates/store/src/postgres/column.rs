//! Values as columns hold them: run ids as `uuid`, and texts without zero bytes.

use std::borrow::Cow;
use std::error::Error;

use abide_kernel::{RequestId, RunId, ShardId};
use bytes::BytesMut;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use super::fault::Trouble;

/// A run id in a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Id(pub(super) RunId);

/// A request id in a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request(pub(super) RequestId);

macro_rules! as_uuid {
    ($name:ident, $inner:ident) => {
        impl ToSql for $name {
            fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
                out.extend_from_slice(&self.0.0.to_be_bytes());
                Ok(IsNull::No)
            }

            accepts!(UUID);
            to_sql_checked!();
        }

        impl<'a> FromSql<'a> for $name {
            fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
                Ok(Self($inner(u128::from_be_bytes(raw.try_into()?))))
            }

            accepts!(UUID);
        }
    };
}

as_uuid!(Id, RunId);
as_uuid!(Request, RequestId);

/// A shard's number as a column holds it. There are at most 4,096.
pub(super) fn small(shard: u16) -> i16 {
    i16::try_from(shard).unwrap_or(i16::MAX)
}

/// Shards from the first column of an answer.
pub(super) fn shards(rows: &[Row]) -> Result<Vec<ShardId>, Trouble> {
    rows.iter().map(|row| Ok(ShardId(row.try_get::<_, i16>(0)? as u16))).collect()
}

/// A text as it is written: PostgreSQL keeps no zero byte.
pub(super) fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', '\\']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('\\', "\\\\").replace('\0', "\\0"))
}

/// The text that was written.
pub(super) fn unescape(text: String) -> String {
    if !text.contains('\\') {
        return text;
    }
    let mut plain = String::with_capacity(text.len());
    let mut signs = text.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '\\' => plain.push(if signs.next() == Some('0') { '\0' } else { '\\' }),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_can_be_written_and_read_back() {
        for text in ["", "plain", "a\0b", "\\", "\\0", "\0\\\\0", "ключ\\ś\0"] {
            let written = escape(text);
            assert!(!written.contains('\0'));
            assert_eq!(unescape(written.clone().into_owned()), text, "{written}");
        }
        assert_ne!(escape("\\0"), escape("\0"));
    }
}
