//! One daemon as a child process: starts it, reads its announcement, stops it.

use crate::daemon::announce::Announcement;
use crate::daemon::signals::{Event, Events};
use crate::exit::{At, Exit, Failure, Outcome, failure};
use crossbeam_channel::{bounded, select, tick};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A daemon that for this long neither announces its address nor writes to its log has failed to start. A long restore
/// logs its progress.
const SILENT_FOR: Duration = Duration::from_secs(120);
/// Interval of the checks of its log during the start.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A running daemon. It follows its stdin, so it stops when this process ends in any way.
pub struct Child {
    process: Process,
    _stdin: Option<ChildStdin>,
    /// Its announced addresses.
    pub announced: Announcement,
}

/// The command that starts a daemon.
#[derive(Debug, Clone)]
pub struct DaemonCommand {
    /// Name of the daemon.
    pub name: String,
    /// Arguments for this binary.
    pub args: Vec<String>,
    /// File that receives its stderr.
    pub log: PathBuf,
}

impl Child {
    /// Starts the daemon and waits until it serves. It gets its own process group, so that Ctrl-C reaches only this
    /// process.
    ///
    /// # Errors
    /// It died or was silent for too long (with the last line of its log), or this process was asked to stop.
    pub fn start(command: &DaemonCommand, events: &Events) -> Outcome<Child> {
        let name = &command.name;
        let binary = std::env::current_exe().at("this program's own path")?;
        let log = File::options().create(true).append(true).open(&command.log);
        let log = log.at(&command.log)?;
        let mut process = Command::new(binary)
            .args(&command.args)
            .args(["--announce", "--follow-stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()
            .at(format!("cannot start {name}"))?;
        let stdin = process.stdin.take();
        match read_announcement(&mut process, command, events) {
            Ok(announced) => Ok(Child { process, _stdin: stdin, announced }),
            Err(failure) => {
                let _ = process.kill().and_then(|()| process.wait());
                Err(failure)
            }
        }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// How it ended, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// Asks it to stop (SIGTERM).
    pub fn ask_to_stop(&mut self) {
        if self.ended().is_none() {
            let pid = rustix::process::Pid::from_child(&self.process);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }

    /// Kills it (SIGKILL), as a crash would.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Waits for its end, and kills it after `patience`. `false`: it had to be killed.
    pub fn wait_or_kill(&mut self, patience: Duration) -> bool {
        let ended = wait_for_end(&mut self.process, patience).is_some();
        if !ended {
            self.kill();
        }
        ended
    }
}

/// Waits for the end of a process for at most `patience`.
fn wait_for_end(process: &mut Process, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        let ended = process.try_wait().ok().flatten();
        if ended.is_some() || Instant::now() > deadline {
            return ended;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads the child's announcement, one line.
fn read_announcement(process: &mut Process, command: &DaemonCommand, events: &Events) -> Outcome<Announcement> {
    let stdout = process.stdout.take().ok_or_else(|| Failure::new(Exit::Failed, "a child without stdout"))?;
    let (sender, receiver) = bounded(1);
    let reading = std::thread::Builder::new().name("child".into()).spawn(move || {
        let mut line = String::new();
        let mut stdout = BufReader::new(stdout);
        let _ = stdout.read_line(&mut line);
        let _ = sender.send(line);
        // The daemon prints nothing more. The pipe stays open, so that it never writes to a closed one.
        let _ = stdout.read_line(&mut String::new());
    });
    reading.at("cannot start a thread")?;
    let log_len = || std::fs::metadata(&command.log).map_or(0, |m| m.len());
    let checks = tick(CHECK_EVERY);
    let (mut active, mut len) = (Instant::now(), log_len());
    loop {
        select! {
            recv(receiver) -> line => {
                return serde_json::from_str(&line.unwrap_or_default()).map_err(|_| not_started(process, command));
            }
            recv(events.receiver()) -> event => match event {
                Ok(Event::Stop(why)) => return Err(interrupted(why)),
                _ => continue,
            },
            recv(checks) -> _ => {
                let now_len = log_len();
                if now_len != len {
                    (active, len) = (Instant::now(), now_len);
                } else if active.elapsed() > SILENT_FOR {
                    return Err(not_started(process, command));
                }
            }
        }
    }
}

/// The failure after a request to stop.
pub fn interrupted(why: &str) -> Failure {
    failure!(Exit::Interrupted, "stopped while starting ({why})")
}

fn not_started(process: &mut Process, command: &DaemonCommand) -> Failure {
    // Its stdout closed, so it is ending; its status follows a moment later.
    let status = wait_for_end(process, Duration::from_secs(2));
    let how = status.map_or("it announced no address in time".to_string(), |s| describe(&s));
    let last = last_line(&command.log).map(|l| format!(": {l}")).unwrap_or_default();
    let codes =
        [Exit::Usage, Exit::NotFound, Exit::Unavailable, Exit::Corrupt, Exit::Conflict, Exit::NoSpace, Exit::Refused];
    let code = status.and_then(|s| s.code());
    let exit = codes.into_iter().find(|e| code == Some(*e as i32)).unwrap_or(Exit::Failed);
    failure!(exit, "{} did not start ({how}){last} (log {})", command.name, command.log.display())
}

/// An exit status in words.
pub fn describe(status: &ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(9)) => "killed by SIGKILL".into(),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        _ => "ended".into(),
    }
}

/// The last line of a log.
pub fn last_line(log: &Path) -> Option<String> {
    let text = std::fs::read(log).ok()?;
    let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(8192)..]).into_owned();
    let line = tail.lines().rev().find(|l| !l.trim().is_empty())?;
    Some(line.trim_start_matches("tessera: ").to_string())
}
