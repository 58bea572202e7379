//! The example at the beginning of the guide of clusters works as it is typed. Only its addresses
//! and directories are replaced, which other tests may use.

use std::path::Path;
use std::process::{Command, Output};

use crate::cluster::own_ips;
use crate::fixture::{Folder, NEARSTATE, until};

const GUIDE: &str = include_str!("../../../../docs/operate/cluster.md");

/// The blocks of code of the first section, with their languages.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let section = GUIDE.split("\n## ").nth(1).unwrap();
    assert!(section.starts_with("Three hosts in ten lines"), "{section}");
    let fenced = section.split("```").skip(1).step_by(2);
    fenced.map(|block| block.split_once('\n').unwrap()).collect()
}

/// The shell in which a user works: its nodes end with it.
struct Shell {
    folder: Folder,
    addresses: Vec<(String, String)>,
}

impl Shell {
    fn filled(&self, text: &str) -> String {
        self.addresses.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    fn run(&self, line: &str) -> Output {
        let programs = Path::new(NEARSTATE).parent().unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("bash");
        shell.args(["-c", &self.filled(line)]).env("PATH", path);
        shell.current_dir(self.folder.path("")).output().unwrap()
    }

    /// Repeats a line until its output has a text. Returns the output.
    fn until(&self, line: &str, wanted: &str) -> String {
        let mut shown = String::new();
        until(wanted, || {
            let output = self.run(line);
            shown = String::from_utf8(output.stdout).unwrap();
            output.status.success() && shown.contains(wanted)
        });
        shown
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.run("kill $(cat nodes)");
    }
}

#[test]
fn the_ten_lines_of_the_guide_work_as_they_are_typed() {
    let blocks = blocks();
    let [("toml", file), ("sh", start), ("sh", lose), ..] = blocks.as_slice() else {
        panic!("{blocks:?}");
    };
    assert!(file.lines().count() <= 10, "{file}");
    let ips = own_ips().into_iter().enumerate();
    let addresses = ips.map(|(number, ip)| (format!("127.0.0.{}", number + 1), ip.to_string()));
    let shell = Shell { folder: Folder::new(), addresses: addresses.collect() };
    let place = shell.folder.path("").display().to_string();
    let own = format!("regions = \"{place}/{{host}}-{{partition}}\", directory = \"{place}/");
    let text = shell.filled(file).replace("directory = \"/tmp/", &own);
    assert!(text.contains(&own), "{text}");
    std::fs::write(shell.folder.path("cluster.toml"), text).unwrap();

    let mut lines = start.lines();
    // The nodes write to a file: a pipe would be open as long as they run.
    let serve = lines.next().unwrap().replace("$host &", "$host >>log 2>&1 & echo $! >>nodes;");
    let output = shell.run(&serve);
    assert!(output.status.success(), "{output:?}");
    let created = shell.run(lines.next().unwrap());
    let log = || std::fs::read_to_string(shell.folder.path("log")).unwrap();
    assert!(created.status.success(), "{created:?}: {}", log());
    let status = lines.next().unwrap();
    assert_eq!(lines.next(), None);
    shell.until(status, "amf-1,amf-2,amf-3");

    let lines: Vec<&str> = lose.lines().collect();
    let [set, wait, kill, status, get] = lines.as_slice() else { panic!("{lose}") };
    shell.until(set, "OK");
    shell.until(wait, "2");
    // Each line has a shell of its own here, without the jobs of the one before.
    let own = shell.run("ps -o pid=,args= -p $(head -1 nodes)");
    let own = String::from_utf8(own.stdout).unwrap();
    assert!(kill.starts_with("kill -9 $(jobs -p | head -1) "), "{kill}");
    assert!(own.contains("cluster.toml --host amf-1"), "{own}");
    shell.run("kill -9 $(head -1 nodes)");
    let shown = shell.until(status, "no-answer");
    assert!(shown.contains("amf-1: UNREACHABLE"), "{shown}");
    // The new owner is at one of the two other addresses.
    until("another host has the record", || {
        let other = get.replace("127.0.0.2", "127.0.0.3");
        [*get, &other].iter().any(|line| shell.run(line).stdout == b"value\n")
    });
}
