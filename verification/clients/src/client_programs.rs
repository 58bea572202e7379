//! The programs of the long test of clients: what each needs from a registry, and how it starts.
//! Versions are pinned in the files of `python/`, `javascript/`, `go/`, `java/` and `rust/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{build_folder, output_of, root};
use crate::python;

/// The folder of the programs.
fn sources() -> PathBuf {
    root().join("verification/clients")
}

/// The command that runs the program of a client. Installs packages and builds, if necessary.
pub fn prepare(name: &str) -> Result<Command, String> {
    match name {
        "ricsdl" => python_program("ricsdl", "ricsdl_soak.py"),
        "redis-py" => python_program("redis", "redis_py_soak.py"),
        "go-redis" | "sdlgo" => go_program(name),
        "ioredis" => javascript_program("ioredis.mjs"),
        "node-redis" => javascript_program("node_redis.mjs"),
        "jedis" => java_program("JedisSoak"),
        "lettuce" => java_program("LettuceSoak"),
        "redis-rs" => rust_program(),
        "cpp-sdl" => c_program(),
        _ => Err(format!("no program for {name:?}")),
    }
}

/// The pinned version of a client.
pub fn version(name: &str) -> Result<String, String> {
    let (file, before, after) = match name {
        "ricsdl" => ("python/requirements-ricsdl.txt", "ricsdl==", "\n"),
        "redis-py" => ("python/requirements-redis.txt", "redis==", "\n"),
        "go-redis" => ("go/go.mod", "github.com/redis/go-redis/v9 ", "\n"),
        "sdlgo" => ("go/go.mod", "github.com/go-redis/redis/v8 ", "\n"),
        "ioredis" => ("javascript/package.json", "\"ioredis\": \"", "\""),
        "node-redis" => ("javascript/package.json", "\"redis\": \"", "\""),
        "jedis" => ("java/pom.xml", "<artifactId>jedis</artifactId><version>", "<"),
        "lettuce" => ("java/pom.xml", "<artifactId>lettuce-core</artifactId><version>", "<"),
        "redis-rs" => ("rust/Cargo.toml", "redis = { version = \"=", "\""),
        _ => {
            return output_of(Command::new("pkg-config").args(["--modversion", "hiredis"]))
                .map(|version| format!("hiredis {}", version.trim()));
        }
    };
    let text = read(&sources().join(file))?;
    let version = text.split_once(before).and_then(|(_, rest)| rest.split_once(after));
    version.map(|(version, _)| version.to_owned()).ok_or(format!("{file}: no {before:?}"))
}

fn python_program(list: &str, script: &str) -> Result<Command, String> {
    let mut command = Command::new(python::environment(list)?);
    command.arg("-B").arg(sources().join("python").join(script));
    Ok(command)
}

fn go_program(name: &str) -> Result<Command, String> {
    let program = build_folder()?.join("clients-go");
    let mut build = go();
    build.args(["build", "-o"]).arg(&program).arg("./soak").current_dir(sources().join("go"));
    output_of(&mut build).map_err(|error| unreachable_registry("Go's module proxy", &error))?;
    let mut command = Command::new(program);
    command.arg(name);
    Ok(command)
}

/// Go, also in the folder of its own installer.
pub fn go() -> Command {
    let installed = Path::new("/usr/local/go/bin/go");
    let mut command = Command::new(if installed.is_file() { installed } else { Path::new("go") });
    command.env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=readonly");
    command
}

fn javascript_program(script: &str) -> Result<Command, String> {
    let folder = installed(
        "javascript",
        "the npm registry",
        &["package.json", "package-lock.json", "soak.mjs", "ioredis.mjs", "node_redis.mjs"],
        &["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"],
    )?;
    let mut command = Command::new("node");
    command.arg(folder.join(script));
    Ok(command)
}

fn java_program(class: &str) -> Result<Command, String> {
    let sources = ["pom.xml", "Soak.java", "JedisSoak.java", "LettuceSoak.java"];
    let maven = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"];
    let folder = installed("java", "Maven Central", &sources, &maven)?;
    let mut compile = Command::new("javac");
    compile.args(["-cp", "lib/*", "-d", "classes"]).args(sources.iter().skip(1));
    output_of(compile.current_dir(&folder))?;
    let mut command = Command::new("java");
    command.args(["-cp", "classes:lib/*", class]).current_dir(folder);
    Ok(command)
}

fn rust_program() -> Result<Command, String> {
    let target = build_folder()?.join("clients-rust");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--target-dir"]).arg(&target);
    build.current_dir(sources().join("rust"));
    output_of(&mut build).map_err(|error| unreachable_registry("crates.io", &error))?;
    Ok(Command::new(target.join("debug/nearstate-clients-redis-rs")))
}

fn c_program() -> Result<Command, String> {
    let built = build_folder()?.join("clients-c");
    let mut compile = Command::new("gcc");
    compile.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&built);
    compile.arg(sources().join("c/sdl_soak.c")).arg("-lhiredis");
    output_of(&mut compile)?;
    Ok(Command::new(built))
}

/// A folder with a copy of these files, in which a command has installed what they list.
fn installed(
    folder: &str,
    registry: &str,
    files: &[&str],
    install: &[&str],
) -> Result<PathBuf, String> {
    let source = sources().join(folder);
    let target = build_folder()?.join(format!("clients-{folder}"));
    fs::create_dir_all(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    for file in files {
        let copied = fs::copy(source.join(file), target.join(file));
        copied.map_err(|error| format!("{file}: {error}"))?;
    }
    // The first file lists the packages, and so does a lock file.
    let lists: Result<Vec<String>, String> = files
        .iter()
        .take(1 + usize::from(files.contains(&"package-lock.json")))
        .map(|file| read(&source.join(file)))
        .collect();
    let requested = lists?.concat();
    let stamp = target.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|done| done == requested) {
        return Ok(target);
    }
    let Some((program, args)) = install.split_first() else { return Ok(target) };
    output_of(Command::new(program).args(args).current_dir(&target))
        .map_err(|error| unreachable_registry(registry, &error))?;
    fs::write(&stamp, requested).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(target)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn unreachable_registry(registry: &str, error: &str) -> String {
    format!("{registry} must be reachable once: {error}")
}
