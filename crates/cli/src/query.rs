//! `tessera query`: SQL, by a program of its own, because its engine would make this one three times as large.

use crate::args::QueryArgs;
use crate::exit::{Exit, Failure, Outcome, bail};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "tessera-query";

/// `tessera query`: becomes `tessera-query`, the one beside this program, else one in the search path.
///
/// # Errors
/// It is not installed, or cannot be started.
pub fn query(args: QueryArgs) -> Outcome {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(args.arguments).exec();
    if error.kind() == ErrorKind::NotFound {
        bail!(
            Exit::NotFound,
            "{PROGRAM} is not installed; build it with `make query`, and put it beside tessera or into the search path"
        );
    }
    Err(Failure::new(Exit::Failed, format!("{} cannot be started: {error}", program.display())))
}
