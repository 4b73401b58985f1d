//! Bugs planted in the core, each caught by the test that watches over the promise.

use super::{files, leases, log, names, restart};
use crate::planted::{self, Bug};

#[test]
fn planted_bugs_are_caught() {
    let caught = |bug: Bug, scenario: fn()| {
        planted::plant(Some(bug));
        let result = std::panic::catch_unwind(scenario);
        planted::plant(None);
        result.is_err()
    };
    let model = || files::cases(2_000);
    let table: [(Bug, fn()); 8] = [
        (Bug::AnswersBeforeReplicas, log::an_answer_waits_for_as_many_replicas_as_there_must_be),
        (Bug::OneReplicaTooFew, log::an_answer_waits_for_as_many_replicas_as_there_must_be),
        (Bug::RepeatsApply, restart::p8_a_request_sent_twice_has_one_effect_and_one_answer),
        (Bug::PagesDroppedEarly, model),
        (Bug::ReferencesLeak, model),
        (Bug::StagedCountedTwice, model),
        (Bug::NoRecall, leases::a_change_waits_for_the_holders_answer),
        (Bug::NoRecall, names::others_wait_before_they_make_names),
    ];
    for (bug, scenario) in table {
        assert!(caught(bug, scenario), "{bug:?} was planted and nothing noticed");
    }
    files::cases(200); // And without any, all is well.
}
