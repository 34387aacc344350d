//! Tokens: how they are made, kept and recognised. A store has their hash and never the secret.

use abide_kernel::{Refusal, RequestId, Timestamp};
use abide_protocol::{CreateToken, CreatedToken, Instant, Scope, Secret, Session, Token};
use abide_runtime::Entropy;
use abide_store::StoredToken;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::limits::{SESSION, SESSIONS_MAX};
use crate::user::Account;

/// What the text of a token begins with, so that it is recognised where it does not belong.
const PREFIX: &str = "abide_";
/// Hex digits of an id and of a secret.
const ID_DIGITS: usize = 16;
const SECRET_DIGITS: usize = 64;
const NAME_BYTES_MAX: usize = 200;
const ENTRIES_MAX: usize = 64;

/// What is kept of a token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) scopes: Vec<Scope>,
    pub(crate) namespaces: Vec<String>,
    pub(crate) created_at: Instant,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<Instant>,
    /// Of the secret, keyed by the id.
    hash: String,
    /// The user, if it is a session: then only a cookie brings it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session_of: Option<String>,
    /// What marks the account that the session was begun for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) account: Option<String>,
}

/// What is kept of a token cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("token {id}: {source}")]
pub struct BadToken {
    id: String,
    #[source]
    source: serde_json::Error,
}

/// Makes a token: what is kept of it, and what its holder is told this once.
///
/// # Errors
/// When what it should allow makes no sense; nothing is made then.
pub fn mint(asked: CreateToken, now: Timestamp) -> Result<(StoredToken, CreatedToken), Refusal> {
    mint_under(drawn()[..ID_DIGITS].to_owned(), asked, now)
}

/// What is to be kept of the first token of a store, which somebody else made up and which may do everything. Nothing, if
/// the text is no token.
#[must_use]
pub fn first(text: &str, now: Timestamp) -> Option<StoredToken> {
    let (id, secret) = parse(text)?;
    let (name, scopes, namespaces) = ("first".into(), vec![Scope::Admin], vec!["*".into()]);
    let hash = hash(id, secret);
    let (created_at, expires_at) = (Instant(now), None);
    let record = Record { name, scopes, namespaces, created_at, expires_at, hash, session_of: None, account: None };
    let body = serde_json::to_string(&record).expect("a record is plain data with text keys");
    Some(StoredToken { id: id.to_owned(), body })
}

fn drawn() -> String {
    format!("{:032x}", Entropy::System.next())
}

/// The id of the token that a request makes.
pub(crate) fn id_for(request: RequestId) -> String {
    format!("{:016x}", request.0 & u128::from(u64::MAX))
}

/// Makes a token of an id. Made again, it is the same token, whatever is asked then, with another secret: the first is
/// kept nowhere.
pub(crate) fn mint_again(
    id: String,
    known: Option<&StoredToken>,
    asked: CreateToken,
    now: Timestamp,
) -> Result<(StoredToken, CreatedToken), Refusal> {
    match known.and_then(|stored| Record::read(stored).ok()) {
        Some(record) => {
            validate(&asked)?;
            Ok(with_secret(id, record))
        }
        None => mint_under(id, asked, now),
    }
}

fn mint_under(id: String, asked: CreateToken, now: Timestamp) -> Result<(StoredToken, CreatedToken), Refusal> {
    validate(&asked)?;
    let CreateToken { name, scopes, namespaces, expires_in_ms } = asked;
    let expires_at = expires_in_ms.map(|ms| Instant(now.after(ms)));
    let (created_at, hash) = (Instant(now), String::new());
    let record = Record { name, scopes, namespaces, created_at, expires_at, hash, session_of: None, account: None };
    Ok(with_secret(id, record))
}

/// Gives a token a secret of its own, in place of any that it had.
fn with_secret(id: String, record: Record) -> (StoredToken, CreatedToken) {
    let secret = drawn() + &drawn();
    let record = Record { hash: hash(&id, &secret), ..record };
    let body = serde_json::to_string(&record).expect("a record is plain data with text keys");
    let secret = Secret::new(format!("{PREFIX}{id}_{secret}"));
    let created = CreatedToken { token: record.shown(&id), secret };
    (StoredToken { id, body }, created)
}

