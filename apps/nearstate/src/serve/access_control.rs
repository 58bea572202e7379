//! Access control: users, TLS, and addresses that other hosts can reach.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nearstate_model::{Error, Result};
use nearstate_node::Tls;
use nearstate_resp::acl::Users;
use nearstate_resp::table::TABLE;

use crate::log;
use crate::settings::{SettingLayers, Settings, read_text};

fn rejected(detail: String) -> Error {
    Error::BadArgument { detail }
}

/// What configures the addresses of clients, for advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressSource {
    /// The settings of a node of no cluster.
    Node,
    /// The cluster file: the clients of a partition.
    Partition,
    /// The settings of a host of a cluster: Sentinel, and metrics of the host.
    Pages,
}

impl AddressSource {
    /// What else than users there is for clients of RESP.
    const fn resp_advice(self) -> &'static str {
        match self {
            Self::Node => {
                "require client certificates (tls.listen, tls.client_ca), or listen on 127.0.0.1 \
                 or a Unix socket"
            }
            // Its plain port is open in any case, so certificates do not suffice.
            Self::Partition => {
                "set host.clients of the cluster file to an address that other hosts do not reach"
            }
            Self::Pages => "listen on 127.0.0.1",
        }
    }

    const fn nudsf_advice(self) -> &'static str {
        match self {
            Self::Node | Self::Pages => {
                "set nudsf.tls_listen, and tls.client_ca or nudsf.token_keys, or listen on \
                 127.0.0.1"
            }
            Self::Partition => {
                "set partition.nudsf_tls_port of the cluster file, without partition.nudsf_port, \
                 and tls.client_ca or nudsf.token_keys, or set host.clients to an address that \
                 other hosts do not reach"
            }
        }
    }

    const fn metrics_advice(self) -> &'static str {
        match self {
            Self::Node | Self::Pages => "set metrics.listen to 127.0.0.1",
            Self::Partition => "remove partition.metrics_port from the cluster file",
        }
    }

    /// The settings that open an address over TLS.
    const fn tls_settings(self) -> &'static str {
        match self {
            Self::Node => "tls.listen, nudsf.tls_listen or peer.listen",
            Self::Partition | Self::Pages => {
                "partition.tls_port or partition.nudsf_tls_port of the cluster file"
            }
        }
    }
}

/// Reads the declared users.
///
/// # Errors
/// `BadArgument`: an invalid line, users declared in two places, a file that other users can write;
/// `System`: a file that cannot be read.
pub(crate) fn users(settings: &Settings, layers: &SettingLayers) -> Result<Users> {
    let Some(path) = &settings.users_file else {
        let text = settings.users_lines.0.join("\n");
        return Users::parse(&text, &TABLE)
            .map_err(|e| rejected(format!("{}: users.lines, {e}", layers.origin("users.lines"))));
    };
    if !settings.users_lines.0.is_empty() {
        return Err(rejected(format!(
            "users are declared in users.file ({}) and in users.lines ({}): remove one of them",
            layers.origin("users.file"),
            layers.origin("users.lines"),
        )));
    }
    let text = read_text(path)?;
    check_mode(path, true)?;
    let users =
        Users::parse(&text, &TABLE).map_err(|e| rejected(format!("{}: {e}", path.display())))?;
    // An empty file would allow everything to every client, the opposite of what naming a file
    // intends.
    if text.lines().all(|line| matches!(line.trim().chars().next(), None | Some('#'))) {
        return Err(rejected(format!(
            "{}: the file declares no user: add lines such as `user xapp on >secret ~{{ns}},* \
             +@all`, or unset users.file",
            path.display()
        )));
    }
    Ok(users)
}

/// Reads the TLS files if TLS addresses are set.
///
/// # Errors
/// `BadArgument`: missing or invalid files, or files that other users can write.
pub(crate) fn tls(settings: &Settings, source: AddressSource) -> Result<Option<Tls>> {
    let clients = settings.tls_client_ca.as_deref();
    let is_unused = settings.tls_listen.is_empty()
        && settings.peer_listen.is_empty()
        && settings.nudsf_tls.is_empty();
    if is_unused {
        // Certificates are configured, but no client would be asked for one.
        return match clients {
            None => Ok(None),
            Some(_) => Err(rejected(format!(
                "tls.client_ca is set but no address uses TLS, so no client would present a \
                 certificate: set {}, or unset tls.client_ca",
                source.tls_settings()
            ))),
        };
    }
    let (Some(certificate), Some(key)) = (&settings.tls_certificate, &settings.tls_key) else {
        let is_required = !settings.tls_listen.is_empty() || !settings.nudsf_tls.is_empty();
        if !is_required && clients.is_none() {
            return Ok(None);
        }
        return Err(rejected(
            "TLS addresses require a certificate and its key: set tls.certificate and tls.key to \
             PEM files"
                .to_owned(),
        ));
    };
    let tls = Tls::read(certificate, key, clients)?;
    for path in [Some(certificate.as_path()), Some(key), clients].into_iter().flatten() {
        check_mode(path, path == key)?;
    }
    Ok(Some(tls))
}

