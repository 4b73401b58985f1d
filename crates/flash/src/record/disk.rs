//! The disk that is recorded. What fails is not in the trace.

use super::Recorder;
use super::layout::FileId;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use tessera_disk::{Disk, DiskError, DiskFile, DiskLock, OpenMode, Space};

pub struct RecordingDisk {
    disk: Arc<dyn Disk>,
    recorder: Recorder,
    device: usize,
}

struct RecordingFile {
    file: Arc<dyn DiskFile>,
    id: FileId,
    recorder: Recorder,
    device: usize,
}

impl RecordingDisk {
    pub fn new(disk: Arc<dyn Disk>, recorder: Recorder, device: usize) -> Self {
        RecordingDisk { disk, recorder, device }
    }
}

// What changes names holds the recording's lock meanwhile, so that a name means the same file there and on the disk.
impl Disk for RecordingDisk {
    fn open(&self, path: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let shared = &self.recorder.shared;
        let mut state = shared.state.lock();
        let file = self.disk.open(path, mode)?;
        let id = state.note(&shared.clock, self.device, |_, layout, _| layout.open(path));
        Ok(Arc::new(RecordingFile { file, id, recorder: self.recorder.clone(), device: self.device }))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list(dir)
    }

    fn list_dirs(&self, dir: &str) -> Result<Vec<String>, DiskError> {
        self.disk.list_dirs(dir)
    }

    fn create_dir(&self, dir: &str) -> Result<(), DiskError> {
        self.disk.create_dir(dir)
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        let shared = &self.recorder.shared;
        let mut state = shared.state.lock();
        self.disk.remove(path)?;
        state.note(&shared.clock, self.device, |_, layout, asked| layout.remove(path, asked));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let shared = &self.recorder.shared;
        let mut state = shared.state.lock();
        self.disk.rename(from, to)?;
        state.note(&shared.clock, self.device, |_, layout, asked| layout.rename(from, to, asked));
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        self.disk.sync_dir(dir)?;
        self.recorder.shared.synced_directory(self.device, dir);
        Ok(())
    }

    fn space(&self) -> Result<Space, DiskError> {
        self.disk.space()
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        self.disk.lock()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }

    fn is_poisoned(&self) -> bool {
        self.disk.is_poisoned()
    }
}

impl DiskFile for RecordingFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        self.file.read_at(offset, buf)?;
        let bytes = offset..offset + buf.len() as u64;
        self.recorder.shared.note(self.device, |_, layout, asked| layout.read(self.id, bytes, asked));
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, slices: &[IoSlice<'_>]) -> Result<(), DiskError> {
        self.file.write_vectored_at(offset, slices)?;
        let bytes: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        self.recorder.shared.wrote(self.device, self.id, offset..offset + bytes);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        self.file.sync_data()?;
        self.recorder.shared.synced(self.device, self.id);
        Ok(())
    }

    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }

    fn truncate(&self, len: u64) -> Result<(), DiskError> {
        self.file.truncate(len)?;
        self.recorder.shared.note(self.device, |_, layout, asked| layout.truncate(self.id, len, asked));
        Ok(())
    }

    /// None: what `sendfile` reads from a descriptor would not be seen.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn drop_cache(&self, offset: u64, len: u64) {
        self.file.drop_cache(offset, len);
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.file.will_read(offset, len);
    }

    fn expect_random_reads(&self) {
        self.file.expect_random_reads();
    }

    fn path(&self) -> &str {
        self.file.path()
    }
}

impl Drop for RecordingFile {
    fn drop(&mut self) {
        self.recorder.shared.note(self.device, |_, layout, asked| layout.close(self.id, asked));
    }
}
