//! How an answer is printed.

use crate::exit::Outcome;
use crate::term::{Out, Table, units};
use serde_json::{Value, json};
use std::time::Duration;
use tessera_sampling::answer::{Amount, Answer, Row, Terms};
use tessera_sampling::engine::Progress;
use tessera_sampling::estimate::{Estimate, RARE_UNITS};
use tessera_sampling::question::{Aggregate, Question};

/// The largest whole number below which a floating-point number has all.
const MAX_WHOLE: u64 = 1 << 53;
/// A number with a fraction is shown in full if it has no more digits: sums are rounded at the sixteenth, and errors add up.
const EXACT_DIGITS: usize = 12;

/// An answer with what is said about it.
pub struct Shown<'a> {
    /// The question.
    pub question: &'a Question,
    /// How it was asked.
    pub terms: &'a Terms,
    /// The answer.
    pub answer: &'a Answer,
    /// What was read.
    pub progress: Progress,
    /// Disks and the units that came from them.
    pub disks: Vec<(String, u64)>,
    /// Length of all files.
    pub all_bytes: u64,
    /// The sample's seed.
    pub seed: u64,
    /// Time since the command began.
    pub elapsed: Duration,
    /// Ctrl-C ended it.
    pub was_interrupted: bool,
}

/// Prints an answer.
///
/// # Errors
/// Stdout cannot be written.
pub fn show(shown: &Shown<'_>, out: Out) -> Outcome {
    if out.json {
        return out.document(&document(shown));
    }
    if !shown.answer.rows.is_empty() {
        let mut table = Table::new("<>>>>>", &["KEY", noun(shown.question), "LOW", "HIGH", "UNITS", "DESIGN EFFECT"]);
        for row in &shown.answer.rows {
            table.row(std::iter::once(key_text(row)).chain(cells(&row.estimate)));
        }
        out.table(&table)?;
    }
    let total = none_seen(shown).unwrap_or_else(|| brief(&shown.answer.total));
    out.line(format!("{}: {total}", total_name(shown.question)))?;
    notes(shown).into_iter().for_each(|note| out.note(note));
    Ok(())
}

/// A row's key for people: `NULL` for null, and the text that reads so in quotes.
pub fn key_text(row: &Row) -> String {
    match row.key.as_deref() {
        None => "NULL".to_string(),
        Some(b"NULL") => "\"NULL\"".to_string(),
        Some(key) => String::from_utf8_lossy(key).into_owned(),
    }
}

fn cells(estimate: &Estimate) -> [String; 5] {
    let (low, high) = match estimate.claimed {
        true => (number(estimate.low), number(estimate.high)),
        false => ("-".to_string(), "-".to_string()),
    };
    let effect =
        if estimate.design_effect.is_finite() { format!("{:.1}", estimate.design_effect) } else { "-".to_string() };
    [number(estimate.value), low, high, units::count(estimate.units_seen), effect]
}

/// What is said in place of an estimate if the sample met no record of the question.
fn none_seen(Shown { answer, progress, .. }: &Shown) -> Option<String> {
    let is_part = answer.is_random && progress.units < progress.all_units;
    (is_part && answer.records == 0.0).then(|| match answer.unseen_units {
        units if units.is_finite() => {
            let all = units::count(progress.all_units);
            format!("none was seen; such records lie in fewer than {} of {all} units", number(units))
        }
        _ => "none was seen".to_string(),
    })
}

/// `1,234 ± 2.0 % (1,210 to 1,260)`.
pub fn brief(estimate: &Estimate) -> String {
    if estimate.value.is_nan() {
        return "no record has a value".to_string();
    }
    if !estimate.claimed {
        return format!(
            "about {}, seen in {} units: no interval is claimed",
            number(estimate.value),
            estimate.units_seen
        );
    }
    if estimate.low == estimate.high {
        return exact(estimate.value);
    }
    let (value, error) = (number(estimate.value), percent(estimate.relative_error()));
    format!("{value} ± {error} % ({} to {})", number(estimate.low), number(estimate.high))
}

/// A number that is known exactly, in full, or where that has more digits than sums of floating-point numbers do, rounded.
fn exact(value: f64) -> String {
    let text = value.abs().to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let digits = whole.trim_start_matches('0').len() + fraction.len();
    match whole.parse::<u64>() {
        Ok(whole) if whole <= MAX_WHOLE && (fraction.is_empty() || digits <= EXACT_DIGITS) => {
            let sign = if value < 0.0 { "-" } else { "" };
            let point = if fraction.is_empty() { "" } else { "." };
            format!("{sign}{}{point}{fraction}, exactly", units::count(whole))
        }
        _ => format!("about {}, rounded", number(value)),
    }
}

fn notes(shown: &Shown<'_>) -> Vec<String> {
    let Shown { answer, progress, terms, .. } = shown;
    let mut notes = Vec::new();
    let read = format!(
        "read {} of {} in {}: {} of {} units on {}",
        units::bytes(progress.read_bytes),
        units::bytes(shown.all_bytes),
        units::duration(shown.elapsed),
        units::count(progress.units),
        units::count(progress.all_units),
        units::plural(shown.disks.len() as u64, "disk"),
    );
    notes.push(read);
    if shown.was_interrupted {
        notes.push("interrupted: this is what is known so far".to_string());
    }
    if !answer.is_random {
        notes.push(
            "everything was to be read, so the beginnings were read first, which are no random part: no interval is claimed"
                .to_string(),
        );
    } else if progress.units < progress.all_units {
        if answer.rare_groups > 0 {
            notes.push(format!(
                "{} of {} were seen in fewer than {RARE_UNITS} units: too rare for an interval",
                units::count(answer.rare_groups as u64),
                units::plural(answer.groups as u64, "key")
            ));
        }
        notes.extend(unseen(shown));
    }
    match terms.amount {
        Amount::Error(error) if !answer.reached => {
            notes.push(format!("the promised error of {} % was not reached", percent(error)))
        }
        Amount::Error(error) if progress.units == progress.all_units => {
            notes.push(format!("an error of {} % needed everything", percent(error)));
        }
        _ => {}
    }
    notes
}

