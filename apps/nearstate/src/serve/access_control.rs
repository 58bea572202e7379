//! Who may come in: users, and addresses that other hosts reach.

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

/// The users that the settings declare.
///
/// # Errors
/// `BadArgument`: a line that declares nobody, two places that declare users, a file that others
/// may change; `System`: a file that cannot be read.
pub(crate) fn users(settings: &Settings, layers: &SettingLayers) -> Result<Users> {
    let Some(path) = &settings.users_file else {
        let text = settings.users_lines.0.join("\n");
        return Users::parse(&text, &TABLE)
            .map_err(|e| rejected(format!("{}: users.lines, {e}", layers.origin("users.lines"))));
    };
    if !settings.users_lines.0.is_empty() {
        return Err(rejected(format!(
            "users are declared twice, by users.file ({}) and by users.lines ({}): keep one",
            layers.origin("users.file"),
            layers.origin("users.lines"),
        )));
    }
    let text = read_text(path)?;
    check_mode(path, true)?;
    let users =
        Users::parse(&text, &TABLE).map_err(|e| rejected(format!("{}: {e}", path.display())))?;
    // An empty file would let everybody do everything; whoever names one means the opposite.
    if text.lines().all(|line| matches!(line.trim().chars().next(), None | Some('#'))) {
        return Err(rejected(format!(
            "{}: declares nobody: write lines such as `user xapp on >secret ~{{ns}},* +@all`, or \
             leave users.file out",
            path.display()
        )));
    }
    Ok(users)
}

/// What TLS needs, if there are addresses for it.
///
/// # Errors
/// `BadArgument`: files that are missing, are not what they should be, or may be changed by others.
pub(crate) fn tls(settings: &Settings) -> Result<Option<Tls>> {
    let clients = settings.tls_client_ca.as_deref();
    if settings.tls_listen.is_empty() {
        // Somebody believes that certificates are asked for.
        return match clients {
            None => Ok(None),
            Some(_) => Err(rejected(
                "tls.client_ca is set, and tls.listen is empty: no client would be asked \
                 for its certificate; set tls.listen, or leave both out"
                    .to_owned(),
            )),
        };
    }
    let (Some(certificate), Some(key)) = (&settings.tls_certificate, &settings.tls_key) else {
        return Err(rejected(
            "tls.listen needs a certificate and its key: set tls.certificate and tls.key to files \
             in PEM"
                .to_owned(),
        ));
    };
    let tls = Tls::read(certificate, key, clients)?;
    for path in [Some(certificate.as_path()), Some(key), clients].into_iter().flatten() {
        check_mode(path, path == key)?;
    }
    Ok(Some(tls))
}

/// Whoever may write the file of users, or what TLS is judged by, may become anybody.
fn check_mode(path: &Path, is_secret: bool) -> Result<()> {
    let found = std::fs::metadata(path).map_err(|e| Error::System {
        detail: format!("looking at {}", path.display()),
        errno: e.raw_os_error().unwrap_or(0),
    })?;
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(rejected(format!(
            "{} has mode {mode:o}: whoever may write it may become any user; `chmod go-w` it",
            path.display()
        )));
    }
    if is_secret && mode & 0o044 != 0 {
        let mode = format!("{mode:o}");
        log::emit(log::SECRET_READABLE, &[("path", &path.display()), ("mode", &mode)]);
    }
    Ok(())
}

/// Other hosts reach it.
fn is_wide(address: &SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// Judges where clients are to come in.
///
/// # Errors
/// `BadArgument`: an address that other hosts reach, without anything that would keep strangers
/// out.
pub(crate) fn addresses(settings: &Settings, users: &Users) -> Result<()> {
    let is_nowhere = settings.listen.is_empty() && settings.tls_listen.is_empty();
    if is_nowhere && settings.unix_paths().is_empty() {
        return Err(rejected(
            "nobody could come in: set `listen` or `tls.listen` to an address or `unix` to a path"
                .to_owned(),
        ));
    }
    let plain = settings.listen.iter().map(|address| (address, false));
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
                "other hosts reach {address}, and nobody is asked there who he is: declare users \
                 (users.file with lines such as `user xapp on >secret ~* +@all`, and no user \
                 with `nopass`), or let them come in over TLS with certificates (tls.listen, \
                 tls.client_ca), or listen at 127.0.0.1 or at a Unix socket, or say \
                 `--insecure` if the network itself keeps strangers away"
            )));
        }
    }
    for address in settings.metrics.iter().filter(|address| is_wide(address)) {
        if !settings.is_metrics_insecure {
            return Err(rejected(format!(
                "other hosts reach {address}, and whoever asks there sees names and counts: let \
                 metrics.listen be 127.0.0.1, or say `--metrics-insecure` if strangers may see \
                 them"
            )));
        }
    }
    Ok(())
}

/// Says so where a region that was there lets more people in than is set.
pub(crate) fn region(settings: &Settings) {
    let Ok(found) = std::fs::metadata(&settings.region) else { return };
    let mode = found.permissions().mode() & 0o777;
    if mode & !settings.region_mode.0 != 0 {
        let path = settings.region.display();
        let (mode, wanted) = (format!("{mode:o}"), format!("{:o}", settings.region_mode.0));
        log::emit(log::REGION_MODE_TOO_WIDE, &[("path", &path), ("mode", &mode), ("set", &wanted)]);
    }
}
