//! The certificate by which the other hosts know a host: what they would refuse, and when it ends.

use std::time::{Duration, Instant};

use nearstate_model::Result;
use nearstate_node::HostCertificate;

use super::file::{ClusterFile, FileHost};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A certificate that ends within so many days gives a warning and an alarm.
const VALID_DAYS_MIN: u32 = 14;

/// How often a certificate that is in use is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// Reads the certificate of a host, if the file has certificates, and checks it as other hosts do.
///
/// # Errors
/// `BadArgument`: what they would refuse.
pub(crate) fn checked(file: &ClusterFile, host: &FileHost) -> Result<Option<HostCertificate>> {
    let Some((own, authorities)) = file.certificate(host) else { return Ok(None) };
    let certificate = HostCertificate::read(&own, &authorities, &host.name)?;
    certificate.check(Duration::ZERO)?;
    Ok(Some(certificate))
}

/// How long a certificate is valid, if it is of no use in two weeks.
pub(crate) fn ending(certificate: &HostCertificate) -> Option<String> {
    certificate.check(DAY * VALID_DAYS_MIN).err()?;
    let path = certificate.path().display();
    let mut days = (0..VALID_DAYS_MIN).rev();
    Some(match days.find(|days| certificate.check(DAY * *days).is_ok()) {
        Some(0) => format!("{path} is valid for less than a day"),
        Some(1) => format!("{path} is valid for 1 more day"),
        Some(days) => format!("{path} is valid for {days} more days"),
        None => certificate.check(Duration::ZERO).err()?.to_string(),
    })
}

/// The certificate that a running host uses.
#[derive(Debug, Default)]
pub(crate) struct UsedCertificate {
    certificate: Option<HostCertificate>,
    /// When it was looked at, and what it lacks in two weeks.
    looked: Option<(Instant, Option<String>)>,
}

impl UsedCertificate {
    /// A certificate that is used from now on.
    pub(crate) fn new(certificate: Option<HostCertificate>) -> Self {
        Self { certificate, looked: None }
    }

    /// Why it is of no use in two weeks, as it was found within the last minute.
    pub(crate) fn ending(&mut self, now: Instant) -> Option<String> {
        let looked = self.looked.take();
        let is_new = |looked: &(Instant, _)| now.duration_since(looked.0) < LOOK_INTERVAL;
        let look = || (now, self.certificate.as_ref().and_then(ending));
        self.looked = Some(looked.filter(is_new).unwrap_or_else(look));
        self.looked.as_ref().and_then(|(_, ending)| ending.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::UNIX_EPOCH;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

    use super::*;

    /// A certificate with this name that is valid for this time.
    fn read(folder: &Path, (name, valid): (&str, Duration), host: &str) -> HostCertificate {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = CertifiedIssuer::self_signed(authority, key).unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        // A certificate is valid in the second in which it ends.
        let until = (UNIX_EPOCH.elapsed().unwrap() + valid).saturating_sub(Duration::from_secs(9));
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + until;
        let signed = params.signed_by(&KeyPair::generate().unwrap(), &authority).unwrap();
        let (own, ca) = (folder.join("own.pem"), folder.join("ca.pem"));
        std::fs::write(&own, signed.pem()).unwrap();
        std::fs::write(&ca, authority.pem()).unwrap();
        HostCertificate::read(&own, &ca, host).unwrap()
    }

    #[test]
    fn a_certificate_says_how_long_it_is_valid() {
        let folder = tempfile::tempdir().unwrap();
        let half = DAY / 2;
        for (valid, said) in [
            (DAY * 30, None),
            (DAY * 13 + half, Some("own.pem is valid for 13 more days")),
            (DAY + half, Some("own.pem is valid for 1 more day")),
            (half, Some("own.pem is valid for less than a day")),
            (Duration::ZERO, Some("own.pem: it has expired")),
        ] {
            let certificate = read(folder.path(), ("a", valid), "a");
            let mut used = UsedCertificate::new(Some(certificate));
            let now = Instant::now();
            let ending = used.ending(now);
            assert_eq!(ending, used.ending(now));
            let is_said = |said| ending.as_deref().is_some_and(|ending| ending.contains(said));
            assert!(said.map_or(ending.is_none(), is_said), "{valid:?}: {ending:?}");
        }
    }

    /// As the hosts judge each other, which compare names.
    #[test]
    fn a_wildcard_is_no_name_of_a_host() {
        let folder = tempfile::tempdir().unwrap();
        let check = |name, host| {
            let certificate = read(folder.path(), (name, DAY * 30), host);
            certificate.check(Duration::ZERO).map_err(|error| error.to_string())
        };
        assert_eq!(check("a.site", "a.site"), Ok(()));
        assert_eq!(check("A.site", "a.Site"), Ok(()));
        assert!(
            check("*.east.site", "a.east.site").unwrap_err().contains("a wildcard does not count")
        );
        assert!(check("b.site", "a.site").is_err());
    }
}
