//! Real clients of Nudsf against a node: curl and h2load over HTTP/2, mutual TLS, the client of
//! free5GC, an NRF of its types, and requests that schemathesis generates from the contract.
//! `cargo xtask soak nudsf` starts this.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client_programs::go;
use crate::programs::{PROGRAM_VARIABLE, TestServer, build_folder, output_of, program, root};
use crate::python;

/// Requests of schemathesis for each operation and kind of test: three minutes on a busy machine.
const EXAMPLES: &str = "15";

/// A part of the run: its name, and what it does with the root of the URIs.
type NudsfClientRun = (&'static str, fn(&str) -> Result<(), String>);

const PARTS: &[NudsfClientRun] = &[
    ("curl", curl),
    ("tls", tls),
    ("h2load", h2load),
    ("timers", timers),
    ("free5gc", free5gc),
    ("nrf", nrf),
    ("schemathesis", schemathesis),
];

/// Runs all parts, or one. True: all have passed.
///
/// # Errors
/// The node does not start, or no part has this name.
pub fn run(only: Option<&str>) -> Result<bool, String> {
    let parts: Vec<&NudsfClientRun> =
        PARTS.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)).collect();
    if parts.is_empty() {
        let names: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
        return Err(format!("the parts are {}", names.join(", ")));
    }
    let address = free_address()?.to_string();
    let storages = "Realm01/Storage01=ue";
    // A busy machine would make the node refuse a part of the load, as it should.
    let calm = ["--nudsf-overload-delay", "1h"];
    let more = ["--nudsf", &address, "--nudsf-storages", storages];
    let mut node = TestServer::node(&[&more[..], &calm[..]].concat())?;
    let mut is_success = true;
    for (name, part) in parts {
        let done = part(&format!("http://{address}"));
        let is_alive = node.is_running();
        is_success &= done.is_ok() && is_alive;
        match done {
            Ok(()) if is_alive => println!("ok   {name}"),
            Ok(()) => println!("FAIL {name}: the node has exited: {}", node.error_output()),
            Err(why) => println!("FAIL {name}: {why}"),
        }
    }
    Ok(is_success)
}

fn free_address() -> Result<SocketAddr, String> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr());
    free.map_err(|error| format!("no free port: {error}"))
}

fn storage(uri: &str) -> String {
    format!("{uri}/nudsf-dr/v1/Realm01/Storage01")
}

/// Sends a request with curl over HTTP/2. Returns the status and the body.
fn curl_request(uri: &str, more: &[&str]) -> Result<(String, String), String> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--http2-prior-knowledge", "--max-time", "30"]);
    command.args(["--write-out", "\n%{http_version} %{http_code}"]).args(more).arg(uri);
    let output = output_of(&mut command)?;
    let (body, status) = output.rsplit_once('\n').ok_or("curl printed no status")?;
    Ok((status.to_owned(), body.to_owned()))
}

fn expect(what: &str, found: &str, wanted: &str) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?} is not {wanted:?}")) }
}

const RECORD: &str = "--b\r\nContent-Id: meta\r\nContent-Type: application/json\r\n\r\n\
    {\"tags\":{\"supi\":[\"imsi-1\"]}}\r\n--b\r\nContent-Id: mm\r\n\
    Content-Type: application/json\r\n\r\n{\"state\":\"REGISTERED\"}\r\n--b--\r\n";

/// The quick start of the page.
fn curl(uri: &str) -> Result<(), String> {
    let record = format!("{}/records/curl", storage(uri));
    let media = "Content-Type: multipart/mixed; boundary=b";
    let put = curl_request(&record, &["-X", "PUT", "-H", media, "--data-binary", RECORD])?;
    expect("PUT", &put.0, "2 201")?;
    let (status, block) = curl_request(&format!("{record}/blocks/mm"), &[])?;
    expect("GET of a block", &status, "2 200")?;
    expect("the block", &block, "{\"state\":\"REGISTERED\"}")?;
    let filter = "filter={\"op\":\"EQ\",\"tag\":\"supi\",\"value\":\"imsi-1\"}";
    let records = format!("{}/records", storage(uri));
    let (status, found) = curl_request(&records, &["-G", "--data-urlencode", filter])?;
    expect("search", &status, "2 200")?;
    if !found.contains("\"count\":1") || !found.contains("/records/curl") {
        return Err(format!("the search found {found}"));
    }
    expect("DELETE", &curl_request(&record, &["-X", "DELETE"])?.0, "2 204")
}

/// Creates an authority in this folder.
fn authority(folder: &Path, name: &str) -> Result<(), String> {
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-nodes", "-newkey", "ec", "-days", "2"]);
    command.args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", &format!("/CN={name}")]);
    command.args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")]);
    output_of(command.current_dir(folder)).map(drop)
}

/// Creates a certificate of an authority for `localhost`.
fn certificate(folder: &Path, name: &str, authority: &str) -> Result<(), String> {
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-nodes", "-newkey", "ec", "-days", "2"]);
    command.args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", &format!("/CN={name}")]);
    command.args(["-addext", "subjectAltName=DNS:localhost"]);
    command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
    command.args(["-CA", &format!("{authority}.pem"), "-CAkey", &format!("{authority}.key")]);
    command.args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.pem")]);
    output_of(command.current_dir(folder)).map(drop)
}