/// Checks the mode of a file. A user that can write the users file or the TLS files can impersonate
/// any user.
pub(super) fn check_mode(path: &Path, is_secret: bool) -> Result<()> {
    let found = std::fs::metadata(path).map_err(|e| Error::System {
        detail: format!("cannot read the mode of {}", path.display()),
        errno: e.raw_os_error().unwrap_or(0),
    })?;
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(rejected(format!(
            "{path} has mode {mode:o}: users that can write it can impersonate any user; \
             run `chmod go-w {path}`",
            path = path.display()
        )));
    }
    if is_secret && mode & 0o044 != 0 {
        let mode = format!("{mode:o}");
        log::emit(log::SECRET_READABLE, &[("path", &path.display()), ("mode", &mode)]);
    }
    Ok(())
}

/// True if other hosts can reach the address.
fn is_wide(address: &SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// Checks the addresses.
///
/// # Errors
/// `BadArgument`: an address that other hosts can reach, without authentication.
pub(crate) fn addresses(settings: &Settings, users: &Users, source: AddressSource) -> Result<()> {
    let is_without_tcp = settings.listen.is_empty() && settings.tls_listen.is_empty();
    if is_without_tcp && settings.unix_paths().is_empty() {
        return Err(rejected(
            "no client can connect: set `listen` or `tls.listen` to an address, or `unix` to a path"
                .to_owned(),
        ));
    }
    let plain = settings.listen.iter().chain(&settings.sentinel_listen);
    let plain = plain.map(|address| (address, false));
    let requires_certificate = settings.tls_client_ca.is_some();
    let tls = settings.tls_listen.iter().map(|address| (address, true));
    for (address, is_tls) in plain.chain(tls).filter(|(address, _)| is_wide(address)) {
        if is_tls && (requires_certificate || !users.allows_passwordless()) {
            continue;
        }
        if !users.allows_passwordless() {
            log::emit(log::PLAIN_TEXT_PASSWORDS, &[("address", address)]);
        } else if settings.is_insecure {
            log::emit(log::UNAUTHENTICATED, &[("address", address)]);
        } else {
            return Err(rejected(format!(
                "other hosts can reach {address}, and clients are not authenticated: declare users \
                 (users.file with lines such as `user xapp on >secret ~* +@all`, and no user with \
                 `nopass`), or {}, or set `--insecure` if the network restricts access",
                source.resp_advice()
            )));
        }
    }
    let nudsf = settings.nudsf.iter().map(|address| (address, false));
    let nudsf = nudsf.chain(settings.nudsf_tls.iter().map(|address| (address, true)));
    for (address, is_tls) in nudsf.filter(|(address, _)| is_wide(address)) {
        let has_tokens =
            settings.nudsf_token_keys.is_some() || settings.nudsf_token_keys_url.is_some();
        if is_tls && (requires_certificate || has_tokens) {
            continue;
        }
        if !settings.is_insecure {
            return Err(rejected(format!(
                "other hosts can reach {address}, and clients of Nudsf are not authenticated \
                 over TLS: {}, or set `--insecure` if the network restricts access",
                source.nudsf_advice()
            )));
        }
        log::emit(log::UNAUTHENTICATED, &[("address", address)]);
    }
    for address in settings.metrics.iter().filter(|address| is_wide(address)) {
        if !settings.is_metrics_insecure {
            return Err(rejected(format!(
                "other hosts can reach {address}, and the metrics page shows names and counts to \
                 every client: {}, or set `--metrics-insecure` to allow it",
                source.metrics_advice()
            )));
        }
    }
    Ok(())
}

/// Logs a warning if the mode of an existing region is wider than `region.mode`.
pub(crate) fn region(settings: &Settings) {
    let Ok(found) = std::fs::metadata(&settings.region.path) else { return };
    let mode = found.permissions().mode() & 0o777;
    if mode & !settings.region_mode.0 != 0 {
        let path = settings.region.path.display();
        let (mode, wanted) = (format!("{mode:o}"), format!("{:o}", settings.region_mode.0));
        log::emit(log::REGION_MODE_TOO_WIDE, &[("path", &path), ("mode", &mode), ("set", &wanted)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(settings: &Settings, source: AddressSource) -> String {
        addresses(settings, &Users::open(&TABLE), source).unwrap_err().to_string()
    }

    /// A host of a cluster has no Unix socket and no `tls.listen`.
    #[test]
    fn the_advice_for_an_open_address_names_settings_that_the_command_takes() {
        let wide: SocketAddr = "10.0.0.1:6379".parse().unwrap();
        let mut resp = Settings::parse(&SettingLayers::default()).unwrap();
        let (mut nudsf, mut certificates) = (resp.clone(), resp.clone());
        resp.listen = vec![wide];
        nudsf.nudsf = vec![wide];
        certificates.tls_client_ca = Some("ca.pem".into());
        for settings in [&resp, &nudsf] {
            let text = refusal(settings, AddressSource::Partition);
            assert!(text.contains("host.clients") && text.contains("--insecure"), "{text}");
            for refused in ["tls.listen", "Unix socket", "nudsf.tls_listen", "127.0.0.1 or"] {
                assert!(!text.contains(refused), "{text}");
            }
        }
        assert!(refusal(&resp, AddressSource::Partition).contains("declare users"));
        assert!(refusal(&nudsf, AddressSource::Partition).contains("partition.nudsf_tls_port"));
        let text = refusal(&resp, AddressSource::Node);
        assert!(text.contains("tls.listen") && text.contains("Unix socket"), "{text}");
        for (source, setting) in
            [(AddressSource::Node, "tls.listen"), (AddressSource::Partition, "partition.tls_port")]
        {
            let text = tls(&certificates, source).unwrap_err().to_string();
            assert!(text.contains(setting), "{text}");
        }
    }
}
