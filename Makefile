# The ways in. `make` alone lists them; `make run` and `make test` are the two commands of the README.
.DEFAULT_GOAL := help
.PHONY: help run dist test test-arm check deny fmt fuzz bench bench-accel bench-approxssd bench-archsampler bench-cona bench-cona-study bench-failover bench-flash bench-flash-files bench-flash-levels bench-flash-record bench-flash-serve bench-gpu bench-index bench-mount bench-sampling bench-scale bench-similarity bench-size bench-small jepsen miri query soak clean

help:           ## this list
	@awk -F ' *## ' '/^[a-z-]+:.*## / { sub(":.*", "", $$1); printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run:            ## build and start a store of eight nodes here, under ./tessera-data
	cargo build --release -p tessera-cli
	./target/release/tessera up

query:          ## the SQL program that `tessera query` starts, as target/release/tessera-query (minutes; needs Rust 1.94)
	cargo build --release --manifest-path query/Cargo.toml --target-dir target/query
	mkdir -p target/release
	cp target/query/release/tessera-query target/release/

dist:           ## the release binary as target/dist/tessera, its line tables in tessera.debug beside it
	cargo build --profile profiling -p tessera-cli
	mkdir -p target/dist
	objcopy --only-keep-debug target/profiling/tessera target/dist/tessera.debug
	objcopy --strip-debug --add-gnu-debuglink=target/dist/tessera.debug target/profiling/tessera target/dist/tessera

check:          ## what to run all day: format, lints, unit tests, the repository's rules, golden scripts
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --quiet -p tessera-tidy
	cargo test --workspace --lib --quiet
	cargo test --quiet -p tessera-sim --test scripts

test:           ## everything: lints, docs, all tests, real processes killed
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps --quiet
	cargo test --workspace --quiet
	cargo test --quiet --manifest-path bench/accel/Cargo.toml
	cargo fmt --manifest-path query/Cargo.toml --check
	cargo test --quiet --manifest-path query/Cargo.toml --target-dir target/query
	python3 tests/query.py
	python3 tests/arm.py $(if $(CI),--require)
	python3 crates/accel/kernels/ptx.py check
	python3 -m unittest discover -q -s bench/tests
	python3 bench/chaos.py --binary target/debug/tessera --kills 10
	python3 -m unittest discover -q -s tests/jepsen
	python3 tests/jepsen/run.py --minutes 0.7 --calm --workload lock --failpoint manager.no_recall --must-find $(if $(CI),--require)
	python3 tests/jepsen/run.py --minutes 4.5 $(if $(CI),--require)
	python3 tests/suites.py $(if $(CI),--require)
	python3 tests/workflows.py $(if $(CI),--require)

fuzz:           ## a minute of each fuzz target (`ARGS=segments`: of one); FUZZ_SECONDS, FUZZ_SEED and FUZZ_KEEP=1 as in crates/fuzz/src/driver.rs
	FUZZ_SECONDS=$${FUZZ_SECONDS:-60} cargo test -p tessera-fuzz --test targets -- --nocapture --test-threads 1 $(ARGS)

deny:           ## licences, bans and sources of all dependencies (needs cargo-deny; `cargo test -p tessera-tidy` checks most of it without)
	cargo deny --all-features check bans licenses sources

test-arm:       ## the unit tests of accel and hashgpu built for ARM, NEON leaves included, in qemu (needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user, Rust's library for it)
	python3 tests/arm.py $(if $(CI),--require)

# The tests that Miri finishes in minutes, with AVX2 intrinsics; it runs neither assembler (blake3) nor C (the emulated device).
MIRI_TESTS = erasure::tests::parity_is_the_documented_sum erasure::tests::misuse erasure::tests::lengths \
             runtime::pool xorcode::tests::misuse erasure::matrix \
             boundaries::tests::sizes windows::tests::two_windows checksum::tests::rfc3720
MIRI_TESTS_HASHGPU = lookup::tests::unsorted windows::tests::two_windows windows::tests::wrong
MIRI = MIRIFLAGS=-Zmiri-disable-isolation RUSTFLAGS=-Ctarget-feature=+avx2 CARGO_TARGET_DIR=target/miri cargo +nightly miri test -q --lib

miri:           ## the accelerator's unsafe code under Miri (needs a nightly toolchain with miri and rust-src)
	$(MIRI) -p tessera-accel --no-default-features --features blake3/pure -- $(MIRI_TESTS)
	$(MIRI) -p tessera-hashgpu --features blake3/pure -- $(MIRI_TESTS_HASHGPU)

jepsen:         ## ten minutes: histories of real processes under kills, stops, cuts and clock jumps, checked for linearizability (needs Go; root, iproute2, libfaketime for all faults)
	cargo build -p tessera-cli
	cargo build -p tessera-client --example jepsen_client
	python3 tests/jepsen/run.py $(ARGS)

soak:           ## hours: many more seeds (ARGS="--share 0.1": a tenth), a store of a million chunks, and a hundred kills; adds to bench/results/soak.md
	cargo build --release -p tessera-sim --example seeds
	python3 bench/soak.py $(ARGS)
	SIM_CHUNKS=1000000 cargo test --release -p tessera-sim --test many_chunks -- --nocapture
	cargo build --release -p tessera-cli
	python3 bench/chaos.py --binary target/release/tessera
	COVERAGE_RUNS=1000 COVERAGE_TABLE=$(CURDIR)/bench/results/sampling.md cargo test --release -p tessera-sampling --test coverage

