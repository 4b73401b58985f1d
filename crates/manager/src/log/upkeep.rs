//! The core's own logged commands (0x8001..0x800f): terms, ends of sessions, readers that grow old, and cleaning up.
//!
//! What they concern was chosen from soft state and stands in them in full, so that applying the log again needs
//! none of it.

use crate::chunks::refs::{self, RefChanges};
use crate::error::Result;
use crate::files::sessions::{self, READER, Session};
use crate::files::versions;
use crate::namespace::hints::HintSet;
use crate::namespace::inodes;
use crate::state::Ctx;
use crate::state::Internal;

macro_rules! kinds {
    ($($number:literal $name:ident;)*) => { $(impl Internal for $name { const KIND: u32 = $number; })* };
}

kinds! {
    0x8001 NewTerm;
    0x8002 RecordRefusal;
    0x8003 EndSessions;
    0x8004 PersistReaders;
    0x8005 TrimVersions;
    0x8006 ReleaseOrphans;
    0x8007 SweepPages;
    0x8008 PruneAnswers;
    0x8009 NoteLeases;
    0x800b NoteLockers;
}

/// A manager has started (or taken up after a failed commit): its entries bear this term from now on.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NewTerm {
    /// The term.
    #[prost(uint64, tag = "1")]
    pub term: u64,
    /// The database was rebuilt from log replicas: what nodes were told after the last acknowledged entry is
    /// unknown, so epochs and incarnations jump past it (P11).
    #[prost(bool, tag = "2")]
    pub restored: bool,
}

/// A request was refused: a repetition gets the same answer (P8).
#[derive(Clone, PartialEq, prost::Message)]
pub struct RecordRefusal {
    /// Who asked.
    #[prost(uint64, tag = "1")]
    pub client_id: u64,
    /// Its number.
    #[prost(uint64, tag = "2")]
    pub op_id: u64,
    /// The answer.
    #[prost(message, optional, tag = "3")]
    pub error: Option<tessera_wire::Error>,
}

/// Sessions that were not used for too long.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EndSessions {
    /// The sessions.
    #[prost(uint64, repeated, tag = "1")]
    pub session_ids: Vec<u64>,
}

/// A reader that is no longer young.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReaderRow {
    /// Session.
    #[prost(uint64, tag = "1")]
    pub session_id: u64,
    /// Client.
    #[prost(uint64, tag = "2")]
    pub client_id: u64,
    /// When it was opened.
    #[prost(sint64, tag = "3")]
    pub started_ns: i64,
    /// File.
    #[prost(uint64, tag = "4")]
    pub ino: u64,
    /// Version id.
    #[prost(uint64, tag = "5")]
    pub version: u64,
    /// Its number.
    #[prost(uint64, tag = "6")]
    pub number: u64,
}

/// Readers get rows.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PersistReaders {
    /// The readers.
    #[prost(message, repeated, tag = "1")]
    pub readers: Vec<ReaderRow>,
}

/// Files whose old versions nobody reads any more.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrimVersions {
    /// The files.
    #[prost(uint64, repeated, tag = "1")]
    pub inos: Vec<u64>,
}

/// Files without names that nobody has open any more.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReleaseOrphans {
    /// The files.
    #[prost(uint64, repeated, tag = "1")]
    pub inos: Vec<u64>,
}

/// Take off the references of dropped pages.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SweepPages {
    /// Pages at most.
    #[prost(uint32, tag = "1")]
    pub limit: u32,
}

/// Answers nobody will ask for again.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PruneAnswers {
    /// Those of group commits up to this one.
    #[prost(uint64, tag = "1")]
    pub to_seq: u64,
}

/// From now on clients may hold leases; a restarted manager waits for them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NoteLeases {}

/// Who may hold locks: they come back to a restarted manager before it gives any away.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NoteLockers {
    /// The clients, all of them.
    #[prost(fixed64, repeated, tag = "1")]
    pub client_ids: Vec<u64>,
}

