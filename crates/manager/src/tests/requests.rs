//! Requests one by one: what they do, what they refuse.

use crate::rig::*;
use tessera_wire::Code;
use tessera_wire::meta::*;

#[test]
fn a_file_is_written_and_read() {
    let mut rig = Rig::new(4);
    let dir = rig.mkdir(1, "d");
    let written = rig.put(dir, "f", b"aab").unwrap();
    assert_eq!((written.number, written.superseded), (1, 0));
    let read = rig.read(dir, "f").unwrap();
    let extents = read.extents.unwrap();
    assert_eq!(extents.extents.len(), 3);
    assert_eq!((extents.next_offset, extents.chunks.len(), extents.classes.len()), (300, 2, 1));
    assert_eq!(extents.map.unwrap().nodes.len(), 4);
    assert_eq!(read.attr.unwrap().size_bytes, 300);
    // The same again: everything is durable and nothing new.
    let session = rig.open_write(dir, "g", &[]).unwrap().session_id;
    let again = rig.allocate(session, &[chunk(b'a'), chunk(b'c')]).unwrap().answers;
    assert_eq!(again[0].state, ChunkState::Durable as i32);
    assert_eq!(again[1].state, ChunkState::New as i32);
    rig.audit();
}

#[test]
fn an_unknown_chunk_is_refused_and_nothing_changes() {
    let mut rig = Rig::new(4);
    let session = rig.open_write(1, "f", &[]).unwrap().session_id;
    let mut commit = rig.replacing(session, b"a").unwrap();
    commit.extents[0].chunk_id = 999;
    let before = rig.dump(&["ops", "command_log", "meta"]);
    assert_eq!(rig.ask(&commit).unwrap_err().kind(), Code::Invalid);
    assert_eq!(rig.dump(&["ops", "command_log", "meta"]), before);
}
