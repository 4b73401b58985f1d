//! The table of all requests and internal commands, one row each: the handler, the leases recalled before it, the leases
//! granted with its reply. `tessera_wire` says which role may send a request.
//!
//! A *command* changes rows: a group commit applies and logs it, and a replay of the log applies it again. A *read* is
//! answered from the committed state; a *committed read* needs nothing but the database. A *report* changes soft state at once, proposes commands for changes that must be
//! logged, and is answered once those are committed. To add a request, add its message and row to `tessera_wire`, a
//! row here and its handler.

use crate::chunks::{garbage, refs};
use crate::coherence::leases::{LeaseGrants, LeaseTarget};
use crate::config::Config;
use crate::ctx::{Ctx, View};
use crate::db::Db;
use crate::error::{Failure, Result, refuse};
use crate::files::{self, commit, compare, expiry, open, reads, sessions, unpacked, versions};
use crate::internal::*;
use crate::log::{lease_effects as leases, records};
use crate::map::delta;
use crate::namespace::{bulk, names};
use crate::nodes::{heartbeat, membership, status};
use crate::placement::groups;
use crate::repair::{backfill, inventory, maintenance, proof, rebuild};
use bytes::Bytes;
use prost::Message;
use tessera_wire::meta::*;
use tessera_wire::{Ack, Code, Kind, Request};

