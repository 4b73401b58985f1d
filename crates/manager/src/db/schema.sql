-- The data model of Tessera's manager, version 3 (PRAGMA user_version; db.rs checks and migrates it).
--
-- Conventions:
--   * Every id comes from a counter in `meta` and is never used twice.
--   * `_ns` is nanoseconds by the cluster clock (clock.rs) when the command that wrote the row was logged; `mtime_ns`, `ctime_ns`,
--     `atime_ns`, `committed_ns` and `last_wall_ns` are times of day, since 1970.
--   * Rows are a pure function of the command log (ARCHITECTURE.md, "The manager"). They do not depend on a clock,
--     on chance or on unlogged soft state. Soft state (heartbeats, leases, free space, queues, tasks handed out,
--     readers younger than a second) is in memory only.
--   * Numbers that are u64 in memory are stored as their two's complement; ids stay far below 2^63.
--   * Enumerations have the numbers of crates/wire (Health, InodeKind, ...).

-- The one row of counters and totals. It is read once at start, kept in memory and written once per group commit.
CREATE TABLE meta (
    one                 INTEGER PRIMARY KEY CHECK (one = 1),
    cluster_id          BLOB    NOT NULL,              -- 16 bytes
    term                INTEGER NOT NULL DEFAULT 0,    -- grows at each start and restore
    log_seq             INTEGER NOT NULL DEFAULT 0,    -- index of the last entry of the log that is applied
    last_now_ns         INTEGER NOT NULL DEFAULT 0,    -- the cluster clock at the last entry; it never runs backwards
    last_wall_ns        INTEGER NOT NULL DEFAULT 0,    -- the time of day at the last entry; it never runs backwards
    map_version         INTEGER NOT NULL DEFAULT 0,    -- grows with each change of any node, disk, group or class
    leases_granted      INTEGER NOT NULL DEFAULT 0,    -- 1: clients may hold leases after a restart
    -- Counters: the next id to assign.
    next_ino            INTEGER NOT NULL DEFAULT 2,    -- 1 is the root
    next_version        INTEGER NOT NULL DEFAULT 1,
    next_chunk          INTEGER NOT NULL DEFAULT 1,
    next_content        INTEGER NOT NULL DEFAULT 281474976710656, -- 2^48: ids of chunks are smaller
    next_session        INTEGER NOT NULL DEFAULT 1,
    next_pg             INTEGER NOT NULL DEFAULT 1,
    next_node           INTEGER NOT NULL DEFAULT 1,
    next_disk           INTEGER NOT NULL DEFAULT 1,
    next_class          INTEGER NOT NULL DEFAULT 1,
    next_incarnation    INTEGER NOT NULL DEFAULT 1,    -- of any node; jumps at a restore (P11)
    -- Totals that `status` shows; a recount at rest equals them (P4).
    files               INTEGER NOT NULL DEFAULT 0,    -- regular files that have a name
    directories         INTEGER NOT NULL DEFAULT 1,
    versions            INTEGER NOT NULL DEFAULT 0,    -- rows of `versions`
    logical_bytes       INTEGER NOT NULL DEFAULT 0,    -- sum of versions.data_bytes
    chunks              INTEGER NOT NULL DEFAULT 0,    -- committed chunks
    unique_bytes        INTEGER NOT NULL DEFAULT 0,    -- their len_bytes
    stored_bytes        INTEGER NOT NULL DEFAULT 0,    -- their fragments' bytes
    inlined_bytes       INTEGER NOT NULL DEFAULT 0     -- sum of contents.len_bytes where chunk_id is 0
);

---------------------------------------------------------------------------------------------- namespace

