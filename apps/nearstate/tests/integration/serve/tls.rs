//! TLS: which clients are accepted, as which user, and what happens to clients without TLS.

use crate::fixture::{Client, Folder, HANG_TIMEOUT, Node, http, rejected, serve, start, until};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

pub(crate) type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Replies of 3 MB that are requested before any is read: more than the buffers between client and
/// node hold.
const REQUESTS: usize = 20;

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
pub(crate) struct SignedCertificate {
    certificate: CertificateDer<'static>,
    pub(crate) key: KeyPair,
    pub(crate) pem: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A client of an address whose server this authority has certified as `localhost`.
    pub(crate) fn connect(&self, address: &str) -> Client<Stream> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
        Client::over(over_tls(stream, roots, None))
    }

    pub(crate) fn sign(&self, name: &str) -> SignedCertificate {
        self.sign_until(name, 2999)
    }

    /// A certificate that ends with the beginning of a year.
    pub(crate) fn sign_until(&self, name: &str, year: i32) -> SignedCertificate {
        self.sign_with(name, |params| params.not_after = rcgen::date_time_ymd(year, 1, 1))
    }

    /// A certificate that ends after this time.
    pub(crate) fn sign_for(&self, name: &str, valid: Duration) -> SignedCertificate {
        let until = UNIX_EPOCH.elapsed().unwrap() + valid;
        self.sign_with(name, |params| params.not_after = rcgen::date_time_ymd(1970, 1, 1) + until)
    }

    /// A certificate of no use to a host that connects to others.
    pub(crate) fn sign_for_servers(&self, name: &str) -> SignedCertificate {
        let usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign_with(name, |params| params.extended_key_usages = usages)
    }

    fn sign_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> SignedCertificate {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        SignedCertificate { pem: certificate.pem(), certificate: certificate.der().clone(), key }
    }
}

impl SignedCertificate {
    /// A certificate that is its own authority, as `openssl req -x509` makes it.
    pub(crate) fn self_signed(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), certificate: certificate.der().clone(), key }
    }

    /// Performs the handshake as the server. False if the client does not accept the certificate.
    pub(crate) fn is_accepted_by(&self, mut client: TcpStream) -> bool {
        let key = PrivateKeyDer::try_from(self.key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)
            .unwrap();
        client.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
        let mut server = ServerConnection::new(Arc::new(config)).unwrap();
        server.complete_io(&mut client).is_ok()
    }
}

/// A node whose only address requires TLS.
struct TlsNode {
    folder: Folder,
    servers: Authority,
}