macro_rules! table {
    (
        commands { $($command:ident => $apply:path, recalls $recalls:expr, grants $grants:expr;)* }
        repeatable { $($repeatable:ident => $apply_repeatable:path;)* }
        internal { $($number:literal $internal:ident => $apply_internal:path, recalls $internal_recalls:expr;)* }
        committed_reads { $($committed:ident => $list:expr;)* }
        reads { $($read:ident => $answer:expr;)* }
        leased_reads { $($leased:ident => $entry:expr;)* }
        descriptions { $($description:ident => $describe:expr;)* }
        reports { $($report:ident => $take_in:expr, $reply:expr;)* }
    ) => {
        /// A mutating request or internal command, decoded.
        #[derive(Debug, Clone)]
        #[allow(missing_docs, reason = "each is the message of that name")]
        #[allow(clippy::large_enum_variant, reason = "commands live in a queue only")]
        pub enum Command {
            $($command($command),)*
            $($repeatable($repeatable),)*
            $($internal($internal),)*
        }

        $(impl Internal for $internal { const KIND: u32 = $number; })*

        impl Command {
            /// Decodes the request of `kind`; `None` if it is not a command.
            pub fn from_request(kind: Kind, body: &Bytes) -> Option<Result<Command>> {
                match kind {
                    $(Kind::$command => Some(decode(kind.name(), body).map(Command::$command)),)*
                    $(Kind::$repeatable => Some(decode(kind.name(), body).map(Command::$repeatable)),)*
                    _ => None,
                }
            }

            fn internal(kind: u32, body: &Bytes) -> Option<Result<Command>> {
                match kind {
                    $($number => Some(decode(stringify!($internal), body).map(Command::$internal)),)*
                    _ => None,
                }
            }

            /// Whether requests for this command carry an op id, which identifies retries.
            fn has_op_id(&self) -> bool {
                matches!(self, $(Command::$command(_))|*)
            }

            fn handle(&self, ctx: &mut Ctx<'_>) -> Result<Bytes> {
                match self {
                    $(Command::$command(r) => encode_reply(r, $apply(ctx, r)?),)*
                    $(Command::$repeatable(r) => encode_reply(r, $apply_repeatable(ctx, r)?),)*
                    $(Command::$internal(c) => $apply_internal(ctx, c).map(|()| Bytes::new()),)*
                }
            }

            /// The lease targets that the command changes, as far as the database shows before it is applied. If an earlier
            /// waiting command gives a name to another inode, the targets of that command cover the name.
            pub fn recalls(&self, db: &Db) -> Result<Vec<LeaseTarget>> {
                match self {
                    $(Command::$command(r) => {
                        let recalls: fn(&Db, &$command) -> Result<Vec<LeaseTarget>> = $recalls;
                        recalls(db, r)
                    })*
                    $(Command::$repeatable(_) => Ok(Vec::new()),)*
                    $(Command::$internal(c) => {
                        let recalls: fn(&Db, &$internal) -> Result<Vec<LeaseTarget>> = $internal_recalls;
                        recalls(db, c)
                    })*
                }
            }

            /// Leases that the command's reply may grant.
            pub fn grants(&self, db: &Db) -> LeaseGrants {
                match self {
                    $(Command::$command(r) => {
                        let grants: fn(&Db, &$command) -> LeaseGrants = $grants;
                        grants(db, r)
                    })*
                    _ => LeaseGrants::default(),
                }
            }
        }

        /// Whether a request is a committed read.
        pub fn is_committed_read(kind: Kind) -> bool {
            matches!(kind, $(Kind::$committed)|*)
        }

        /// Answers a read that needs the database alone; `None` if the request is not such a read.
        pub fn read_committed(db: &Db, config: &Config, kind: Kind, body: &Bytes) -> Option<Result<Bytes>> {
            Some(match kind {
                $(Kind::$committed => decode::<$committed>(kind.name(), body).and_then(|r| {
                    let list: fn(&Db, &Config, &$committed) -> Result<<$committed as Request>::Reply> = $list;
                    encode_reply(&r, list(db, config, &r)?)
                }),)*
                _ => return None,
            })
        }

        /// Answers a read; `None` if the request is not a read.
        pub fn read(view: &mut View<'_>, client_id: u64, kind: Kind, body: &Bytes) -> Option<Result<ReadReply>> {
            Some(match kind {
                $(Kind::$read => decode::<$read>(kind.name(), body).and_then(|r| {
                    let answer: fn(&mut View<'_>, u64, &$read) -> Result<<$read as Request>::Reply> = $answer;
                    Ok(ReadReply::Plain(encode_reply(&r, answer(view, client_id, &r)?)?))
                }),)*
                $(Kind::$leased => decode::<$leased>(kind.name(), body).and_then(|r| {
                    let entry: fn(&Db, &$leased) -> Result<Entry> = $entry;
                    let entry = entry(view.db, &r)?;
                    Ok(match r.want_lease {
                        true => ReadReply::Leased(Box::new(entry)),
                        false => ReadReply::Plain(encode_reply(&r, entry)?),
                    })
                }),)*
                $(Kind::$description => decode::<$description>(kind.name(), body).and_then(|r| {
                    let describe: fn(&View<'_>, &$description) -> Result<DescribeReadsReply> = $describe;
                    let reply = describe(view, &r)?;
                    Ok(match r.want_leases {
                        true => ReadReply::Described(Box::new(reply)),
                        false => ReadReply::Plain(encode_reply(&r, reply)?),
                    })
                }),)*
                _ => return None,
            })
        }

        /// Handles a report; `None` if the request is not a report. The caller commits the view's proposals and then composes
        /// the answer ([`reply`]).
        pub fn take_in(view: &mut View<'_>, kind: Kind, body: &Bytes) -> Option<Result<()>> {
            Some(match kind {
                $(Kind::$report => decode::<$report>(kind.name(), body).and_then(|r| {
                    let take_in: fn(&mut View<'_>, &$report) -> Result<()> = $take_in;
                    take_in(view, &r)
                }),)*
                _ => return None,
            })
        }

        /// The answer to a report that [`take_in`] handled.
        pub fn reply(view: &mut View<'_>, kind: Kind, body: &Bytes) -> Result<Bytes> {
            match kind {
                $(Kind::$report => {
                    let reply: fn(&mut View<'_>, &$report) -> Result<<$report as Request>::Reply> = $reply;
                    let r = decode::<$report>(kind.name(), body)?;
                    encode_reply(&r, reply(view, &r)?)
                })*
                _ => refuse(Code::Unsupported, format!("{} is not for a manager", kind.name())),
            }
        }
    };
}

table! {
    commands {
        MakeDir => names::make_dir, recalls |_, r| leases::names_in(r.parent), grants leases::new_directory;
        MakeNode => names::make_node, recalls |_, r| leases::names_in(r.parent), grants leases::new_node;
        Unlink => names::unlink, recalls |db, r| leases::entry(db, r.parent, &r.name), grants leases::no_grant;
        RemoveNames => names::remove_names, recalls leases::entries, grants leases::no_grant;
        MakeEntries => bulk::make_entries, recalls leases::new_entries, grants leases::no_grant;
        SetAttrs => bulk::set_attrs, recalls leases::attributes, grants leases::no_grant;
        Rename => names::rename, recalls leases::renamed, grants leases::no_grant;
        Link => names::link, recalls leases::linked, grants leases::no_grant;
        Symlink => names::symlink, recalls |_, r| leases::names_in(r.parent), grants leases::no_grant;
        SetAttr => names::set_attr, recalls |db, r| leases::inode(db, r.ino), grants |_, r| leases::on_inode(r.want_lease);
        SetXattr => names::set_xattr, recalls |db, r| leases::inode(db, r.ino), grants leases::no_grant;
        RemoveXattr => names::remove_xattr, recalls |db, r| leases::inode(db, r.ino), grants leases::no_grant;
        OpenWrite => open::open_write, recalls leases::nothing, grants leases::no_grant;
        AllocateChunks => open::allocate_chunks, recalls leases::nothing, grants leases::no_grant;
        Commit => commit::commit, recalls leases::committed, grants leases::with_commit;
        CompleteFragments => commit::complete_fragments, recalls leases::nothing, grants leases::no_grant;
        RegisterNode => membership::register, recalls leases::nothing, grants leases::no_grant;
        Drain => membership::drain, recalls leases::nothing, grants leases::no_grant;
    }
    // Commands without an `op_id`: they are idempotent.
    repeatable {
        CloseSession => sessions::close;
    }
    // Numbers are never reused.
    internal {
        0x8001 NewTerm => records::new_term, recalls leases::nothing;
        0x8002 RecordRefusal => records::record_refusal, recalls leases::nothing;
        0x8003 EndSessions => sessions::end_sessions, recalls leases::nothing;
        0x8004 PersistReaders => sessions::persist_readers, recalls leases::nothing;
        0x8005 TrimVersions => versions::trim_versions, recalls leases::nothing;
        0x8006 ReleaseOrphans => versions::release_orphans, recalls leases::nothing;
        0x8007 SweepPages => refs::sweep, recalls leases::nothing;
        0x8008 PruneReplies => records::prune_replies, recalls leases::nothing;
        0x8009 NoteLeases => records::note_leases, recalls leases::nothing;
        0x800a ExpireFiles => expiry::expire_files, recalls |db, c| leases::expired(db, &c.inos);
        0x800b NoteLockers => records::note_lockers, recalls leases::nothing;
        0x800c CompareMetadata => records::compare_metadata, recalls leases::nothing;
        0x8110 SetNodeHealth => membership::set_node_health, recalls leases::nothing;
        0x8111 FailDisks => membership::fail_disks, recalls leases::nothing;
        0x8112 MoveMembers => backfill::move_members, recalls leases::nothing;
        0x8113 AdvanceBackfill => backfill::advance_backfill, recalls leases::nothing;
        0x8114 FinishBackfills => backfill::finish_backfills, recalls leases::nothing;
        0x8115 FragmentsDone => rebuild::fragments_done, recalls leases::nothing;
        0x8116 FragmentsBad => rebuild::fragments_bad, recalls leases::nothing;
        0x8117 DeletesDone => garbage::deletes_done, recalls leases::nothing;
        0x8118 CollectGarbage => garbage::collect, recalls leases::nothing;
        0x8119 SetInventory => inventory::set_inventory, recalls leases::nothing;
        0x811a InventoryPage => inventory::apply_page, recalls leases::nothing;
        0x811b DisksDrained => membership::drained, recalls leases::nothing;
        0x811c SetGroups => groups::set_groups, recalls leases::nothing;
        0x811d ChunksProven => proof::chunks_proven, recalls leases::nothing;
        0x811e ChunksUnreadable => proof::chunks_unreadable, recalls leases::nothing;
    }
    // They may be long, so they run beside the core ([`crate::core::reading`]).
    committed_reads {
        List => |db, config, r| names::list(db, r, config.max_list_entries);
        ListMany => |db, config, r| bulk::list_many(db, r, config.max_list_entries);
        ListXattrs => |db, _, r| names::list_xattrs(db, r);
        ListVersions => |db, _, r| reads::list_versions(db, r);
        ListPacks => |db, _, r| reads::list_packs(db, r);
        CompareFiles => |db, _, r| compare::compare_files(db, r);
    }
    reads {
        OpenRead => reads::open_read;
        ListExtents => |view, _, r| reads::list_extents(view, r);
        ListUnpacked => |view, _, r| unpacked::list(view, r);
        ListInlined => |view, _, r| reads::list_inlined(view, r);
        RenewSession => |view, _, r| reads::renew(view, r);
        GetMap => |view, _, r| delta::get_map(view, r);
        GetStatus => |view, _, _| status::get_status(view);
    }
    leased_reads {
        Resolve => names::resolve;
        Lookup => names::lookup;
        GetAttr => names::get_attr;
    }
    descriptions {
        DescribeReads => reads::describe_reads;
    }
    reports {
        Heartbeat => heartbeat::take_in, heartbeat::reply;
        Inventory => heartbeat::take_inventory, |view, r| inventory::reply(view, r);
        ReportBad => rebuild::report_bad, |_, _| Ok(Ack {});
        ReportWork => heartbeat::take_work, |_, _| Ok(Ack {});
        Maintain => maintenance::start, |view, r| maintenance::report(view, r);
    }
}

/// Whether the reply to a read or a report has counts over all chunks.
pub fn needs_counts(kind: Kind) -> bool {
    matches!(kind, Kind::GetStatus | Kind::Maintain)
}

/// Reply to a read.
pub enum ReadReply {
    /// A reply without leases.
    Plain(Bytes),
    /// An entry that the client may cache if leases on its inode and path are granted.
    Leased(Box<Entry>),
    /// Files that the client may cache if leases on their inodes are granted.
    Described(Box<DescribeReadsReply>),
}

impl ReadReply {
    /// The reply, without leases.
    pub fn encode(self) -> Bytes {
        match self {
            ReadReply::Plain(reply) => reply,
            ReadReply::Leased(entry) => entry.encode_to_vec().into(),
            ReadReply::Described(reply) => reply.encode_to_vec().into(),
        }
    }
}

impl Command {
    /// Decodes a logged command or a proposal.
    ///
    /// # Errors
    /// `Corrupt` if this release knows no command of that number, `Invalid` if the body is not the encoded command.
    pub fn decode(kind: u32, body: &Bytes) -> Result<Command> {
        let request = || u16::try_from(kind).ok().and_then(Kind::from_number).and_then(|k| Self::from_request(k, body));
        match Self::internal(kind, body).or_else(request) {
            Some(command) => command,
            None => refuse(
                Code::Corrupt,
                format!(
                    "command log: no command has number {kind:#06x}; run the release that wrote it, or a later one"
                ),
            ),
        }
    }

    /// The op id, which identifies retries of the request; `None` if repeating the command is harmless.
    ///
    /// # Errors
    /// `Invalid` if `body` is not the encoded command.
    pub fn op_id(&self, body: &Bytes) -> Result<Option<u64>> {
        match self.has_op_id() {
            true => decode::<OpId>("request", body).map(|op| Some(op.op_id)),
            false => Ok(None),
        }
    }

    /// Applies the command and returns the encoded reply.
    ///
    /// # Errors
    /// A refusal, or a failure of the database.
    pub fn apply(&self, ctx: &mut Ctx<'_>) -> Result<Bytes> {
        let reply = self.handle(ctx)?;
        files::settle(ctx)?;
        Ok(reply)
    }

    /// Whether the command makes the metadata grow: it is refused while the manager's disk is nearly full.
    pub fn grows(&self) -> bool {
        use Command::*;
        matches!(
            self,
            MakeDir(_) | MakeEntries(_) | MakeNode(_) | Link(_) | Symlink(_) | SetXattr(_) | AllocateChunks(_)
        ) || match self {
            // What packs take leaves the metadata, or lets older packs go.
            OpenWrite(open) => open.pack_like == 0,
            Commit(commit) => commit.pack.as_ref().is_none_or(|pack| pack.moved.is_empty()),
            _ => false,
        }
    }

    /// Whether the command changed nothing and its reply must not be cached: a retry may succeed.
    pub fn is_stale_answer(&self, reply: &Bytes) -> bool {
        matches!(self, Command::Commit(_))
            && CommitReply::decode(reply.clone()).is_ok_and(|reply| !reply.stale.is_empty())
    }
}

/// Decodes a message from a peer or from the log.
///
/// # Errors
/// `Invalid` if `body` is not the encoded message.
pub fn decode<M: Message + Default>(name: &str, body: &Bytes) -> Result<M> {
    M::decode(body.clone())
        .map_err(|why| Failure::refused(Code::Invalid, format!("{name}: the message cannot be decoded: {why}")))
}

/// Encodes the reply to `_request`, so that the compiler checks its type.
fn encode_reply<R: Request>(_request: &R, reply: R::Reply) -> Result<Bytes> {
    Ok(reply.encode_to_vec().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_survive_the_log() {
        let command = AdvanceBackfill { pg_id: 1, position: 2, incoming: 3, from: 4, to: 5, done: vec![6] };
        let logged = command.propose();
        match Command::decode(logged.kind, &logged.body).unwrap() {
            Command::AdvanceBackfill(decoded) => assert_eq!(decoded, command),
            other => panic!("{other:?}"),
        }
        assert!(Command::decode(0xffff, &Bytes::new()).is_err());
    }

    #[test]
    fn the_number_of_a_request_is_read_from_its_envelope() {
        let body: Bytes = MakeDir { op_id: 77, parent: 1, ..Default::default() }.encode_to_vec().into();
        let command = Command::from_request(Kind::MakeDir, &body).unwrap().unwrap();
        assert_eq!(command.op_id(&body).unwrap(), Some(77));
        let body: Bytes = CloseSession { session_id: 77, ..Default::default() }.encode_to_vec().into();
        let command = Command::from_request(Kind::CloseSession, &body).unwrap().unwrap();
        assert_eq!(command.op_id(&body).unwrap(), None);
    }
}
