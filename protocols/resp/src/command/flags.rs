//! Flags, groups and ACL categories of commands, named as in Redis.

/// Flags of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandFlags(u32);

/// ACL categories of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AclCategories(u32);

macro_rules! flags {
    ($($name:ident $bit:literal $word:literal $says:literal)*) => {
        impl CommandFlags {
            /// No flag.
            pub const NONE: Self = Self(0);
            $(#[doc = $says] pub const $name: Self = Self(1 << $bit);)*
            const WORDS: &[(Self, &'static str)] = &[$((Self::$name, $word)),*];
        }
    };
}

// Flags without a word are internal: `COMMAND` does not show them.
flags! {
    WRITE 0 "write" "May change records."
    READONLY 1 "readonly" "Reads records without changes."
    DENYOOM 2 "denyoom" "May need more memory."
    MODULE 3 "module" "Belongs to the SDL module."
    ADMIN 4 "admin" "Administrative."
    PUBSUB 5 "pubsub" "Uses channels."
    NOSCRIPT 6 "noscript" "Not allowed in scripts."
    LOADING 7 "loading" "Allowed while the server loads its data."
    STALE 8 "stale" "Allowed while data may be stale."
    SKIP_MONITOR 9 "skip_monitor" "Not shown by MONITOR."
    SKIP_SLOWLOG 10 "skip_slowlog" "Not in the slow log; the commands that it executes are."
    FAST 11 "fast" "Constant or logarithmic time."
    NO_AUTH 12 "no_auth" "Allowed without authentication."
    NO_MANDATORY_KEYS 13 "no_mandatory_keys" "Keys are optional."
    ALLOW_BUSY 14 "allow_busy" "Allowed while a script runs."
    MOVABLE_KEYS 15 "movablekeys" "The positions of keys depend on the arguments."
    CONTAINER 16 "" "Has subcommands."
    AT_ONCE 17 "" "Executed immediately between MULTI and EXEC, not queued."
    SUBSCRIBED 18 "" "Allowed in RESP2 while the client is subscribed."
    SECRET 19 "" "May contain passwords: arguments are not shown or logged."
}

impl CommandFlags {
    /// The union.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all flags of `other` are set.
    #[inline]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The words that `COMMAND` shows.
    pub fn words(self) -> impl Iterator<Item = &'static str> + Clone {
        let find = Self::WORDS.iter().filter(|(_, word)| !word.is_empty());
        find.filter(move |(flag, _)| self.has(*flag)).map(|(_, word)| *word)
    }

    /// The ACL categories that follow from the flags, as in Redis.
    pub(super) fn categories(self) -> AclCategories {
        let mut found =
            if self.has(Self::FAST) { AclCategories::FAST } else { AclCategories::SLOW };
        for (flag, category) in [
            (Self::WRITE, AclCategories::WRITE),
            (Self::READONLY, AclCategories::READ),
            (Self::ADMIN, AclCategories::ADMIN.and(AclCategories::DANGEROUS)),
            (Self::PUBSUB, AclCategories::PUBSUB),
        ] {
            if self.has(flag) {
                found = found.and(category);
            }
        }
        found
    }
}

macro_rules! categories {
    ($($name:ident $bit:literal $word:literal)*) => {
        impl AclCategories {
            /// No category.
            pub const NONE: Self = Self(0);
            $(#[doc = concat!("`@", $word, "`")] pub const $name: Self = Self(1 << $bit);)*
            const WORDS: &[(Self, &'static str)] = &[$((Self::$name, $word)),*];
        }
    };
}

categories! {
    KEYSPACE 0 "keyspace"
    READ 1 "read"
    WRITE 2 "write"
    SET 3 "set"
    HASH 4 "hash"
    STRING 5 "string"
    PUBSUB 6 "pubsub"
    ADMIN 7 "admin"
    FAST 8 "fast"
    SLOW 9 "slow"
    DANGEROUS 10 "dangerous"
    CONNECTION 11 "connection"
    TRANSACTION 12 "transaction"
    SCRIPTING 13 "scripting"
    SDL 14 "sdl"
    BITMAP 15 "bitmap"
}

impl AclCategories {
    /// The union.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The difference.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether all categories of `other` are included.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The category with this name, without `@`, in any case.
    pub fn find(name: &[u8]) -> Option<Self> {
        let is = |word: &str| word.as_bytes().eq_ignore_ascii_case(name);
        Self::iter().find(|(_, word)| is(word)).map(|(one, _)| one)
    }

    /// All categories with their names.
    pub fn iter() -> impl ExactSizeIterator<Item = (Self, &'static str)> {
        Self::WORDS.iter().copied()
    }

    /// The names, without `@`.
    pub fn words(self) -> impl Iterator<Item = &'static str> + Clone {
        Self::WORDS.iter().filter(move |(one, _)| self.has(*one)).map(|(_, word)| *word)
    }
}

/// Group of a command in the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandGroup {
    /// Strings.
    Strings,
    /// Bits of strings.
    Bitmaps,
    /// Hashes.
    Hashes,
    /// Sets.
    Sets,
    /// Keys of all types.
    Keys,
    /// Tags.
    Tags,
    /// Commands of the SDL module.
    Sdl,
    /// Scripts.
    Scripts,
    /// Publish and subscribe.
    Pubsub,
    /// Transactions.
    Transactions,
    /// The connection.
    Connection,
    /// The server.
    Server,
    /// Sentinel.
    Sentinel,
}

impl CommandGroup {
    /// The word in `COMMAND DOCS`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Strings => "string",
            Self::Bitmaps => "bitmap",
            Self::Hashes => "hash",
            Self::Sets => "set",
            Self::Keys | Self::Tags => "generic",
            Self::Sdl => "module",
            Self::Scripts => "scripting",
            Self::Pubsub => "pubsub",
            Self::Transactions => "transactions",
            Self::Connection => "connection",
            Self::Server => "server",
            Self::Sentinel => "sentinel",
        }
    }

    pub(super) const fn categories(self) -> AclCategories {
        match self {
            Self::Strings => AclCategories::STRING,
            Self::Bitmaps => AclCategories::BITMAP,
            Self::Hashes => AclCategories::HASH,
            Self::Sets => AclCategories::SET,
            Self::Keys | Self::Tags => AclCategories::KEYSPACE,
            Self::Sdl => AclCategories::SDL,
            Self::Scripts => AclCategories::SCRIPTING,
            Self::Pubsub => AclCategories::PUBSUB,
            Self::Transactions => AclCategories::TRANSACTION,
            Self::Connection => AclCategories::CONNECTION,
            Self::Server | Self::Sentinel => AclCategories::NONE,
        }
    }
}
