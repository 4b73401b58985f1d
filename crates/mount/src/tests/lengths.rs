//! Lengths of files that another mount writes while they are open here.

use super::*;

const OTHER: &[u8] = b"of another mount";

/// A file that was `before` when a program opened it for writing, and that another mount has written since.
struct Scene {
    store: Rc<Store>,
    mount: Arc<Mount<Client>>,
    tasks: Tasks,
    ino: u64,
    handle: u64,
}

impl Scene {
    fn new(write_mode: &str, before: &[u8]) -> Scene {
        let (store, disk, mut tasks) = (store(write_mode), SimDisk::new(1), Tasks::default());
        let (mount, queues) = mount(&store, &disk, 1);
        start_pushes(&mut tasks, &mount, queues);
        tasks.spawn(run_drains(store.clone()));
        let ino = store.create(ROOT, b"file", 0).unwrap();
        if !before.is_empty() {
            store.commit(ino, before, 0);
        }
        let opened = tasks.run(async {
            mount.lookup((ROOT, b"file")).await.unwrap();
            mount.open(ino, true).await.unwrap()
        });
        store.commit(ino, OTHER, 0);
        Scene { store, mount, tasks, ino, handle: opened.handle }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.tasks.run(self.mount.write(self.handle, offset, bytes)).unwrap();
    }

    fn sync(&mut self) {
        self.tasks.run(self.mount.fsync(self.handle)).unwrap();
    }

    /// Content of the file after the close.
    fn close(mut self) -> Vec<u8> {
        self.tasks.run(async {
            self.mount.flush(self.ino, self.handle, OWNER).await.unwrap();
            self.mount.release(self.ino, self.handle, None).await;
            until_pushed(&self.mount).await;
        });
        assert_eq!(self.store.list(ROOT).len(), 1, "nothing is kept beside it");
        self.store.current(self.ino).bytes
    }
}

const MODES: [&str; 2] = ["sliding-window", "incremental"];

/// A program that keeps its handle reads, and appends to, the file as it was committed.
#[test]
fn a_commit_over_another_mounts_version_brings_its_length() {
    for mode in MODES {
        let mut scene = Scene::new(mode, b"");
        scene.write(0, b"mine");
        scene.sync();
        let shown = scene.tasks.run(scene.mount.attributes(scene.ino)).unwrap().size_bytes;
        assert_eq!(shown, OTHER.len() as u64, "{mode}");
        let read = scene.tasks.run(scene.mount.read(scene.handle, 0, 100)).unwrap();
        assert_eq!(read, b"minenother mount", "{mode}");
        scene.write(shown, b"...");
        assert_eq!(scene.close(), b"minenother mount...", "{mode}");
    }
}