-- What names point to. `hints` is the encoded HintSet (user.tessera.*) that was copied from the parent at creation:
-- one column, so that inheriting costs no rows.
CREATE TABLE inodes (
    ino            INTEGER PRIMARY KEY,
    kind           INTEGER NOT NULL,                  -- wire::InodeKind
    mode           INTEGER NOT NULL,
    uid            INTEGER NOT NULL,
    gid            INTEGER NOT NULL,
    nlink          INTEGER NOT NULL,                  -- names; 0: an orphan kept until its last session ends;
                                                      -- directories: 2, and one for each subdirectory
    parent         INTEGER NOT NULL DEFAULT 0,        -- directories: their one parent; others 0
    domain         INTEGER NOT NULL DEFAULT 1,        -- files: the domain whose chunks they may share
    size_bytes     INTEGER NOT NULL DEFAULT 0,
    mtime_ns       INTEGER NOT NULL,
    ctime_ns       INTEGER NOT NULL,
    atime_ns       INTEGER NOT NULL DEFAULT 0,        -- as last set; 0: never set, mtime_ns is shown
    rdev           INTEGER NOT NULL DEFAULT 0,        -- devices: the device number
    version_id     INTEGER NOT NULL DEFAULT 0,        -- current version; 0: never written
    version_number INTEGER NOT NULL DEFAULT 0,        -- its number within the file, from 1
    content        INTEGER NOT NULL DEFAULT 0, -- identifies its bytes: a version that stores the same bytes again keeps it
    symlink_target BLOB,
    hints          BLOB    NOT NULL DEFAULT x''
);
-- Orphans are few. The manager reads them after a restart.
CREATE INDEX inodes_orphan ON inodes (ino) WHERE nlink = 0;

-- Names are bytes.
CREATE TABLE dentries (
    parent INTEGER NOT NULL,
    name   BLOB    NOT NULL,
    ino    INTEGER NOT NULL,
    PRIMARY KEY (parent, name)
) WITHOUT ROWID;
-- The names of a file.
CREATE INDEX dentries_by_ino ON dentries (ino);

-- When files with lifetime=purge are deleted.
CREATE TABLE purges (
    ino    INTEGER PRIMARY KEY,
    due_ns INTEGER NOT NULL
);
CREATE INDEX purges_by_due ON purges (due_ns);

-- Small files that were written by themselves and could share a pack, and when they were written last.
CREATE TABLE unpacked (
    ino      INTEGER PRIMARY KEY,
    since_ns INTEGER NOT NULL
);

-- Extended attributes that are not hints.
CREATE TABLE xattrs (
    ino   INTEGER NOT NULL,
    name  TEXT    NOT NULL,
    value BLOB    NOT NULL,
    PRIMARY KEY (ino, name)
) WITHOUT ROWID;

----------------------------------------------------------------------------------------------- versions

-- The kept versions of each file. `data_bytes` does not count holes.
CREATE TABLE versions (
    ino          INTEGER NOT NULL,
    number       INTEGER NOT NULL,                    -- within the file, from 1
    version_id   INTEGER NOT NULL,                    -- unique in the cluster
    size_bytes   INTEGER NOT NULL,
    data_bytes   INTEGER NOT NULL,
    new_bytes    INTEGER NOT NULL,                    -- of chunks that its writer stored and no version named before
    committed_ns INTEGER NOT NULL,                    -- time of day
    clock_ns     INTEGER NOT NULL,                    -- cluster clock
    PRIMARY KEY (ino, number)
) WITHOUT ROWID;

-- Files with expired versions that a reader still held when they expired.
CREATE TABLE overdue (
    ino INTEGER PRIMARY KEY
);

-- A page is an immutable run of at most 256 extents. Version v of a file is the pages with
-- born <= v and (died IS NULL or died > v); v is the number within the file. Bytes outside all pages are holes. An extent
-- holds the start of the name of its chunk or content as the writer gave it: readers compare it with the row's (P2).
CREATE TABLE pages (
    ino     INTEGER NOT NULL,
    start   INTEGER NOT NULL,                         -- offset of the first extent in the file
    born    INTEGER NOT NULL,
    died    INTEGER,
    end     INTEGER NOT NULL,                         -- end of the last extent
    extents BLOB    NOT NULL,                         -- encoded PageExtents, relative to `start`
    PRIMARY KEY (ino, start, born)
) WITHOUT ROWID;
-- Pages by the version that replaced them: dropping a version may free them.
CREATE INDEX pages_died ON pages (ino, died) WHERE died IS NOT NULL;

-- Pages that a session has staged (partial commits). They count in chunks.refs once staged.
CREATE TABLE staged_pages (
    session_id INTEGER NOT NULL,
    start      INTEGER NOT NULL,                      -- Append: relative to where the appended bytes will start
    end        INTEGER NOT NULL,
    extents    BLOB    NOT NULL,
    PRIMARY KEY (session_id, start)
) WITHOUT ROWID;

-- Unreachable pages whose references are not yet removed. They count in chunks.refs until then. The manager removes
-- the references in batches, so that dropping a huge file does not delay other commands.
CREATE TABLE dropped_pages (
    id      INTEGER PRIMARY KEY,
    extents BLOB NOT NULL,
    kept    INTEGER NOT NULL DEFAULT 0                -- 1: of a write that ended without its commit: see chunks.kept
);

