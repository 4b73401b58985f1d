# The ways in: `make run` and `make test` are the two commands of the README.
.PHONY: run test check fmt bench soak clean

run:            ## build and start a store of eight nodes here, under ./tessera-data
	cargo build --release -p tessera-cli
	./target/release/tessera up

check:          ## what to run all day: format, lints, unit tests (under three minutes once built)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test --workspace --lib --quiet

test:           ## everything: lints, docs, all tests, real processes killed
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	cargo test --workspace --quiet

bench:          ## side by side with GlusterFS and the ceilings; writes bench/results/
	cargo build --release -p tessera-cli -p tessera-client --examples
	python3 bench/store.py

fmt:
	cargo fmt --all

clean:
	cargo clean
