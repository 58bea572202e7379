//! SPDX licence expressions: `OR`, `AND`, `WITH` and brackets, and the old `/` for `OR`.

/// Does a list of licences allow this expression? The error says why it cannot be read.
pub(crate) fn is_allowed(expression: &str, allowed: &[String]) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, allowed };
    let verdict = reader.either()?;
    match reader.words.first() {
        None => Ok(verdict),
        Some(word) => Err(format!("`{word}` stands where it should end")),
    }
}

struct Reader<'a> {
    words: &'a [&'a str],
    allowed: &'a [String],
}

impl Reader<'_> {
    fn take(&mut self, word: &str) -> bool {
        let is_next = self.words.first().is_some_and(|first| *first == word);
        if is_next {
            self.words = self.words.get(1..).unwrap_or_default();
        }
        is_next
    }

    fn either(&mut self) -> Result<bool, String> {
        let mut verdict = self.all()?;
        while self.take("OR") {
            verdict |= self.all()?;
        }
        Ok(verdict)
    }

    fn all(&mut self) -> Result<bool, String> {
        let mut verdict = self.one()?;
        while self.take("AND") {
            verdict &= self.one()?;
        }
        Ok(verdict)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let verdict = self.either()?;
            return if self.take(")") {
                Ok(verdict)
            } else {
                Err("a bracket stays open".to_owned())
            };
        }
        let mut name = self.name()?;
        if self.take("WITH") {
            name = format!("{name} WITH {}", self.name()?);
        }
        Ok(self.allowed.contains(&name))
    }

    fn name(&mut self) -> Result<String, String> {
        let (first, rest) = self.words.split_first().ok_or("a licence is missing")?;
        if ["OR", "AND", "WITH", ")"].contains(first) {
            return Err(format!("`{first}` stands where a licence should"));
        }
        self.words = rest;
        Ok((*first).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(expression: &str) -> Result<bool, String> {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"];
        is_allowed(expression, &allowed.map(str::to_owned))
    }

    #[test]
    fn licence_expressions_follow_spdx() {
        assert_eq!(verdict("MIT"), Ok(true));
        assert_eq!(verdict("GPL-3.0"), Ok(false));
        assert_eq!(verdict("GPL-3.0 OR MIT"), Ok(true));
        assert_eq!(verdict("GPL-3.0/MIT"), Ok(true));
        assert_eq!(verdict("GPL-3.0 AND MIT"), Ok(false));
        assert_eq!(verdict("(MIT OR GPL-3.0) AND Unicode-3.0"), Ok(true));
        assert_eq!(verdict("MIT OR GPL-3.0 AND Unlicense"), Ok(true));
        assert_eq!(verdict("Apache-2.0 WITH LLVM-exception"), Ok(true));
        assert_eq!(verdict("MIT WITH LLVM-exception"), Ok(false));
    }

    #[test]
    fn an_invalid_expression_is_rejected() {
        for wrong in ["", "MIT OR", "(MIT", "MIT)", "MIT Apache-2.0", "AND MIT"] {
            assert!(verdict(wrong).is_err(), "{wrong}");
        }
    }
}
