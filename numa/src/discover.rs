//! Finds the topology of this machine, or of another one from a file or a folder.

use std::path::Path;

use nearstate_model::{Error, Result};

use crate::hwloc_xml;
use crate::sysfs::SysTree;
use crate::text_file;
use crate::topology::Topology;

/// The largest XML file: that of a machine with 4,096 processors has 6 MiB.
const XML_BYTES_MAX: u64 = 64 << 20;

/// Reads the topology of this machine, an XML file of hwloc, or a folder with a copy of `/sys`.
///
/// # Errors
/// `BadArgument` if the file or folder describes no machine, `System` if it cannot be read.
pub fn discover(from: Option<&Path>) -> Result<Topology> {
    let Some(path) = from else {
        let mut parts = SysTree::live()?.read()?;
        parts.architecture = Some(std::env::consts::ARCH.to_owned());
        return Topology::new(parts);
    };
    let origin = path.display().to_string();
    if path.is_dir() {
        return Topology::new(SysTree::open(path, origin)?.read()?);
    }
    let archives = [".tar", ".gz", ".bz2", ".xz", ".zip", ".tgz"];
    if archives.iter().any(|end| origin.ends_with(end)) {
        return Err(Error::BadArgument {
            detail: format!("{origin} is an archive; unpack it and give the folder with sys in it"),
        });
    }
    let text = text_file::read(path, XML_BYTES_MAX)?.ok_or_else(|| Error::BadArgument {
        detail: format!(
            "{origin} does not exist; give an XML file of hwloc (`lstopo machine.xml`) or a copy \
             of /sys"
        ),
    })?;
    Topology::new(hwloc_xml::parse(&text, &origin)?)
}