bench: bench-accel ## side by side: hashes and codes with their peers, the store with GlusterFS and the ceilings; writes bench/results/
	cargo build --release -p tessera-cli -p tessera-client --bins --examples
	python3 bench/store.py

bench-accel:    ## the accelerator beside ISA-L, Jerasure (libisal2, libjerasure2; skipped where they are not), the blake3 crate, with roofs; writes bench/results/accel.*
	cargo run --release --manifest-path bench/accel/Cargo.toml -- --out bench/results

bench-approxssd: ## the figures of the ApproxSSD paper on played disks; writes bench/results/approxssd.*
	cargo build --release -p tessera-sampling --example approxssd
	python3 bench/approxssd.py

bench-archsampler: ## the figures of the ArchSampler paper on the memory model, and rows against elements in 4 GB of memory; writes bench/results/archsampler.*
	cargo build --release -p tessera-sampling --example archsampler
	python3 bench/archsampler.py

bench-mount:    ## the mount beside libfuse's passthrough and a GlusterFS mount; writes bench/results/mount.*
	cargo build --release -p tessera-cli
	python3 bench/mount.py

bench-sampling: query ## answers from samples beside Spark and DuckDB on 16 GB (pip, apt; an hour; kept in target/bench-sampling); writes bench/results/sampling_peers.*
	cargo build --release -p tessera-cli
	python3 bench/sampling.py

bench-failover: ## kills the leading manager 50 times under load: how long the store stands still; writes bench/results/failover.*
	cargo build --release -p tessera-cli
	python3 bench/failover.py

bench-flash:    ## translation layers side by side over the block traces in TRACES, and the CPFTL paper's figures; writes bench/results/flash.*
	cargo build --release -p tessera-cli
	python3 bench/flash.py --traces $(or $(TRACES),../shared/traces)

bench-flash-levels: ## look-ups in sorted levels, with lookahead pointers and without (figures 4.12 to 4.14 of the dissertation on CONA; TRACE=FILE); writes bench/results/flash_levels.*
	cargo run --release --manifest-path bench/accel/Cargo.toml --bin tessera-bench-levels -- --out bench/results $(if $(TRACE),--trace $(TRACE))

bench-flash-record: ## a node under put, rm and compaction, and CONA under YCSB A, recorded and replayed on simulated SSDs; writes bench/results/flash_record.*
	cargo build --release -p tessera-cli
	python3 bench/flash_record.py

bench-flash-serve: ## the emulated SSD beside a null NBD server, and how late its answers are; writes bench/results/flash_serve.*
	cargo build --release -p tessera-cli
	python3 bench/flash_serve.py

bench-flash-files: ## ext4 and btrfs on the emulated SSD with two layers (figure 3.12 of the CPFTL paper); needs root, loop devices, FUSE; writes bench/results/flash_files.*
	cargo build --release -p tessera-cli
	python3 bench/flash_files.py

bench-gpu:      ## every kernel on a GPU beside the CPU, and what the GPU gives the store; needs a GPU; writes bench/results/gpu.*
	cargo build --release -p tessera-cli -p tessera-client --bins --examples
	python3 bench/gpu.py

bench-small:    ## a tree of small files (ARGS="--tree /usr/include"; default /usr) beside cp, borg, restic and rsync: CPU seconds and wall time; half an hour
	cargo build --release -p tessera-cli
	python3 bench/small.py $(ARGS)

bench-scale:    ## ten million small files and 64 TB by name: rates, memory, restarts, lists, status over time; stores at rest (15 minutes, 30 GB of disk; ARGS="--files 1000000 --terabytes 6"); writes bench/results/scale.*
	cargo build --release -p tessera-cli
	cargo build --release -p tessera-client --example scale
	python3 bench/scale.py $(ARGS)

bench-size:     ## managers with 3·10^7 chunks: restart, status, a standby that joins, fail-over (12 GB of disk); writes bench/results/size.*
	cargo build --release -p tessera-cli
	cargo build --release -p tessera-manager --example large_store
	python3 bench/size.py

bench-similarity: ## MosaStore's workloads without dedup, with it, and with an oracle; images of blastn (ncbi-blast+, gdb); writes bench/results/similarity.*
	cargo build --release -p tessera-cli -p tessera-client --bins --examples
	python3 bench/similarity.py

bench-index:    ## the index of a disk with 20 million fragments: memory, pages read, put latency, restarts (8 GB of disk); writes bench/results/index.md
	cargo run --release -p tessera-segment --example many_fragments -- target --fragments 20000000 --out bench/results/index.md

bench-cona:     ## CONA beside LevelDB, RocksDB and fjall under YCSB, with values of 200 bytes and of 1-16 KiB (needs libleveldb-dev, librocksdb-dev); writes bench/results/cona*.*
	cargo build --release --manifest-path bench/cona/Cargo.toml
	python3 bench/cona.py
	python3 bench/cona.py --values 1024-16384 --records 250000 --ops 250000 --phases load,A,C,E,F,delete,gone --out bench/results/cona-large

bench-cona-study: ## the studies of CONA's paper: buffer sizes, merges per insert, what merging hides, reads per level; writes bench/results/cona-study.*
	cargo build --release --manifest-path bench/cona/Cargo.toml
	python3 bench/cona_study.py

fmt:            ## format every Rust file
	cargo fmt --all

clean:          ## delete what was built
	cargo clean
