//! SIGHUP: the certificates of a host are read again.

use crate::cluster::certificate;
use crate::log;

use super::{ClusterHost, RunningHost};

impl ClusterHost<'_> {
    /// Reads all certificates again, those for clients, for the other hosts and for etcd. If one of
    /// them is of no use, all stay as they are: also if the other hosts would not accept this one
    /// with it any more.
    pub(super) fn reload(&self, running: &RunningHost) {
        let (file, host) = (&running.report.file, &running.report.host);
        let read = self.check_settings(file, host);
        let read = read.and_then(|tls| Ok((tls, file.tls(host)?, file.etcd(host)?)));
        let read = read.and_then(|read| Ok((read, certificate::checked(file, host)?)));
        let ((clients, members, etcd), own) = match read {
            Ok(read) => read,
            Err(error) => {
                return log::emit(log::CERTIFICATES_NOT_RELOADED, &[("reason", &error)]);
            }
        };
        let etcd = etcd.and_then(|etcd| etcd.tls);
        let (clients, members, etcd) = (
            running.tls.as_ref().zip(clients.as_ref()),
            running.member_tls.as_ref().zip(members.as_ref()),
            running.etcd_tls.as_ref().zip(etcd.as_ref()),
        );
        if let Some((tls, read)) = clients {
            tls.resp.renew(&read.resp);
            tls.nudsf.renew(&read.nudsf);
        }
        if let Some((tls, read)) = members {
            tls.renew(read);
            running.report.host_events.set_certificate(own);
        }
        if let Some((tls, read)) = etcd {
            tls.renew(read);
        }
        if clients.is_some() || members.is_some() || etcd.is_some() {
            log::emit(log::CERTIFICATES_RELOADED, &[]);
        }
    }
}
