//! Sessions of writers and readers: finds them, ends them, writes rows for long-lived readers.

use crate::ctx::Ctx;
use crate::db::Db;
use crate::db::sessions::{self, READER, Session, WRITER};
use crate::error::{Result, refuse};
use crate::files::{staged, unfinished};
use crate::internal::{EndSessions, PersistReaders};
use crate::soft::Effect;
use tessera_wire::meta::CloseSession;
use tessera_wire::{Ack, Code};

/// The live writer's session `id`.
///
/// # Errors
/// `SessionExpired` if there is no such session, `Invalid` if it is a reader's, or a failure of the database.
pub fn writer(db: &Db, id: u64) -> Result<Session> {
    match sessions::find(db, id)? {
        Some(session) if session.kind == WRITER => Ok(session),
        Some(_) => refuse(Code::Invalid, format!("session {id} is a reader's; open the file for writing")),
        None => refuse(Code::SessionExpired, format!("session {id} has expired or never was; open the file again")),
    }
}

/// Adds a new writer to soft state once its row is committed.
pub fn opened(ctx: &mut Ctx, session: &Session, reserved_bytes: u64) {
    let &Session { session_id, client_id, .. } = session;
    ctx.after_commit(Effect::SessionOpened { session_id, client_id, now_ns: ctx.now_ns, reserved_bytes });
}

/// Ends a session: deletes its row and its staged pages.
fn end(ctx: &mut Ctx, id: u64) -> Result<()> {
    let row = sessions::delete(ctx.db, id)?;
    ctx.after_commit(Effect::SessionEnded { session_id: id });
    let Some((staged_mode, ino)) = row else { return Ok(()) };
    // The session of preallocated chunks has no file.
    if ino != 0 {
        ctx.after_commit(Effect::CheckOrphan { ino });
    }
    if staged_mode != 0 {
        staged::discard(ctx.db, id)?;
    }
    Ok(())
}

/// Applies [`CloseSession`]. An unknown session is no error, and what it has stored is not looked at.
///
/// # Errors
/// The database fails.
pub fn close(ctx: &mut Ctx, request: &CloseSession) -> Result<Ack> {
    if let Some(session) = sessions::find(ctx.db, request.session_id)?.filter(|session| session.kind == WRITER) {
        unfinished::keep(ctx, &session, &request.stored)?;
    }
    end(ctx, request.session_id)?;
    for id in &request.readers {
        if sessions::find(ctx.db, *id)?.is_none_or(|session| session.kind != WRITER) {
            end(ctx, *id)?;
        }
    }
    Ok(Ack {})
}

/// Applies [`EndSessions`].
///
/// # Errors
/// The database fails.
pub fn end_sessions(ctx: &mut Ctx, command: &EndSessions) -> Result<()> {
    command.session_ids.iter().try_for_each(|&id| end(ctx, id))
}

/// Ends the sessions of all writers. Lost entries may have staged parts of their files, and removed chunks that they were told of: what
/// they commit now could lack these without anybody noticing (P1).
///
/// # Errors
/// The database fails.
pub fn end_writers(ctx: &mut Ctx) -> Result<()> {
    let writers = sessions::all(ctx.db)?.into_iter().filter(|session| session.kind == WRITER);
    writers.map(|session| session.session_id).try_for_each(|id| end(ctx, id))
}

/// Applies [`PersistReaders`].
///
/// # Errors
/// The database fails.
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