fn validate(asked: &CreateToken) -> Result<(), Refusal> {
    named("name", &asked.name)?;
    asked.namespaces.iter().try_for_each(|namespace| named("namespace", namespace))?;
    some("scopes", asked.scopes.len())?;
    some("namespaces", asked.namespaces.len())?;
    if asked.expires_in_ms == Some(0) {
        return Err(invalid("expires_in_ms", "at least 1, or none for a token that does not end", "0".into()));
    }
    Ok(())
}

pub(crate) fn invalid(what: &str, expected: &str, found: String) -> Refusal {
    Refusal::Invalid { what: what.into(), expected: expected.into(), found }
}

/// Whether it is a name.
pub(crate) fn named(what: &str, name: &str) -> Result<(), Refusal> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let expected = format!("a name of 1 to {NAME_BYTES_MAX} bytes without control characters");
        return Err(invalid(what, &expected, format!("{:?}", name.chars().take(80).collect::<String>())));
    }
    Ok(())
}

/// Whether there are some, and not too many.
pub(crate) fn some(what: &str, found: usize) -> Result<(), Refusal> {
    if found == 0 || found > ENTRIES_MAX {
        return Err(invalid(what, &format!("1 to {ENTRIES_MAX} of them"), found.to_string()));
    }
    Ok(())
}

/// A session that was made.
pub(crate) struct MadeSession {
    /// What is kept of it.
    pub(crate) stored: StoredToken,
    /// What its holder is told.
    pub(crate) session: Session,
    /// What goes into the cookie.
    pub(crate) secret: String,
}

/// A session of a user: a token that ends soon, and that only a cookie brings.
pub(crate) fn session(account: &Account, now: Timestamp) -> MadeSession {
    let user = &account.user;
    let (id, secret) = (drawn()[..ID_DIGITS].to_owned(), drawn() + &drawn());
    let expires_at = Instant(now.after(SESSION.as_millis() as u64));
    let record = Record {
        name: user.name.clone(),
        scopes: user.role.scopes(),
        namespaces: user.namespaces.clone(),
        created_at: Instant(now),
        expires_at: Some(expires_at),
        hash: hash(&id, &secret),
        session_of: Some(user.name.clone()),
        account: Some(account.mark()),
    };
    let body = serde_json::to_string(&record).expect("a record is plain data with text keys");
    let session = Session {
        name: record.name,
        scopes: record.scopes,
        namespaces: record.namespaces,
        expires_at: record.expires_at,
        csrf_token: Some(csrf(&secret)),
    };
    let secret = format!("{PREFIX}{id}_{secret}");
    MadeSession { stored: StoredToken { id, body }, session, secret }
}

/// What only a page that was given the session knows: it follows from the secret, and does not tell it.
pub(crate) fn csrf(secret: &str) -> String {
    hash("csrf", secret)
}

/// What marks an account, by the hash of its password, and does not tell it.
pub(crate) fn mark(hashed: &str) -> String {
    hash("account", hashed)
}

/// Whether it is what [`csrf`] made, in a time that does not tell how much of it is right.
pub(crate) fn is_csrf(known: &str, given: &str) -> bool {
    // Compared as hashes under a key: equal ones only if the texts are.
    let Some(kept) = bytes(&hash("same", known)) else { return false };
    keyed("same", given).verify_slice(&kept).is_ok()
}

/// The ids of a user's sessions, among the tokens of a store: they are removed as those are.
#[must_use]
pub fn sessions_of(stored: &[StoredToken], user: &str) -> Vec<String> {
    let is_of =
        |stored: &&StoredToken| Record::read(stored).is_ok_and(|record| record.session_of.as_deref() == Some(user));
    stored.iter().filter(is_of).map(|stored| stored.id.clone()).collect()
}

/// Sessions that have ended, and the oldest of a user who could not have another one else.
pub(crate) fn old_sessions(stored: &[StoredToken], user: &str, now: Timestamp) -> Vec<String> {
    let (mut old, mut living) = (Vec::new(), Vec::new());
    for stored in stored {
        let Ok(record) = Record::read(stored) else { continue };
        let Some(of) = &record.session_of else { continue };
        if record.expires_at.is_some_and(|at| at.0 <= now) {
            old.push(stored.id.clone());
        } else if of == user {
            living.push((record.created_at.0, stored.id.clone()));
        }
    }
    living.sort_unstable();
    let too_many = (living.len() + 1).saturating_sub(SESSIONS_MAX);
    old.extend(living.into_iter().take(too_many).map(|(_, id)| id));
    old
}

/// A token as people see it.
///
/// # Errors
/// When its record cannot be read.
pub fn shown(stored: &StoredToken) -> Result<Token, BadToken> {
    Ok(Record::read(stored)?.shown(&stored.id))
}

