//! What a device is promised against the others: as a PATCH changes it, and as answers show it.
//!
//! Rates are in bits per second here, as everybody names those of networks, and in bytes per second below.

use isolation::{Class, Settings};
use serde::{Deserialize, Deserializer, Serialize};

/// The body of a PATCH. What is absent stays; null takes a bound away.
#[derive(Clone, Debug, Deserialize, Default, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Change {
    weight: Option<u32>,
    min_bits_per_sec: Option<u64>,
    #[serde(deserialize_with = "given")]
    max_bits_per_sec: Option<Option<u64>>,
    burst_bytes: Option<u64>,
    #[serde(deserialize_with = "given")]
    class: Option<Option<Name>>,
}

/// A class as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Name(Class);

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Name, String> {
        let found = Class::ALL.into_iter().find(|class| class.name() == text);
        found.map(Name).ok_or_else(|| format!("{text:?} is not one of {:?}", Class::ALL.map(Class::name)))
    }
}

/// A value that is there, be it null.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

impl Change {
    /// From JSON.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn from_json(json: &[u8]) -> Result<Change, String> {
        let example = r#"{"weight": 200, "max_bits_per_sec": 2000000000, "class": null}"#;
        // Of its own, the parser would also take the values alone, in their order.
        let members: Result<serde_json::Map<String, serde_json::Value>, _> = serde_json::from_slice(json);
        let change = members.and_then(|members| serde_json::from_value(members.into()));
        change.map_err(|error| format!("the body changes no device: {error}; write for example {example}"))
    }

    /// The settings after the change. They are not checked.
    pub fn apply(&self, before: &Settings) -> Settings {
        let bytes = |bits: u64| bits / 8;
        Settings {
            weight: self.weight.unwrap_or(before.weight),
            min_bytes_per_sec: self.min_bits_per_sec.map_or(before.min_bytes_per_sec, bytes),
            max_bytes_per_sec: self.max_bits_per_sec.map_or(before.max_bytes_per_sec, |rate| rate.map(bytes)),
            burst_bytes: self.burst_bytes.unwrap_or(before.burst_bytes),
            class: self.class.map_or(before.class, |class| class.map(|Name(class)| class)),
        }
    }
}

/// As answered.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SharesView {
    weight: u32,
    min_bits_per_sec: u64,
    max_bits_per_sec: Option<u64>,
    burst_bytes: u64,
    class: Option<&'static str>,
}

impl From<&Settings> for SharesView {
    fn from(settings: &Settings) -> Self {
        let bits = |bytes: u64| bytes.saturating_mul(8);
        SharesView {
            weight: settings.weight,
            min_bits_per_sec: bits(settings.min_bytes_per_sec),
            max_bits_per_sec: settings.max_bytes_per_sec.map(bits),
            burst_bytes: settings.burst_bytes,
            class: settings.class.map(Class::name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_stays_and_null_takes_away() {
        let before = Settings { max_bytes_per_sec: Some(5), class: Some(Class::Latency), ..Settings::default() };
        let after = |json: &str| Change::from_json(json.as_bytes()).unwrap().apply(&before);
        assert_eq!(after("{}"), before);
        let all = r#"{"weight":7,"min_bits_per_sec":16,"max_bits_per_sec":80,"burst_bytes":9,"class":"message-rate"}"#;
        let expected = Settings {
            weight: 7,
            min_bytes_per_sec: 2,
            max_bytes_per_sec: Some(10),
            burst_bytes: 9,
            class: Some(Class::MessageRate),
        };
        assert_eq!(after(all), expected);
        let freed = after(r#"{"max_bits_per_sec":null,"class":null}"#);
        assert_eq!((freed.max_bytes_per_sec, freed.class), (None, None));
    }

    #[test]
    fn wrong_bodies_say_what_is_wrong() {
        for body in ["", "[]", r#"{"weights":1}"#, r#"{"weight":-1}"#, r#"{"class":"fast"}"#, r#"{"max_bits_per_sec":"1G"}"#] {
            let error = Change::from_json(body.as_bytes()).unwrap_err();
            assert!(error.contains("write for example"), "{body}: {error}");
        }
    }
}
