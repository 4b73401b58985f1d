//! Why there is no answer, with the exit code that `tessera` has for it.

use datafusion::error::DataFusionError;
use tessera_sampling::Error as SamplingError;
use tessera_wire::Code;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The query is not valid, or names what is not there.
    #[error("{0}")]
    Usage(String),
    /// A file cannot be read, has changed, or has a malformed record.
    #[error(transparent)]
    Files(#[from] SamplingError),
    /// The store does not answer.
    #[error("{0}; check that the manager runs, or name it with --manager or TESSERA_MANAGER")]
    Store(String),
    /// The engine's message.
    #[error("{0}")]
    Engine(String),
    /// The answer cannot be printed.
    #[error("cannot write the answer: {0}")]
    Output(#[from] std::io::Error),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// One of these, which several threads have.
    #[error("{text}")]
    Shared {
        /// Its text.
        text: String,
        /// Its exit code.
        exit: u8,
    },
}

impl Error {
    /// The exit code, as `tessera --help` lists them.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) | Error::Files(SamplingError::Question(_)) => 2,
            Error::Files(SamplingError::NoFiles { .. } | SamplingError::NotFound { .. }) => 3,
            Error::Files(SamplingError::Changed { .. }) => 6,
            Error::Files(SamplingError::Store { code: Code::Corrupt, .. }) => 5,
            Error::Files(SamplingError::Store { code, .. })
                if code.is_retryable() || *code == Code::TooFewFragments =>
            {
                4
            }
            Error::Store(_) => 4,
            Error::Output(error) if error.kind() == std::io::ErrorKind::StorageFull => 7,
            Error::Interrupted => 130,
            Error::Shared { exit, .. } => *exit,
            Error::Files(_) | Error::Engine(_) | Error::Output(_) => 1,
        }
    }

    /// For programs: `docs/config.md` has its fields.
    pub fn document(&self) -> serde_json::Value {
        let (exit, text) = (self.exit_code(), self.to_string());
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        serde_json::json!({ "error": { "code": name_of(exit), "exit": exit, "message": lines.join("; ") } })
    }
}

/// What programs call an exit code, as `tessera` does.
fn name_of(exit_code: u8) -> &'static str {
    match exit_code {
        2 => "usage",
        3 => "not-found",
        4 => "unavailable",
        5 => "corrupt",
        6 => "conflict",
        7 => "no-space",
        130 => "interrupted",
        _ => "failed",
    }
}

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Error {
        match error {
            DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => Error::from(*inner),
            DataFusionError::Shared(shared) => match std::sync::Arc::try_unwrap(shared) {
                Ok(error) => Error::from(error),
                // Another thread has it, too.
                Err(shared) => of_shared(&shared),
            },
            DataFusionError::External(inner) => match inner.downcast::<Error>() {
                Ok(error) => *error,
                Err(inner) => Error::Engine(brief(&inner.to_string())),
            },
            error => of_engine(&error),
        }
    }
}

/// The error below what the engine wrapped it into.
fn of_shared(error: &DataFusionError) -> Error {
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => of_shared(inner),
        DataFusionError::Shared(inner) => of_shared(inner),
        DataFusionError::External(inner) => {
            match (inner.downcast_ref::<Error>(), inner.downcast_ref::<DataFusionError>()) {
                (Some(error), _) => Error::Shared { text: error.to_string(), exit: error.exit_code() },
                (_, Some(error)) => of_shared(error),
                _ => Error::Engine(brief(&inner.to_string())),
            }
        }
        error => of_engine(error),
    }
}

fn of_engine(error: &DataFusionError) -> Error {
    let text = brief(&error.to_string());
    match error {
        DataFusionError::SQL(..)
        | DataFusionError::Plan(_)
        | DataFusionError::SchemaError(..)
        | DataFusionError::NotImplemented(_) => Error::Usage(text),
        _ => Error::Engine(text),
    }
}

impl From<Error> for DataFusionError {
    fn from(error: Error) -> DataFusionError {
        DataFusionError::External(Box::new(error))
    }
}

/// In one line, without the engine's request to report it.
fn brief(text: &str) -> String {
    let text = text.split("\n\nbacktrace:").next().unwrap_or_default();
    if let Some((function, _)) = text.split_once(" failed to match any signature") {
        let function = function.rsplit(": ").next().unwrap_or_default();
        return format!("{function} does not take values of this type; CAST(x AS DOUBLE) makes a number of text");
    }
    text.split("This issue was likely caused by a bug").next().unwrap_or_default().replace('\n', " ").trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_function_of_the_wrong_type_is_named_in_one_sentence() {
        let failed = datafusion::prelude::SessionContext::new().sql("SELECT sum(a) FROM (VALUES ('x')) AS t(a)").await;
        let Error::Usage(text) = Error::from(failed.expect_err("text has no sum")) else {
            panic!("the query is wrong")
        };
        assert_eq!(text, "Function 'sum' does not take values of this type; CAST(x AS DOUBLE) makes a number of text");
    }
}
