//! JSON web keys (RFC 7517) that verify the signatures of access tokens.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde_json::Value;

/// The most keys of a set.
const KEYS_MAX: usize = 64;

/// The shortest secret of a MAC, in bytes: the output of its hash (RFC 7518, 3.2).
const SECRET_BYTES_MIN: usize = 32;

/// A key that verifies signatures of one algorithm.
enum VerificationKey {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
    Mac(hmac::Key),
}

pub(crate) struct NamedKey {
    pub(crate) id: Option<String>,
    /// The only algorithm that the key is for, if its set names one.
    algorithm: Option<String>,
    key: VerificationKey,
}

impl NamedKey {
    pub(crate) fn verifies(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> bool {
        self.algorithm.as_deref().is_none_or(|only| only == algorithm)
            && self.key.verifies(algorithm, signed, signature)
    }
}

/// A JSON web key set.
pub(crate) struct TokenKeySet(pub(crate) Vec<NamedKey>);

impl TokenKeySet {
    /// Parses a key set. Keys that the node cannot use, or that are not for signatures, are ignored
    /// (RFC 7517, section 5).
    ///
    /// # Errors
    /// Why it is no key set, or why none of its keys can be used.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let set: Value = serde_json::from_slice(text)
            .map_err(|error| format!("wanted is a JSON web key set: {error}"))?;
        let items = set.get("keys").and_then(Value::as_array);
        let items = items.filter(|items| (1..=KEYS_MAX).contains(&items.len()));
        let items =
            items.ok_or_else(|| format!("`keys` must be an array of 1 to {KEYS_MAX} keys"))?;
        let (mut keys, mut unusable) = (Vec::new(), Vec::new());
        for (index, item) in items.iter().enumerate() {
            match named_key(item) {
                Ok(key) => keys.push(key),
                Err(why) => unusable.push(format!("key {index}: {why}")),
            }
        }
        if keys.is_empty() {
            return Err(format!("no key can be used: {}", unusable.join("; ")));
        }
        Ok(Self(keys))
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Reads a JSON web key for signatures, with what limits its use.
fn named_key(item: &Value) -> Result<NamedKey, String> {
    let text = |name: &str| match item.get(name) {
        None => Ok(None),
        Some(value) => value.as_str().map(Some).ok_or_else(|| format!("`{name}` must be a string")),
    };
    if let Some(other) = text("use")?.filter(|usage| *usage != "sig") {
        return Err(format!("`use` is {other:?}, not sig"));
    }
    if let Some(operations) = item.get("key_ops") {
        let mut all = operations.as_array().into_iter().flatten();
        if !all.any(|operation| operation == "verify") {
            return Err("`key_ops` does not contain verify".to_owned());
        }
    }
    let (id, algorithm) = (text("kid")?.map(str::to_owned), text("alg")?.map(str::to_owned));
    Ok(NamedKey { id, algorithm, key: key_of(item)? })
}

/// Reads a JSON web key.
fn key_of(item: &Value) -> Result<VerificationKey, String> {
    let text = |name: &str| item.get(name).and_then(Value::as_str);
    let field = |name: &str| {
        let bytes = text(name).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        bytes.ok_or_else(|| format!("`{name}` must be base64url"))
    };
    let point = |bytes: usize| {
        let (x, y) = (field("x")?, field("y")?);
        if x.len() != bytes || y.len() != bytes {
            return Err(format!("`x` and `y` must have {bytes} bytes"));
        }
        Ok([vec![4], x, y].concat())
    };
    match (text("kty"), text("crv")) {
        (Some("RSA"), _) => {
            let modulus = field("n")?;
            if modulus.len() < 256 {
                return Err("an RSA key must have at least 2048 bits".to_owned());
            }
            Ok(VerificationKey::Rsa { modulus, exponent: field("e")? })
        }
        (Some("EC"), Some("P-256")) => Ok(VerificationKey::P256(point(32)?)),
        (Some("EC"), Some("P-384")) => Ok(VerificationKey::P384(point(48)?)),
        (Some("OKP"), Some("Ed25519")) => Ok(VerificationKey::Ed25519(field("x")?)),
        (Some("oct"), _) => {
            let secret = field("k")?;
            if secret.len() < SECRET_BYTES_MIN {
                return Err(format!("a secret must have at least {SECRET_BYTES_MIN} bytes"));
            }
            Ok(VerificationKey::Mac(hmac::Key::new(hmac::HMAC_SHA256, &secret)))
        }
        _ => Err("`kty` must be RSA, EC (P-256, P-384), OKP (Ed25519) or oct".to_owned()),
    }
}

impl VerificationKey {
    fn verifies(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> bool {
        let with = |known: &'static dyn signature::VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(known, key).verify(signed, signature).is_ok()
        };
        match (self, algorithm) {
            (Self::Rsa { modulus, exponent }, "RS256" | "RS384" | "RS512") => {
                let known = match algorithm {
                    "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
                    _ => &signature::RSA_PKCS1_2048_8192_SHA512,
                };
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(known, signed, signature).is_ok()
            }
            (Self::P256(key), "ES256") => with(&signature::ECDSA_P256_SHA256_FIXED, key),
            (Self::P384(key), "ES384") => with(&signature::ECDSA_P384_SHA384_FIXED, key),
            (Self::Ed25519(key), "EdDSA") => with(&signature::ED25519, key),
            (Self::Mac(key), "HS256") => hmac::verify(key, signed, signature).is_ok(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_key_sets_are_refused_with_the_reason() {
        for (set, why) in [
            ("", "JSON"),
            ("{}", "keys"),
            (r#"{"keys":[]}"#, "keys"),
            (r#"{"keys":[{"kty":"X"}]}"#, "kty"),
            (r#"{"keys":[{"kty":"X"},{"use":"enc"}]}"#, "key 1: `use`"),
            (r#"{"keys":[{"kty":"oct","k":"YQ"}]}"#, "at least"),
            (r#"{"keys":[{"kty":"RSA","n":"YQ","e":"AQAB"}]}"#, "2048"),
            (r#"{"keys":[{"kty":"EC","crv":"P-256","x":"YQ","y":"YQ"}]}"#, "32 bytes"),
        ] {
            let error = TokenKeySet::parse(set.as_bytes()).err().unwrap_or_default();
            assert!(error.contains(why), "{set}: {error}");
        }
    }
}
