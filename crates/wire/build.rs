//! Generates the Rust types of the messages from `proto/`. protox parses it, so that no `protoc` is to be installed.

use std::error::Error;

const FILES: [&str; 9] = [
    "common.proto",
    "namespace.proto",
    "sessions.proto",
    "cluster.proto",
    "locks.proto",
    "data.proto",
    "log.proto",
    "consensus.proto",
    "manager.proto",
];

/// Fields that share the received buffer instead of copying it.
const SHARED_BYTES: [&str; 9] = [
    ".tessera.ChunkInfo.hash",
    ".tessera.meta.ChunkName.hash",
    ".tessera.meta.Commit.inlined",
    ".tessera.meta.ContentInfo.inlined",
    ".tessera.data.PutItem.hash",
    ".tessera.data.PutItem.groups",
    ".tessera.data.GetResult.groups",
    ".tessera.log.LoggedCommand.body",
    ".tessera.manager.CachedReply.reply",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    prost_build::Config::new()
        .bytes(SHARED_BYTES)
        .boxed(".tessera.meta.Commit.open")
        .type_attribute(".tessera.Error", "#[derive(thiserror::Error)] #[error(\"{message}\")]")
        .compile_fds(protox::compile(FILES, ["proto"])?)?;
    Ok(())
}
