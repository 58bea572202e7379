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
pub(crate) fn tls(settings: &Settings) -> Result<Option<Tls>> {
    let clients = settings.tls_client_ca.as_deref();
    let is_unused = settings.tls_listen.is_empty()
        && settings.peer_listen.is_empty()
        && settings.nudsf_tls.is_empty();
    if is_unused {
        // Certificates are configured, but no client would be asked for one.
        return match clients {
            None => Ok(None),
            Some(_) => Err(rejected(
                "tls.client_ca is set but no address uses TLS, so no client would present a \
                 certificate: set tls.listen, nudsf.tls_listen or peer.listen, or unset \
                 tls.client_ca"
                    .to_owned(),
            )),
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
pub(crate) fn addresses(settings: &Settings, users: &Users) -> Result<()> {
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
                 `nopass`), or require client certificates (tls.listen, tls.client_ca), or listen \
                 on 127.0.0.1 or a Unix socket, or set `--insecure` if the network restricts access"
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
                 over TLS: set nudsf.tls_listen, and tls.client_ca or nudsf.token_keys, or listen \
                 on 127.0.0.1, or set `--insecure` if the network restricts access"
            )));
        }
        log::emit(log::UNAUTHENTICATED, &[("address", address)]);
    }
    for address in settings.metrics.iter().filter(|address| is_wide(address)) {
        if !settings.is_metrics_insecure {
            return Err(rejected(format!(
                "other hosts can reach {address}, and the metrics page shows names and counts to \
                 every client: set metrics.listen to 127.0.0.1, or set `--metrics-insecure` to \
                 allow it"
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
