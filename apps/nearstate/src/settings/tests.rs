//! Layers, words, and the example file.

use super::keys::Key;
use super::print::example;
use super::*;
use clap::Parser;
use std::fmt::Write as _;
use std::path::Path;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    flags: Flags,
}

fn layers(line: &[&str], environment: &[(&str, &str)]) -> Result<Layers> {
    let words = ["serve"].iter().chain(line);
    let flags = Line::try_parse_from(words).unwrap().flags;
    flags.layers(environment.iter().map(|(name, value)| (name.into(), value.into())))
}

fn refusal(text: &str) -> String {
    let mut layers = Layers::default();
    match layers.take_file(Path::new("file"), text) {
        Ok(()) => Settings::read(&layers).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_flag_beats_the_environment_beats_the_file_beats_the_default() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("near.toml");
    std::fs::write(
        &path,
        "listen = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\ncores = 3\n[limits]\nbacklog = 7\n\
         unread_max = \"2min\"\n",
    )
    .unwrap();
    let file = path.to_str().unwrap();
    let environment = [
        ("NEARSTATE_CONFIG", file),
        ("NEARSTATE_CORES", "4"),
        ("NEARSTATE_LIMITS_BACKLOG", "8"),
        ("PATH", "/bin"),
    ];
    let layers = layers(&["--limits-backlog", "9", "--insecure"], &environment).unwrap();
    let settings = Settings::read(&layers).unwrap();
    assert_eq!(settings.listen, ["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()]);
    assert_eq!((settings.cores.0, settings.limits().backlog), (4, 9));
    assert_eq!(settings.limits().unread_max.as_secs(), 120);
    assert_eq!(settings.limits().connections_max, 20_000);
    assert!(settings.is_insecure);
    let shown = print(&layers);
    for (key, source) in [
        ("listen = [\"127.0.0.1:1\", \"127.0.0.1:2\"]", format!("file {file}:1")),
        ("cores = 4", "environment $NEARSTATE_CORES".to_owned()),
        ("backlog = 9", "flag --limits-backlog".to_owned()),
        ("unread_max = \"2min\"", format!("file {file}:5")),
        ("pinned = true", "default".to_owned()),
    ] {
        let is_there = |line: &str| line.starts_with(key) && line.ends_with(&format!("# {source}"));
        assert!(shown.lines().any(is_there), "{key} from {source} in\n{shown}");
    }
}

#[test]
fn where_certificates_are_asked_for_plain_tcp_is_open_only_if_somebody_says_so() {
    let listen = |line: &[&str], environment: &[(&str, &str)]| {
        let layers = layers(line, environment).unwrap();
        (Settings::read(&layers).unwrap().listen.len(), layers.is_plain_left_out())
    };
    let authorities = ["--tls-client-authorities", "/a.pem"];
    assert_eq!(listen(&[], &[]), (1, false));
    assert_eq!(listen(&authorities, &[]), (0, true));
    assert_eq!(listen(&[], &[("NEARSTATE_TLS_CLIENT_AUTHORITIES", "/a.pem")]), (0, true));
    assert_eq!(listen(&[], &[("NEARSTATE_TLS_CLIENT_AUTHORITIES", "")]), (1, false));
    let said = [&authorities[..], &["--listen", "127.0.0.1:6379"]].concat();
    assert_eq!(listen(&said, &[]), (1, false), "the default, but said");
    assert_eq!(listen(&authorities, &[("NEARSTATE_LISTEN", "")]), (0, false), "said, and none");
    let shown = print(&layers(&authorities, &[]).unwrap());
    assert!(shown.contains("listen = []") && shown.contains("# default"), "{shown}");
}

#[test]
fn the_settings_of_the_libraries_are_the_defaults() {
    let settings = Settings::read(&Layers::default()).unwrap();
    assert_eq!(settings.limits(), nearstate_node::ConnectionLimits::default());
    let users = || nearstate_resp::acl::Users::open(&nearstate_resp::table::TABLE);
    let mut resp = nearstate_resp::server::Settings::new(users());
    settings.apply_to(&mut resp);
    let known = nearstate_resp::server::Settings::new(users());
    assert_eq!(
        (resp.mailbox_bytes_max, resp.subscriptions_max, resp.request_bytes_max),
        (known.mailbox_bytes_max, known.subscriptions_max, known.request_bytes_max)
    );
    assert_eq!(resp.messages_bytes_max, known.messages_bytes_max);
    assert_eq!(resp.exec_max, known.exec_max);
    assert_eq!(
        (resp.slow_micros, resp.slow_entries_max, resp.announced_host, resp.masters),
        (known.slow_micros, known.slow_entries_max, known.announced_host, known.masters)
    );
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_the_nearest_one() {
    for (text, wanted) in [
        (
            "\nlissen = \"127.0.0.1:1\"",
            "file:2: there is no setting \"lissen\"; the nearest is \"listen\"",
        ),
        (
            "[limits]\n\nconections_max = 1",
            "file:3: there is no setting \"limits.conections_max\"; the nearest is \
             \"limits.connections_max\"",
        ),
        ("backlog = 1", "the nearest is \"limits.backlog\""),
        (
            "[limit]\nbacklog = 1",
            "file:1: there is no setting \"limit\"; the nearest is \"limits\"",
        ),
        ("limits.backlok = 1", "file:1: there is no setting \"limits.backlok\"; the nearest"),
        ("limits = 1", "limits is a section: write [limits]"),
        ("[limits.backlog]\nx = 1", "file:1: limits.backlog: write NUMBER"),
        ("[frobnication]", "`nearstate serve --help` shows all"),
        ("cores = 1\ncores = 2", "file:2: this is not TOML"),
        ("cores = [1]", "file:1: cores: one value, and no list"),
        ("cores = \"many\"", "file:1: cores: \"many\" is no whole number"),
        ("cores = -1", "file:1: cores: \"-1\" is no whole number"),
        ("cores = 1.5", "file:1: cores: write NUMBER as a text"),
        ("[limits]\nbacklog = 0", "file:2: limits.backlog: 0 would let nobody in"),
        ("[limits]\nunread_max = \"1 day\"", "is no unit of time"),
        ("[limits]\nunread_max = \"99999999999h\"", "longer than a year"),
        ("[limits]\ncore_bytes_max = \"17000000T\"", "larger than any machine"),
        ("listen = [\"localhost:1\"]", "numbers only"),
        ("unix_mode = \"777\"", "nobody executes"),
        ("insecure = \"yes\"", "neither true nor false"),
        ("[log]\nlevel = \"loud\"", "error|warn|info|debug"),
        ("a = ", "this is not TOML"),
    ] {
        let refusal = refusal(text);
        assert!(refusal.contains(wanted), "{text:?} was refused with {refusal:?}");
    }
}

#[test]
fn an_unknown_variable_is_refused_but_not_those_that_kubernetes_sets() {
    let error = layers(&[], &[("NEARSTATE_LISEN", "x")]).unwrap_err().to_string();
    assert!(error.contains("NEARSTATE_LISTEN"), "{error}");
    let of_a_pod = [
        ("NEARSTATE_PORT", "tcp://10.0.0.1:6379"),
        ("NEARSTATE_PORT_6379_TCP_ADDR", "10.0.0.1"),
        ("NEARSTATE_SERVICE_HOST", "10.0.0.1"),
    ];
    layers(&[], &of_a_pod).unwrap();
    let error = layers(&["--config", "/nowhere/at/all"], &[]).unwrap_err().to_string();
    assert!(error.contains("/nowhere/at/all"), "{error}");
}

#[test]
fn lists_and_lines_can_be_said_in_one_text_and_made_empty() {
    let environment = [
        ("NEARSTATE_USERS_LINES", "user a on >x ~{ns},* +get\n  user b off\n"),
        ("NEARSTATE_UNIX", ""),
        ("NEARSTATE_RESP_MASTERS", "one, two"),
    ];
    let layers =
        layers(&["--listen", "127.0.0.1:1,127.0.0.1:2", "--listen", "[::1]:3"], &environment);
    let layers = layers.unwrap();
    let settings = Settings::read(&layers).unwrap();
    assert_eq!(settings.users_lines.0, ["user a on >x ~{ns},* +get", "user b off"]);
    assert_eq!(settings.masters, ["one", "two"]);
    assert_eq!((settings.listen.len(), settings.unix_paths().len()), (3, 0));
    let shown = print(&layers);
    assert!(shown.contains("user a on >*** ~{ns},* +get") && !shown.contains(">x"), "{shown}");
}

#[test]
fn what_is_printed_says_the_same_again() {
    let line = ["--resp-masters", "a \"quoted\"\u{7}\\,b", "--region", "/tmp/x=y", "--cores", "2"];
    let first = layers(&line, &[]).unwrap();
    let shown = print(&first);
    let mut again = Layers::default();
    again.take_file(Path::new("shown"), &shown).unwrap();
    for key in KEYS {
        assert_eq!(first.said(key).words, again.said(key).words, "{} in\n{shown}", key.name);
    }
}

#[test]
fn the_example_file_is_what_the_table_says_and_its_lines_are_the_defaults() {
    let page = include_str!("../../../../docs/operate/nearstate.toml");
    assert!(page == example(), "docs/operate/nearstate.toml should be:\n{}", example());
    let mut with_all = String::new();
    for line in page.lines() {
        let setting = line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', '#']));
        with_all.push_str(setting.unwrap_or(line));
        with_all.push('\n');
    }
    let mut layers = Layers::default();
    layers.take_file(Path::new("example"), &with_all).unwrap();
    Settings::read(&layers).unwrap();
    for key in KEYS {
        assert_ne!(layers.source(key.name), Layers::default().source(key.name), "{}", key.name);
        assert_eq!(layers.said(key).words, Layers::default().said(key).words, "{}", key.name);
    }
}

const PAGE: &str = include_str!("../../../../docs/operate/serve.md");

#[test]
fn the_page_says_of_each_setting_what_the_table_says() {
    let mut table = "| setting | flag | default | what |\n|---|---|---|---|\n".to_owned();
    for key in KEYS {
        let Key { name, default, doc, .. } = key;
        let doc = doc.trim();
        let default = if default.is_empty() { "" } else { &format!("`{default}`") };
        let usage = key.usage().replace('|', "\\|");
        writeln!(table, "| `{name}` | `{usage}` | {default} | {doc} |").unwrap();
    }
    assert!(PAGE.contains(&table), "docs/operate/serve.md should contain:\n{table}");
}

/// What stands in blocks of a language on the page.
fn blocks(language: &str) -> Vec<&'static str> {
    let mark = format!("```{language}\n");
    let begins = PAGE.split(&mark).skip(1);
    begins.map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn every_command_line_of_the_page_is_understood() {
    let mut lines = Vec::new();
    for shell in blocks("sh") {
        lines.extend(shell.lines().filter_map(|line| line.split(" #").next()));
    }
    for unit in blocks("ini") {
        lines.extend(unit.lines().filter_map(|line| line.strip_prefix("ExecStart=/usr/bin/")));
    }
    assert!(lines.len() >= 5, "{lines:?}");
    for line in lines {
        let words = line.strip_prefix("nearstate ").unwrap();
        let words =
            words.replace(" --print-config", "").replace("--config /etc/nearstate.toml", "");
        layers_of(words.split_whitespace());
    }
    let pods = blocks("yaml");
    let args = pods.iter().flat_map(|pod| pod.lines()).find_map(|line| {
        line.trim().strip_prefix("args: [").and_then(|rest| rest.strip_suffix(']'))
    });
    layers_of(args.unwrap().split(", ").map(|word| word.trim_matches('"')));
    let variables = pods.iter().flat_map(|pod| pod.lines()).filter_map(|line| {
        let (_, rest) = line.split_once("{name: NEARSTATE_")?;
        let (name, value) = rest.split_once(", value: \"")?;
        Some((format!("NEARSTATE_{name}"), value.trim_end_matches("\"}")))
    });
    let variables: Vec<_> = variables.collect();
    assert_eq!(variables.len(), 3);
    let variables: Vec<_> = variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    Settings::read(&layers(&[], &variables).unwrap()).unwrap();
}

fn layers_of<'a>(words: impl Iterator<Item = &'a str>) {
    let words: Vec<_> = words.collect();
    assert_eq!(words.first(), Some(&"serve"));
    Settings::read(&layers(&words[1..], &[]).unwrap()).unwrap();
}

#[test]
fn bytes_of_any_kind_are_refused_and_never_a_panic() {
    let mut seed = 7_u64;
    let pieces =
        ["[", "]", "limits", ".", "=", "\"", "\n", "#", "backlog", "1", "é", "{", ",", "'"];
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..12 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = usize::try_from(seed >> 33).unwrap() % pieces.len();
            text.push_str(pieces[at]);
        }
        let mut layers = Layers::default();
        if layers.take_file(Path::new("file"), &text).is_ok() {
            let _ = Settings::read(&layers);
        }
    }
}
