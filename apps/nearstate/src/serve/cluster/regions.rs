//! The regions of a host of a cluster: one for each partition of whose group it is.

use std::sync::Arc;

use nearstate_cluster::PartitionId;
use nearstate_model::Result;
use nearstate_node::CopyConfig;
use nearstate_store::{CreateOptions, Region};

use crate::cluster::file::{ClusterFile, FileHost, FilePartition};
use crate::log;

use super::super::memory_budget;
use super::super::region_file::ServedFile;
use super::super::region_lock;
use super::{ClusterHost, RunningHost};

/// A region of this host.
pub(super) struct OpenCopy {
    pub(super) partition: FilePartition,
    pub(super) region: Region,
    lock: region_lock::RegionLock,
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
    fn watch_file(&mut self, copy: &OpenCopy) -> Result<()> {
        let (report, partition) = (Arc::clone(&self.report), copy.partition.id);
        let path = report.file.region_file(&report.host, &copy.partition);
        let shown = path.display().to_string();
        let file = ServedFile::watch(&path, copy.lock.identity()?, move |is_present| {
            report.host_events.set_file(partition, &shown, is_present);
        })?;
        self.files.insert(partition, file);
        Ok(())
    }

    /// The same for all copies.
    ///
    /// # Errors
    /// Those of [`ServedFile::watch`].
    pub(super) fn watch_files(&mut self) -> Result<()> {
        let copies = std::mem::take(&mut self.copies);
        let watched = copies.iter().try_for_each(|copy| self.watch_file(copy));
        self.copies = copies;
        watched
    }
}

impl ClusterHost<'_> {
    /// Opens or creates the regions.
    pub(super) fn open(&self, file: &ClusterFile, host: &FileHost) -> Result<Vec<OpenCopy>> {
        let own: Vec<_> = file.partitions.iter().filter(|of| of.group.contains(&host.id)).collect();
        self.check_memory((file, host), &own)?;
        own.into_iter().map(|partition| self.open_one((file, host), partition)).collect()
    }

    /// Checks that the regions of all these partitions fit into the memory limit together, with
    /// what a node needs: else the host would fail when it owns them.
    fn check_memory(
        &self,
        (file, host): (&ClusterFile, &FileHost),
        partitions: &[&FilePartition],
    ) -> Result<()> {
        let Some(first) = partitions.first() else { return Ok(()) };
        let settings = self.partition_settings((file, host), first);
        let sizes = partitions.iter().map(|partition| partition.region_bytes_max);
        memory_budget(&settings, &self.place, sizes.fold(0, u64::saturating_add)).map(drop)
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
        Ok(OpenCopy { partition: partition.clone(), region, lock })
    }

    /// Opens the copy of a partition to whose group this host was added. True if it is open.
    pub(super) fn try_open(&self, running: &mut RunningHost, partition: PartitionId) -> bool {
        let report = Arc::clone(&running.report);
        let (file, host) = (&report.file, &report.host);
        let Some(known) = file.partitions.iter().find(|of| of.id == partition) else { return true };
        if running.copies.iter().any(|copy| copy.partition.id == partition) {
            return true;
        }
        let all: Vec<_> =
            running.copies.iter().map(|copy| &copy.partition).chain([known]).collect();
        let checked = self.check_memory((file, host), &all);
        let opened = checked.and_then(|()| self.open_one((file, host), known)).and_then(|copy| {
            running.driver.open_copy(&copy.config(), &running.listener)?;
            Ok(copy)
        });
        match opened {
            Ok(copy) => {
                report.host_events.copy_opened(partition);
                // The driver has it, so it stays open.
                if let Err(reason) = running.watch_file(&copy) {
                    let fields: &log::LogFields<'_> =
                        &[("partition", &known.name), ("reason", &reason)];
                    log::emit(log::CLUSTER_COPY_FAILED, fields);
                }
                running.copies.push(copy);
                true
            }
            Err(reason) => {
                report.host_events.copy_failed((file, partition), &reason.to_string());
                false
            }
        }
    }
}
