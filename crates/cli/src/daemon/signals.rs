//! Events that end a daemon: SIGTERM, SIGINT, or (`--follow-stdin`) the end of the process that started it.

use crate::exit::{At, Outcome};
use crossbeam_channel::{Receiver, Sender, bounded};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Read;

/// An event of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A stop was requested.
    Stop(&'static str),
    /// A child changed state.
    Child,
}

/// Receives events. The first stop is an event; the second ends the process at once.
#[derive(Debug)]
pub struct Events {
    receiver: Receiver<Event>,
    sender: Sender<Event>,
}

impl Events {
    /// Starts listening to signals; with `children`, also to SIGCHLD.
    ///
    /// # Errors
    /// The system refused.
    pub fn listen(children: bool) -> Outcome<Self> {
        let (sender, receiver) = bounded(64);
        let mut kinds = vec![SIGINT, SIGTERM, SIGHUP];
        if children {
            kinds.push(signal_hook::consts::SIGCHLD);
        }
        let mut signals = Signals::new(kinds).at("signals")?;
        let sending = sender.clone();
        spawn("signals", move || {
            let mut stops = 0;
            for signal in signals.forever() {
                let event = match signal {
                    SIGINT => Event::Stop("SIGINT"),
                    SIGTERM => Event::Stop("SIGTERM"),
                    SIGHUP => Event::Stop("SIGHUP"),
                    _ => Event::Child,
                };
                stops += u32::from(event != Event::Child);
                if stops > 1 && event != Event::Child {
                    std::process::exit(130);
                }
                // The channel is full, so its reader already has an event to handle.
                let _ = sending.try_send(event);
            }
        })?;
        Ok(Events { receiver, sender })
    }

    /// Makes the end of stdin a stop request, too.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn follow_stdin(&self) -> Outcome {
        let sender = self.sender.clone();
        spawn("stdin", move || {
            let mut bytes = [0; 256];
            while std::io::stdin().read(&mut bytes).is_ok_and(|n| n > 0) {}
            let _ = sender.send(Event::Stop("the process that started this one ended"));
        })
    }

    /// The channel of events.
    pub fn receiver(&self) -> &Receiver<Event> {
        &self.receiver
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Outcome {
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    thread.map(|_| ()).at("cannot start a thread")
}
