//! Addresses of names. The resolver of the system blocks its thread, for many seconds if no server
//! answers, and cannot be cancelled. So each look-up has a thread of its own that nothing waits for
//! at the end, there are few of them, and each name has at most one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use nearstate_store::{since_boot, with_signals_blocked};

/// Look-ups of one thread that are in flight.
const LOOKUPS_MAX: usize = 64;

/// The same, for the look-up of a name whose last one has failed or was slow: many of these leave
/// half of the threads to others.
const DOUBTFUL_LOOKUPS_MAX: usize = LOOKUPS_MAX / 2;

/// A look-up that takes longer is slow.
const SLOW: Duration = Duration::from_secs(1);

/// How long addresses are used before the name is looked up again.
const FRESH: Duration = Duration::from_secs(5);

/// How long they are used while a further look-up is in flight, or has failed.
const STALE: Duration = Duration::from_secs(60);

/// How long a name is not looked up again after a failure.
const REFUSED: Duration = Duration::from_secs(1);

/// Names that are remembered. With more, those without a look-up in flight are forgotten.
const NAMES_MAX: usize = 4096;

type Addresses = Arc<[IpAddr]>;

/// The outcome of a look-up: addresses, or the kind of the failure and its text.
type LookupOutcome = Result<Addresses, (io::ErrorKind, String)>;

type LookupFunction = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

#[derive(Debug, Default)]
struct LookupState {
    outcome: Option<LookupOutcome>,
    waiting: Vec<Waker>,
}

/// A look-up, which its thread ends.
#[derive(Debug)]
struct NameLookup {
    begun: Duration,
    state: Arc<Mutex<LookupState>>,
}

fn locked(state: &Mutex<LookupState>) -> MutexGuard<'_, LookupState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a name.
#[derive(Debug, Default)]
struct KnownName {
    /// With the time at which they were learnt.
    addresses: Option<(Addresses, Duration)>,
    /// The last failure, with its time.
    failure: Option<((io::ErrorKind, String), Duration)>,
    is_doubtful: bool,
    lookup: Option<NameLookup>,
}

impl KnownName {
    /// Takes the outcome of a look-up that has ended.
    fn update(&mut self, now: Duration) {
        let Some(lookup) = &self.lookup else { return };
        let Some(outcome) = locked(&lookup.state).outcome.clone() else {
            self.is_doubtful |= now.saturating_sub(lookup.begun) > SLOW;
            return;
        };
        self.lookup = None;
        match outcome {
            Ok(addresses) => {
                (self.addresses, self.failure) = (Some((addresses, now)), None);
                self.is_doubtful = false;
            }
            Err(failure) => {
                self.failure = Some((failure, now));
                self.is_doubtful = true;
            }
        }
    }

    /// Addresses that were learnt in this time.
    fn within(&self, age: Duration, now: Duration) -> Option<Addresses> {
        let (addresses, learnt) = self.addresses.as_ref()?;
        (now.saturating_sub(*learnt) <= age).then(|| Arc::clone(addresses))
    }
}

/// Looks up names for the tasks of one thread. Dropping it waits for nothing.
pub struct NameResolver {
    names: RefCell<BTreeMap<String, KnownName>>,
    function: Arc<LookupFunction>,
}

impl fmt::Debug for NameResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NameResolver").field("names", &self.names).finish_non_exhaustive()
    }
}

impl Default for NameResolver {
    /// With the resolver of the system.
    fn default() -> Self {
        Self::with_function(Arc::new(|name| {
            let all = (name, 0).to_socket_addrs()?;
            Ok(all.map(|address| address.ip()).collect())
        }))
    }
}

thread_local! {
    static RESOLVER: Rc<NameResolver> = Rc::default();
}

impl NameResolver {
    /// The resolver of this thread.
    pub fn of_thread() -> Rc<Self> {
        RESOLVER.with(Rc::clone)
    }

    /// With another function that finds the addresses of a name. It may block.
    pub fn with_function(function: Arc<LookupFunction>) -> Self {
        Self { names: RefCell::default(), function }
    }