impl TlsNode {
    fn new() -> Self {
        let (folder, servers) = (Folder::new(), Authority::new());
        let signed = servers.sign("localhost");
        let new = Self { folder, servers };
        new.write("certificate", &signed.pem, 0o644);
        new.write("key", &signed.key.serialize_pem(), 0o600);
        new
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.folder.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn with(&self, address: &str, certificate: &str, key: &str) -> Command {
        let mut command = serve(&self.folder.path("r"));
        command.args(["--listen", "", "--unix", "", "--cores", "1", "--max", "64MiB"]);
        command.args(["--tls-listen", address, "--tls-certificate"]);
        command.arg(self.folder.path(certificate)).arg("--tls-key").arg(self.folder.path(key));
        command
    }

    fn at(&self, address: &str) -> Command {
        self.with(address, "certificate", "key")
    }

    /// A client that trusts the node's authority, with or without a certificate of its own.
    fn connect(&self, node: &Node, signed: Option<SignedCertificate>) -> Stream {
        let mut roots = RootCertStore::empty();
        roots.add(self.servers.0.der().clone()).unwrap();
        connect(node, roots, signed)
    }
}

fn connect(node: &Node, roots: RootCertStore, signed: Option<SignedCertificate>) -> Stream {
    over_tls(socket(node), roots, signed)
}

fn over_tls(socket: TcpStream, roots: RootCertStore, signed: Option<SignedCertificate>) -> Stream {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match signed {
        None => config.with_no_client_auth(),
        Some(SignedCertificate { certificate, key, .. }) => {
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            config.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, socket)
}

fn socket(node: &Node) -> TcpStream {
    let port = node.addresses[0].rsplit(':').next().unwrap();
    let socket = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    socket.set_read_timeout(Some(HANG_TIMEOUT)).unwrap();
    socket
}

/// The handshake or the first request fails.
fn is_rejected(stream: Stream) -> bool {
    let mut client = Client::over(stream);
    client.send(&[b"PING"]).and_then(|()| client.receive()).is_err()
}

#[test]
fn large_requests_and_late_read_replies_arrive_completely() {
    let tls_node = TlsNode::new();
    let mut node = start(&mut tls_node.at("127.0.0.1:0"));
    assert!(node.log().contains("tls=true"), "{}", node.log());
    let mut client = Client::over(tls_node.connect(&node, None));
    assert_eq!(client.ask(&["PING"]), "+PONG");
    let value: Vec<u8> = (0..3_000_001_u32).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
    client.send(&[b"SET", b"k", &value]).unwrap();
    assert_eq!(client.receive().unwrap(), b"+OK");
    // All requests are sent before the first reply is read.
    for _ in 0..REQUESTS {
        client.send(&[b"GET", b"k"]).unwrap();
    }
    for number in 0..REQUESTS {
        assert!(client.receive().unwrap() == value, "reply {number}");
    }
    assert_eq!(client.ask(&["QUIT"]), "+OK");
    assert_eq!(client.receive().unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    node.signal("-TERM");
    assert!(node.wait().success());
}

#[test]
fn a_client_without_tls_is_disconnected_and_counted_and_does_not_delay_shutdown() {
    let tls_node = TlsNode::new();
    let observe = ["--metrics-listen", "127.0.0.1:0", "--limits-request-timeout", "500ms"];
    let mut node = start(tls_node.at("127.0.0.1:0").args(observe));
    let mut plain = socket(&node);
    plain.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
    let mut output = Vec::new();
    let _ = plain.read_to_end(&mut output);
    assert!(!output.windows(4).any(|part| part == b"PONG"), "{output:?}");
    let mut silent = socket(&node);
    assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0, "a silent client is disconnected");
    // A client that does not trust the node's authority aborts the handshake.
    let mut other_authorities = RootCertStore::empty();
    other_authorities.add(Authority::new().0.der().clone()).unwrap();
    assert!(is_rejected(connect(&node, other_authorities, None)));
    let metrics = || http(&node.addresses[1], "/metrics").1;
    let counted = "nearstate_core_tls_failures_total{core=\"0\"} 3\n";
    until("three failed handshakes are counted", || metrics().contains(counted));
    assert!(node.log().contains("reason=tls_handshake"), "{}", node.log());
    assert_eq!(Client::over(tls_node.connect(&node, None)).ask(&["PING"]), "+PONG");
    drop(node);

    let patient = ["--limits-request-timeout", "1h", "--limits-shutdown-timeout", "1h"];
    node = start(tls_node.at("127.0.0.1:0").args(patient));
    let silent = socket(&node);
    // The connection that is answered was accepted later.
    assert_eq!(Client::over(tls_node.connect(&node, None)).ask(&["PING"]), "+PONG");
    node.signal("-TERM");
    assert!(node.wait().success());
    drop(silent);
}

#[test]
fn a_certificate_authenticates_a_client_and_is_required() {
    let tls_node = TlsNode::new();
    let clients = Authority::new();
    let authorities = tls_node.write("authorities", &clients.pem(), 0o644);
    let users = "user xapp on #2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b \
                 ~{mine},* +@all\nuser gone off >x ~* +@all";
    let mut command = tls_node.at("0.0.0.0:0");
    command.arg("--tls-client-ca").arg(&authorities).args(["--users-lines", users]);
    let node = start(&mut command);
    assert!(!node.log().contains("NS-2002"), "{}", node.log());
    let mut xapp = Client::over(tls_node.connect(&node, Some(clients.sign("xapp"))));
    assert_eq!(xapp.ask(&["ACL", "WHOAMI"]), "xapp");
    assert_eq!(xapp.ask(&["SET", "{mine},k", "v"]), "+OK");
    assert!(xapp.ask(&["GET", "{other},k"]).starts_with("-NOPERM"));
    assert_eq!(xapp.ask(&["RESET"]), "+RESET");
    assert_eq!(xapp.ask(&["ACL", "WHOAMI"]), "xapp", "RESET returns to the certificate's user");
    // An unknown user and a disabled one must authenticate.
    for name in ["unknown", "gone"] {
        let mut other = Client::over(tls_node.connect(&node, Some(clients.sign(name))));
        assert!(other.ask(&["GET", "{mine},k"]).starts_with("-NOAUTH"), "{name}");
    }
    assert!(is_rejected(tls_node.connect(&node, None)), "no certificate");
    let forged = Authority::new().sign("xapp");
    assert!(
        is_rejected(tls_node.connect(&node, Some(forged))),
        "a certificate of another authority"
    );
}

#[test]
fn sighup_reloads_the_certificate_and_an_invalid_one_changes_nothing() {
    let tls_node = TlsNode::new();
    let mut node = start(&mut tls_node.at("127.0.0.1:0"));
    let mut old = Client::over(tls_node.connect(&node, None));
    assert_eq!(old.ask(&["PING"]), "+PONG");
    let hang_up = |wanted: &str| {
        node.signal("-HUP");
        until(wanted, || node.log().contains(wanted));
    };
    let others = Authority::new();
    let signed = others.sign("localhost");
    tls_node.write("certificate", &signed.pem, 0o644);
    hang_up("warn NS-2006");
    assert!(node.log().contains("does not go together"), "{}", node.log());
    assert_eq!(Client::over(tls_node.connect(&node, None)).ask(&["PING"]), "+PONG");
    tls_node.write("key", &signed.key.serialize_pem(), 0o600);
    hang_up("info NS-1008");
    assert!(
        is_rejected(tls_node.connect(&node, None)),
        "the new certificate has another authority"
    );
    let mut roots = RootCertStore::empty();
    roots.add(others.0.der().clone()).unwrap();
    assert_eq!(Client::over(connect(&node, roots, None)).ask(&["PING"]), "+PONG");
    assert_eq!(old.ask(&["PING"]), "+PONG", "existing connections stay open");
    node.signal("-TERM");
    assert!(node.wait().success());
}

#[test]
fn with_client_certificates_plain_tcp_is_closed_unless_listen_is_set() {
    let tls_node = TlsNode::new();
    let clients = Authority::new();
    let authorities = tls_node.write("authorities", &clients.pem(), 0o644);
    let begin = |more: &[&str]| {
        let mut command = serve(&tls_node.folder.path("r"));
        command.args(["--cores", "1", "--max", "64MiB", "--tls-listen", "127.0.0.1:0"]);
        command.arg("--tls-certificate").arg(tls_node.folder.path("certificate"));
        command.arg("--tls-key").arg(tls_node.folder.path("key"));
        command.arg("--tls-client-ca").arg(&authorities);
        start(command.args(more))
    };
    let mut node = begin(&[]);
    assert!(node.log().contains("info NS-1007 plain TCP is closed"), "{}", node.log());
    let [unix, tls] = node.addresses.as_slice() else { panic!("{:?}", node.addresses) };
    assert!(unix.starts_with("unix:") && tls.starts_with("127.0.0.1:"), "{:?}", node.addresses);
    assert_eq!(Client::unix(&tls_node.folder.path("r.sock")).ask(&["PING"]), "+PONG");
    let port = tls.rsplit(':').next().unwrap();
    let mut plain = Client::tcp(&format!("127.0.0.1:{port}"));
    assert!(plain.send(&[b"PING"]).and_then(|()| plain.receive()).is_err());
    node.signal("-TERM");
    assert!(node.wait().success());
    let node = begin(&["--listen", "127.0.0.1:0"]);
    assert!(!node.log().contains("NS-1007"), "{}", node.log());
    assert_eq!(node.addresses.len(), 3, "{:?}", node.addresses);
    assert_eq!(node.tcp().ask(&["PING"]), "+PONG", "the node answers");
}

#[test]
fn incomplete_tls_settings_are_rejected_before_anything_is_created() {
    let tls_node = TlsNode::new();
    let local = "127.0.0.1:0";
    let fails = |command: &mut Command, wanted: &str| {
        let output = rejected(command);
        assert!(output.contains(wanted), "{wanted}: {output}");
        assert!(!tls_node.folder.path("r").exists(), "{wanted}");
    };
    let mut unix = serve(&tls_node.folder.path("r"));
    fails(unix.args(["--tls-client-ca", "/x"]), "no client would present");
    fails(serve(&tls_node.folder.path("r")).args(["--tls-listen", local]), "tls.key");
    fails(&mut tls_node.at("0.0.0.0:0"), "tls.client_ca");
    fails(tls_node.at(local).args(["--tls-client-ca", "/nowhere"]), "/nowhere");
    tls_node.write("other", &tls_node.servers.sign("x").key.serialize_pem(), 0o600);
    fails(&mut tls_node.with(local, "certificate", "other"), "does not go together");
    tls_node.write("none", "precious", 0o600);
    fails(&mut tls_node.with(local, "certificate", "none"), "a private key in PEM");
    fails(&mut tls_node.with(local, "none", "key"), "BEGIN CERTIFICATE");
    fails(&mut tls_node.with(local, "nowhere", "key"), "nowhere");
    let key = tls_node.folder.path("key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o622)).unwrap();
    fails(&mut tls_node.at(local), "mode 622");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let node = start(&mut tls_node.at(local));
    assert!(node.log().contains("warn NS-2003"), "{}", node.log());
}
