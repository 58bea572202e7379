//! What file systems have left, as a thread of its own has measured it.
//!
//! A file system that hangs (NFS, FUSE) holds the thread that asks it, without a limit. Status,
//! reports, metrics and alarms read what was measured last, and never wait.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_store::lease_clock;

use crate::space::FileSystemSpace;

/// How often each path is measured: as often as alarms are looked for.
const MEASURE_INTERVAL: Duration = Duration::from_millis(500);

/// For how long a measurement counts: ten intervals. Later what is left is not known.
const MEASUREMENT_KEPT: Duration = Duration::from_secs(5);

/// What a path has shown at a time. `None`: its file system does not tell.
type Measurement = (Duration, Option<FileSystemSpace>);

/// The last measurement of each path that was asked for. `None`: there is none yet.
#[derive(Debug, Default)]
struct SpaceCache(Mutex<BTreeMap<PathBuf, Option<Measurement>>>);

impl SpaceCache {
    /// Measures until the process ends. Without a thread nothing is known.
    fn start(measure: impl Fn(&Path) -> Option<FileSystemSpace> + Send + 'static) -> Arc<Self> {
        let cache = Arc::new(Self::default());
        let measured = Arc::clone(&cache);
        let run = move || {
            loop {
                measured.measure_all(&measure);
                std::thread::park_timeout(MEASURE_INTERVAL);
            }
        };
        drop(std::thread::Builder::new().name("ns-space".to_owned()).spawn(run));
        cache
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Option<Measurement>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No lock is held while a file system is asked.
    fn measure_all(&self, measure: &impl Fn(&Path) -> Option<FileSystemSpace>) {
        let paths: Vec<PathBuf> = self.lock().keys().cloned().collect();
        for path in paths {
            let seen = (lease_clock(), measure(&path));
            self.lock().insert(path, Some(seen));
        }
    }

    /// What was measured last. A path that is asked for the first time is measured from now on.
    fn read(&self, path: &Path, now: Duration) -> Result<FileSystemSpace> {
        let known = {
            let mut paths = self.lock();
            if !paths.contains_key(path) {
                paths.insert(path.to_owned(), None);
            }
            paths.get(path).copied().flatten()
        };
        let shown = path.display();
        let detail = match known {
            Some((at, Some(space))) if now.saturating_sub(at) <= MEASUREMENT_KEPT => {
                return Ok(space);
            }
            Some((at, None)) if now.saturating_sub(at) <= MEASUREMENT_KEPT => {
                format!("the file system of {shown} does not tell what it has left")
            }
            Some(_) | None => format!(
                "what the file system of {shown} has left is not known: it was not measured in \
                 the last {} s",
                MEASUREMENT_KEPT.as_secs()
            ),
        };
        Err(Error::Backend { detail })
    }
}

/// What this process has measured.
fn cache() -> &'static SpaceCache {
    static CACHE: OnceLock<Arc<SpaceCache>> = OnceLock::new();
    CACHE.get_or_init(|| SpaceCache::start(|path| FileSystemSpace::of(path).ok()))
}

impl FileSystemSpace {
    /// What was measured of a path in the last 5 s. Takes a lock, and asks no file system: a thread
    /// measures each path that was asked for twice a second.
    ///
    /// # Errors
    /// `Backend`: it is not known, because the path was not asked for before or its file system
    /// does not answer; or the file system does not tell.
    pub fn measured(path: &Path) -> Result<Self> {
        cache().read(path, lease_clock())
    }

    /// Measures a path now, so that [`FileSystemSpace::measured`] knows it from the first time on.
    /// Waits for its file system: for a process that starts.
    ///
    /// # Errors
    /// As [`FileSystemSpace::of`].
    pub fn measure_first(path: &Path) -> Result<Self> {
        let seen = Self::of(path);
        cache().lock().insert(path.to_owned(), Some((lease_clock(), seen.as_ref().ok().copied())));
        seen
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SPACE: FileSystemSpace =
        FileSystemSpace { bytes_free: Some(7), bytes_max: 9, files_free: None };

    #[test]
    fn a_file_system_that_never_answers_holds_no_reader() {
        let (asked, is_asked) = channel();
        let cache = SpaceCache::start(move |_| {
            asked.send(()).unwrap();
            loop {
                std::thread::park();
            }
        });
        let path = Path::new("/hung");
        let _ = cache.read(path, Duration::ZERO);
        // The thread hangs from now on.
        is_asked.recv().unwrap();
        for _ in 0..3 {
            let error = cache.read(path, lease_clock()).unwrap_err().to_string();
            assert!(error.contains("/hung has left is not known"), "{error}");
        }
    }

    #[test]
    fn a_path_that_was_measured_at_the_start_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let (there, missing) = (folder.path().join("there"), folder.path().join("missing"));
        std::fs::write(&there, "").unwrap();
        assert!(FileSystemSpace::measure_first(&there).is_ok());
        assert!(FileSystemSpace::measured(&there).is_ok());
        assert!(FileSystemSpace::measure_first(&missing).is_err());
        assert!(FileSystemSpace::measured(&missing).is_err());
    }

    #[test]
    fn a_measurement_counts_for_some_time_and_is_not_known_then() {
        let (cache, path) = (SpaceCache::default(), Path::new("/some"));
        let begin = Duration::from_secs(100);
        cache.lock().insert(path.to_owned(), Some((begin, Some(SPACE))));
        assert_eq!(cache.read(path, begin + MEASUREMENT_KEPT).unwrap(), SPACE);
        let later = begin + MEASUREMENT_KEPT + Duration::from_nanos(1);
        let error = cache.read(path, later).unwrap_err().to_string();
        assert!(error.contains("is not known"), "{error}");
        cache.lock().insert(path.to_owned(), Some((later, None)));
        let error = cache.read(path, later).unwrap_err().to_string();
        assert!(error.contains("does not tell"), "{error}");
    }
}
