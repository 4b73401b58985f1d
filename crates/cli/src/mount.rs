//! `tessera mount`: the store as a directory, until it is unmounted or asked to stop.

use crate::args::{Common, MountArgs};
use crate::daemon::announce::Announcement;
use crate::daemon::logging;
use crate::daemon::signals::{Event, Events};
use crate::exit::{Exit, Failure, Outcome};
use crate::remote::Store;
use crate::term::Out;
use crossbeam_channel::RecvTimeoutError;
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use tessera_fuse::spool::{SpoolError, SpoolOptions};
use tessera_fuse::{Mount, MountError, Options};

/// Between two looks whether somebody unmounted it.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Mounts, serves, unmounts.
pub fn run(args: MountArgs) -> Outcome {
    let out = Out::new(args.common.talk);
    logging::start_for_command(true)?;
    let events = Events::listen(false)?;
    if args.follow_stdin {
        events.follow_stdin()?;
    }
    let mount = start(&args.common, &args.dir, options(&args))?;
    let shown = mount.path().display().to_string();
    match out.json() {
        _ if args.announce => {
            Announcement { role: "mount".into(), listen: vec![shown.clone()], metrics: None }.print(true);
        }
        true => out.document(&json!({"mounted": shown, "manager": args.common.manager}))?,
        false => out.line(format!("tess:/ is mounted at {shown}; Ctrl-C or `umount {shown}` ends it"))?,
    }
    out.flush()?;
    while !mount.is_over() {
        match events.receiver().recv_timeout(LOOK_EVERY) {
            Ok(Event::Stop(_)) | Err(RecvTimeoutError::Disconnected) => break,
            Ok(Event::Child) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
    end(mount)
}

/// Mounts the store that `common` names at `dir`.
pub fn start(common: &Common, dir: &Path, options: Options) -> Outcome<Mount> {
    // A manager that restarts is waited for: programs on the mount see a delay, not an error.
    let client = Store::client(common, tessera_client::Options::default())?;
    Ok(Mount::new(client, dir, options)?)
}

/// Commits what is open, and unmounts.
pub fn end(mount: Mount) -> Outcome {
    let shown = mount.path().display().to_string();
    match mount.unmount() {
        Ok(0) => Ok(()),
        Ok(failed) => Err(Failure::new(
            Exit::Failed,
            format!(
                "{shown}: {failed} files could not be committed; the log above says why, and which of them stay in the spool"
            ),
        )),
        Err(error) => Err(Failure::io(format!("unmount {shown}"), &error)),
    }
}

fn options(args: &MountArgs) -> Options {
    let defaults = Options::default();
    Options {
        cache_ttl: if args.strict { Duration::ZERO } else { Duration::from_millis(args.cache_ms) },
        write_back: !(args.strict || args.no_write_back),
        allow_other: args.allow_other || (defaults.allow_other && !args.private),
        read_only: args.read_only,
        threads: args.threads.into(),
        spool: args.spool.clone().map(|dir| SpoolOptions { dir, limit_bytes: args.spool_size }),
        ..defaults
    }
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        let exit = match &error {
            MountError::NoDirectory { .. } => Exit::NotFound,
            MountError::NoFuse(_) => Exit::Unavailable,
            MountError::Refused { .. } => Exit::Refused,
            MountError::Unknown(_) => Exit::Unavailable,
            MountError::Spool(SpoolError::NotPrivate { .. } | SpoolError::InUse { .. }) => Exit::Refused,
            MountError::Spool(SpoolError::InMount { .. }) => Exit::Usage,
            MountError::Spool(SpoolError::Io { .. }) => Exit::Failed,
        };
        Failure::new(exit, error.to_string())
    }
}
