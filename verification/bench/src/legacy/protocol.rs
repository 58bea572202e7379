//! What the orchestrator and a simulator node say to each other: lines of text over the node's
//! standard input and output, so that a node can be written in any language.
//!
//! ```text
//! orchestrator                         node
//! plan target=... kind=... ops=... ->
//!                                  <-  ready                 attached, warmed up, keys made
//! go AT_NS                         ->                        all nodes begin at this moment
//!                                  <-  progress OPS          now and then
//!                                  <-  sequence LOOP TOTAL_NS
//!                                  <-  span START_NS END_NS  of all sequences together
//!                                  <-  histogram NS:COUNT ...
//!                                  <-  verified VALUES SUM   values that proved to be whole
//!                                  <-  done                  or, at any time: error TEXT
//! ```
//!
//! Moments are nanoseconds of the machine's monotonic clock, which all processes share.

use nearstate_model::{Error, Result};
use std::collections::BTreeMap;
use std::fmt;

/// Whether an experiment reads or writes: the `accessMode` of paper 1, Table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Records that are there are read.
    Read,
    /// Records are written to a database that is empty at the start.
    Write,
}

impl Mode {
    /// The word of the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// One way to access a record. Paper 1 measured [`Kind::Step`] and a locked append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// From a record to the next one in storage order: what the thesis measured with WhiteDB.
    Step,
    /// By key, the value looked at where it lies.
    View,
    /// By key, the value copied out.
    Copy,
    /// Sixteen keys at once.
    Batch,
    /// By key, the next key depending on the value read.
    Chain,
    /// A write.
    Put,
    /// A write while a lock is held over the whole sequence, the wait for it not counted.
    PutHeld,
}

/// Keys in one [`Kind::Batch`].
pub const BATCH_KEYS: usize = 16;

impl Kind {
    /// Every kind, in the order of a report.
    pub const ALL: [Self; 7] =
        [Self::Step, Self::View, Self::Copy, Self::Batch, Self::Chain, Self::Put, Self::PutHeld];

    /// The word of the command line and of the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::View => "view",
            Self::Copy => "copy",
            Self::Batch => "batch",
            Self::Chain => "chain",
            Self::Put => "put",
            Self::PutHeld => "put-held",
        }
    }

    /// The words of a table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Step => "step to next",
            Self::View => "keyed view",
            Self::Copy => "keyed copy",
            Self::Batch => "batch of 16",
            Self::Chain => "chain",
            Self::Put => "put",
            Self::PutHeld => "put, sequence lock",
        }
    }

    /// The mode that it belongs to.
    pub fn mode(self) -> Mode {
        match self {
            Self::Step | Self::View | Self::Copy | Self::Batch | Self::Chain => Mode::Read,
            Self::Put | Self::PutHeld => Mode::Write,
        }
    }

    /// The kind of this name.
    ///
    /// # Errors
    /// [`Error::BadArgument`] with the name.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|k| k.name() == name).ok_or_else(|| Error::BadArgument {
            detail: format!("no kind of access is called {name:?}"),
        })
    }
}

/// How much of a value a reader looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Every byte, summed and compared with the value's own certificate.
    All,
    /// The first word and the last byte.
    Word,
}

impl Touch {
    /// The word of the command line and of the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Word => "word",
        }
    }
}

/// Everything that one node needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Name of the target.
    pub target: String,
    /// Where the target is: a path, a URL, a key of a shared memory segment.
    pub address: String,
    /// What stands before every key.
    pub prefix: String,
    /// What to do.
    pub kind: Kind,
    /// How much of a value to look at.
    pub touch: Touch,
    /// Which node this is, from 0.
    pub node: u64,
    /// The first record of this node.
    pub first: u64,
    /// Records of this node.
    pub count: u64,
    /// Operations in a sequence.
    pub ops: u64,
    /// How often the sequence is run.
    pub loops: u64,
    /// Pause between two sequences, in microseconds.
    pub interval_us: u64,
    /// Size of a value, in bytes.
    pub record_bytes: u64,
    /// Where all chance comes from.
    pub seed: u64,
    /// Whether a reader runs one sequence unmeasured before it says that it is ready.
    pub warm_up: bool,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "plan target={} address={} prefix={} kind={} touch={} node={} first={} count={} ops={} \
             loops={} interval_us={} record_bytes={} seed={} warm_up={}",
            escaped(&self.target),
            escaped(&self.address),
            escaped(&self.prefix),
            self.kind.name(),
            self.touch.name(),
            self.node,
            self.first,
            self.count,
            self.ops,
            self.loops,
            self.interval_us,
            self.record_bytes,
            self.seed,
            u8::from(self.warm_up),
        )
    }
}

impl Plan {
    /// Reads the line that [`Plan`]'s `Display` writes.
    ///
    /// # Errors
    /// [`Error::BadArgument`] with the field that is missing or not what it should be.
    pub fn parse(line: &str) -> Result<Self> {
        let line = line.trim_end();
        let Some(fields) = line.strip_prefix("plan ") else {
            return Err(bad(format!("expected a plan, got {line:?}")));
        };
        let fields: BTreeMap<&str, &str> =
            fields.split(' ').filter_map(|f| f.split_once('=')).collect();
        let word = |name: &str| {
            fields.get(name).copied().ok_or_else(|| bad(format!("the plan lacks {name}=")))
        };
        let number = |name: &str| {
            word(name)?
                .parse::<u64>()
                .map_err(|_| bad(format!("{name}= in the plan is not a number")))
        };
        let plan = Self {
            target: unescaped(word("target")?),
            address: unescaped(word("address")?),
            prefix: unescaped(word("prefix")?),
            kind: Kind::parse(word("kind")?)?,
            touch: if word("touch")? == "word" { Touch::Word } else { Touch::All },
            node: number("node")?,
            first: number("first")?,
            count: number("count")?,
            ops: number("ops")?,
            loops: number("loops")?,
            interval_us: number("interval_us")?,
            record_bytes: number("record_bytes")?,
            seed: number("seed")?,
            warm_up: number("warm_up")? != 0,
        };
        if plan.count == 0 || plan.ops == 0 || plan.loops == 0 {
            return Err(bad("a plan has at least one record, one operation and one loop".into()));
        }
        Ok(plan)
    }
}

