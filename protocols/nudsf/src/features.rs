//! Optional features: `SupportedFeatures` of TS 29.571, a bitmask in hexadecimal digits of which
//! the last one has the features 1 to 4.

/// A set of features.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureSet {
    /// The digits, the last one first.
    digits: Vec<u8>,
}

impl FeatureSet {
    /// Parses `SupportedFeatures`. `None`: the text has other characters than hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digit =
            |byte: u8| char::from(byte).to_digit(16).and_then(|digit| digit.try_into().ok());
        let digits = text.bytes().rev().map(digit).collect::<Option<Vec<u8>>>()?;
        Some(Self { digits })
    }

    /// The features that both sides support (TS 29.500, 6.6.2), without leading zeros.
    pub(crate) fn negotiate(&self, client: &Self) -> String {
        let both = self.digits.iter().zip(&client.digits).map(|(ours, theirs)| ours & theirs);
        let both: Vec<u8> = both.collect();
        let digits = both.iter().rev().skip_while(|digit| **digit == 0);
        let text: String =
            digits.filter_map(|digit| char::from_digit(u32::from(*digit), 16)).collect();
        if text.is_empty() { "0".to_owned() } else { text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_features_of_both_sides_are_negotiated() {
        for (ours, theirs, both) in [
            ("", "1F", "0"),
            ("0", "", "0"),
            ("3", "1F", "3"),
            ("1f", "3", "3"),
            ("A1", "C1", "81"),
            ("00F", "00A", "a"),
            ("10", "0f", "0"),
        ] {
            let parsed = |text| FeatureSet::parse(text).unwrap();
            assert_eq!(parsed(ours).negotiate(&parsed(theirs)), both, "{ours} {theirs}");
        }
        for text in ["x", "0x1", "-1", " 1", "é"] {
            assert_eq!(FeatureSet::parse(text), None, "{text:?}");
        }
    }
}
