//! Which cluster the managers of a list serve, by what they have said: no sockets, no clock.
//!
//! A manager names its cluster and the members of its group, and speaks for all of them. One that was started with an empty directory
//! knows no other, so it speaks for itself alone, while the group that it left still names it.

use crate::endpoint::Endpoint;
use tessera_wire::{Code, Error, hex};

/// What a manager of the list has said.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Said {
    pub manager: Endpoint,
    /// Its cluster, not empty.
    pub cluster_id: Vec<u8>,
    /// Members of its group.
    pub members: Vec<Endpoint>,
}

/// What the answers to a greeting mean.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Those that have not answered yet decide.
    Wait,
    /// Most of the list serve this cluster, or all that can be heard.
    Cluster(Vec<u8>),
    /// No manager has named a cluster.
    Nobody,
    /// Managers are of several clusters, and most of the list of none.
    Conflict(Error),
}

/// Managers of one cluster, in the order of the list.
struct Camp<'a> {
    cluster_id: &'a [u8],
    managers: Vec<&'a Endpoint>,
}

/// Judges what managers of `list` have said, in the list's order. `is_complete`: the others cannot be reached, or took their whole
/// time.
pub(super) fn judge(said: &[Said], list: &[Endpoint], is_complete: bool) -> Verdict {
    let camps = camps(said);
    let votes = |camp: &Camp| list.iter().filter(|manager| is_claimed(said, manager, camp.cluster_id)).count();
    let most: Vec<&Camp> = camps.iter().filter(|camp| votes(camp) * 2 > list.len()).collect();
    match (&most[..], &camps[..]) {
        ([one], _) => Verdict::Cluster(one.cluster_id.to_vec()),
        _ if !is_complete => Verdict::Wait,
        (_, []) => Verdict::Nobody,
        (_, [one]) => Verdict::Cluster(one.cluster_id.to_vec()),
        _ => Verdict::Conflict(conflict(&camps)),
    }
}

/// The first manager that is of another cluster than one before it, and the error that names both clusters.
pub(super) fn disagreement(said: &[Said]) -> Option<(Endpoint, Error)> {
    let camps = camps(said);
    let other = camps.get(1)?;
    Some((other.managers[0].clone(), conflict(&camps)))
}

/// Managers of `list` that do not count for the cluster, each with the other one that it has named, if any.
pub(super) fn strays(said: &[Said], list: &[Endpoint], cluster_id: &[u8]) -> Vec<(Endpoint, Option<Vec<u8>>)> {
    let own = |manager: &Endpoint| said.iter().find(|it| it.manager == *manager).map(|it| it.cluster_id.clone());
    let others = list.iter().map(|manager| (manager.clone(), own(manager)));
    let counts = |(manager, own): &(Endpoint, Option<Vec<u8>>)| match own {
        Some(own) => own == cluster_id,
        None => is_claimed(said, manager, cluster_id),
    };
    others.filter(|stray| !counts(stray)).collect()
}

/// Whether the manager has named the cluster, or one that did names it as a member.
fn is_claimed(said: &[Said], manager: &Endpoint, cluster_id: &[u8]) -> bool {
    said.iter().any(|it| it.cluster_id == cluster_id && (it.manager == *manager || it.members.contains(manager)))
}

fn camps(said: &[Said]) -> Vec<Camp<'_>> {
    let mut camps: Vec<Camp> = Vec::new();
    for Said { manager, cluster_id, .. } in said {
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

    fn manager(at: usize) -> Endpoint {
        format!("h{at}:1").parse().unwrap()
    }

    fn list(clusters: &str) -> Vec<Endpoint> {
        (0..clusters.len()).map(manager).collect()
    }

    /// One letter a manager names its cluster; a capital one knows all others of the list as members. `.` says nothing.
    fn said(clusters: &str) -> Vec<Said> {
        let heard = clusters.bytes().enumerate().filter(|(_, cluster)| *cluster != b'.');
        let said = |(at, cluster): (usize, u8)| Said {
            manager: manager(at),
            cluster_id: vec![cluster.to_ascii_lowercase()],
            members: if cluster.is_ascii_uppercase() { list(clusters) } else { vec![manager(at)] },
        };
        heard.map(said).collect()
    }

    #[test]
    fn most_of_the_list_decide_at_once_and_fewer_when_the_others_cannot_be_heard() {
        for (clusters, at_once, at_last) in [
            ("a", "a", "a"),
            (".", "wait", "nobody"),
            ("a.", "wait", "a"),
            ("A.", "a", "a"),
            ("aa", "a", "a"),
            ("ab", "wait", "conflict"),
            ("Ab", "a", "a"),
            ("AB", "wait", "conflict"),
            ("a..", "wait", "a"),
            ("A..", "a", "a"),
            ("a.a", "a", "a"),
            ("baa", "a", "a"),
            ("b.a", "wait", "conflict"),
            ("b.A", "a", "a"),
            ("aab.", "wait", "conflict"),
            ("bbA", "wait", "conflict"),
            ("aaba", "a", "a"),
            ("aabb", "wait", "conflict"),
            ("abc", "wait", "conflict"),
        ] {
            for (is_complete, expected) in [(false, at_once), (true, at_last)] {
                let found = match judge(&said(clusters), &list(clusters), is_complete) {
                    Verdict::Wait => "wait".to_string(),
                    Verdict::Nobody => "nobody".to_string(),
                    Verdict::Cluster(id) => String::from_utf8(id).unwrap(),
                    Verdict::Conflict(_) => "conflict".to_string(),
                };
                assert_eq!(found, expected, "{clusters} {is_complete}");
            }
        }
    }

    #[test]
    fn strays_are_of_another_cluster_or_unknown_to_this_one() {
        for (clusters, expected) in
            [("a", ""), ("A..", ""), ("a.a", "h1:1 "), ("b.A", "h0:1=62 "), ("ba.", "h0:1=62 h2:1 ")]
        {
            let show = |(manager, other): &(Endpoint, Option<Vec<u8>>)| match other {
                Some(id) => format!("{manager}={} ", hex(id)),
                None => format!("{manager} "),
            };
            let found: String = strays(&said(clusters), &list(clusters), b"a").iter().map(show).collect();
            assert_eq!(found, expected, "{clusters}");
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
