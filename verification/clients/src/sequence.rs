//! Random commands: what three clients send in turn, from a seed.

use fastrand::Rng;

use crate::command_forms::{ArgForm, CommandForm, HASHES, ITERATIONS, KEYS, RARE, SETS, STRINGS};
use crate::known_differences;

/// Clients that send commands in turn. The last one only reads, after the others have finished.
pub const CLIENTS: usize = 3;

/// One command of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandStep {
    /// The index of the client.
    pub client: usize,
    /// The command's name and arguments.
    pub args: Vec<Vec<u8>>,
    /// The index of the cursor, if the command is repeated until the iteration ends.
    pub cursor_at: Option<usize>,
}

/// Few keys, so that commands of all kinds meet. Some are in namespaces, some only look like it.
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
const INTEGER_POOL: &[&str] = &[
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
const FLOAT_POOL: &[&str] = &[
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
const INDEX_POOL: &[&str] =
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
const EXPIRY_POOL: &[&str] = &[
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

/// A sequence in progress: the clients' states, as far as the choice of commands needs them.
struct SequenceBuilder {
    rng: Rng,
    steps: Vec<CommandStep>,
    /// For each client, whether a transaction is open.
    is_in_txn: [bool; CLIENTS],
    /// The number of relative expiry times so far: no two are the same.
    expiries: usize,
    /// The number of keys that were watched before they existed.
    fresh: usize,
}

/// About this many random steps, then commands that read every record.
pub fn sequence(seed: u64, number: u64, length: usize) -> Vec<CommandStep> {
    let mut builder = SequenceBuilder {
        rng: Rng::with_seed(seed ^ number.rotate_left(32)),
        steps: Vec::new(),
        is_in_txn: [false; CLIENTS],
        expiries: 0,
        fresh: 0,
    };
    while builder.steps.len() < length {
        let client = builder.rng.usize(..CLIENTS - 1);
        // Several in a row, so that most of a transaction is sent before another client sends.
        for _ in 0..=builder.rng.usize(..6) {
            builder.step(client);
        }
    }
    builder.read_all();
    builder.steps
}

impl SequenceBuilder {
    fn send(&mut self, client: usize, args: &[&[u8]]) {
        let args = args.iter().map(|word| word.to_vec()).collect();
        self.steps.push(CommandStep { client, args, cursor_at: None });
    }

    fn step(&mut self, client: usize) {
        let is_in_txn = self.is_in_txn.get(client).copied().unwrap_or(false);
        let draw = self.rng.usize(..100);
        match (is_in_txn, draw) {
            (true, 0..=19) | (false, 6) => self.end_transaction(client),
            (true, 20..=21) => self.send(client, &[b"MULTI"]),
            (true, 22) => self.send(client, &[b"WATCH", b"a"]),
            (false, 0..=3) => self.begin_transaction(client),
            (false, 4..=5) => self.watch(client),
            (false, 7..=9) => self.iterate(client),
            _ => self.command(client),
        }
    }

    fn begin_transaction(&mut self, client: usize) {
        self.set_in_txn(client, true);
        self.send(client, &[b"MULTI"]);
    }

    fn end_transaction(&mut self, client: usize) {
        self.set_in_txn(client, false);
        let end = self.word(&["EXEC", "EXEC", "EXEC", "exec", "DISCARD"]);
        self.send(client, &[end.as_bytes()]);
    }

    fn set_in_txn(&mut self, client: usize, is_in_txn: bool) {
        if let Some(state) = self.is_in_txn.get_mut(client) {
            *state = is_in_txn;
        }
    }

    fn watch(&mut self, client: usize) {
        if self.percent(15) {
            return self.send(client, &[b"UNWATCH"]);
        }
        let mut args = vec![b"WATCH".to_vec()];
        self.part(ArgForm::Keys, &mut args);
        if self.percent(20) {
            self.watch_fresh(client);
        } else {
            // The keys exist, so that none can be created and deleted again unnoticed.
            for key in args.iter().skip(1) {
                self.send(client, &[b"SETNX", key, b"watched"]);
            }
            self.steps.push(CommandStep { client, args, cursor_at: None });
        }
        if self.percent(70) {
            self.begin_transaction(client);
        }
    }

    /// Watches a key that does not exist. Then another client may set it.
    fn watch_fresh(&mut self, client: usize) {
        self.fresh += 1;
        let key = format!("{{watched}},{}", self.fresh).into_bytes();
        self.send(client, &[b"WATCH", &key]);
        let other = (client + 1) % (CLIENTS - 1);
        if self.percent(50) && self.is_in_txn.get(other) == Some(&false) {
            self.send(other, &[b"SET", &key, b"now"]);
        }
    }

    fn iterate(&mut self, client: usize) {
        let Some((name, parts)) = self.rng.choice(ITERATIONS) else { return };
        let (name, mut args) = (*name, self.name(name));
        for (at, part) in parts.iter().enumerate() {
            if at + 1 == parts.len() {
                args.push(b"0".to_vec());
            }
            self.part(*part, &mut args);
        }
        let cursor_at = Some(if name == "SCAN" { 1 } else { 2 });
        self.steps.push(CommandStep { client, args, cursor_at });
    }

    fn command(&mut self, client: usize) {
        let forms: &[CommandForm] = match self.rng.usize(..100) {
            0..=34 => STRINGS,
            35..=54 => HASHES,
            55..=72 => SETS,
            73..=98 => KEYS,
            _ => RARE,
        };
        let Some((name, parts)) = self.rng.choice(forms) else { return };
        let mut args = self.name(name);
        for part in *parts {
            self.part(*part, &mut args);
        }
        if !name.ends_with("SCAN") && self.percent(4) {
            self.mutate(&mut args);
        }
        // Nothing may delete a key that did not exist when it was watched.
        let is_flush = name.starts_with("FLUSH") && self.fresh > 0;
        if !is_flush && !known_differences::is_excluded(&args) {
            self.steps.push(CommandStep { client, args, cursor_at: None });
        }
    }

    fn name(&mut self, name: &str) -> Vec<Vec<u8>> {
        let is_lower = self.percent(10);
        vec![if is_lower { name.to_lowercase() } else { name.to_owned() }.into_bytes()]
    }

    /// Removes, adds, duplicates or replaces an argument.
    fn mutate(&mut self, args: &mut Vec<Vec<u8>>) {
        let at = 1 + self.rng.usize(..args.len().max(2) - 1);
        match self.rng.usize(..4) {
            0 if args.len() > 1 => drop(args.pop()),
            1 => args.push(self.short_value()),
            2 => args.extend(args.get(at).cloned()),
            _ => {
                let other = self.short_value();
                if let Some(word) = args.get_mut(at) {
                    *word = other;
                }
            }
        }
    }

    fn part(&mut self, part: ArgForm, args: &mut Vec<Vec<u8>>) {
        match part {
            ArgForm::Key => args.push(self.one(KEY_POOL)),
            ArgForm::Keys => self.several(KEY_POOL, 4, args),
            ArgForm::CountedKeys => {
                let mut keys = Vec::new();
                self.several(KEY_POOL, 3, &mut keys);
                args.push(keys.len().to_string().into_bytes());
                args.extend(keys);
            }
            ArgForm::Value => args.push(self.value()),
            ArgForm::KeyValues => self.pairs(KEY_POOL, args),
            ArgForm::Field => args.push(self.one(FIELD_POOL)),
            ArgForm::Fields => self.several(FIELD_POOL, 4, args),
            ArgForm::FieldValues => self.pairs(FIELD_POOL, args),
            ArgForm::Member => args.push(self.one(MEMBER_POOL)),
            ArgForm::Members => self.several(MEMBER_POOL, 4, args),
            ArgForm::Integer => self.mostly(7, INTEGER_POOL, args),
            ArgForm::Float => self.mostly(13, FLOAT_POOL, args),
            ArgForm::Index => args.push(self.word(INDEX_POOL).into()),
            ArgForm::Offset => args.push(self.word(OFFSET_POOL).into()),
            ArgForm::Seconds => self.expiry(1, args),
            ArgForm::Millis => self.expiry(1000, args),
            ArgForm::At => args.push(self.word(AT_POOL).into()),
            ArgForm::AtMillis => args.push(self.word(AT_MILLIS_POOL).into()),
            ArgForm::UniqueAt => args.push(self.unique_time().to_string().into_bytes()),
            ArgForm::UniqueAtMillis => {
                args.push((1000 * self.unique_time()).to_string().into_bytes());
            }
            ArgForm::Glob => args.push(self.word(GLOB_POOL).into()),
            ArgForm::OneOf(choices) => {
                let choice = self.word(choices);
                args.extend(choice.split_whitespace().map(|word| word.as_bytes().to_vec()));
            }
            ArgForm::Maybe(parts) if self.percent(50) => {
                for part in parts {
                    self.part(*part, args);
                }
            }
            ArgForm::Maybe(_) => {}
        }
    }

    /// True with this probability.
    fn percent(&mut self, percent: usize) -> bool {
        self.rng.usize(..100) < percent
    }

    fn word(&mut self, choices: &[&'static str]) -> &'static str {
        self.rng.choice(choices).copied().unwrap_or_default()
    }

    fn one(&mut self, pool: &[&[u8]]) -> Vec<u8> {
        self.rng.choice(pool).map_or_else(Vec::new, |word| word.to_vec())
    }

    fn several(&mut self, pool: &[&[u8]], most: usize, args: &mut Vec<Vec<u8>>) {
        for _ in 0..=self.rng.usize(..most) {
            args.push(self.one(pool));
        }
    }

    fn pairs(&mut self, pool: &[&[u8]], args: &mut Vec<Vec<u8>>) {
        for _ in 0..=self.rng.usize(..3) {
            args.push(self.one(pool));
            args.push(self.value());
        }
    }

    /// Mostly one of the first, which are valid.
    fn mostly(&mut self, first: usize, pool: &[&'static str], args: &mut Vec<Vec<u8>>) {
        let pool = if self.percent(80) { pool.get(..first).unwrap_or(pool) } else { pool };
        args.push(self.word(pool).into());
    }

    /// A relative expiry time. Any two differ by a thousand seconds or more, so it does not matter
    /// when within a few minutes each server executes the command.
    fn expiry(&mut self, units_per_second: usize, args: &mut Vec<Vec<u8>>) {
        self.expiries += 1;
        let seconds = 100_000 + 1000 * self.expiries;
        if self.percent(85) {
            args.push((seconds * units_per_second).to_string().into_bytes());
        } else {
            args.push(self.word(EXPIRY_POOL).into());
        }
    }

    /// An absolute expiry time in seconds that no other request of the sequence has.
    fn unique_time(&mut self) -> i64 {
        self.expiries += 1;
        let number = i64::try_from(self.expiries).unwrap_or(0);
        known_differences::UNIQUE_TIMES.start + 1000 * number
    }

    fn value(&mut self) -> Vec<u8> {
        match self.rng.usize(..100) {
            0..=74 => self.one(VALUE_POOL),
            75..=94 => self.text(100),
            95..=98 => self.text(3000),
            _ => self.text(70_000),
        }
    }

    /// A value that could also be a key.
    fn short_value(&mut self) -> Vec<u8> {
        if self.percent(75) { self.one(VALUE_POOL) } else { self.text(100) }
    }

    fn text(&mut self, most: usize) -> Vec<u8> {
        let (first, length) = (self.rng.usize(..26), self.rng.usize(..most));
        (b'a'..=b'z').cycle().skip(first).take(length).collect()
    }

    /// Reads every record, by a client that sends nothing else.
    fn read_all(&mut self) {
        let client = CLIENTS - 1;
        self.send(client, &[b"DBSIZE"]);
        self.send(client, &[b"KEYS", b"*"]);
        self.send(client, &[b"KEYS", b"{ns},*"]);
        for key in KEY_POOL {
            for name in ["TYPE", "GET", "HGETALL", "SMEMBERS", "PEXPIRETIME"] {
                self.send(client, &[name.as_bytes(), key]);
            }
        }
    }
}