/// What a node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It waits for `go`.
    Ready,
    /// It has done so many operations more.
    Progress(u64),
    /// A sequence took this long, in nanoseconds.
    Sequence(u64, u64),
    /// All sequences together lay between these moments.
    Span(u64, u64),
    /// Latencies of single operations in nanoseconds, and how many there were of each.
    Histogram(Vec<(u64, u64)>),
    /// So many values were checked; the second number is what they added up to.
    Verified(u64, u64),
    /// It gives up.
    Error(String),
    /// It has said everything.
    Done,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Progress(ops) => write!(f, "progress {ops}"),
            Self::Sequence(number, total_ns) => write!(f, "sequence {number} {total_ns}"),
            Self::Span(start_ns, end_ns) => write!(f, "span {start_ns} {end_ns}"),
            Self::Histogram(pairs) => {
                f.write_str("histogram")?;
                pairs.iter().try_for_each(|(ns, count)| write!(f, " {ns}:{count}"))
            }
            Self::Verified(values, sum) => write!(f, "verified {values} {sum}"),
            Self::Error(text) => write!(f, "error {}", text.replace('\n', " ")),
            Self::Done => f.write_str("done"),
        }
    }
}

impl Said {
    /// Reads one line of a node.
    ///
    /// # Errors
    /// [`Error::Backend`] with the line, if it is none of the protocol.
    pub fn parse(line: &str) -> Result<Self> {
        let line = line.trim_end();
        let strange = || Error::Backend {
            detail: format!("a simulator node said {line:?}, which is not of the protocol"),
        };
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let one = || rest.parse::<u64>().map_err(|_| strange());
        let two = || {
            let (a, b) = rest.split_once(' ').ok_or_else(strange)?;
            let number = |t: &str| t.parse::<u64>().map_err(|_| strange());
            Ok::<_, Error>((number(a)?, number(b)?))
        };
        Ok(match word {
            "ready" => Self::Ready,
            "done" => Self::Done,
            "error" => Self::Error(rest.to_owned()),
            "progress" => Self::Progress(one()?),
            "sequence" => two().map(|(a, b)| Self::Sequence(a, b))?,
            "span" => two().map(|(a, b)| Self::Span(a, b))?,
            "verified" => two().map(|(a, b)| Self::Verified(a, b))?,
            "histogram" => {
                let pair = |t: &str| {
                    let (ns, count) = t.split_once(':')?;
                    Some((ns.parse().ok()?, count.parse().ok()?))
                };
                let pairs: Option<Vec<_>> = rest.split_whitespace().map(pair).collect();
                Self::Histogram(pairs.ok_or_else(strange)?)
            }
            _ => return Err(strange()),
        })
    }
}

/// The moment now on the monotonic clock that all processes share, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

fn bad(detail: String) -> Error {
    Error::BadArgument { detail }
}

/// Fields are parted by spaces, so a space in one is written otherwise.
fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace(' ', "%20")
}

fn unescaped(text: &str) -> String {
    text.replace("%20", " ").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            target: "redis-unix".to_owned(),
            address: "unix:///dev/shm/a b%20/redis.sock".to_owned(),
            prefix: String::new(),
            kind: Kind::Chain,
            touch: Touch::Word,
            node: 3,
            first: 30_000,
            count: 10_000,
            ops: 10_000,
            loops: 2,
            interval_us: 5,
            record_bytes: 1024,
            seed: 42,
            warm_up: true,
        }
    }

    #[test]
    fn a_plan_comes_back_as_it_was_sent() {
        let sent = plan();
        assert_eq!(Plan::parse(&format!("{sent}\n")).unwrap(), sent);
    }

    #[test]
    fn a_plan_without_a_field_says_which() {
        let line = plan().to_string().replace("loops=2 ", "");
        assert!(Plan::parse(&line).unwrap_err().to_string().contains("loops="));
        let zero = plan().to_string().replace("loops=2 ", "loops=0 ");
        assert!(Plan::parse(&zero).is_err());
        assert!(Plan::parse("go 5").is_err());
    }

    #[test]
    fn every_line_of_a_node_comes_back_as_it_was_said() {
        for said in [
            Said::Ready,
            Said::Progress(512),
            Said::Sequence(1, 94_680_000),
            Said::Span(1, 2),
            Said::Histogram(vec![(18, 3), (1_000_000, 1)]),
            Said::Histogram(vec![]),
            Said::Verified(10_000, u64::MAX),
            Said::Error("redis: connection refused".to_owned()),
            Said::Done,
        ] {
            assert_eq!(Said::parse(&format!("{said}\n")).unwrap(), said);
        }
    }

    #[test]
    fn a_line_that_is_not_of_the_protocol_is_shown() {
        for line in ["", "redy", "progress x", "sequence 1", "histogram 5", "span 1 b"] {
            assert!(Said::parse(line).unwrap_err().to_string().contains(line), "{line}");
        }
    }

    #[test]
    fn a_kind_is_known_by_its_name() {
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.name()).unwrap(), kind);
        }
    }
}
