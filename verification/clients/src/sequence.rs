//! Commands by chance: what three clients say in turn, from a seed.

use crate::dice::Dice;
use crate::forms::{Form, HASHES, KEYS, Part, SELDOM, SETS, STRINGS, WALKS};
use crate::leeway;

/// How many clients take turns. The last one only looks, when the others are done.
pub const LINKS: usize = 3;

/// What one client does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which client.
    pub link: usize,
    /// What it says.
    pub words: Vec<Vec<u8>>,
    /// Where its cursor stands, if it asks again with every cursor that it is given.
    pub cursor_at: Option<usize>,
}

/// Few keys, so that commands of all kinds meet. Some stand in namespaces, some only look so.
const KEY_POOL: &[&[u8]] = &[
    b"{ns},a",
    b"{ns},b",
    b"{ns},c",
    b"{other},a",
    b"{ns},",
    b"a",
    b"b",
    b"{}",
    b"{},a",
    b"{n{s},a",
    b"{a,b},c",
    b"bin\0\xff\r\n",
    b"{ns},*",
    b"x[a-c]?\\",
];
const FIELD_POOL: &[&[u8]] = &[
    b"f1",
    b"f2",
    b"f3",
    b"f4",
    b"field-with-a-name",
    "f\u{fc}\r\n\u{1}".as_bytes(),
    b"\0\xfe",
    b"10",
    b"F1",
];
const MEMBER_POOL: &[&[u8]] =
    &[b"m1", b"m2", b"m3", b"m4", b"7", b"-12", b"", b"\xff\0", b"a-longer-member-of-the-set"];
const VALUE_POOL: &[&[u8]] = &[
    b"",
    b"a",
    b"hello world",
    b"10",
    b"-1",
    b"3.5",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"01",
    b" 1",
    b"+1",
    b"1e3",
    b"\0\x01\xff binary \r\n",
    b"99999999999999999999",
    b"0.1",
    b"-0",
    b"inf",
    b"nan",
];
const WHOLE_POOL: &[&str] = &[
    "1",
    "2",
    "-1",
    "10",
    "0",
    "100",
    "-7",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "x",
    "",
    "1.5",
    " 1",
    "01",
    "-0",
    "4611686018427387904",
];
const FRACTION_POOL: &[&str] = &[
    "1",
    "0.1",
    "-0.1",
    "1.5",
    "3.0e3",
    "1e17",
    "-5.0e-1",
    "1e-7",
    "0.30000000000000004",
    "100",
    "1e300",
    "12345678.125",
    "-3",
    "x",
    "inf",
    "-inf",
    "nan",
    " 1",
    "1 ",
    "",
    "0x10",
    "1e400",
    "1e-30",
    "3.14159265358979323846",
    "5e-324",
    "1e4000",
    "1e5000",
    "-0",
    "0",
];
const PLACE_POOL: &[&str] =
    &["0", "1", "-1", "3", "-3", "100", "-100", "9999999999", "-9223372036854775808", "x", "5"];
const OFFSET_POOL: &[&str] = &["0", "1", "3", "10", "300", "-1", "x", "536870912", "536870911x"];
const AT_POOL: &[&str] = &[
    "4000000000",
    "4000000001",
    "4000500000",
    "5000000000",
    "4000000000",
    "1",
    "0",
    "-1",
    "x",
    "9223372036854775807",
    "99999999999999",
    "9223372036854775",
];
const AT_MILLIS_POOL: &[&str] = &[
    "4000000000000",
    "4000000000001",
    "4000500000000",
    "5000000000123",
    "4000000000000",
    "1",
    "0",
    "-1",
    "9223372036854775807",
    "x",
];
const END_POOL: &[&str] = &[
    "0",
    "-1",
    "x",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775",
    "99999999999999",
    "1.5",
];
const GLOB_POOL: &[&str] = &[
    "*",
    "{ns},*",
    "{ns},a",
    "?",
    "[a-b]",
    "[^a]",
    "{*},a",
    "\\{ns\\},?",
    "{ns},\\*",
    "{other},*",
    "*a",
    "x\\[a-c]*",
    "[a",
    "{ns},[",
    "",
    "bin*",
    "{n[st]},*",
    "**?",
    "[b-a]",
    "\\",
    "{}*",
    "{n?},b",
    "{ns}*",
];

/// What one sequence has: its clients' states, as far as the choice of commands needs them.
struct Writer {
    dice: Dice,
    steps: Vec<Step>,
    /// For each client, whether it collects a transaction.
    is_collecting: [bool; LINKS],
    /// How many ends from now have been said: no two are the same.
    ends: usize,
    /// How many keys have been watched that were not there.
    fresh: usize,
}