------------------------------------------------------------------------------------------------- chunks

-- Domains: files of one domain may share chunks.
CREATE TABLE domains (
    domain_id INTEGER PRIMARY KEY,
    name      TEXT NOT NULL UNIQUE
);
INSERT INTO domains (domain_id, name) VALUES (1, 'default');

-- A redundancy class fixes everything about how the bytes of a chunk become fragments. Rows never change.
CREATE TABLE classes (
    class_id        INTEGER PRIMARY KEY,
    spec            TEXT    NOT NULL UNIQUE,          -- canonical: none, replica:3, ec:4+2, raid6:8+2, copy+ec:4+2
    k               INTEGER NOT NULL,                 -- fragments of any kind that suffice to read
    m               INTEGER NOT NULL,                 -- fragments of any kind that may be lost
    code            TEXT    NOT NULL,                 -- copy, rs, xor, copy+rs (docs/wire.md, section 6)
    matrix          TEXT    NOT NULL,                 -- cauchy1; of xor liberation; empty for copies
    word_bits       INTEGER NOT NULL DEFAULT 8,       -- of xor: packets of a stripe
    alignment_bytes INTEGER NOT NULL DEFAULT 1,       -- of xor: fragment lengths are rounded up to this, a stripe
    padding         TEXT    NOT NULL DEFAULT 'zero',
    map_version     INTEGER NOT NULL DEFAULT 0        -- meta.map_version when the row was written
);

-- A stored unit of content. (domain, class, hash) is not unique: a chunk may live in more than one group.
-- `refs` = extents in pages, staged_pages and dropped_pages that name it, and rows of contents.
CREATE TABLE chunks (
    chunk_id         INTEGER PRIMARY KEY,             -- never reused
    domain           INTEGER NOT NULL,
    class_id         INTEGER NOT NULL,
    hash             BLOB    NOT NULL,                -- BLAKE3-256
    len_bytes        INTEGER NOT NULL,
    pg_id            INTEGER NOT NULL,
    state            INTEGER NOT NULL,                -- 1 pending, 2 committed (stored: a commit has named it, or its writer has
                                                      -- proven all fragments)
    refs             INTEGER NOT NULL DEFAULT 0,
    zero_since_ns    INTEGER NOT NULL,                -- since when refs = 0 (or last handed out as a dedup hit)
    scope            INTEGER NOT NULL DEFAULT 0,      -- files that may dedup against it: 0 all, -1 none, else this inode's
    encoding         INTEGER NOT NULL DEFAULT 0,      -- 0 plain; compressed, delta-coded and encrypted forms to come
    stored_len_bytes INTEGER,                         -- NULL: len_bytes
    base_chunk_id    INTEGER,                         -- delta-coded: the base chunk
    proof            INTEGER NOT NULL DEFAULT 0,      -- 0 none: pending, or a reader found no fragments that give the name;
                                                      -- 1 copies and slices, on arrival; 2 parity as well, by its nodes
    kept             INTEGER NOT NULL DEFAULT 0,      -- 1: refs = 0 because its writer has not committed (yet); it is kept for a
                                                      -- while (unfinished_keep_ms), so that a repeated write finds it
    proof_epoch      INTEGER NOT NULL DEFAULT 0       -- rises when a client supplies parity or reports the chunk as unreadable:
                                                      -- proofs that began earlier are void
);
CREATE INDEX chunks_by_name ON chunks (domain, class_id, hash);
-- With the class, so that chunks are counted without reading their rows (counts/redundancy.rs).
CREATE INDEX chunks_by_pg ON chunks (pg_id, chunk_id, class_id);
CREATE INDEX chunks_unproven ON chunks (chunk_id) WHERE state = 2 AND proof < 2;
CREATE INDEX chunks_unreferenced ON chunks (kept, zero_since_ns) WHERE refs = 0;

