//! Every knob of the daemons as configuration shows it: key, unit, meaning, and where it goes. The defaults
//! are those of the crates' own `config.rs`. docs/config.md's tables are printed from here and compared by a test.

use toml::Value;

/// One knob of a `T`.
pub struct Knob<T> {
    /// Key in `[tuning]` and for `--set`.
    pub key: &'static str,
    /// Unit of its number; empty for counts.
    pub unit: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    get: fn(&T) -> u64,
    set: fn(&mut T, u64) -> bool,
}

/// Knobs of a node and of the segment store of each of its disks.
#[derive(Debug, Clone, Default)]
pub struct NodeKnobs {
    /// The node's own.
    pub node: tessera_node::config::NodeConfig,
    /// Of each disk's segments.
    pub segments: tessera_segment::Options,
}

macro_rules! knobs {
    ($(#[$doc:meta])* $name:ident: $target:ty { $($key:ident = $($field:ident).+, $unit:literal, $help:literal;)* }) => {
        $(#[$doc])*
        pub const $name: &[Knob<$target>] = &[$(Knob {
            key: stringify!($key),
            unit: $unit,
            help: $help,
            get: |target| target.$($field).+ as u64,
            set: |target, number| match number.try_into() {
                Ok(number) => { target.$($field).+ = number; true }
                Err(_) => false,
            },
        },)*];
    };
}

knobs! {
    /// Of the manager.
    MANAGER: tessera_manager::config::Config {
        session_ms = session_ms, "ms", "A session ends when it was not used for this long";
        reader_persist_ms = reader_persist_ms, "ms", "A reader's session is written to the database once it is this old; younger ones live in memory, so that opening a small file costs no transaction; 0: all are";
        answers_ms = answers_ms, "ms", "Answers to mutating requests are kept for this long: clients give up retrying well before";
        lease_entry_ms = lease_entry_ms, "ms", "How long a client may cache an entry if nobody recalls it. A restarted manager waits this long before it changes anything a client may have cached";
        lock_session_ms = lock_session_ms, "ms", "A client that was not heard of for this long has lost its locks. A restarted manager lets clients assert what they held for as long, and gives nothing new away meanwhile";
        lock_orphan_ms = lock_orphan_ms, "ms", "Locks of a client whose last connection ended in order are gone after this, unless it comes back";
        max_locks_per_client = max_locks_per_client, "", "Locks that one client may hold or wait for";
        max_leases = max_leases, "", "Leases in memory; when more are asked for, entries are answered without one";
        max_batch_commands = max_batch_commands, "", "Commands in one group commit at most";
        max_batch_bytes = max_batch_bytes, "bytes", "Bytes of commands in one group commit at most (an entry must fit a frame's payload with room to spare)";
        max_waiting_requests = max_waiting_requests, "", "Requests that may wait for a group commit; more are answered `Unavailable`";
        max_list_entries = max_list_entries, "", "Entries of a directory in one answer";
        max_list_extents = max_list_extents, "", "Extents in one answer";
        max_commit_extents = max_commit_extents, "", "Extents in one `Commit` (more are staged by partial commits)";
        max_allocate_chunks = max_allocate_chunks, "", "Chunks in one dedup question";
        sweep_pages = sweep_pages, "", "Pages whose references one command takes off at most, so that dropping a huge file never holds up others";
        log_copies = log_copies, "", "Nodes that must hold an entry of the command log before it is acknowledged (m+1)";
        log_call_bytes = log_call_bytes, "bytes", "Bytes of entries sent to a replica in one call";
        log_call_timeout_ms = log_call_timeout_ms, "ms", "A call to a log replica is given up after this long";
        log_retry_ms = log_retry_ms, "ms", "A replica that failed is tried again after this long";
        snapshot_log_bytes = snapshot_log_bytes, "bytes", "A snapshot is taken when the log since the last one has grown past this many bytes …";
        snapshot_log_percent = snapshot_log_percent, "%", "… and past this share of the last snapshot's size; 0: whatever its size";
        snapshot_piece_bytes = snapshot_piece_bytes, "bytes", "Bytes of one piece of a snapshot";
        heartbeat_ms = heartbeat_ms, "ms", "Nodes are asked to beat this often";
        node_lease_ms = node_lease_ms, "ms", "A node acknowledges puts for this long after it sent the last answered heartbeat";
        down_after_ms = down_after_ms, "ms", "A node that was not heard of for this long is down: its groups get no new chunks";
        out_after_ms = out_after_ms, "ms", "A node that was down for this long is out: its groups get other members. Must exceed `node_lease_ms`";
        pg_cap_bytes = pg_cap_bytes, "bytes", "A group closes when this many bytes of chunks were assigned to it";
        task_chunks = task_chunks, "", "Chunks in one rebuild task";
        tasks_per_node = tasks_per_node, "", "Tasks handed to one node at a time";
        deletes_per_heartbeat = deletes_per_heartbeat, "", "Deletes in one answer to a heartbeat";
        repair_bytes_per_s = repair_bytes_per_s, "bytes/s", "Upper bound of repair traffic of one node; 0: none";
        scrub_bytes_per_s = scrub_bytes_per_s, "bytes/s", "Upper bound of background scrubbing of one node; 0: none";
        scrub_every_ms = scrub_every_ms, "ms", "Every disk is re-read this often; 0: only on request";
        inventory_every_ms = inventory_every_ms, "ms", "Every disk lists what it holds this often; 0: only when it registers after it was out";
    }
}

knobs! {
    /// Of a node.
    NODE: NodeKnobs {
        register_retry_min_ms = node.register_retry_min_ms, "ms", "Shortest wait before a failed registration is tried again; doubles up to `register_retry_max_ms`";
        register_retry_max_ms = node.register_retry_max_ms, "ms", "Longest wait between registrations";
        register_timeout_ms = node.register_timeout_ms, "ms", "A registration that is not answered for so long counts as failed";
        heartbeat_ms = node.heartbeat_ms, "ms", "Interval of heartbeats until the manager names one";
        heartbeat_timeout_ms = node.heartbeat_timeout_ms, "ms", "A heartbeat that is not answered for so long counts as lost";
        early_heartbeat_ms = node.early_heartbeat_ms, "ms", "With finished work to report the next heartbeat goes out this soon after the last one";
        max_report_items = node.max_report_items, "", "Most finished fragments, deletes and bad fragments (each) in one heartbeat";
        max_items = node.max_items, "", "Most fragments in one put or get";
        max_chunk_bytes = node.max_chunk_bytes, "bytes", "Longest chunk accepted";
        max_waiting_put_bytes = node.max_waiting_put_bytes, "bytes", "Bytes of puts that may wait for disks before further ones are told to come later";
        max_tasks = node.max_tasks, "", "Tasks kept at a time; the manager hands out others later";
        rebuild_parallel = node.rebuild_parallel, "", "Chunks being rebuilt at a time";
        rebuild_memory_bytes = node.rebuild_memory_bytes, "bytes", "Bytes of fragments that rebuilds may hold in memory, roughly";
        rebuild_fetch_timeout_ms = node.rebuild_fetch_timeout_ms, "ms", "A source that does not answer for so long is replaced by another";
        repair_bytes_per_s = node.repair_bytes_per_s, "bytes/s", "Bound for all repair traffic until the manager names one; 0: none";
        scrub_bytes_per_s = node.scrub_bytes_per_s, "bytes/s", "Bound for background scrubbing until the manager names one; 0: none";
        verify_batch = node.verify_batch, "", "Fragments verified in one step";
        inventory_page = node.inventory_page, "", "Fragments on one page of an inventory";
        inventory_timeout_ms = node.inventory_timeout_ms, "ms", "An inventory page that is not answered for so long is sent again";
        scrub_step_bytes = node.scrub_step_bytes, "bytes", "Bytes re-read in one step of a scrub";
        scrub_every_s = node.scrub_every_s, "s", "A disk is scrubbed again this long after its last cycle ended; 0: only when asked";
        compact_every_ms = node.compact_every_ms, "ms", "How often a disk is asked whether a segment is worth compacting; 0: only when asked";
        compact_dead_percent = node.compact_dead_percent, "%", "A segment with at least this share of dead bytes is compacted";
        gc_dead_percent = node.gc_dead_percent, "%", "When a garbage collection was asked for, a segment with at least this share of dead bytes is compacted; 0: any";
        compact_step_bytes = node.compact_step_bytes, "bytes", "Bytes copied in one step of compaction: puts wait for it";
        disk_write_faults = node.disk_write_faults, "", "A disk whose writes fail this often in a row (other than for want of space) has failed";
        disk_stuck_ms = node.disk_stuck_ms, "ms", "An operation that a disk does not finish for so long means that the disk has failed";
        segment_size_bytes = segments.segment_size_bytes, "bytes", "Segments are sealed before they would pass this size";
        reserve_bytes = segments.reserve_bytes, "bytes", "Fragments are refused when less than this would stay free on the disk, so that deletes and compaction always find room; 0: none is kept free";
        compact_buffer_bytes = segments.compact_buffer_bytes, "bytes", "Most that compaction of one disk holds in memory";
    }
}

/// Sets knob `key`; the error names the key, the fact and the way out.
pub fn set<T>(knobs: &[Knob<T>], target: &mut T, key: &str, value: &Value) -> Result<(), String> {
    let knob = knobs.iter().find(|k| k.key == key).ok_or_else(|| unknown(knobs, key))?;
    let number = match value {
        Value::Integer(number) => u64::try_from(*number).ok(),
        Value::String(text) if knob.unit.starts_with("bytes") => tessera_policy::parse_size(text).ok(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    let wrong = || {
        let what = match knob.unit {
            "" => "a count".to_string(),
            "bytes" | "bytes/s" => format!("a number of {} (K, M, G, T may follow)", knob.unit),
            unit => format!("a number of {unit}"),
        };
        format!("{key} cannot be {value}: write {what}, as in {key} = {} ({})", (knob.get)(target), knob.help)
    };
    let number = number.ok_or_else(wrong)?;
    // What zero means is said where it means something; elsewhere it would mean never, nothing, or without end.
    if number == 0 && !knob.help.contains("0: ") {
        return Err(format!("{key} cannot be 0; the default is {} ({})", (knob.get)(target), knob.help));
    }
    let text = wrong();
    if (knob.set)(target, number) { Ok(()) } else { Err(text) }
}

fn unknown<T>(knobs: &[Knob<T>], key: &str) -> String {
    let near = knobs.iter().map(|k| k.key).max_by_key(|k| likeness(k, key)).unwrap_or_default();
    format!("no knob is called {key:?}; did you mean {near}? docs/config.md lists them")
}

/// Share of pairs of neighbouring letters that two words have in common (Dice's coefficient), in thousandths.
fn likeness(a: &str, b: &str) -> usize {
    let common = a.as_bytes().windows(2).filter(|pair| b.as_bytes().windows(2).any(|other| other == *pair)).count();
    2_000 * common / (a.len() + b.len()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    fn table<T: Default>(knobs: &[Knob<T>]) -> String {
        let mut text = String::from("| key | default | unit | meaning |\n|---|---|---|---|\n");
        for knob in knobs {
            let default = (knob.get)(&T::default());
            let shown = match knob.unit.starts_with("bytes") {
                true => tessera_policy::format_size(default),
                false => default.to_string(),
            };
            writeln!(text, "| `{}` | {shown} | {} | {} |", knob.key, knob.unit, knob.help).unwrap();
        }
        text
    }

    /// docs/config.md shows exactly these knobs. `TESSERA_BLESS=1` rewrites its tables.
    #[test]
    fn the_documentation_lists_every_knob_with_unit_and_default() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
        let mut text = std::fs::read_to_string(path).unwrap();
        for (name, table) in [("manager", table(MANAGER)), ("node", table(NODE))] {
            let (start, end) = (format!("<!-- knobs: {name} -->\n"), format!("<!-- end: {name} -->"));
            let from = text.find(&start).expect("start mark") + start.len();
            let to = text[from..].find(&end).expect("end mark") + from;
            if std::env::var_os("TESSERA_BLESS").is_some() {
                text.replace_range(from..to, &table);
                std::fs::write(path, &text).unwrap();
            } else {
                assert_eq!(&text[from..to], table, "run this test with TESSERA_BLESS=1 and read the difference");
            }
        }
    }

    /// Names of the fields of a struct, as its `Debug` shows them.
    fn fields(shown: &str) -> Vec<String> {
        shown.lines().filter_map(|l| l.strip_prefix("    ")?.split_once(": ")).map(|(name, _)| name.into()).collect()
    }

    #[test]
    fn no_knob_of_manager_or_node_is_forgotten() {
        let manager = fields(&format!("{:#?}", tessera_manager::config::Config::default()));
        let node = fields(&format!("{:#?}", tessera_node::config::NodeConfig::default()));
        assert!(manager.len() > 20 && node.len() > 20);
        for name in manager {
            assert!(MANAGER.iter().any(|k| k.key == name), "{name} is missing in MANAGER");
        }
        for name in node {
            assert!(NODE.iter().any(|k| k.key == name), "{name} is missing in NODE");
        }
    }

    #[test]
    fn zero_is_taken_where_it_is_said_what_it_means() {
        let mut config = tessera_manager::config::Config::default();
        let zero = Value::String("0".into());
        let refused = set(MANAGER, &mut config, "log_copies", &zero).unwrap_err();
        assert!(refused.contains("log_copies cannot be 0") && config.log_copies == 3, "{refused}");
        set(MANAGER, &mut config, "repair_bytes_per_s", &zero).unwrap();
    }

    #[test]
    fn a_number_that_does_not_fit_changes_nothing() {
        let mut config = tessera_manager::config::Config::default();
        for value in [Value::Integer(1 << 40), Value::Integer(-1), Value::Boolean(true), Value::String("x".into())] {
            assert!(set(MANAGER, &mut config, "log_copies", &value).is_err());
        }
        assert_eq!(config, tessera_manager::config::Config::default());
        set(MANAGER, &mut config, "pg_cap_bytes", &Value::String("1G".into())).unwrap();
        assert_eq!(config.pg_cap_bytes, 1 << 30);
    }
}