    /// The addresses of a host, by name or address. The caller limits the time. Addresses that were
    /// found in the last minute are returned at once, and looked up again after some seconds.
    ///
    /// # Errors
    /// The name is not known, its look-up has failed within a second, or too many are in flight.
    pub async fn resolve(&self, host: &str) -> io::Result<Addresses> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Arc::new([address]));
        }
        let state = match self.begin(host, since_boot())? {
            Ok(addresses) => return Ok(addresses),
            Err(state) => state,
        };
        let outcome = std::future::poll_fn(|cx| {
            let mut state = locked(&state);
            if let Some(outcome) = &state.outcome {
                return Poll::Ready(outcome.clone());
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        });
        outcome.await.map_err(|(kind, text)| io::Error::new(kind, text))
    }

    /// The addresses that are known, or the look-up in flight.
    fn begin(
        &self,
        name: &str,
        now: Duration,
    ) -> io::Result<Result<Addresses, Arc<Mutex<LookupState>>>> {
        let mut names = self.names.borrow_mut();
        for known in names.values_mut() {
            known.update(now);
        }
        let in_flight = names.values().filter(|known| known.lookup.is_some()).count();
        if names.len() >= NAMES_MAX && !names.contains_key(name) {
            names.retain(|_, known| known.lookup.is_some());
        }
        let known = names.entry(name.to_owned()).or_default();
        if let Some(addresses) = known.within(FRESH, now) {
            return Ok(Ok(addresses));
        }
        let known_before = known.within(STALE, now);
        let failure = known.failure.as_ref().filter(|(_, at)| now.saturating_sub(*at) < REFUSED);
        let failure = failure.map(|((kind, text), _)| io::Error::new(*kind, text.clone()));
        let most = if known.is_doubtful { DOUBTFUL_LOOKUPS_MAX } else { LOOKUPS_MAX };
        let begun = match (&known.lookup, failure) {
            (Some(lookup), _) => Ok(Arc::clone(&lookup.state)),
            (None, Some(failure)) => Err(failure),
            (None, None) if in_flight >= most => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{in_flight} look-ups of names are in flight: is the resolver reached?"),
            )),
            (None, None) => self.start(name).inspect(|state| {
                known.lookup = Some(NameLookup { begun: now, state: Arc::clone(state) });
            }),
        };
        match (known_before, begun) {
            (Some(addresses), _) => Ok(Ok(addresses)),
            (None, Ok(state)) => Ok(Err(state)),
            (None, Err(error)) => Err(error),
        }
    }

    /// Starts the thread of a look-up.
    fn start(&self, name: &str) -> io::Result<Arc<Mutex<LookupState>>> {
        let state = Arc::<Mutex<LookupState>>::default();
        let (ended, function, name) =
            (Arc::clone(&state), Arc::clone(&self.function), name.to_owned());
        let thread = std::thread::Builder::new().name("ns-resolve".to_owned());
        let run = move || {
            let found = function(&name).map(Addresses::from);
            let found = found.map_err(|error| (error.kind(), error.to_string()));
            let waiting = {
                let mut state = locked(&ended);
                state.outcome = Some(found);
                std::mem::take(&mut state.waiting)
            };
            for waker in waiting {
                waker.wake();
            }
        };
        with_signals_blocked(|| thread.spawn(run))?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::executor::{Executor, ExecutorConfig, timeout};

    /// Names that begin with `hole` are not answered before the sender is dropped; others have an
    /// address of this host. Returns the names that were looked up too.
    fn resolver() -> (Rc<NameResolver>, Sender<()>, Arc<Mutex<Vec<String>>>) {
        let (held, holds) = channel::<()>();
        let (holds, asked) = (Mutex::new(holds), Arc::<Mutex<Vec<String>>>::default());
        let seen = Arc::clone(&asked);
        let function = move |name: &str| {
            seen.lock().unwrap().push(name.to_owned());
            if name.starts_with("hole") {
                let _ = holds.lock().unwrap().recv();
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            Ok(vec![IpAddr::from([127, 0, 0, 1])])
        };
        (Rc::new(NameResolver::with_function(Arc::new(function))), held, asked)
    }

    /// What is known at this second; `None`: a look-up is in flight.
    fn known(resolver: &NameResolver, name: &str, second: u64) -> Option<io::Result<Addresses>> {
        match resolver.begin(name, Duration::from_secs(second)) {
            Ok(Ok(addresses)) => Some(Ok(addresses)),
            Ok(Err(_)) => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn until_known(resolver: &NameResolver, name: &str, second: u64) -> io::Result<Addresses> {
        loop {
            if let Some(outcome) = known(resolver, name, second) {
                return outcome;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn look_ups_that_hang_are_few_and_their_names_leave_threads_to_others() {
        let (resolver, held, asked) = resolver();
        let names: Vec<_> = (0..2 * LOOKUPS_MAX).map(|number| format!("hole{number}")).collect();
        // Each name has one, and only so many have one at a time.
        for name in names.iter().chain(&names) {
            let is_begun = known(&resolver, name, 0).is_none();
            assert_eq!(is_begun, names.iter().take(LOOKUPS_MAX).any(|one| one == name), "{name}");
        }
        drop(held);
        for name in names.iter().take(LOOKUPS_MAX) {
            assert!(until_known(&resolver, name, 10).is_err());
            assert!(known(&resolver, name, 10).is_some_and(|known| known.is_err()), "at once");
        }
        assert_eq!(asked.lock().unwrap().len(), LOOKUPS_MAX);
    }

    #[test]
    fn names_that_were_slow_take_half_of_the_threads() {
        let (resolver, _held, _) = resolver();
        let slow = (0..LOOKUPS_MAX).map(|number| format!("hole{number}"));
        for name in slow.clone() {
            let known = KnownName { is_doubtful: true, ..KnownName::default() };
            resolver.names.borrow_mut().insert(name, known);
        }
        let begun = slow.filter(|name| known(&resolver, name, 0).is_none()).count();
        assert_eq!(begun, DOUBTFUL_LOOKUPS_MAX);
        assert!(until_known(&resolver, "nf.example", 0).is_ok());
    }

    #[test]
    fn addresses_are_used_for_a_while_although_their_look_up_hangs() {
        let (resolver, _held, asked) = resolver();
        until_known(&resolver, "nf.example", 0).unwrap();
        known(&resolver, "nf.example", 5).unwrap().unwrap();
        assert_eq!(asked.lock().unwrap().len(), 1);
        // From here on it is not answered.
        let addresses = resolver.names.borrow_mut().remove("nf.example");
        resolver.names.borrow_mut().insert("hole".to_owned(), addresses.unwrap());
        for second in [6, 60] {
            known(&resolver, "hole", second).unwrap().unwrap();
        }
        assert!(known(&resolver, "hole", 61).is_none(), "they are too old");
        until_known(&resolver, "nf.example", 100).unwrap();
        // The thread of the other one may be late.
        while asked.lock().unwrap().len() < 3 {
            std::thread::yield_now();
        }
        assert_eq!(asked.lock().unwrap().len(), 3, "one for each");
    }

    #[test]
    fn an_executor_ends_while_a_look_up_hangs() {
        let (resolver, held, asked) = resolver();
        let executor = Executor::new(&ExecutorConfig::default()).unwrap();
        let is_answered = executor.run(async move {
            let found = resolver.resolve("nf.example").await.unwrap();
            let literal = resolver.resolve("::1").await.unwrap();
            assert_eq!((found.len(), literal.len()), (1, 1));
            timeout(Duration::from_millis(10), resolver.resolve("hole")).await.is_some()
        });
        assert!(!is_answered);
        while asked.lock().unwrap().len() < 2 {
            std::thread::yield_now();
        }
        // It waits for no thread: the look-up ends only behind it.
        drop(executor);
        drop(held);
    }
}
