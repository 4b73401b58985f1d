//! Frames and messages: round trips, damage, wrong lengths (P14).

use proptest::prelude::*;
use prost::Message;
use tessera_wire::frame::*;
use tessera_wire::{Code, Error, Hello, Kind, data, meta};

fn sample() -> Vec<u8> {
    let item =
        data::PutItem { chunk_id: 7, fragment: 5, hash: vec![9; 32].into(), len_bytes: 10, ..Default::default() };
    let put = data::PutFragments { session_id: 3, items: vec![item; 3], no_sync: false, hints: vec![] };
    encode_message(Kind::PutFragments as u16, 0, 42, &put, 30)
}

fn decode(raw: &[u8]) -> Result<data::PutFragments, FrameError> {
    let Some(head) = raw.first_chunk::<HEADER_BYTES>() else {
        return Err(FrameError::Magic { got: [0; 4] });
    };
    let header = FrameHeader::decode(head)?;
    let body = raw.get(HEADER_BYTES..).unwrap_or_default();
    header.check_body(body)?;
    decode_message(header.kind, body)
}

#[test]
fn a_frame_decodes_to_what_was_encoded() {
    let raw = sample();
    let header = FrameHeader::decode(raw.first_chunk().unwrap()).unwrap();
    assert_eq!((header.kind, header.request_id, header.payload_len), (Kind::PutFragments as u16, 42, 30));
    assert_eq!(header.encode(), raw[..HEADER_BYTES]);
    assert_eq!(decode(&raw).unwrap().items[2].fragment, 5);
}

#[test]
fn the_header_is_as_drawn() {
    let raw = sample();
    assert_eq!(&raw[..8], &[b'T', b'S', b'R', b'A', 1, 0, 0x00, 0x05]);
    assert_eq!(raw[8..16], 42u64.to_le_bytes());
    assert_eq!(raw[20..24], 30u32.to_le_bytes());
    assert_eq!(raw[28..32], crc_fast::crc32_iscsi(&raw[..28]).to_le_bytes());
}

#[test]
fn every_single_bit_flip_is_noticed() {
    let good = sample();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&bad).is_err(), "bit {bit}");
    }
}

#[test]
fn every_truncation_is_noticed() {
    let good = sample();
    for len in 0..good.len() {
        assert!(decode(&good[..len]).is_err(), "{len} of {} bytes", good.len());
    }
}

#[test]
fn lengths_beyond_the_limits_are_refused_before_anything_is_read() {
    for (body_len, payload_len) in [(MAX_BODY_BYTES + 1, 0), (0, MAX_PAYLOAD_BYTES + 1), (u32::MAX, u32::MAX)] {
        let header = FrameHeader { flags: 0, kind: 1, request_id: 1, body_len, payload_len, body_crc: 0 };
        assert!(matches!(FrameHeader::decode(&header.encode()), Err(FrameError::TooLong { .. })));
    }
}

#[test]
fn other_versions_and_clusters_are_refused_and_both_are_named() {
    let hello = Hello { protocol_version: 9, release: "0.9.0".into(), ..Default::default() };
    let error = hello.check(&[1; 16]).unwrap_err();
    assert_eq!(error.code(), Code::ProtocolVersion);
    assert!(error.message.contains('9') && error.message.contains("speaks 1"), "{error}");
    let stranger = Hello { protocol_version: 1, cluster_id: vec![2; 16], ..Default::default() };
    assert_eq!(stranger.check(&[1; 16]).unwrap_err().code(), Code::WrongCluster);
    let mut raw = sample();
    raw[4] = 2;
    assert!(matches!(FrameHeader::decode(raw.first_chunk().unwrap()), Err(FrameError::Version { got: 2 })));
}

#[test]
fn a_code_from_the_future_is_unknown_and_not_a_panic() {
    assert_eq!(Error { code: 9999, ..Default::default() }.code(), Code::Unknown);
    assert_eq!(Kind::from_number(0xffff), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn arbitrary_bytes_never_panic(raw in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode(&raw);
        let _ = meta::Commit::decode(&raw[..]);
        let _ = meta::HeartbeatReply::decode(&raw[..]);
        let _ = data::GetFragmentsReply::decode(&raw[..]);
    }
}
