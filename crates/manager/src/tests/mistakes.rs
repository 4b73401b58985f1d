//! Failpoints in the core, each caught by the test of the promise it breaks.

use super::{files, inlined, leases, locks, names, packs, receipts, restart, unpacked};
use crate::group::tests::p7_a_read_waits_for_the_entry_that_it_may_show;
use tessera_failpoint as failpoint;

#[test]
fn mistakes_are_caught() {
    let caught = |name: &str, scenario: fn()| {
        let _guard = failpoint::activate(name);
        std::panic::catch_unwind(scenario).is_err()
    };
    let model = || files::cases(2_000);
    let table: [(&str, fn()); 21] = [
        ("manager.answers_before_commit", p7_a_read_waits_for_the_entry_that_it_may_show),
        ("manager.repeats_apply", restart::p8_a_request_sent_twice_has_one_effect_and_one_answer),
        ("manager.pages_dropped_early", model),
        ("manager.references_leak", model),
        ("manager.staged_counted_twice", model),
        ("manager.packs_leak", packs::files_of_a_pack_appear_together_and_share_its_chunk),
        ("manager.moved_files_leak", unpacked::cold_small_files_move_into_a_pack),
        ("manager.moves_files_unlooked", unpacked::a_file_stays_where_it_is_unless_all_fits),
        ("manager.inlined_unlooked", inlined::bytes_that_are_not_what_they_are_called_are_refused),
        ("manager.no_recall", leases::a_change_waits_for_the_holders_answer),
        ("manager.names_not_rechecked", leases::a_command_that_waited_recalls_what_its_names_stand_for_by_then),
        ("manager.repeat_grants_lease", leases::a_repeated_answer_grants_no_lease),
        ("manager.old_receipts_count", receipts::p11_a_receipt_of_before_its_disk_was_lost_does_not_count),
        ("manager.old_receipts_count", receipts::p11_a_receipt_of_before_its_fragment_was_lost_does_not_count),
        ("manager.late_answer_releases", leases::a_late_answer_to_a_recall_gives_back_no_later_lease),
        ("manager.late_answer_releases", leases::a_late_answer_gives_back_no_later_delegation),
        ("manager.late_claims_count", locks::a_delayed_request_to_begin_takes_no_lock_from_its_client_in_grace),
        ("manager.late_claims_count", locks::an_assertion_of_before_a_loss_takes_no_lock_from_its_client_in_grace),
        ("manager.late_claims_count", locks::a_request_to_begin_that_is_delayed_hides_no_loss),
        ("manager.lock_table_number_stays", locks::a_request_of_before_a_loss_gets_no_lock_after_it),
        ("manager.no_recall", names::others_wait_before_they_make_names),
    ];
    for (name, scenario) in table {
        assert!(caught(name, scenario), "failpoint {name} is active and no check fails");
    }
    files::cases(200); // And without any, all is well.
}