/// About this many steps by chance, then a look at everything that is there.
pub fn sequence(seed: u64, number: u64, length: usize) -> Vec<Step> {
    let mut writer = Writer {
        dice: Dice::new(seed, number),
        steps: Vec::new(),
        is_collecting: [false; LINKS],
        ends: 0,
        fresh: 0,
    };
    while writer.steps.len() < length {
        let link = writer.dice.below(LINKS - 1);
        // Several in a row, so that most of a transaction is said before another client speaks.
        for _ in 0..=writer.dice.below(6) {
            writer.step(link);
        }
    }
    writer.look();
    writer.steps
}

impl Writer {
    fn say(&mut self, link: usize, words: &[&[u8]]) {
        let words = words.iter().map(|word| word.to_vec()).collect();
        self.steps.push(Step { link, words, cursor_at: None });
    }

    fn step(&mut self, link: usize) {
        let is_collecting = self.is_collecting.get(link).copied().unwrap_or(false);
        let begins_or_ends = self.dice.below(100);
        match (is_collecting, begins_or_ends) {
            (true, 0..=19) | (false, 6) => self.end_transaction(link),
            (true, 20..=21) => self.say(link, &[b"MULTI"]),
            (true, 22) => self.say(link, &[b"WATCH", b"a"]),
            (false, 0..=3) => self.begin_transaction(link),
            (false, 4..=5) => self.watch(link),
            (false, 7..=9) => self.walk(link),
            _ => self.command(link),
        }
    }

    fn begin_transaction(&mut self, link: usize) {
        self.collects(link, true);
        self.say(link, &[b"MULTI"]);
    }

    fn end_transaction(&mut self, link: usize) {
        self.collects(link, false);
        let end = self.dice.word(&["EXEC", "EXEC", "EXEC", "exec", "DISCARD"]);
        self.say(link, &[end.as_bytes()]);
    }

    fn collects(&mut self, link: usize, is_so: bool) {
        if let Some(state) = self.is_collecting.get_mut(link) {
            *state = is_so;
        }
    }

    fn watch(&mut self, link: usize) {
        if self.dice.chance(15) {
            return self.say(link, &[b"UNWATCH"]);
        }
        let mut words = vec![b"WATCH".to_vec()];
        self.part(Part::Keys, &mut words);
        if self.dice.chance(20) {
            self.watch_fresh(link);
        } else {
            // They are there, so that none can come and go again unseen.
            for key in words.iter().skip(1) {
                self.say(link, &[b"SETNX", key, b"watched"]);
            }
            self.steps.push(Step { link, words, cursor_at: None });
        }
        if self.dice.chance(70) {
            self.begin_transaction(link);
        }
    }

    /// Watches a key that is not there; then another client may set it.
    fn watch_fresh(&mut self, link: usize) {
        self.fresh += 1;
        let key = format!("{{watched}},{}", self.fresh).into_bytes();
        self.say(link, &[b"WATCH", &key]);
        let other = (link + 1) % (LINKS - 1);
        if self.dice.chance(50) && self.is_collecting.get(other) == Some(&false) {
            self.say(other, &[b"SET", &key, b"now"]);
        }
    }

    fn walk(&mut self, link: usize) {
        let Some((name, parts)) = self.dice.pick(WALKS) else { return };
        let (name, mut words) = (*name, self.name(name));
        for (at, part) in parts.iter().enumerate() {
            if at + 1 == parts.len() {
                words.push(b"0".to_vec());
            }
            self.part(*part, &mut words);
        }
        let cursor_at = Some(if name == "SCAN" { 1 } else { 2 });
        self.steps.push(Step { link, words, cursor_at });
    }

    fn command(&mut self, link: usize) {
        let forms: &[Form] = match self.dice.below(100) {
            0..=34 => STRINGS,
            35..=54 => HASHES,
            55..=72 => SETS,
            73..=98 => KEYS,
            _ => SELDOM,
        };
        let Some((name, parts)) = self.dice.pick(forms) else { return };
        let mut words = self.name(name);
        for part in *parts {
            self.part(*part, &mut words);
        }
        if !name.ends_with("SCAN") && self.dice.chance(4) {
            self.twist(&mut words);
        }
        // Nothing may take a key away that was not there when it was watched.
        let is_flush = name.starts_with("FLUSH") && self.fresh > 0;
        if !is_flush && !leeway::is_left_out(&words) {
            self.steps.push(Step { link, words, cursor_at: None });
        }
    }

    fn name(&mut self, name: &str) -> Vec<Vec<u8>> {
        let is_lower = self.dice.chance(10);
        vec![if is_lower { name.to_lowercase() } else { name.to_owned() }.into_bytes()]
    }

