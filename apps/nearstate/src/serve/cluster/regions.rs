//! The regions of a host of a cluster: one for each partition of whose group it is.

use std::path::Path;
use std::sync::Arc;

use nearstate_cluster::PartitionId;
use nearstate_model::Result;
use nearstate_node::CopyConfig;
use nearstate_store::{CreateOptions, Region};

use crate::cluster::file::{ClusterFile, FileHost, FilePartition};
use crate::log;

use super::super::region_file::ServedFile;
use super::super::region_lock;
use super::{ClusterHost, RunningHost};

/// A region of this host.
pub(super) struct OpenCopy {
    pub(super) partition: FilePartition,
    pub(super) region: Region,
    _lock: region_lock::RegionLock,
}

impl OpenCopy {
    pub(super) fn config(&self) -> CopyConfig {
        CopyConfig {
            partition: self.partition.id,
            region: self.region.clone(),
            port: self.partition.port,
        }
    }
}

impl RunningHost {
    /// Watches the file of a copy from now on.
    fn watch_file(&mut self, partition: PartitionId, path: &Path) -> Result<()> {
        let (facts, shown) = (Arc::clone(&self.report.facts), path.display().to_string());
        let file = ServedFile::watch(path, move |is_present| {
            facts.set_file(partition, &shown, is_present);
        })?;
        self.files.insert(partition, file);
        Ok(())
    }

    /// The same for all copies.
    ///
    /// # Errors
    /// Those of [`ServedFile::watch`].
    pub(super) fn watch_files(&mut self) -> Result<()> {
        let report = Arc::clone(&self.report);
        let of_copy = |copy: &OpenCopy| {
            (copy.partition.id, report.file.region_file(&report.host, &copy.partition))
        };
        let paths: Vec<_> = self.copies.iter().map(of_copy).collect();
        paths.into_iter().try_for_each(|(partition, path)| self.watch_file(partition, &path))
    }
}

impl ClusterHost<'_> {
    /// Opens or creates the regions.
    pub(super) fn open(&self, file: &ClusterFile, host: &FileHost) -> Result<Vec<OpenCopy>> {
        let own = file.partitions.iter().filter(|of| of.group.contains(&host.id));
        own.map(|partition| self.open_one((file, host), partition)).collect()
    }

    fn open_one(
        &self,
        (file, host): (&ClusterFile, &FileHost),
        partition: &FilePartition,
    ) -> Result<OpenCopy> {
        let path = file.region_file(host, partition);
        let options = CreateOptions {
            bytes_max: partition.region_bytes_max,
            mode: self.settings.region_mode.0,
            any_owner: self.settings.is_any_owner,
            numa: self.place.numa_policy(),
            ..CreateOptions::default()
        };
        let region = Region::attach_or_create(&path, &options)?;
        let lock = region_lock::acquire(&path, false)?;
        if !self.settings.nudsf_storages.0.is_empty() {
            // From the first commit of an owner on, before its notifier runs.
            region.hold_log(Some(0));
        }
        let memory = self.place.memory_of(&region);
        let shown = path.display();
        let mut fields: Vec<(&str, &dyn std::fmt::Display)> =
            vec![("path", &shown), ("partition", &partition.name)];
        if let Some(memory) = &memory {
            fields.push(("memory", memory));
        }
        log::emit(log::REGION_ATTACHED, &fields);
        Ok(OpenCopy { partition: partition.clone(), region, _lock: lock })
    }

    /// Opens the copy of a partition to whose group this host was added. True if it is open.
    pub(super) fn try_open(&self, running: &mut RunningHost, partition: PartitionId) -> bool {
        let report = Arc::clone(&running.report);
        let (file, host) = (&report.file, &report.host);
        let Some(known) = file.partitions.iter().find(|of| of.id == partition) else { return true };
        if running.copies.iter().any(|copy| copy.partition.id == partition) {
            return true;
        }
        let opened = self.open_one((file, host), known).and_then(|copy| {
            running.driver.open_copy(&copy.config(), &running.listener)?;
            running.watch_file(partition, &file.region_file(host, known))?;
            Ok(copy)
        });
        match opened {
            Ok(copy) => running.copies.push(copy),
            Err(reason) => {
                let fields: &log::LogFields<'_> =
                    &[("partition", &known.name), ("reason", &reason)];
                log::emit(log::CLUSTER_COPY_FAILED, fields);
                return false;
            }
        }
        true
    }
}
