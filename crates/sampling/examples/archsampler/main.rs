//! The figures of ArchSampler, redone: `make bench-archsampler` turns them into bench/results/archsampler.md.
//!
//! ```console
//! $ cargo run --release -p tessera-sampling --example archsampler -- timing
//! $ cargo run --release -p tessera-sampling --example archsampler -- accuracy
//! $ cargo run --release -p tessera-sampling --example archsampler -- real 4000000000
//! ```
//!
//! `timing` runs on the memory model, `accuracy` compares estimates with the truth, and `real` reads this machine's
//! memory; its number is how many bytes. Each prints one JSON object.

mod accuracy;
mod content;
mod real;
mod timing;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["timing"] => timing::figures(),
        ["accuracy"] => accuracy::figures(),
        ["content"] => content::figures(),
        ["real", bytes] => real::figures(bytes.parse().expect("a number of bytes")),
        _ => panic!("usage: archsampler timing | accuracy | content | real BYTES"),
    };
    println!("{result}");
}