-- A named range of a chunk that is a pack: the content of a small file, or a piece of it. Extents name it as they name chunks, so a
-- pack is written anew by changing rows here and no page. `refs` = extents in pages, staged_pages and dropped_pages that name it; at
-- 0 the row goes. A content of a tiny file lies in `inlined` until it moves into a pack.
CREATE TABLE contents (
    content_id   INTEGER PRIMARY KEY,                 -- from 2^48 on; never reused
    chunk_id     INTEGER NOT NULL,                    -- the pack; 0: it has a row of `inlined`
    chunk_offset INTEGER NOT NULL,
    len_bytes    INTEGER NOT NULL,
    hash         BLOB    NOT NULL,                    -- BLAKE3-256, as the writer gave it; readers compare
    refs         INTEGER NOT NULL
);
CREATE INDEX contents_by_chunk ON contents (chunk_id, len_bytes);
CREATE INDEX contents_inlined ON contents (hash, len_bytes) WHERE chunk_id = 0;

-- The bytes of contents that lie in no pack yet. The manager has compared them with their names, so other files of the domain share them.
CREATE TABLE inlined (
    content_id INTEGER PRIMARY KEY,
    domain     INTEGER NOT NULL,
    class_id   INTEGER NOT NULL,                      -- of the pack that will take it
    since_ns   INTEGER NOT NULL,
    bytes      BLOB    NOT NULL
);

-- Fragments that are absent from the disk that should hold them. The loss of a disk writes no rows: the backfills of
-- its groups find the chunks through chunks_by_pg.
CREATE TABLE missing_fragments (
    chunk_id    INTEGER NOT NULL,
    fragment    INTEGER NOT NULL,
    incoming    INTEGER NOT NULL DEFAULT 0,           -- 0: absent where readers look; wanted on the disk that takes
                                                      -- this member's puts; 1: absent only from the incoming disk
                                                      -- of a member that its old disk still serves
    pg_id       INTEGER NOT NULL,
    cause       INTEGER NOT NULL,                     -- 1 not acknowledged at commit, 2 found bad or absent, 3 passed by a backfill
    since_ns    INTEGER NOT NULL,
    since_epoch INTEGER NOT NULL DEFAULT 0,           -- found bad or absent: puts under older epochs do not count (P11)
    PRIMARY KEY (chunk_id, fragment, incoming)
) WITHOUT ROWID;
CREATE INDEX missing_by_pg ON missing_fragments (pg_id, fragment, chunk_id, incoming);
CREATE INDEX missing_unacknowledged ON missing_fragments (since_ns, chunk_id) WHERE cause = 1;

-- Fragments to delete. A row is written when the chunk's row (or a member) is removed, and removed when the node reports
-- that the delete record is synced. The manager hands a delete out only once entry `log_seq` is committed, so that no later
-- leader needs a fragment that was ordered deleted (P3, P4).
CREATE TABLE deletes (
    disk_id  INTEGER NOT NULL,
    chunk_id INTEGER NOT NULL,
    fragment INTEGER NOT NULL,
    log_seq  INTEGER NOT NULL,
    PRIMARY KEY (disk_id, chunk_id, fragment)
) WITHOUT ROWID;

------------------------------------------------------------------------------------- groups, nodes, disks

CREATE TABLE nodes (
    node_id         INTEGER PRIMARY KEY,
    name            TEXT    NOT NULL,
    host            TEXT    NOT NULL,
    address         TEXT    NOT NULL,
    unix_socket     TEXT    NOT NULL DEFAULT '',
    metrics_address TEXT    NOT NULL DEFAULT '',
    machine         TEXT    NOT NULL DEFAULT '',      -- machine whose clients may use unix_socket: wire::NodeInfo
    health          INTEGER NOT NULL,                 -- wire::Health
    health_since_ns INTEGER NOT NULL,
    incarnation     INTEGER NOT NULL,
    release         TEXT    NOT NULL DEFAULT '',
    receipt_key     BLOB    NOT NULL DEFAULT x'',     -- key of its receipts, 32 bytes: the first that it offered
    map_version     INTEGER NOT NULL
);

CREATE TABLE disks (
    disk_id          INTEGER PRIMARY KEY,
    node_id          INTEGER NOT NULL,
    uuid             BLOB    NOT NULL UNIQUE,         -- 16 bytes
    path             TEXT    NOT NULL,
    health           INTEGER NOT NULL,                -- wire::Health of the disk itself, without its node's
    health_since_ns  INTEGER NOT NULL,
    capacity_bytes   INTEGER NOT NULL,
    inventory_wanted INTEGER NOT NULL DEFAULT 0,      -- > 0: needs an inventory before it takes over members
    unlisted         INTEGER NOT NULL DEFAULT 0,      -- 1: a restore lost what happened to its fragments; missing rows say so
                                                      -- only after its inventory
    listed_incarnation INTEGER NOT NULL,              -- of its node, when it was last listed; a new disk is as good as listed
    map_version      INTEGER NOT NULL
);
CREATE INDEX disks_by_node ON disks (node_id);