impl Record {
    pub(crate) fn read(stored: &StoredToken) -> Result<Self, BadToken> {
        serde_json::from_str(&stored.body).map_err(|source| BadToken { id: stored.id.clone(), source })
    }

    fn shown(&self, id: &str) -> Token {
        Token {
            token: id.to_owned(),
            name: self.name.clone(),
            scopes: self.scopes.clone(),
            namespaces: self.namespaces.clone(),
            created_at: self.created_at,
            expires_at: self.expires_at,
        }
    }

    /// Whether the secret is the one that this was made with, in a time that does not tell how much of it is right.
    pub(crate) fn is_of(&self, id: &str, secret: &str) -> bool {
        let Some(kept) = bytes(&self.hash) else { return false };
        keyed(id, secret).verify_slice(&kept).is_ok()
    }
}

/// The id and the secret in the text of a token.
pub(crate) fn parse(text: &str) -> Option<(&str, &str)> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let fits = id.len() == ID_DIGITS && secret.len() == SECRET_DIGITS && is_hex(id) && is_hex(secret);
    fits.then_some((id, secret))
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(hex.get(at * 2..at * 2 + 2)?, 16).ok()).collect()
}

fn keyed(id: &str, secret: &str) -> Hmac<Sha256> {
    let mut keyed = Hmac::<Sha256>::new_from_slice(id.as_bytes()).expect("a key may have any length");
    keyed.update(secret.as_bytes());
    keyed
}

fn hash(id: &str, secret: &str) -> String {
    keyed(id, secret).finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> CreateToken {
        CreateToken {
            name: "ada".into(),
            scopes: vec![Scope::Read],
            namespaces: vec!["shop".into()],
            expires_in_ms: Some(5),
        }
    }

    /// AB-16: what is kept recognises the secret and does not hold it.
    #[test]
    fn a_token_is_recognised_by_what_is_kept_and_not_told_by_it() {
        let (stored, created) = mint(asked(), Timestamp(100)).unwrap();
        let (id, secret) = parse(&created.secret).unwrap();
        assert_eq!((id, created.token.token.as_str()), (stored.id.as_str(), id));
        assert!(!stored.body.contains(secret));
        let record = Record::read(&stored).unwrap();
        assert!(record.is_of(id, secret));
        assert!(!record.is_of(id, &"0".repeat(SECRET_DIGITS)));
        assert!(!record.is_of("0000000000000000", secret));
        assert_eq!(record.expires_at, Some(Instant(Timestamp(105))));
        let (other, _) = mint(asked(), Timestamp(100)).unwrap();
        assert_ne!(other.id, stored.id);
    }

    #[test]
    fn texts_that_are_no_tokens_and_wishes_that_make_no_sense_are_refused() {
        let (_, created) = mint(asked(), Timestamp(0)).unwrap();
        let (whole, more) = (&*created.secret, format!("{}0", &*created.secret));
        for wrong in ["", "abide_", &whole[1..], &whole.to_uppercase(), &more] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let wishes = [
            CreateToken { name: String::new(), ..asked() },
            CreateToken { name: "a\nb".into(), ..asked() },
            CreateToken { scopes: Vec::new(), ..asked() },
            CreateToken { namespaces: Vec::new(), ..asked() },
            CreateToken { namespaces: vec![String::new()], ..asked() },
            CreateToken { expires_in_ms: Some(0), ..asked() },
        ];
        for wish in wishes {
            assert!(matches!(mint(wish, Timestamp(0)), Err(Refusal::Invalid { .. })));
        }
    }

    /// AB-16: the first token of a store is one that somebody else made up, and it must be a token.
    #[test]
    fn a_first_token_may_do_everything_and_is_not_kept_itself() {
        let text = format!("abide_{}_{}", "0123456789abcdef", "ab".repeat(32));
        let stored = first(&text, Timestamp(7)).unwrap();
        let (id, secret) = parse(&text).unwrap();
        let record = Record::read(&stored).unwrap();
        assert!(record.is_of(id, secret) && !stored.body.contains(secret));
        assert_eq!((record.scopes, record.namespaces), (vec![Scope::Admin], vec!["*".to_owned()]));
        for wrong in ["", "secret", "abide_0123456789abcdef_", &text[..text.len() - 1]] {
            assert!(first(wrong, Timestamp(7)).is_none(), "{wrong}");
        }
    }
}
