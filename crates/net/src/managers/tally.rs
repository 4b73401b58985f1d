//! Which cluster the managers of a list serve, by what they have said: no sockets, no clock.

use crate::endpoint::Endpoint;
use tessera_wire::{Code, Error, hex};

/// What the answers to a greeting mean.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Those that have not answered yet decide.
    Wait,
    /// Most of the list serve this cluster, or all that can be heard.
    Cluster(Vec<u8>),
    /// No manager has named a cluster.
    Nobody,
    /// Managers are of several clusters, and most of the list of none: the first of the second one, and the error.
    Conflict(Endpoint, Error),
}

/// Managers of one cluster, in the order of the list.
struct Camp<'a> {
    cluster_id: &'a [u8],
    managers: Vec<&'a Endpoint>,
}

/// Judges what managers of a list of `listed` have said, in the list's order: each with its cluster. `is_complete`: the others
/// cannot be reached, or took their whole time.
pub(super) fn judge(said: &[(Endpoint, Vec<u8>)], listed: usize, is_complete: bool) -> Verdict {
    let camps = camps(said);
    if let Some(most) = camps.iter().find(|camp| camp.managers.len() * 2 > listed) {
        return Verdict::Cluster(most.cluster_id.to_vec());
    }
    match (is_complete, &camps[..]) {
        (false, _) => Verdict::Wait,
        (true, []) => Verdict::Nobody,
        (true, [one]) => Verdict::Cluster(one.cluster_id.to_vec()),
        (true, [_, other, ..]) => Verdict::Conflict(other.managers[0].clone(), conflict(&camps)),
    }
}

/// The first manager that is of another cluster than one before it, and the error that names both clusters.
pub(super) fn disagreement(said: &[(Endpoint, Vec<u8>)]) -> Option<(Endpoint, Error)> {
    let camps = camps(said);
    let other = camps.get(1)?;
    Some((other.managers[0].clone(), conflict(&camps)))
}

fn camps(said: &[(Endpoint, Vec<u8>)]) -> Vec<Camp<'_>> {
    let mut camps: Vec<Camp> = Vec::new();
    for (manager, cluster_id) in said {
        match camps.iter_mut().find(|camp| camp.cluster_id == cluster_id) {
            Some(camp) => camp.managers.push(manager),
            None => camps.push(Camp { cluster_id, managers: vec![manager] }),
        }
    }
    camps
}

fn conflict(camps: &[Camp]) -> Error {
    let serves = |camp: &Camp| {
        let managers: Vec<String> = camp.managers.iter().map(ToString::to_string).collect();
        format!("cluster {} at {}", hex(camp.cluster_id), managers.join(","))
    };
    let clusters: Vec<String> = camps.iter().map(serves).collect();
    let text = format!(
        "two clusters answer at the managers that were named: {}; was a manager whose directory was lost started without \
         --join? `tessera manager list --manager ADDR` shows each; stop the one that is wrong, remove its directory, and \
         start it with --join",
        clusters.join(", ")
    );
    Error::new(Code::WrongCluster, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One letter a manager names its cluster, `.` says nothing.
    fn said(clusters: &str) -> Vec<(Endpoint, Vec<u8>)> {
        let manager = |at: usize| format!("h{at}:1").parse().unwrap();
        let heard = clusters.bytes().enumerate().filter(|(_, cluster)| *cluster != b'.');
        heard.map(|(at, cluster)| (manager(at), vec![cluster])).collect()
    }

    #[test]
    fn most_of_the_list_decide_at_once_and_fewer_when_the_others_cannot_be_heard() {
        for (clusters, at_once, at_last) in [
            ("a", "a", "a"),
            (".", "wait", "nobody"),
            ("a.", "wait", "a"),
            ("aa", "a", "a"),
            ("ab", "wait", "h1:1"),
            ("a..", "wait", "a"),
            ("a.a", "a", "a"),
            ("baa", "a", "a"),
            ("b.a", "wait", "h2:1"),
            ("aab.", "wait", "h2:1"),
            ("aaba", "a", "a"),
            ("aabb", "wait", "h2:1"),
            ("abc", "wait", "h1:1"),
        ] {
            for (is_complete, expected) in [(false, at_once), (true, at_last)] {
                let found = match judge(&said(clusters), clusters.len(), is_complete) {
                    Verdict::Wait => "wait".to_string(),
                    Verdict::Nobody => "nobody".to_string(),
                    Verdict::Cluster(id) => String::from_utf8(id).unwrap(),
                    Verdict::Conflict(manager, _) => manager.to_string(),
                };
                assert_eq!(found, expected, "{clusters} {is_complete}");
            }
        }
    }

    #[test]
    fn a_disagreement_names_every_manager_with_its_cluster() {
        assert!(disagreement(&said("aa.")).is_none());
        let (other, error) = disagreement(&said("aba")).unwrap();
        assert_eq!(other.to_string(), "h1:1");
        assert!(error.message.contains("cluster 61 at h0:1,h2:1, cluster 62 at h1:1;"), "{error:?}");
    }
}