-- A placement group of `width` members serves every class with that many fragments.
CREATE TABLE pgs (
    pg_id       INTEGER PRIMARY KEY,
    width       INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,                     -- grows with each change of a member (P11)
    open        INTEGER NOT NULL,                     -- 1: takes new chunks
    bytes       INTEGER NOT NULL DEFAULT 0,           -- len_bytes of its chunks: closes at the size cap
    first_bytes INTEGER NOT NULL DEFAULT 0,           -- what its first member holds of these chunks, each coded by its class
    other_bytes INTEGER NOT NULL DEFAULT 0,           -- what each other member holds
    map_version INTEGER NOT NULL
);
CREATE INDEX pgs_open ON pgs (width, pg_id) WHERE open = 1;

-- Member `position` holds fragment `position` of each chunk of the group.
CREATE TABLE pg_members (
    pg_id            INTEGER NOT NULL,
    position         INTEGER NOT NULL,
    disk_id          INTEGER NOT NULL,
    incoming_disk_id INTEGER NOT NULL DEFAULT 0,      -- being backfilled to take over; 0: none
    put_to_incoming  INTEGER NOT NULL DEFAULT 0,      -- 1: the member was lost, puts go to the incoming disk
    since_epoch      INTEGER NOT NULL,                -- acknowledgements under older epochs do not count (P11)
    fill_cursor      INTEGER NOT NULL DEFAULT 0,      -- the backfill has passed chunk ids up to this one
    fill_until       INTEGER NOT NULL DEFAULT 0,      -- chunk ids from here on were put to the incoming disk; 0: none
    PRIMARY KEY (pg_id, position)
) WITHOUT ROWID;
CREATE INDEX pg_members_by_disk ON pg_members (disk_id);
CREATE INDEX pg_members_by_incoming ON pg_members (incoming_disk_id) WHERE incoming_disk_id != 0;

----------------------------------------------------------------------------------- sessions, answers, log

-- Writers, and readers that have been open for longer than a second.
CREATE TABLE sessions (
    session_id     INTEGER PRIMARY KEY,
    kind           INTEGER NOT NULL,                  -- 1 writer, 2 reader
    client_id      INTEGER NOT NULL,
    started_ns     INTEGER NOT NULL,
    ino            INTEGER NOT NULL,                  -- the file; writer of a new file: its future inode
    created        INTEGER NOT NULL,                  -- 0: writer of a file that did not exist at open
    parent         INTEGER NOT NULL DEFAULT 0,        -- writer by name: the directory
    name           BLOB    NOT NULL DEFAULT x'',
    base_version   INTEGER NOT NULL DEFAULT 0,        -- version id at open (reader: the version read)
    base_number    INTEGER NOT NULL DEFAULT 0,
    domain         INTEGER NOT NULL DEFAULT 1,
    hints          BLOB    NOT NULL DEFAULT x'',      -- encoded HintSet in effect (defaults left out)
    host           TEXT    NOT NULL DEFAULT '',       -- the writer's host label, used by placement=local
    reserved_bytes INTEGER NOT NULL DEFAULT 0,        -- reserved at open; the unused rest is soft state
    rewrites       INTEGER NOT NULL DEFAULT 0,        -- 1: writer of a pack like an older one, whose space comes back by that
    staged         INTEGER NOT NULL DEFAULT 0,        -- 1: has rows in staged_pages
    staged_end     INTEGER NOT NULL DEFAULT 0,        -- end of the last staged extent
    staged_new     INTEGER NOT NULL DEFAULT 0,        -- bytes of chunks that its partial commits made durable
    staged_missing INTEGER NOT NULL DEFAULT 0         -- fragments of its partial commits that are still to store
);
CREATE INDEX sessions_by_ino ON sessions (ino);

-- Clients that may hold locks on files. A restarted manager grants no lock until they have reported theirs.
CREATE TABLE lock_clients (
    client_id INTEGER PRIMARY KEY
);

-- The reply cache (P8): one row per group commit, an encoded CachedReplies. Short replies are in memory, too. A row is deleted
-- when it is older than any retry.
CREATE TABLE ops (
    log_seq INTEGER PRIMARY KEY,
    now_ns  INTEGER NOT NULL,
    answers BLOB    NOT NULL
);
