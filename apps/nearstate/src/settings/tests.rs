//! Layers, values, and the example file.

use super::print::example;
use super::table::{SettingSpec, variable_of};
use super::values::SettingValue as _;
use super::*;
use clap::Parser;
use nearstate_store::NamespaceLimits;
use std::fmt::Write as _;
use std::path::Path;

#[derive(Debug, Parser)]
struct TestCli {
    #[command(flatten)]
    flags: SettingFlags,
}

fn layers(line: &[&str], environment: &[(&str, &str)]) -> Result<SettingLayers> {
    let words = ["serve"].iter().chain(line);
    let flags = TestCli::try_parse_from(words).unwrap().flags;
    flags.layers(environment.iter().map(|(name, value)| (name.into(), value.into())))
}

fn rejection(text: &str) -> String {
    let mut layers = SettingLayers::default();
    match layers.add_file(Path::new("file"), text) {
        Ok(()) => Settings::parse(&layers).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_flag_overrides_the_environment_overrides_the_file_overrides_the_default() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nearstate.toml");
    std::fs::write(
        &path,
        "listen = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\ncores = 3\n[limits]\ntcp_backlog = 7\n\
         reply_timeout = \"2min\"\n",
    )
    .unwrap();
    let file = path.to_str().unwrap();
    let environment = [
        ("NEARSTATE_CONFIG", file),
        ("NEARSTATE_CORES", "4"),
        ("NEARSTATE_LIMITS_TCP_BACKLOG", "8"),
        ("PATH", "/bin"),
    ];
    let layers = layers(&["--limits-tcp-backlog", "9", "--insecure"], &environment).unwrap();
    let settings = Settings::parse(&layers).unwrap();
    assert_eq!(settings.listen, ["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()]);
    assert_eq!((settings.cores.0, settings.limits(1 << 30).tcp_backlog), (4, 9));
    assert_eq!(settings.limits(1 << 30).reply_timeout.as_secs(), 120);
    assert_eq!(settings.limits(1 << 30).connections_max, 20_000);
    assert!(settings.is_insecure);
    let shown = print(&layers);
    for (key, source) in [
        ("listen = [\"127.0.0.1:1\", \"127.0.0.1:2\"]", format!("file {file}:1")),
        ("cores = 4", "environment $NEARSTATE_CORES".to_owned()),
        ("tcp_backlog = 9", "flag --limits-tcp-backlog".to_owned()),
        ("reply_timeout = \"2min\"", format!("file {file}:5")),
        ("pin_cores = true", "default".to_owned()),
    ] {
        let is_there = |line: &str| line.starts_with(key) && line.ends_with(&format!("# {source}"));
        assert!(shown.lines().any(is_there), "{key} from {source} in\n{shown}");
    }
}

#[test]
fn with_client_certificates_plain_tcp_is_closed_unless_listen_is_set() {
    let listen = |line: &[&str], environment: &[(&str, &str)]| {
        let layers = layers(line, environment).unwrap();
        (Settings::parse(&layers).unwrap().listen.len(), layers.is_plain_left_out())
    };
    let authorities = ["--tls-client-ca", "/a.pem"];
    assert_eq!(listen(&[], &[]), (1, false));
    assert_eq!(listen(&authorities, &[]), (0, true));
    assert_eq!(listen(&[], &[("NEARSTATE_TLS_CLIENT_CA", "/a.pem")]), (0, true));
    assert_eq!(listen(&[], &[("NEARSTATE_TLS_CLIENT_CA", "")]), (1, false));
    let said = [&authorities[..], &["--listen", "127.0.0.1:6379"]].concat();
    assert_eq!(listen(&said, &[]), (1, false), "the default, but set");
    assert_eq!(listen(&authorities, &[("NEARSTATE_LISTEN", "")]), (0, false), "set, and empty");
    let shown = print(&layers(&authorities, &[]).unwrap());
    assert!(shown.contains("listen = []") && shown.contains("# default"), "{shown}");
}

#[test]
fn the_defaults_are_those_of_the_libraries() {
    let settings = Settings::parse(&SettingLayers::default()).unwrap();
    assert_eq!(settings.limits(2 << 30), nearstate_node::ConnectionLimits::default());
    let users = || nearstate_resp::acl::Users::open(&nearstate_resp::table::TABLE);
    let mut resp = nearstate_resp::server::RespSettings::new(users());
    settings.apply_to(&mut resp);
    let known = nearstate_resp::server::RespSettings::new(users());
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
fn an_unknown_setting_is_rejected_with_its_line_and_the_closest_one() {
    for (text, wanted) in [
        (
            "\nlissen = \"127.0.0.1:1\"",
            "file: unknown setting \"lissen\" (line 2), did you mean \"listen\"?",
        ),
        (
            "[limits]\n\nconections_max = 1",
            "file: unknown setting \"limits.conections_max\" (line 3), did you mean \
             \"limits.connections_max\"?",
        ),
        ("tcp_backlog = 1", "did you mean \"limits.tcp_backlog\"?"),
        (
            "[limit]\ntcp_backlog = 1",
            "file: unknown setting \"limit\" (line 1), did you mean \"limits\"?",
        ),
        ("limits.tcp_backlok = 1", "file: unknown setting \"limits.tcp_backlok\" (line 1), did"),
        ("limits = 1", "limits is a section: write [limits]"),
        ("[limits.tcp_backlog]\nx = 1", "file:1: limits.tcp_backlog: expected NUMBER"),
        ("[frobnication]", "`nearstate serve --help` lists all"),
        ("cores = 1\ncores = 2", "file:2: not valid TOML"),
        ("cores = [1]", "file:1: cores: expected one value, not a list"),
        ("cores = \"many\"", "file:1: cores: \"many\" is not valid: expected a whole number"),
        ("cores = -1", "file:1: cores: \"-1\" is not valid: expected a whole number"),
        ("cores = 1.5", "file:1: cores: expected NUMBER as a string"),
        ("[limits]\ntcp_backlog = 0", "file:2: limits.tcp_backlog: 0 would reject every"),
        ("[limits]\nreply_timeout = \"1 day\"", "expected us, ms, s, min or h"),
        ("[limits]\nreply_timeout = \"99999999999h\"", "longer than a year"),
        ("[limits]\ncore_bytes_max = \"17000000T\"", "exceeds the address space"),
        ("listen = [\"localhost:1\"]", "expected IP:PORT"),
        ("unix_mode = \"777\"", "execution is not allowed"),
        ("insecure = \"yes\"", "expected true or false"),
        ("[log]\nlevel = \"loud\"", "error|warn|info|debug"),
        ("a = ", "not valid TOML"),
    ] {
        let error = rejection(text);
        assert!(error.contains(wanted), "{text:?} was rejected with {error:?}");
    }
}

#[test]
fn a_renamed_setting_is_rejected_with_its_new_name_in_every_layer() {
    for (old, new) in RENAMED {
        let wanted = format!("file: setting {old:?} (line 1) was renamed: use {new:?}");
        let error = rejection(&format!("{old} = 1"));
        assert!(error.contains(&wanted), "{error}");
        let error = layers(&[], &[(variable_of(old).as_str(), "1")]).unwrap_err().to_string();
        assert!(error.contains(&format!("use {:?}", variable_of(new))), "{error}");
        let spec = SETTINGS.iter().find(|spec| spec.name == *new).unwrap();
        let flag = format!("--{}", flag_of(old));
        for line in [vec!["serve", &flag], vec!["serve", &flag, "1"]] {
            let error = TestCli::try_parse_from(line).unwrap_err().to_string();
            assert!(error.contains(&format!("renamed: use --{}", spec.flag)), "{error}");
        }
        assert!(SETTINGS.iter().all(|spec| spec.name != *old), "{old} is in use");
    }
    let error = rejection("[observe]\nlisten = []");
    assert!(error.contains("setting \"observe.listen\" (line 2) was renamed"), "{error}");
    assert!(rejection("unix = \"beside\"").contains("use \"auto\""));
}

#[test]
fn an_unknown_variable_is_rejected_but_not_those_that_kubernetes_sets() {
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
fn lists_accept_one_text_and_can_be_emptied() {
    let environment = [
        ("NEARSTATE_USERS_LINES", "user a on >x ~{ns},* +get\n  user b off\n"),
        ("NEARSTATE_UNIX", ""),
        ("NEARSTATE_RESP_SENTINEL_MASTERS", "one, two"),
    ];
    let layers =
        layers(&["--listen", "127.0.0.1:1,127.0.0.1:2", "--listen", "[::1]:3"], &environment);
    let layers = layers.unwrap();
    let settings = Settings::parse(&layers).unwrap();
    assert_eq!(settings.users_lines.0, ["user a on >x ~{ns},* +get", "user b off"]);
    assert_eq!(settings.sentinel_masters, ["one", "two"]);
    assert_eq!((settings.listen.len(), settings.unix_paths().len()), (3, 0));
    let shown = print(&layers);
    assert!(shown.contains("user a on >*** ~{ns},* +get") && !shown.contains(">x"), "{shown}");
}

#[test]
fn printed_settings_parse_to_the_same_settings() {
    let line = [
        "--resp-sentinel-masters",
        "a \"quoted\"\u{7}\\,b",
        "--region",
        "/tmp/x=y",
        "--cores",
        "2",
    ];
    let first = layers(&line, &[]).unwrap();
    let shown = print(&first);
    let mut again = SettingLayers::default();
    again.add_file(Path::new("shown"), &shown).unwrap();
    for spec in SETTINGS {
        assert_eq!(first.raw(spec).items, again.raw(spec).items, "{} in\n{shown}", spec.name);
    }
}

#[test]
fn the_example_file_matches_the_table_and_its_lines_are_the_defaults() {
    let page = include_str!("../../../../docs/operate/nearstate.toml");
    assert!(page == example(), "docs/operate/nearstate.toml should be:\n{}", example());
    let mut with_all = String::new();
    for line in page.lines() {
        let setting = line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', '#']));
        with_all.push_str(setting.unwrap_or(line));
        with_all.push('\n');
    }
    let mut layers = SettingLayers::default();
    layers.add_file(Path::new("example"), &with_all).unwrap();
    Settings::parse(&layers).unwrap();
    for spec in SETTINGS {
        assert_ne!(
            layers.origin(spec.name),
            SettingLayers::default().origin(spec.name),
            "{}",
            spec.name
        );
        assert_eq!(
            layers.raw(spec).items,
            SettingLayers::default().raw(spec).items,
            "{}",
            spec.name
        );
    }
}

const PAGE: &str = include_str!("../../../../docs/operate/serve.md");

#[test]
fn the_page_documents_each_setting_as_the_table_does() {
    let mut table = "| setting | flag | default | what |\n|---|---|---|---|\n".to_owned();
    for spec in SETTINGS {
        let SettingSpec { name, default, doc, .. } = spec;
        let doc = doc.trim();
        let default = if default.is_empty() { "" } else { &format!("`{default}`") };
        let usage = spec.usage().replace('|', "\\|");
        writeln!(table, "| `{name}` | `{usage}` | {default} | {doc} |").unwrap();
    }
    assert!(PAGE.contains(&table), "docs/operate/serve.md should contain:\n{table}");
}

/// The contents of the code blocks of a language on the page.
fn blocks(language: &str) -> Vec<&'static str> {
    let mark = format!("```{language}\n");
    let begins = PAGE.split(&mark).skip(1);
    begins.map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn every_command_line_of_the_page_is_accepted() {
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
    Settings::parse(&layers(&[], &variables).unwrap()).unwrap();
}

fn layers_of<'a>(words: impl Iterator<Item = &'a str>) {
    let words: Vec<_> = words.collect();
    assert_eq!(words.first(), Some(&"serve"));
    Settings::parse(&layers(&words[1..], &[]).unwrap()).unwrap();
}

#[test]
fn arbitrary_bytes_are_rejected_without_a_panic() {
    let mut seed = 7_u64;
    let pieces =
        ["[", "]", "limits", ".", "=", "\"", "\n", "#", "tcp_backlog", "1", "é", "{", ",", "'"];
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..12 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = usize::try_from(seed >> 33).unwrap() % pieces.len();
            text.push_str(pieces[at]);
        }
        let mut layers = SettingLayers::default();
        if layers.add_file(Path::new("file"), &text).is_ok() {
            let _ = Settings::parse(&layers);
        }
    }
}

#[test]
fn the_default_region_is_in_a_directory_of_its_user() {
    let settings = Settings::parse(&layers(&[], &[]).unwrap()).unwrap();
    let directory = nearstate_store::user_directory();
    assert_eq!(settings.region.path, directory.join("region"));
    assert_eq!(settings.unix_paths(), [directory.join("region.sock")]);
    let given = layers(&["--region", "/dev/shm/amf"], &[]).unwrap();
    assert_eq!(Settings::parse(&given).unwrap().region.path.to_str(), Some("/dev/shm/amf"));
    assert!(rejection("[region]\npath = \"\"").contains("auto"));
}

#[test]
fn limits_of_namespaces_are_lines() {
    let parse = |lines: &[&str]| {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        NamespaceLimitLines::parse(&lines)
    };
    let limits = |soft_bytes, hard_bytes| NamespaceLimits { soft_bytes, hard_bytes };
    assert_eq!(
        parse(&["a soft=1MiB hard=2MiB", "b  hard=1GiB"]).unwrap().0,
        [("a".to_owned(), limits(1 << 20, 2 << 20)), ("b".to_owned(), limits(0, 1 << 30))]
    );
    for (line, reason) in [
        ("a", "expected NAMESPACE soft=SIZE hard=SIZE"),
        ("a 1MiB", "expected NAMESPACE"),
        ("a firm=1MiB", "expected NAMESPACE"),
        ("a hard=much", "is not a size"),
        ("a hard=1", "too small"),
        ("a soft=2MiB hard=1MiB", "above the hard one"),
    ] {
        let error = parse(&[line]).unwrap_err();
        assert!(error.contains(reason), "{line}: {error}");
    }
    assert!(parse(&["a hard=1MiB", "a soft=1MiB"]).unwrap_err().contains("two lines"));
}

#[test]
fn a_size_in_units_of_1024_is_read_and_an_ambiguous_one_is_refused() {
    for (text, bytes) in [("4096", 4096), ("1k", 1 << 10), ("2MiB", 2 << 20), ("3G", 3 << 30)] {
        assert_eq!(crate::region::parse_bytes(text), Ok(bytes), "{text}");
    }
    for (text, clear) in [("4GB", "4GiB"), ("512mb", "512MiB"), ("1TB", "1TiB"), ("9kb", "9KiB")] {
        let said = crate::region::parse_bytes(text).unwrap_err();
        assert!(said.contains("ambiguous") && said.contains(clear), "{said}");
    }
    assert!(crate::region::parse_bytes("1GiBb").is_err());
}