/// How many records a key may have that was not seen.
fn unseen(shown: &Shown<'_>) -> Option<String> {
    let answer = shown.answer;
    let units = answer.unseen_units;
    if units == 0.0 || !units.is_finite() {
        return None;
    }
    (shown.question.key.is_some() && answer.records > 0.0)
        .then(|| format!("a key that was not seen has fewer than {} records", number(answer.unseen_records)))
}

fn noun(question: &Question) -> &'static str {
    match question.aggregate {
        Aggregate::Count | Aggregate::Distinct => "RECORDS",
        Aggregate::Sum => "SUM",
        Aggregate::Mean => "MEAN",
        Aggregate::Quantile(_) => "QUANTILE",
    }
}

fn total_name(question: &Question) -> String {
    match question.aggregate {
        Aggregate::Count => "records".to_string(),
        Aggregate::Sum => "sum".to_string(),
        Aggregate::Mean => "mean".to_string(),
        Aggregate::Quantile(share) => format!("{} % quantile", 100.0 * share),
        Aggregate::Distinct => "distinct keys".to_string(),
    }
}

/// A share in percent: with a digit behind the point, and below 1 % with two that are not 0.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if !(1e-12..0.995).contains(&percent) {
        return format!("{percent:.1}");
    }
    let decimals = (1.0 - percent.log10().floor()) as usize;
    let text = format!("{percent:.decimals$}");
    text.strip_suffix('0').map_or(text.clone(), str::to_string)
}

/// A number with separators, and with digits behind the point only where they count.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if (1000.0..9e15).contains(&size) => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", units::count(value.abs().round() as u64))
        }
        _ if value == value.trunc() && value.abs() < 1000.0 => format!("{value}"),
        size if (1.0..1000.0).contains(&size) => format!("{value:.2}"),
        _ => format!("{value:.3e}"),
    }
}

/// The answer for programs.
pub fn document(shown: &Shown<'_>) -> Value {
    let Shown { answer, progress, .. } = shown;
    let rows: Vec<Value> = answer
        .rows
        .iter()
        .map(|row| {
            let mut document = estimate_document(&row.estimate);
            document["key"] = row.key.as_deref().map(String::from_utf8_lossy).into();
            document
        })
        .collect();
    let disks: Vec<Value> = shown.disks.iter().map(|(name, units)| json!({ "disk": name, "units": units })).collect();
    let mut total = estimate_document(&answer.total);
    if none_seen(shown).is_some() {
        total["estimate"] = Value::Null;
    }
    json!({
        "total": total,
        "groups": rows,
        "groups_seen": answer.groups,
        "rare_groups": answer.rare_groups,
        "unseen_units": answer.unseen_units,
        "unseen_records": answer.unseen_records,
        "records_counted": answer.records,
        "confidence": shown.terms.confidence,
        "reached": answer.reached && !shown.was_interrupted,
        "interrupted": shown.was_interrupted,
        "units": progress.units,
        "all_units": progress.all_units,
        "read_bytes": progress.read_bytes,
        "all_bytes": shown.all_bytes,
        "disks": disks,
        "seed": shown.seed,
        "seconds": shown.elapsed.as_secs_f64(),
    })
}

fn estimate_document(estimate: &Estimate) -> Value {
    // JSON has no NaN: null says that there is none.
    json!({
        "estimate": estimate.value,
        "low": if estimate.claimed { Value::from(estimate.low) } else { Value::Null },
        "high": if estimate.claimed { Value::from(estimate.high) } else { Value::Null },
        "standard_error": estimate.standard_error,
        "design_effect": estimate.design_effect,
        "units_seen": estimate.units_seen,
        "claimed": estimate.claimed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_in_percent_has_digits_that_count() {
        for (share, text) in [
            (0.02, "2.0"),
            (0.1234, "12.3"),
            (0.01, "1.0"),
            (0.0099, "0.99"),
            (0.005, "0.5"),
            (0.001, "0.1"),
            (0.0001, "0.01"),
            (0.000_012_34, "0.0012"),
            (0.0, "0.0"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn what_is_called_exact_is_shown_in_full() {
        for (value, text) in [
            (1234.565, "1,234.565, exactly"),
            (-1234.5, "-1,234.5, exactly"),
            (0.0, "0, exactly"),
            (0.25, "0.25, exactly"),
            (500.0, "500, exactly"),
            (1_234_567.0, "1,234,567, exactly"),
            (9_007_199_254_740_992.0, "9,007,199,254,740,992, exactly"),
            (9_007_199_254_740_994.0, "about 9.007e15, rounded"),
            (1000.0 / 3.0, "about 333.33, rounded"),
            (0.1 + 0.2, "about 3.000e-1, rounded"),
            (10_000.0 / 3.0, "about 3,333, rounded"),
        ] {
            assert_eq!(exact(value), text);
        }
    }
}