    /// Something is missing, too much, double or another.
    fn twist(&mut self, words: &mut Vec<Vec<u8>>) {
        let at = 1 + self.dice.below(words.len().saturating_sub(1));
        match self.dice.below(4) {
            0 if words.len() > 1 => drop(words.pop()),
            1 => words.push(self.short_value()),
            2 => words.extend(words.get(at).cloned()),
            _ => {
                let other = self.short_value();
                if let Some(word) = words.get_mut(at) {
                    *word = other;
                }
            }
        }
    }

    fn part(&mut self, part: Part, words: &mut Vec<Vec<u8>>) {
        match part {
            Part::Key => words.push(self.one(KEY_POOL)),
            Part::Keys => self.several(KEY_POOL, 4, words),
            Part::CountedKeys => {
                let mut keys = Vec::new();
                self.several(KEY_POOL, 3, &mut keys);
                words.push(keys.len().to_string().into_bytes());
                words.extend(keys);
            }
            Part::Value => words.push(self.value()),
            Part::KeyValues => self.pairs(KEY_POOL, words),
            Part::Field => words.push(self.one(FIELD_POOL)),
            Part::Fields => self.several(FIELD_POOL, 4, words),
            Part::FieldValues => self.pairs(FIELD_POOL, words),
            Part::Member => words.push(self.one(MEMBER_POOL)),
            Part::Members => self.several(MEMBER_POOL, 4, words),
            Part::Whole => self.mostly(7, WHOLE_POOL, words),
            Part::Fraction => self.mostly(13, FRACTION_POOL, words),
            Part::Place => words.push(self.dice.word(PLACE_POOL).into()),
            Part::Offset => words.push(self.dice.word(OFFSET_POOL).into()),
            Part::Seconds => self.end(1, words),
            Part::Millis => self.end(1000, words),
            Part::At => words.push(self.dice.word(AT_POOL).into()),
            Part::AtMillis => words.push(self.dice.word(AT_MILLIS_POOL).into()),
            Part::Glob => words.push(self.dice.word(GLOB_POOL).into()),
            Part::OneOf(choices) => {
                let choice = self.dice.word(choices);
                words.extend(choice.split_whitespace().map(|word| word.as_bytes().to_vec()));
            }
            Part::Maybe(parts) if self.dice.chance(50) => {
                for part in parts {
                    self.part(*part, words);
                }
            }
            Part::Maybe(_) => {}
        }
    }

    fn one(&mut self, pool: &[&[u8]]) -> Vec<u8> {
        self.dice.pick(pool).map_or_else(Vec::new, |word| word.to_vec())
    }

    fn several(&mut self, pool: &[&[u8]], most: usize, words: &mut Vec<Vec<u8>>) {
        for _ in 0..=self.dice.below(most) {
            words.push(self.one(pool));
        }
    }

    fn pairs(&mut self, pool: &[&[u8]], words: &mut Vec<Vec<u8>>) {
        for _ in 0..=self.dice.below(3) {
            words.push(self.one(pool));
            words.push(self.value());
        }
    }

    /// Mostly one of the first, which are as they should be.
    fn mostly(&mut self, first: usize, pool: &[&'static str], words: &mut Vec<Vec<u8>>) {
        let pool = if self.dice.chance(80) { pool.get(..first).unwrap_or(pool) } else { pool };
        words.push(self.dice.word(pool).into());
    }

    /// A time from now. A thousand seconds lie between any two, so that it does not matter when
    /// within a few minutes each server hears of it.
    fn end(&mut self, units_per_second: usize, words: &mut Vec<Vec<u8>>) {
        self.ends += 1;
        let seconds = 100_000 + 1000 * self.ends;
        if self.dice.chance(85) {
            words.push((seconds * units_per_second).to_string().into_bytes());
        } else {
            words.push(self.dice.word(END_POOL).into());
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.dice.below(100) {
            0..=74 => self.one(VALUE_POOL),
            75..=94 => self.text(100),
            95..=98 => self.text(3000),
            _ => self.text(70_000),
        }
    }

    /// One that could be a key as well.
    fn short_value(&mut self) -> Vec<u8> {
        if self.dice.chance(75) { self.one(VALUE_POOL) } else { self.text(100) }
    }

    fn text(&mut self, most: usize) -> Vec<u8> {
        let (first, length) = (self.dice.below(26), self.dice.below(most));
        (b'a'..=b'z').cycle().skip(first).take(length).collect()
    }

    /// Whatever the commands have left behind, seen by a client that says nothing else.
    fn look(&mut self) {
        let link = LINKS - 1;
        self.say(link, &[b"DBSIZE"]);
        self.say(link, &[b"KEYS", b"*"]);
        self.say(link, &[b"KEYS", b"{ns},*"]);
        for key in KEY_POOL {
            for name in ["TYPE", "GET", "HGETALL", "SMEMBERS", "PEXPIRETIME"] {
                self.say(link, &[name.as_bytes(), key]);
            }
        }
    }
}