/// By how much epochs jump when a manager was restored.
const EPOCH_JUMP: i64 = 1 << 20;

/// By how much the term jumps then: more than the lost manager can have been started unheard.
pub const TERM_JUMP: u64 = 1 << 10;

/// Applies [`NewTerm`].
pub fn new_term(ctx: &mut Ctx, command: &NewTerm) -> Result<()> {
    ctx.meta.term = ctx.meta.term.max(command.term);
    // The first entry of all dates the root.
    ctx.db
        .stmt("UPDATE inodes SET mtime_ns = ?1, ctime_ns = ?1 WHERE ino = 1 AND ctime_ns = 0")?
        .execute([ctx.now_ns])?;
    if command.restored {
        let version = ctx.next_map_version() as i64;
        ctx.db.stmt("UPDATE pgs SET epoch = epoch + ?1, map_version = ?2")?.execute([EPOCH_JUMP, version])?;
        ctx.meta.next_incarnation += EPOCH_JUMP as u64;
        ctx.caches.forget_all();
    }
    Ok(())
}

/// Applies [`EndSessions`].
pub fn end_sessions(ctx: &mut Ctx, command: &EndSessions) -> Result<()> {
    command.session_ids.iter().try_for_each(|&id| sessions::end(ctx, id).map(|_| ()))
}

/// Applies [`PersistReaders`].
pub fn persist_readers(ctx: &mut Ctx, command: &PersistReaders) -> Result<()> {
    for reader in &command.readers {
        let session = Session {
            session_id: reader.session_id,
            kind: READER,
            client_id: reader.client_id,
            started_ns: reader.started_ns,
            ino: reader.ino,
            created: true,
            base_version: reader.version,
            base_number: reader.number,
            domain: 1,
            ..Default::default()
        };
        session.write(ctx.db)?;
    }
    Ok(())
}

/// Applies [`TrimVersions`].
pub fn trim_versions(ctx: &mut Ctx, command: &TrimVersions) -> Result<()> {
    let mut refs = RefChanges::default();
    for &ino in &command.inos {
        ctx.db.stmt("DELETE FROM overdue WHERE ino = ?1")?.execute([ino as i64])?;
        let Some(inode) = inodes::find(ctx.db, ino)? else { continue };
        let Ok(policy) = HintSet::read(&inode.hints).policy() else { continue };
        versions::trim(ctx, &inode, policy.lifetime, &mut refs)?;
    }
    refs.apply(ctx)
}

/// Applies [`ReleaseOrphans`].
pub fn release_orphans(ctx: &mut Ctx, command: &ReleaseOrphans) -> Result<()> {
    for &ino in &command.inos {
        match inodes::find(ctx.db, ino)? {
            Some(inode) if inode.nlink == 0 => versions::release_inode(ctx, ino)?,
            _ => {}
        }
    }
    Ok(())
}

/// Applies [`SweepPages`].
pub fn sweep_pages(ctx: &mut Ctx, command: &SweepPages) -> Result<()> {
    refs::sweep(ctx, command.limit).map(|_| ())
}

/// Applies [`NoteLockers`].
pub fn note_lockers(ctx: &mut Ctx, command: &NoteLockers) -> Result<()> {
    ctx.db.stmt("DELETE FROM lock_clients")?.execute([])?;
    for &client_id in &command.client_ids {
        ctx.db.stmt("INSERT OR IGNORE INTO lock_clients (client_id) VALUES (?1)")?.execute([client_id as i64])?;
    }
    let noted = command.client_ids.iter().copied().collect();
    ctx.after_commit(move |soft| soft.locks.noted(noted));
    Ok(())
}

/// Applies [`PruneAnswers`].
pub fn prune_answers(ctx: &mut Ctx, command: &PruneAnswers) -> Result<()> {
    ctx.db.stmt("DELETE FROM ops WHERE log_seq <= ?1")?.execute([command.to_seq as i64])?;
    Ok(())
}
