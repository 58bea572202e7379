//! A cluster over TLS: its certificates are replaced while it runs, and settings that a cluster
//! file replaces are refused.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::cluster::{Hosts, LONG_LEASE, NAMES, cluster_file, own_ips};
use crate::fixture::{Folder, NEARSTATE, free_ports, own_ip, rejected, until};
use crate::serve::tls::{Authority, SignedCertificate};

/// Writes certificates of all hosts by this authority. Only it is accepted.
fn certify(folder: &Folder, authority: &Authority) {
    std::fs::write(folder.path("ca.pem"), authority.pem()).unwrap();
    for name in NAMES {
        write(folder, name, &authority.sign(name));
    }
}

/// Writes the certificate of a host.
fn write(folder: &Folder, host: &str, signed: &SignedCertificate) {
    std::fs::write(folder.path(&format!("{host}.pem")), &signed.pem).unwrap();
    std::fs::write(folder.path(&format!("{host}.key")), signed.key.serialize_pem()).unwrap();
}

impl Hosts {
    fn hang_up(&self, number: usize) {
        let id = self.process_id(number).to_string();
        assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    }

    fn reloads(&self, number: usize, event: &str) -> usize {
        self.log(number).matches(event).count()
    }
}

#[test]
fn the_certificates_of_hosts_are_replaced_while_they_run() {
    let (folder, authority) = (Folder::new(), Authority::new());
    certify(&folder, &authority);
    let lines = format!(
        "[tls]\ncertificate = \"{0}{{host}}.pem\"\nkey = \"{0}{{host}}.key\"\nca = \"{0}ca.pem\"\n",
        folder.path("").display()
    );
    let mut hosts = Hosts::start_with(folder, LONG_LEASE, &lines, &[]);
    // A file that is of no use changes nothing.
    let ca = std::fs::read(hosts.folder.path("ca.pem")).unwrap();
    std::fs::write(hosts.folder.path("ca.pem"), "no certificate").unwrap();
    hosts.hang_up(0);
    until("the reason is logged", || hosts.reloads(0, "NS-2006") == 1);
    std::fs::write(hosts.folder.path("ca.pem"), ca).unwrap();
    // Nor does a certificate with which the other hosts would refuse this one.
    let day = Duration::from_secs(24 * 3600);
    let unfit = [
        (authority.sign(NAMES[1]), "not valid for name"),
        (authority.sign_until(NAMES[0], 2001), "expired"),
        (Authority::new().sign(NAMES[0]), "has signed it"),
    ];
    for (number, (signed, reason)) in unfit.iter().enumerate() {
        write(&hosts.folder, NAMES[0], signed);
        hosts.hang_up(0);
        until("the reason is logged", || hosts.reloads(0, "NS-2006") == 2 + number);
        let log = hosts.log(0);
        let last = log.lines().rfind(|line| line.contains("NS-2006")).unwrap();
        assert!(last.contains(reason), "{last}");
    }
    // One that ends soon is used, and raises an alarm until there is another one.
    write(&hosts.folder, NAMES[0], &authority.sign_for(NAMES[0], 3 * day));
    hosts.hang_up(0);
    until("the alarm is raised", || hosts.log(0).contains("NS-5020"));
    write(&hosts.folder, NAMES[0], &authority.sign(NAMES[0]));
    hosts.hang_up(0);
    until("the alarm is cleared", || hosts.log(0).matches("NS-5020").count() == 2);
    hosts.kill(2);
    hosts.run(2);
    hosts.until_all_count();
    // Another authority, which hosts that were not told refuse. Connections that exist go on.
    certify(&hosts.folder, &Authority::new());
    let before = [0, 1].map(|number| hosts.reloads(number, "NS-1008"));
    for number in [0, 1] {
        hosts.hang_up(number);
        until("the certificates are read", || {
            hosts.reloads(number, "NS-1008") == before[number] + 1
        });
    }
    hosts.kill(2);
    hosts.run(2);
    hosts.until_all_count();
    let mut client = hosts.clients(hosts.owner().unwrap());
    assert_eq!(client.ask(&["SET", "key", "1"]), "+OK");
    assert_eq!(client.ask(&["WAIT", "2", "60000"]), ":2");
}

#[test]
fn the_authorities_of_etcd_are_replaced_while_a_host_runs() {
    let (folder, before, after) = (Folder::new(), Authority::new(), Authority::new());
    let etcd = TcpListener::bind((own_ip(), 0)).unwrap();
    let address = etcd.local_addr().unwrap();
    let ca = folder.path("etcd.pem");
    std::fs::write(&ca, before.pem()).unwrap();
    let (at, signed) = (ca.display(), after.sign(&address.ip().to_string()));
    let section = format!("[etcd]\nendpoints = [\"https://{address}\"]\nca = \"{at}\"\n");
    let mut hosts = Hosts::new(folder, LONG_LEASE, &section, &[]);
    hosts.run(0);
    let is_accepted = || signed.is_accepted_by(etcd.accept().unwrap().0);
    assert!(!is_accepted(), "another authority has signed it");
    std::fs::write(&ca, "no certificate").unwrap();
    hosts.hang_up(0);
    until("the reason is logged", || hosts.reloads(0, "NS-2006") == 1);
    std::fs::write(&ca, after.pem()).unwrap();
    hosts.hang_up(0);
    until("the certificates are read", || hosts.reloads(0, "NS-1008") == 1);
    until("the certificate is accepted", is_accepted);
}

#[test]
fn settings_that_the_cluster_file_replaces_are_refused() {
    let folder = Folder::new();
    let file = folder.path("cluster.toml");
    let ips = own_ips();
    std::fs::write(&file, cluster_file(&folder, "1s", ips, &free_ports(ips[0], 7))).unwrap();
    for (flag, value, what) in [
        ("--listen", "127.0.0.1:0", "partition.port"),
        ("--max", "64MiB", "partition.region_max"),
        ("--peer", "127.0.0.1:0", "host.peer"),
        ("--nudsf", "127.0.0.1:0", "partition.nudsf_port"),
    ] {
        let mut command = Command::new(NEARSTATE);
        command.args(["serve", "--host", "a", flag, value, "--cluster"]).arg(&file);
        let error = rejected(command.stdin(Stdio::null()));
        assert!(error.contains(flag) && error.contains(what), "{error}");
    }
}