/// Mutual TLS with a node of its own: over TLS 1.2 and 1.3, a client of the authority is served,
/// one without a certificate and one of another authority are not.
fn tls(_: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(|error| format!("a folder: {error}"))?;
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    for name in ["servers", "clients", "others"] {
        authority(folder.path(), name)?;
    }
    for (name, of) in [("udsf", "servers"), ("amf", "clients"), ("foreign", "others")] {
        certificate(folder.path(), name, of)?;
    }
    let address = free_address()?;
    let (listen, files) = (address.to_string(), ["udsf.pem", "udsf.key", "clients.pem"].map(path));
    let [chain, key, clients] = &files;
    let more = ["--nudsf-tls", &listen, "--nudsf-storages", "Realm01/Storage01=ue"];
    let secured = ["--tls-certificate", chain, "--tls-key", key, "--tls-client-ca", clients];
    let _node = TestServer::node(&[&more[..], &secured[..]].concat())?;
    let record =
        format!("{}/records/none", storage(&format!("https://localhost:{}", address.port())));
    for version in [&["--tlsv1.2", "--tls-max", "1.2"][..], &["--tlsv1.3"]] {
        let get = |identity: Option<&str>| {
            let mut command = Command::new("curl");
            command.args(["--silent", "--show-error", "--http2", "--max-time", "30"]);
            command.args(["--output", "/dev/null", "--write-out", "%{http_version} %{http_code}"]);
            command.args(["--cacert", &path("servers.pem")]).args(version);
            if let Some(name) = identity {
                command.args(["--cert", &path(&format!("{name}.pem"))]);
                command.args(["--key", &path(&format!("{name}.key"))]);
            }
            output_of(command.arg(&record))
        };
        expect("a client of the authority", &get(Some("amf"))?, "2 404")?;
        for identity in [None, Some("foreign")] {
            if let Ok(status) = get(identity) {
                return Err(format!("{version:?}, {identity:?}: got {status:?}"));
            }
        }
    }
    Ok(())
}

/// 20,000 requests over 20 connections of 10 streams: all succeed.
fn h2load(uri: &str) -> Result<(), String> {
    let record = format!("{}/records/h2load", storage(uri));
    let media = "Content-Type: multipart/mixed; boundary=b";
    let put = curl_request(&record, &["-X", "PUT", "-H", media, "--data-binary", RECORD])?;
    expect("PUT", &put.0, "2 201")?;
    let mut command = Command::new("h2load");
    command.args(["-n", "20000", "-c", "20", "-m", "10", "-t", "1", &record]);
    let output = output_of(&mut command)?;
    let wanted = "20000 succeeded, 0 failed, 0 errored, 0 timeout";
    if output.contains(wanted) { Ok(()) } else { Err(output) }
}

fn timers(_: &str) -> Result<(), String> {
    crate::nudsf_timers::run(&free_address()?.to_string())
}

/// Builds a program of the Go module, and runs it with this variable. It reports these parts.
fn go_program(
    (package, name): (&str, &str),
    (variable, value): (&str, &OsStr),
    parts: &[&str],
) -> Result<(), String> {
    let program = build_folder()?.join(name);
    let sources = root().join("verification/clients/go/nudsf");
    let mut build = go();
    build.args(["build", "-o"]).arg(&program).arg(package).current_dir(sources);
    output_of(&mut build)?;
    let output = output_of(Command::new(program).env(variable, value))?;
    for part in parts {
        if !output.lines().any(|line| line == format!("ok {part}")) {
            return Err(format!("{part} is missing: {output}"));
        }
    }
    Ok(())
}

fn free5gc(uri: &str) -> Result<(), String> {
    let parts = ["blocks", "meta", "schemas", "subscriptions", "records", "timers"];
    go_program((".", "clients-go-nudsf"), ("NEARSTATE_NUDSF", uri.as_ref()), &parts)
}

/// An NRF of free5GC's types, with a node of its own.
fn nrf(_: &str) -> Result<(), String> {
    let node = program()?;
    let parts = ["register", "heart-beat", "deregister"];
    go_program(("./nrf", "clients-go-nrf"), (PROGRAM_VARIABLE, node.as_os_str()), &parts)
}

/// No 5xx, and no response that the contract does not define.
fn schemathesis(uri: &str) -> Result<(), String> {
    let python: PathBuf = python::environment("schemathesis")?;
    let contract = build_folder()?.join("nudsf-contract.json");
    let derive = root().join("verification/clients/python/nudsf/contract.py");
    let types = root().join("protocols/nudsf/tests/data/openapi.json");
    output_of(Command::new(&python).arg(derive).args([&types, &contract]))?;
    let mut command = Command::new(python.with_file_name("schemathesis"));
    // It keeps files in the folder in which it runs.
    command.current_dir(build_folder()?);
    command.arg("run").arg(&contract).args(["--url", uri, "--max-examples", EXAMPLES]);
    command.args(["--checks", "not_a_server_error,status_code_conformance"]);
    command.args(["--checks", "content_type_conformance,response_headers_conformance"]);
    command.args(["--checks", "response_schema_conformance", "--seed", "1"]);
    output_of(&mut command).map(drop)
}
