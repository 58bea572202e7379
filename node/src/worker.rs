//! The life of a core's thread: pin, prepare, serve, drain.

use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::task::Poll;

use nearstate_model::{Error, Result};
use nearstate_store::Region;
use tokio::net::{TcpListener, UnixListener};

use crate::core::{Core, CoreMetric, CoreParts};
use crate::endpoint_context::{Lobby, Reception};
use crate::executor::{self, Class, Executor, Inbox, Join, Meter, Outbox, spawn, timeout};
use crate::limits::Limits;
use crate::listener::{Bound, Census, Door, Handed, accept_tcp, accept_unix};
use crate::placement;
use crate::protocol::{Dismissal, Protocol};
use crate::tls::Tls;

/// What a core's thread is given.
pub(crate) struct Seat {
    pub(crate) index: usize,
    pub(crate) count: usize,
    pub(crate) processor: Option<usize>,
    pub(crate) executor: executor::Config,
    pub(crate) region: Region,
    pub(crate) limits: Arc<Limits>,
    pub(crate) metric: Arc<CoreMetric>,
    pub(crate) census: Arc<Census>,
    /// For each endpoint its protocol.
    pub(crate) faces: Vec<Arc<dyn Protocol>>,
    /// Of each endpoint, as the protocols.
    pub(crate) tls: Vec<Option<Tls>>,
    /// Sockets of this core, with the numbers of their endpoints.
    pub(crate) bound: Vec<(usize, Bound)>,
    pub(crate) handed: Inbox<Handed>,
    /// To every core, this one included.
    pub(crate) hand_over: Vec<Outbox<Handed>>,
    pub(crate) on_dismissed: fn(&Dismissal),
    pub(crate) stop: Inbox<()>,
    pub(crate) stop_all: Vec<Outbox<()>>,
}

/// A core that is about to serve.
struct Open {
    lobby: Rc<Lobby>,
    doors: Vec<Rc<Door>>,
    accepting: Vec<Join<()>>,
    handed: Inbox<Handed>,
    stop: Inbox<()>,
}

pub(crate) fn core_ended() -> Error {
    Error::System {
        detail:
            "a core of the node has ended with a panic, whose words are on the standard error; \
                 start the node again, the region is recovered when it attaches"
                .to_owned(),
        errno: 0,
    }
}

/// Shuts all cores down when one has ended, however it has.
struct EndsAll(Vec<Outbox<()>>);

impl Drop for EndsAll {
    fn drop(&mut self) {
        for stop in &self.0 {
            // Full: it has been told.
            let _ = stop.send(());
        }
    }
}

impl Seat {
    /// Serves until told to stop. Tells once whether it serves.
    pub(crate) fn serve(self, tell: &mpsc::Sender<Result<Arc<Meter>>>) {
        let _ends_all = EndsAll(self.stop_all.clone());
        let prepared = self.executor().and_then(|executor| {
            let (metric, limits) = (Arc::clone(&self.metric), Arc::clone(&self.limits));
            let open = executor.run(async move { self.open() })?;
            Ok((executor, open, metric, limits))
        });
        match prepared {
            Ok((executor, open, metric, limits)) => {
                let _ = tell.send(Ok(executor.meter()));
                executor.run(async move {
                    let lobby = Rc::clone(&open.lobby);
                    spawn(Class::Control, "orders", open.obey()).await;
                    lobby.drain();
                    if timeout(limits.drain_max, lobby.is_empty.pass()).await.is_none() {
                        metric.cut.add(lobby.cut() as u64);
                    }
                });
            }
            Err(error) => {
                let _ = tell.send(Err(error));
            }
        }
    }

    fn executor(&self) -> Result<Executor> {
        if let Some(processor) = self.processor {
            placement::pin(processor)?;
        }
        Executor::new(&self.executor)
    }

    /// Within the runtime: what sockets and protocols need of it is there.
    fn open(self) -> Result<Open> {
        let core = Core::new(CoreParts {
            index: self.index,
            count: self.count,
            region: self.region,
            limits: self.limits,
            metric: self.metric,
            clock: self.executor.clock,
        })?;
        let lobby = Rc::<Lobby>::default();
        let mut doors = Vec::new();
        for (endpoint, (face, tls)) in self.faces.into_iter().zip(self.tls).enumerate() {
            let (name, on_core) = (face.name(), face.on_core(&core)?);
            on_core.begin();
            let lobby = Rc::clone(&lobby);
            let reception = Reception::new(core.clone(), face, on_core, lobby, self.on_dismissed);
            doors.push(Rc::new(Door {
                endpoint,
                reception: Rc::new(reception),
                census: Arc::clone(&self.census),
                name,
                tls,
            }));
        }
        let mut accepting = Vec::new();
        for (endpoint, bound) in self.bound {
            let Some(door) = doors.get(endpoint) else { continue };
            accept(door, bound, &self.hand_over, &mut accepting).map_err(|e| Error::System {
                detail: format!("watching a socket that listens ({e}); raise `ulimit -n`"),
                errno: e.raw_os_error().unwrap_or(0),
            })?;
        }
        Ok(Open { lobby, doors, accepting, handed: self.handed, stop: self.stop })
    }
}

fn accept(
    door: &Rc<Door>,
    bound: Bound,
    cores: &[Outbox<Handed>],
    accepting: &mut Vec<Join<()>>,
) -> std::io::Result<()> {
    match bound {
        Bound::Tcp(listeners) => {
            for listener in listeners {
                let accept = accept_tcp(Rc::clone(door), TcpListener::from_std(listener)?);
                accepting.push(spawn(Class::Request, "accept", accept));
            }
        }
        Bound::Unix(listener) => {
            let listener = UnixListener::from_std(listener)?;
            let accept = accept_unix(Rc::clone(door), listener, cores.to_vec());
            accepting.push(spawn(Class::Request, "accept", accept));
        }
    }
    Ok(())
}

impl Open {
    /// Takes in what other cores hand over, until told to stop. Then nobody comes any more.
    async fn obey(mut self) {
        std::future::poll_fn(|cx| {
            while let Poll::Ready(Some(handed)) = self.handed.poll(cx) {
                if let Some(door) = self.doors.get(handed.endpoint) {
                    door.enter_handed(handed.stream);
                }
            }
            // Told, or nobody is left who could tell.
            self.stop.poll(cx).map(drop)
        })
        .await;
        self.accepting.iter().for_each(Join::cancel);
    }
}
