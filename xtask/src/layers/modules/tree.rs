//! A crate as a tree of modules, read from its root file downward.

use super::paths;
use crate::finding::Finding;
use crate::rust_source::{group, is_mark, line_of, tokens, without_tests, word};
use proc_macro2::{Delimiter, Literal, TokenStream, TokenTree};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// One module without its tests.
pub(crate) struct Module {
    /// The names that lead to it from the crate's root.
    pub path: Vec<String>,
    /// The file it is written in, relative to the workspace.
    pub file: String,
    /// Its tokens, without inline modules.
    pub tokens: TokenStream,
    /// The modules it declares, in its order.
    pub children: Vec<String>,
    /// Names that it reexports from the crate, and their paths.
    pub passes_on: BTreeMap<String, Vec<String>>,
}

/// All modules of a crate.
pub(crate) struct Tree {
    /// By their path.
    pub modules: BTreeMap<Vec<String>, Module>,
    /// Errors of unreadable files.
    pub faults: Vec<Finding>,
}

/// The file of a module, and the folder of its child modules.
struct ModuleFile<'a> {
    file: &'a str,
    children_in: PathBuf,
}

/// A `mod` line or block.
struct ModuleDeclaration {
    name: String,
    line: usize,
    is_elsewhere: Option<String>,
    body: Option<TokenStream>,
}

impl Tree {
    /// Reads the crate with this root file.
    pub(crate) fn read(root: &Path, root_file: &str) -> Self {
        let mut tree = Self { modules: BTreeMap::new(), faults: Vec::new() };
        let children_in = Path::new(root_file).parent().unwrap_or(Path::new("")).to_path_buf();
        tree.file(root, &ModuleFile { file: root_file, children_in }, &[], (root_file, 1));
        tree
    }

    fn file(&mut self, root: &Path, place: &ModuleFile<'_>, path: &[String], asked: (&str, usize)) {
        let text = match fs::read_to_string(root.join(place.file)) {
            Ok(text) => text,
            Err(error) => {
                let what = format!("{}: {error}", place.file);
                let advice = "write the file, or drop the line that asks for it";
                self.faults.push(Finding::new(asked.0, asked.1, what, advice));
                return;
            }
        };
        match tokens(&text) {
            Ok(tokens) => self.module(root, place, path, without_tests(tokens)),
            Err(what) => self.faults.push(Finding::new(place.file, 1, what, "run cargo check")),
        }
    }

    fn module(&mut self, root: &Path, place: &ModuleFile<'_>, path: &[String], all: TokenStream) {
        let (declared, tokens) = split(all);
        let children: Vec<String> = declared.iter().map(|child| child.name.clone()).collect();
        let passes_on = paths::taken(&tokens, path, &children);
        let file = place.file.to_owned();
        self.modules.insert(
            path.to_vec(),
            Module { path: path.to_vec(), file, tokens, children, passes_on },
        );
        for child in declared {
            let mut child_path = path.to_vec();
            child_path.push(child.name.clone());
            if self.modules.contains_key(&child_path) {
                continue; // the same name for another platform
            }
            let children_in = place.children_in.join(&child.name);
            if let Some(body) = child.body {
                self.module(root, &ModuleFile { file: place.file, children_in }, &child_path, body);
                continue;
            }
            let beside = place.children_in.join(format!("{}.rs", child.name));
            let inside = children_in.join("mod.rs");
            let elsewhere = child
                .is_elsewhere
                .map(|name| Path::new(place.file).parent().unwrap_or(Path::new("")).join(name));
            let is_inside = !root.join(&beside).exists() && root.join(&inside).exists();
            let found = elsewhere.unwrap_or(if is_inside { inside } else { beside });
            let found = found.to_string_lossy().into_owned();
            self.file(
                root,
                &ModuleFile { file: &found, children_in },
                &child_path,
                (place.file, child.line),
            );
        }
    }
}

/// Takes the `mod` declarations out of a level of tokens.
fn split(stream: TokenStream) -> (Vec<ModuleDeclaration>, TokenStream) {
    let level: Vec<TokenTree> = stream.into_iter().collect();
    let (mut declared, mut rest) = (Vec::new(), Vec::new());
    let mut is_elsewhere = None;
    let mut at = 0;
    while let Some(token) = level.get(at) {
        let name =
            word(level.get(at + 1)).filter(|_| word(Some(token)).is_some_and(|w| w == "mod"));
        let body = group(level.get(at + 2), Delimiter::Brace);
        if let Some(name) = name
            && (body.is_some() || is_mark(level.get(at + 2), ';'))
        {
            declared.push(ModuleDeclaration {
                name: name.to_string(),
                line: line_of(token),
                is_elsewhere: is_elsewhere.take(),
                body: body.map(proc_macro2::Group::stream),
            });
            at += 3;
            continue;
        }
        if is_mark(Some(token), '#') {
            is_elsewhere = path_attribute(level.get(at + 1)).or(is_elsewhere);
        } else if is_mark(Some(token), ';') || group(Some(token), Delimiter::Brace).is_some() {
            is_elsewhere = None;
        }
        rest.push(token.clone());
        at += 1;
    }
    (declared, rest.into_iter().collect())
}

/// The file that `#[path = "file"]` names.
fn path_attribute(attribute: Option<&TokenTree>) -> Option<String> {
    let inner: Vec<TokenTree> =
        group(attribute, Delimiter::Bracket)?.stream().into_iter().collect();
    let is_path = word(inner.first())? == "path" && is_mark(inner.get(1), '=');
    match inner.get(2) {
        Some(TokenTree::Literal(literal)) if is_path => Some(unquoted(literal)),
        Some(_) | None => None,
    }
}

fn unquoted(literal: &Literal) -> String {
    literal.to_string().trim_matches('"').to_owned()
}
