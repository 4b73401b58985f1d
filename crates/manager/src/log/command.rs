//! Commands: mutating requests and the manager's own, decoded once, dispatched to what applies them.

use crate::chunks::dedup;
use crate::error::{Failure, Result, invalid, refuse};
use crate::files::commit;
use crate::files::expiry::{self, ExpireFiles};
use crate::files::sessions;
use crate::log::cluster;
use crate::log::upkeep::{self, *};
use crate::namespace::names;
use crate::state::Ctx;
use crate::state::Internal;
use bytes::Bytes;
use prost::Message;
use tessera_wire::meta::*;
use tessera_wire::{Ack, Code, Kind, Request};

macro_rules! commands {
    ($($name:ident: $($op:ident)?;)*) => {
        /// A mutating request or internal command, decoded.
        #[derive(Debug, Clone)]
        #[allow(missing_docs, reason = "each is the message of that name")]
        #[allow(clippy::large_enum_variant, reason = "they live in a queue only")]
        pub enum Command {
            $($name($name),)*
            NewTerm(NewTerm),
            RecordRefusal(RecordRefusal),
            EndSessions(EndSessions),
            PersistReaders(PersistReaders),
            TrimVersions(TrimVersions),
            ReleaseOrphans(ReleaseOrphans),
            SweepPages(SweepPages),
            PruneAnswers(PruneAnswers),
            NoteLeases(NoteLeases),
            ExpireFiles(ExpireFiles),
            NoteLockers(NoteLockers),
            /// Applied by [`cluster::apply`]: kind, encoded message, its `op_id`.
            Cluster(u32, Bytes, Option<u64>),
        }

        impl Command {
            /// Decodes the request of `kind`; None if it is no command.
            pub fn from_request(kind: Kind, body: &Bytes) -> Option<Result<Command>> {
                match kind {
                    $(Kind::$name => Some(decode::<$name>(kind as u32, body).map(Command::$name)),)*
                    Kind::RegisterNode => Some(decode::<RegisterNode>(kind as u32, body)
                        .map(|r| Command::Cluster(kind as u32, body.clone(), Some(r.op_id)))),
                    Kind::Drain => Some(decode::<Drain>(kind as u32, body)
                        .map(|r| Command::Cluster(kind as u32, body.clone(), Some(r.op_id)))),
                    _ if cluster::is_command(kind) => Some(Ok(Command::Cluster(kind as u32, body.clone(), None))),
                    _ => None,
                }
            }

            /// The number that makes a repeated request recognizable; None: repeating is harmless by itself.
            pub fn op_id(&self) -> Option<u64> {
                match self {
                    $(Command::$name(_request) => { $(return Some(_request.$op);)? #[allow(unreachable_code)] None })*
                    Command::Cluster(_, _, op_id) => *op_id,
                    _ => None,
                }
            }
        }
    };
}

commands! {
    MakeDir: op_id;
    MakeNode: op_id;
    Unlink: op_id;
    Rename: op_id;
    Link: op_id;
    Symlink: op_id;
    SetAttr: op_id;
    SetXattr: op_id;
    RemoveXattr: op_id;
    OpenWrite: op_id;
    AllocateChunks: op_id;
    Commit: op_id;
    CompleteFragments: op_id;
    CloseSession: ;
}

fn decode<M: Message + Default>(kind: u32, body: &Bytes) -> Result<M> {
    M::decode(body.clone())
        .map_err(|why| Failure::refused(Code::Invalid, format!("message of kind {kind:#06x} cannot be decoded: {why}")))
}

impl Command {
    /// Decodes a logged command or a proposal.
    pub fn decode(kind: u32, body: &Bytes) -> Result<Command> {
        Ok(match kind {
            NewTerm::KIND => Command::NewTerm(decode(kind, body)?),
            RecordRefusal::KIND => Command::RecordRefusal(decode(kind, body)?),
            EndSessions::KIND => Command::EndSessions(decode(kind, body)?),
            PersistReaders::KIND => Command::PersistReaders(decode(kind, body)?),
            TrimVersions::KIND => Command::TrimVersions(decode(kind, body)?),
            ReleaseOrphans::KIND => Command::ReleaseOrphans(decode(kind, body)?),
            SweepPages::KIND => Command::SweepPages(decode(kind, body)?),
            PruneAnswers::KIND => Command::PruneAnswers(decode(kind, body)?),
            NoteLeases::KIND => Command::NoteLeases(decode(kind, body)?),
            ExpireFiles::KIND => Command::ExpireFiles(decode(kind, body)?),
            NoteLockers::KIND => Command::NoteLockers(decode(kind, body)?),
            0x8100.. => Command::Cluster(kind, body.clone(), None),
            _ => match u16::try_from(kind).ok().and_then(Kind::from_number).and_then(|k| Self::from_request(k, body)) {
                Some(command) => command?,
                None => {
                    return refuse(
                        Code::Corrupt,
                        format!("command log: no command has number {kind:#06x}; a later release wrote it"),
                    );
                }
            },
        })
    }

    /// Applies the command; the encoded answer.
    pub fn apply(&self, ctx: &mut Ctx) -> Result<Bytes> {
        if self.op_id() == Some(0) {
            return invalid("op_id is 0; choose a random number per request, and keep it when repeating the request");
        }
        match self {
            Command::MakeDir(r) => reply(r, names::make_dir(ctx, r)?),
            Command::MakeNode(r) => reply(r, names::make_node(ctx, r)?),
            Command::Unlink(r) => reply(r, names::unlink(ctx, r)?),
            Command::Rename(r) => reply(r, names::rename(ctx, r)?),
            Command::Link(r) => reply(r, names::link(ctx, r)?),
            Command::Symlink(r) => reply(r, names::symlink(ctx, r)?),
            Command::SetAttr(r) => reply(r, names::set_attr(ctx, r)?),
            Command::SetXattr(r) => reply(r, names::set_xattr(ctx, r)?),
            Command::RemoveXattr(r) => reply(r, names::remove_xattr(ctx, r)?),
            Command::OpenWrite(r) => reply(r, dedup::open_write(ctx, r)?),
            Command::AllocateChunks(r) => reply(r, dedup::allocate_chunks(ctx, r)?),
            Command::Commit(r) => reply(r, commit::commit(ctx, r)?),
            Command::CompleteFragments(r) => reply(r, commit::complete_fragments(ctx, r)?),
            Command::CloseSession(r) => {
                sessions::end(ctx, r.session_id)?;
                reply(r, Ack {})
            }
            Command::NewTerm(c) => done(upkeep::new_term(ctx, c)),
            Command::RecordRefusal(_) => Ok(Bytes::new()),
            Command::EndSessions(c) => done(upkeep::end_sessions(ctx, c)),
            Command::PersistReaders(c) => done(upkeep::persist_readers(ctx, c)),
            Command::TrimVersions(c) => done(upkeep::trim_versions(ctx, c)),
            Command::ReleaseOrphans(c) => done(upkeep::release_orphans(ctx, c)),
            Command::SweepPages(c) => done(upkeep::sweep_pages(ctx, c)),
            Command::PruneAnswers(c) => done(upkeep::prune_answers(ctx, c)),
            Command::ExpireFiles(c) => done(expiry::expire_files(ctx, c)),
            Command::NoteLeases(_) => {
                ctx.meta.leases_granted = 1;
                Ok(Bytes::new())
            }
            Command::NoteLockers(c) => done(upkeep::note_lockers(ctx, c)),
            Command::Cluster(kind, body, _) => cluster::apply(ctx, *kind, body).map(Bytes::from),
        }
    }

    /// An answer that changed nothing and must not be kept: the same request may do better later.
    pub fn is_stale_answer(&self, reply: &Bytes) -> bool {
        matches!(self, Command::Commit(_))
            && CommitReply::decode(reply.clone()).is_ok_and(|reply| !reply.stale.is_empty())
    }
}

/// The answer to `_request`, encoded; that it is of the right type is checked here.
fn reply<R: Request>(_request: &R, reply: R::Reply) -> Result<Bytes> {
    Ok(reply.encode_to_vec().into())
}

fn done(outcome: Result<()>) -> Result<Bytes> {
    outcome.map(|()| Bytes::new())
}
