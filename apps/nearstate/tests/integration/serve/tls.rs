//! TLS at an address: who is let in, as whom, and what becomes of those who do not speak it.

use crate::fixture::{Client, Folder, Node, http, refused, serve, start};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Nothing is judged by it but a hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// Answers of 3 MB, more than all buffers between here and there hold.
const ASKED: usize = 20;

/// Somebody who signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
struct Proof {
    certificate: CertificateDer<'static>,
    key: KeyPair,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn sign(&self, name: &str) -> Proof {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Proof { pem: certificate.pem(), certificate: certificate.der().clone(), key }
    }
}

/// A node that speaks TLS at its only address.
struct Guarded {
    folder: Folder,
    servers: Authority,
}

impl Guarded {
    fn new() -> Self {
        let (folder, servers) = (Folder::new(), Authority::new());
        let proof = servers.sign("localhost");
        let new = Self { folder, servers };
        new.write("certificate", &proof.pem, 0o644);
        new.write("key", &proof.key.serialize_pem(), 0o600);
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

    /// A client that trusts the node's authority; with a certificate of its own, or without.
    fn connect(&self, node: &Node, proof: Option<Proof>) -> Stream {
        let mut roots = RootCertStore::empty();
        roots.add(self.servers.0.der().clone()).unwrap();
        connect(node, roots, proof)
    }
}

fn connect(node: &Node, roots: RootCertStore, proof: Option<Proof>) -> Stream {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match proof {
        None => config.with_no_client_auth(),
        Some(Proof { certificate, key, .. }) => {
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            config.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(connection, socket(node))
}

fn socket(node: &Node) -> TcpStream {
    let port = node.addresses[0].rsplit(':').next().unwrap();
    let socket = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// The handshake or the first request fails.
fn is_refused(stream: Stream) -> bool {
    let mut client = Client::over(stream);
    client.send(&[b"PING"]).and_then(|()| client.receive()).is_err()
}

#[test]
fn large_requests_and_answers_pass_whole_however_late_they_are_read() {
    let guarded = Guarded::new();
    let mut node = start(&mut guarded.at("127.0.0.1:0"));
    assert!(node.log().contains("tls=true"), "{}", node.log());
    let mut client = Client::over(guarded.connect(&node, None));
    assert_eq!(client.ask(&["PING"]), "+PONG");
    let value: Vec<u8> = (0..3_000_001_u32).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
    client.send(&[b"SET", b"k", &value]).unwrap();
    assert_eq!(client.receive().unwrap(), b"+OK");
    // All of them are asked for before the first one is read.
    for _ in 0..ASKED {
        client.send(&[b"GET", b"k"]).unwrap();
    }
    for number in 0..ASKED {
        assert!(client.receive().unwrap() == value, "answer {number}");
    }
    assert_eq!(client.ask(&["QUIT"]), "+OK");
    assert_eq!(client.receive().unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    node.signal("-TERM");
    assert!(node.wait().success());
}

#[test]
fn who_does_not_speak_tls_is_sent_away_and_counted_and_holds_no_shutdown_up() {
    let guarded = Guarded::new();
    let observe = ["--metrics-listen", "127.0.0.1:0", "--limits-half-sent-max", "500ms"];
    let mut node = start(guarded.at("127.0.0.1:0").args(observe));
    let mut plain = socket(&node);
    plain.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!said.windows(4).any(|part| part == b"PONG"), "{said:?}");
    let mut silent = socket(&node);
    assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0, "who says nothing is sent away");
    // One that does not trust us goes by itself.
    let mut strangers = RootCertStore::empty();
    strangers.add(Authority::new().0.der().clone()).unwrap();
    assert!(is_refused(connect(&node, strangers, None)));
    let count = || http(&node.addresses[1], "/metrics").1;
    while !count().contains("nearstate_core_tls_failures_total{core=\"0\"} 3\n") {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(node.log().contains("reason=tls_handshake"), "{}", node.log());
    assert_eq!(Client::over(guarded.connect(&node, None)).ask(&["PING"]), "+PONG");
    drop(node);

    let patient = ["--limits-half-sent-max", "1h", "--limits-drain-max", "1h"];
    node = start(guarded.at("127.0.0.1:0").args(patient));
    let silent = socket(&node);
    // The one that is answered was accepted later.
    assert_eq!(Client::over(guarded.connect(&node, None)).ask(&["PING"]), "+PONG");
    node.signal("-TERM");
    assert!(node.wait().success());
    drop(silent);
}

#[test]
fn a_certificate_says_who_a_client_is_and_without_one_nobody_comes_in() {
    let guarded = Guarded::new();
    let clients = Authority::new();
    let authorities = guarded.write("authorities", &clients.0.pem(), 0o644);
    let users = "user xapp on #2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b \
                 ~{mine},* +@all\nuser gone off >x ~* +@all";
    let mut command = guarded.at("0.0.0.0:0");
    command.arg("--tls-client-authorities").arg(&authorities).args(["--users-lines", users]);
    let node = start(&mut command);
    assert!(!node.log().contains("NS-2002"), "{}", node.log());
    let mut xapp = Client::over(guarded.connect(&node, Some(clients.sign("xapp"))));
    assert_eq!(xapp.ask(&["ACL", "WHOAMI"]), "xapp");
    assert_eq!(xapp.ask(&["SET", "{mine},k", "v"]), "+OK");
    assert!(xapp.ask(&["GET", "{other},k"]).starts_with("-NOPERM"));
    // Of whom nobody has heard, and who is off, has to say who he is.
    for name in ["nobody", "gone"] {
        let mut other = Client::over(guarded.connect(&node, Some(clients.sign(name))));
        assert!(other.ask(&["GET", "{mine},k"]).starts_with("-NOAUTH"), "{name}");
    }
    assert!(is_refused(guarded.connect(&node, None)), "no certificate");
    let forged = Authority::new().sign("xapp");
    assert!(is_refused(guarded.connect(&node, Some(forged))), "another authority's");
}

#[test]
fn a_hangup_has_the_certificate_read_again_and_what_is_of_no_use_changes_nothing() {
    let guarded = Guarded::new();
    let mut node = start(&mut guarded.at("127.0.0.1:0"));
    let mut old = Client::over(guarded.connect(&node, None));
    assert_eq!(old.ask(&["PING"]), "+PONG");
    let hang_up = |wanted: &str| {
        node.signal("-HUP");
        while !node.log().contains(wanted) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let others = Authority::new();
    let proof = others.sign("localhost");
    guarded.write("certificate", &proof.pem, 0o644);
    hang_up("warn NS-2006");
    assert!(node.log().contains("does not go together"), "{}", node.log());
    assert_eq!(Client::over(guarded.connect(&node, None)).ask(&["PING"]), "+PONG");
    guarded.write("key", &proof.key.serialize_pem(), 0o600);
    hang_up("info NS-1008");
    assert!(is_refused(guarded.connect(&node, None)), "the new one is of another authority");
    let mut roots = RootCertStore::empty();
    roots.add(others.0.der().clone()).unwrap();
    assert_eq!(Client::over(connect(&node, roots, None)).ask(&["PING"]), "+PONG");
    assert_eq!(old.ask(&["PING"]), "+PONG", "who is there stays");
    node.signal("-TERM");
    assert!(node.wait().success());
}

#[test]
fn where_certificates_are_asked_for_nobody_comes_in_over_plain_tcp_unless_it_is_said() {
    let guarded = Guarded::new();
    let clients = Authority::new();
    let authorities = guarded.write("authorities", &clients.0.pem(), 0o644);
    let begin = |more: &[&str]| {
        let mut command = serve(&guarded.folder.path("r"));
        command.args(["--cores", "1", "--max", "64MiB", "--tls-listen", "127.0.0.1:0"]);
        command.arg("--tls-certificate").arg(guarded.folder.path("certificate"));
        command.arg("--tls-key").arg(guarded.folder.path("key"));
        command.arg("--tls-client-authorities").arg(&authorities);
        start(command.args(more))
    };
    let mut node = begin(&[]);
    assert!(node.log().contains("info NS-1007 no plain TCP"), "{}", node.log());
    let [unix, tls] = node.addresses.as_slice() else { panic!("{:?}", node.addresses) };
    assert!(unix.starts_with("unix:") && tls.starts_with("127.0.0.1:"), "{:?}", node.addresses);
    assert_eq!(Client::unix(&guarded.folder.path("r.sock")).ask(&["PING"]), "+PONG");
    let port = tls.rsplit(':').next().unwrap();
    let mut plain = Client::tcp(&format!("127.0.0.1:{port}"));
    assert!(plain.send(&[b"PING"]).and_then(|()| plain.receive()).is_err());
    node.signal("-TERM");
    assert!(node.wait().success());
    let node = begin(&["--listen", "127.0.0.1:0"]);
    assert!(!node.log().contains("NS-1007"), "{}", node.log());
    assert_eq!(node.addresses.len(), 3, "{:?}", node.addresses);
    assert_eq!(node.tcp().ask(&["PING"]), "+PONG", "somebody has said so");
}

#[test]
fn what_tls_lacks_is_said_before_anything_is_created() {
    let guarded = Guarded::new();
    let local = "127.0.0.1:0";
    let says = |command: &mut Command, wanted: &str| {
        let said = refused(command);
        assert!(said.contains(wanted), "{wanted}: {said}");
        assert!(!guarded.folder.path("r").exists(), "{wanted}");
    };
    let mut unix = serve(&guarded.folder.path("r"));
    says(unix.args(["--tls-client-authorities", "/x"]), "no client would be asked");
    says(serve(&guarded.folder.path("r")).args(["--tls-listen", local]), "tls.key");
    says(&mut guarded.at("0.0.0.0:0"), "tls.client_ca");
    says(guarded.at(local).args(["--tls-client-authorities", "/nowhere"]), "/nowhere");
    guarded.write("other", &guarded.servers.sign("x").key.serialize_pem(), 0o600);
    says(&mut guarded.with(local, "certificate", "other"), "does not go together");
    guarded.write("none", "precious", 0o600);
    says(&mut guarded.with(local, "certificate", "none"), "a private key in PEM");
    says(&mut guarded.with(local, "none", "key"), "BEGIN CERTIFICATE");
    says(&mut guarded.with(local, "nowhere", "key"), "nowhere");
    let key = guarded.folder.path("key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o622)).unwrap();
    says(&mut guarded.at(local), "mode 622");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let node = start(&mut guarded.at(local));
    assert!(node.log().contains("warn NS-2003"), "{}", node.log());
}
