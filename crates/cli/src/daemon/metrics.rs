//! `/metrics` for Prometheus. A daemon passes a function that takes a snapshot of its numbers. Names and help texts
//! are next to the numbers, so that they stay consistent.

use crate::exit::{Exit, Outcome, failure};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use tessera_wire::meta::DeviceWork;

/// Names and values of a sample's labels.
pub type Labels = Vec<(&'static str, String)>;

/// A metric family: name, help, and a value for each set of labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// The name, without the `tessera_` prefix and without `_total`.
    pub name: String,
    /// Help, one line.
    pub help: &'static str,
    /// Whether it is a counter: it only grows until the daemon restarts.
    pub counter: bool,
    /// Labels and value.
    pub samples: Vec<(Labels, u64)>,
}

impl Family {
    /// A number that rises and falls.
    pub fn gauge(name: impl Into<String>, help: &'static str, value: u64) -> Self {
        Family { name: name.into(), help, counter: false, samples: vec![(Vec::new(), value)] }
    }

    /// A number that only grows.
    pub fn counter(name: impl Into<String>, help: &'static str, value: u64) -> Self {
        Family { counter: true, ..Self::gauge(name, help, value) }
    }

    /// A number with one sample for each set of labels; a gauge unless `counter` is set.
    pub fn each(name: impl Into<String>, help: &'static str, samples: impl IntoIterator<Item = (Labels, u64)>) -> Self {
        Family { name: name.into(), help, counter: false, samples: samples.into_iter().collect() }
    }
}

/// Takes a snapshot of a daemon's numbers.
pub type Snapshot = Box<dyn Fn() -> Vec<Family> + Send + Sync>;

struct Numbers(Snapshot);

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Numbers")
    }
}

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for family in (self.0)().into_iter().chain(process()) {
            let kind = if family.counter { MetricType::Counter } else { MetricType::Gauge };
            let mut metric = encoder.encode_descriptor(&family.name, family.help, None, kind)?;
            match &family.samples[..] {
                [(labels, value)] if labels.is_empty() => one(family.counter, *value, metric)?,
                samples => samples
                    .iter()
                    .try_for_each(|(labels, value)| one(family.counter, *value, metric.encode_family(labels)?))?,
            }
        }
        Ok(())
    }
}

fn one(counter: bool, value: u64, encoder: MetricEncoder) -> fmt::Result {
    match counter {
        true => ConstCounter::new(value).encode(encoder),
        false => ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder),
    }
}

/// Metrics of the daemon's own process (Linux: from `/proc`; elsewhere none).
fn process() -> Vec<Family> {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
    let mut families = vec![Family::each(
        "build",
        "Release of this daemon",
        [(vec![("release", env!("CARGO_PKG_VERSION").to_string())], 1)],
    )];
    if let Some(pages) = pages {
        let bytes = pages * rustix::param::page_size() as u64;
        families.push(Family::gauge("process_resident_bytes", "Memory of this process", bytes));
    }
    families
}

/// Work of each device.
pub fn device_families(all: &[DeviceWork]) -> [Family; 2] {
    let each = |name, help, value: fn(&DeviceWork) -> u64| {
        let labels = |w: &DeviceWork| vec![("device", w.device.clone()), ("primitive", w.primitive.clone())];
        Family { counter: true, ..Family::each(name, help, all.iter().map(|w| (labels(w), value(w)))) }
    };
    [
        each("device_jobs", "Jobs each device of this process did", |w| w.jobs),
        each("device_bytes", "Input bytes of the jobs each device of this process did", |w| w.bytes),
    ]
}

/// A running `/metrics`; stops when dropped.
pub struct Server {
    http: Arc<tiny_http::Server>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `snapshot` at `address` (port 0: any free port).
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn start(address: &str, snapshot: Snapshot) -> Outcome<Self> {
        let failed = |error: &dyn fmt::Display| {
            failure!(Exit::Failed, "cannot serve metrics on {address}: {error}; choose another --metrics address")
        };
        let http = Arc::new(tiny_http::Server::http(address).map_err(|e| failed(&e))?);
        let mut registry = Registry::with_prefix("tessera");
        registry.register_collector(Box::new(Numbers(snapshot)));
        let (serving, registry) = (http.clone(), Mutex::new(registry));
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || serving.incoming_requests().for_each(|request| answer(request, &registry.lock())))
            .map_err(|e| failed(&e))?;
        Ok(Server { http, thread: Some(thread) })
    }

    /// The address it serves.
    pub fn address(&self) -> String {
        self.http.server_addr().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.http.unblock();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(request: tiny_http::Request, registry: &Registry) {
    let mut body = String::new();
    let response = match (request.url(), text::encode(&mut body, registry)) {
        ("/metrics", Ok(())) => {
            let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
            let response = tiny_http::Response::from_string(body);
            match kind.parse::<tiny_http::Header>() {
                Ok(header) => response.with_header(header),
                Err(()) => response,
            }
        }
        _ => tiny_http::Response::from_string("metrics are at /metrics\n").with_status_code(404),
    };
    // A scraper that disconnected needs no answer.
    let _ = request.respond(response);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn fetch(address: &str, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn numbers_are_served_with_their_help() {
        let snapshot: Snapshot = Box::new(|| {
            vec![
                Family::gauge("disk_free_bytes", "Bytes to be had", 7),
                Family::counter("puts", "Fragments stored", 9),
                Family::each("up", "Up", [(vec![("disk", "1".to_string())], 1)]),
            ]
        });
        let server = Server::start("127.0.0.1:0", snapshot).unwrap();
        let text = fetch(&server.address(), "/metrics");
        for line in [
            "# HELP tessera_disk_free_bytes Bytes to be had",
            "tessera_disk_free_bytes 7",
            "tessera_puts_total 9",
            "tessera_up{disk=\"1\"} 1",
            "tessera_build{release=",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
        assert!(fetch(&server.address(), "/").starts_with("HTTP/1.0 404"));
    }

    #[test]
    fn a_taken_address_is_named() {
        let first = Server::start("127.0.0.1:0", Box::new(Vec::new)).unwrap();
        let Err(failure) = Server::start(&first.address(), Box::new(Vec::new)) else { panic!("had twice") };
        assert!(failure.message.contains(&first.address()), "{failure}");
    }
}
