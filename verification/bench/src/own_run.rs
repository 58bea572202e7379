//! The runs with tables of their own: `nudsf`, `numap`, and writes that survive their host. They
//! are saved, loaded and shown alike.

use crate::html::Page;
use crate::nudsf::result::NudsfRun;
use crate::numap::result::NumapRun;
use crate::options::{Options, check_known};
use crate::replication::ReplicatedRun;
use crate::run_frame::RunFrame;
use crate::{nudsf, numap, replication, saved};
use nearstate_model::Result;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// A run with tables of its own.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum OwnRun {
    Nudsf(NudsfRun),
    Numap(NumapRun),
    Replicated(ReplicatedRun),
}

/// The field that names the kind of a saved run, with its format.
#[derive(Deserialize)]
struct OwnFormat {
    #[serde(rename = "nudsf_format")]
    nudsf: Option<u32>,
    #[serde(rename = "numap_format")]
    numap: Option<u32>,
    #[serde(rename = "replicated_format")]
    replicated: Option<u32>,
}

impl OwnRun {
    /// Measures what the options ask for; `None` if that is another kind of run.
    ///
    /// # Errors
    /// `BadArgument`: an option without a meaning for it. Those of its measurement.
    pub fn measure(
        options: &Options,
        (command, words): (&str, &[String]),
        stop: &'static AtomicBool,
    ) -> Result<Option<Self>> {
        let workload = options.workload.as_deref();
        Ok(Some(if workload == Some(numap::NAME) {
            check_known(numap::NAME, &numap::OPTIONS, words)?;
            Self::Numap(numap::measure(options, command, stop)?)
        } else if workload == Some(nudsf::NAME) {
            check_known(nudsf::NAME, &nudsf::OPTIONS, words)?;
            Self::Nudsf(nudsf::measure(options, command, stop)?)
        } else if replication::is_wanted(options) {
            check_known(replication::NAME, &replication::OPTIONS, words)?;
            Self::Replicated(replication::measure(options, command, stop)?)
        } else {
            return Ok(None);
        }))
    }

    /// Loads a saved run; `None` if the file is none of these.
    ///
    /// # Errors
    /// `System`: it cannot be read. `BadArgument`: it is damaged, or of another format.
    pub fn load(path: &Path) -> Result<Option<Self>> {
        let bytes = saved::read(path)?;
        let Ok(found) = serde_json::from_slice::<OwnFormat>(&bytes) else { return Ok(None) };
        let loaded = match (found.nudsf, found.numap, found.replicated) {
            (Some(format), _, _) => parse(&bytes, format, nudsf::result::FORMAT).map(Self::Nudsf),
            (_, Some(format), _) => parse(&bytes, format, numap::result::FORMAT)
                .and_then(|run| numap::result::check(&run).map(|()| Self::Numap(run))),
            (_, _, Some(format)) => {
                parse(&bytes, format, replication::FORMAT).map(Self::Replicated)
            }
            (None, None, None) => return Ok(None),
        };
        loaded.map(Some).map_err(|why| {
            bad_argument!(
                "{}: {why}: give a file that `nearstate bench run --save FILE` wrote",
                path.display()
            )
        })
    }

    /// What all kinds have.
    pub const fn frame(&self) -> &RunFrame {
        match self {
            Self::Nudsf(run) => &run.frame,
            Self::Numap(run) => &run.frame,
            Self::Replicated(run) => &run.frame,
        }
    }

    /// The tables for a terminal.
    pub fn text(&self) -> String {
        match self {
            Self::Nudsf(run) => nudsf::text(run),
            Self::Numap(run) => numap::text(run),
            Self::Replicated(run) => replication::text(run),
        }
    }

    /// The page.
    pub fn page(&self) -> Page {
        match self {
            Self::Nudsf(run) => nudsf::page(run),
            Self::Numap(run) => numap::page(run),
            Self::Replicated(run) => replication::page(run),
        }
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8], format: u32, known: u32) -> Result<T, String> {
    if format != known {
        return Err(format!("a run of format {format}; this program reads format {known}"));
    }
    serde_json::from_slice(bytes).map_err(|e| format!("the file is damaged ({e})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::assert_offline;

    fn runs() -> [OwnRun; 3] {
        let frame = RunFrame { command: "nearstate bench run x".to_owned(), ..RunFrame::default() };
        [
            OwnRun::Nudsf(NudsfRun {
                nudsf_format: nudsf::result::FORMAT,
                frame: frame.clone(),
                ..NudsfRun::default()
            }),
            OwnRun::Numap(NumapRun {
                numap_format: numap::result::FORMAT,
                frame: frame.clone(),
                ..NumapRun::default()
            }),
            OwnRun::Replicated(ReplicatedRun {
                replicated_format: replication::FORMAT,
                frame,
                ..ReplicatedRun::default()
            }),
        ]
    }

    #[test]
    fn each_kind_is_loaded_as_it_was_saved_and_shown_alike() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        for run in runs() {
            std::fs::write(&path, serde_json::to_vec(&run).unwrap()).unwrap();
            let back = OwnRun::load(&path).unwrap().unwrap();
            assert_eq!(serde_json::to_string(&back).unwrap(), serde_json::to_string(&run).unwrap());
            assert_eq!(back.text(), run.text());
            let html = back.page().html();
            assert_offline(&html);
            assert!(html.contains("nearstate bench run x"), "{html}");
        }
    }

    #[test]
    fn a_damaged_file_and_one_of_another_format_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        for (text, why) in [
            (r#"{"nudsf_format":1}"#, "damaged"),
            (r#"{"replicated_format":99}"#, "format 99"),
            (r#"{"numap_format":1,"pairings":3}"#, "damaged"),
        ] {
            std::fs::write(&path, text).unwrap();
            let e = OwnRun::load(&path).unwrap_err().to_string();
            assert!(e.contains(why) && e.contains("--save FILE"), "{e}");
        }
        std::fs::write(&path, "{}").unwrap();
        assert!(OwnRun::load(&path).unwrap().is_none());
    }
}
