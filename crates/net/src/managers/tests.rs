//! Managers on real sockets, of which one leads, then another.

use crate::dialer::NoService;
use crate::*;
use parking_lot::Mutex;
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tessera_wire::meta::{ClusterStatus, GetStatus};
use tessera_wire::*;

const WAIT: Duration = Duration::from_secs(20);
/// Longer than a manager must be silent to count as such.
const SILENCE: Duration = Duration::from_millis(1200);

/// How late a late manager answers a greeting: sooner than a dialer gives up, later than a hasty one does.
const LATE: Duration = Duration::from_millis(900);
/// Time-out of a hasty dialer.
const HASTE: Duration = Duration::from_millis(300);

const CLUSTER: [u8; 16] = [1; 16];
const OTHER_CLUSTER: [u8; 16] = [2; 16];

/// What a manager does with requests.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Leads,
    /// Says that it does not lead, and names the leader if `names_leader`.
    StandsBy {
        names_leader: bool,
    },
    /// Reads and answers nothing.
    Silent,
    /// Ends the connection.
    Breaks,
    /// Is of another cluster than all the others, as which it leads.
    OtherCluster,
    /// Leads, and answers the greeting [`LATE`].
    Late,
    /// Opens its database.
    Opening,
    /// Is a node.
    Node,
}

/// What the managers of a test share: how each behaves, and how many requests each has had.
#[derive(Default)]
struct Group {
    manners: Vec<Manner>,
    addresses: Vec<String>,
    requests: HashMap<usize, usize>,
    /// Managers do not name the others as members of their group.
    is_apart: bool,
}

struct Fake {
    number: usize,
    group: Arc<Mutex<Group>>,
}

impl Service for Fake {
    fn request(&self, connection: &Arc<Connection>, frame: Frame) {
        let (kind, id) = (frame.header.kind, frame.header.request_id);
        let manner = self.group.lock().manners[self.number];
        if kind == Kind::Hello as u16 {
            let cluster_id = if manner == Manner::OtherCluster { OTHER_CLUSTER } else { CLUSTER }.to_vec();
            let hello = Hello::decode(frame.body).unwrap();
            let role = if manner == Manner::Node { Role::Node } else { Role::Manager } as i32;
            // One that founded another cluster knows no other manager.
            let members = match self.group.lock() {
                group if group.is_apart || manner == Manner::OtherCluster => Vec::new(),
                group => group.addresses.clone(),
            };
            let reply = HelloReply { cluster_id: cluster_id.clone(), role, members, ..HelloReply::default() };
            let reply = reply.encode_to_vec();
            match manner {
                Manner::Late => std::thread::sleep(LATE),
                Manner::Opening => {
                    let error = Error::new(Code::Unavailable, "this manager is opening its database");
                    return connection.reply(kind, id, Err(error));
                }
                _ => {}
            }
            let admitted = hello.check(&cluster_id).and_then(|()| connection.admit(Role::Client));
            return connection.reply(kind, id, admitted.map(|()| (reply.into(), Vec::new())));
        }
        let (leader, me) = {
            let mut group = self.group.lock();
            *group.requests.entry(self.number).or_default() += 1;
            let leads = group.manners.iter().position(|manner| *manner == Manner::Leads);
            (leads.map(|leads| group.addresses[leads].clone()), self.number as u64)
        };
        let answer = match manner {
            Manner::Leads | Manner::OtherCluster | Manner::Late => {
                Ok((ClusterStatus { files: me, ..ClusterStatus::default() }.encode_to_vec().into(), Vec::new()))
            }
            Manner::StandsBy { names_leader } => {
                let leader = leader.filter(|_| names_leader).unwrap_or_default();
                Err(Error { leader, ..Error::new(Code::NotLeader, "stands by") })
            }
            Manner::Node => Err(Error::new(Code::Unsupported, "a node serves no such request")),
            Manner::Breaks => return connection.close(),
            Manner::Silent | Manner::Opening => return,
        };
        connection.reply(kind, id, answer);
    }
}

struct Cluster {
    group: Arc<Mutex<Group>>,
    servers: Vec<Server>,
    dialer: Dialer,
    managers: Managers,
}

const NAMES: Manner = Manner::StandsBy { names_leader: true };
const KNOWS_NOTHING: Manner = Manner::StandsBy { names_leader: false };

/// A greeting of a process that does not know its cluster.
fn hello() -> Hello {
    Hello { protocol_version: PROTOCOL_VERSION, ..Hello::default() }
}

fn cluster(manners: &[Manner]) -> Cluster {
    cluster_as(hello(), manners)
}

/// Managers that name no other as a member of their group.
fn managers_apart(manners: &[Manner]) -> Cluster {
    let cluster = cluster(manners);
    cluster.group.lock().is_apart = true;
    cluster
}

/// A cluster whose managers have [`HASTE`] to answer the greeting.
fn hasty_cluster(manners: &[Manner]) -> Cluster {
    let mut cluster = cluster(manners);
    cluster.dialer = Dialer::with_timeout(hello(), Arc::new(NoService), BufferPool::new(0), HASTE);
    cluster.managers = Managers::new(cluster.dialer.clone(), cluster.managers.list().clone());
    cluster
}

/// A cluster that is greeted with `hello`.
fn cluster_as(hello: Hello, manners: &[Manner]) -> Cluster {
    let group = Arc::new(Mutex::new(Group { manners: manners.to_vec(), ..Group::default() }));
    let start = |number| {
        let fake = Arc::new(Fake { number, group: group.clone() });
        Server::start(&["127.0.0.1:0".parse().unwrap()], fake, BufferPool::new(0), Limits::default()).unwrap()
    };
    let servers: Vec<Server> = (0..manners.len()).map(start).collect();
    let addresses: Vec<String> = servers.iter().map(|server| server.endpoints()[0].to_string()).collect();
    let dialer = Dialer::new(hello, Arc::new(NoService), BufferPool::new(0));
    let managers = Managers::new(dialer.clone(), addresses.join(",").parse().unwrap());
    group.lock().addresses = addresses;
    Cluster { group, servers, dialer, managers }
}

impl Cluster {
    /// Waits until every manager has answered a greeting; most of them would be enough for a call.
    fn hear_all(&self) {
        self.managers.learn_cluster().unwrap();
    }

    /// Number of the manager that answered as the leader.
    fn ask_for(&self, timeout: Duration) -> Result<u64, Error> {
        self.managers.call_wait(&GetStatus {}, Vec::new(), timeout).map(|(status, _)| status.files)
    }

    fn ask(&self) -> Result<u64, Error> {
        self.ask_for(WAIT)
    }

    fn set(&self, manners: &[Manner]) {
        self.group.lock().manners = manners.to_vec();
    }

    /// Requests since the last call of this function.
    fn requests(&self) -> [usize; 3] {
        let requests = std::mem::take(&mut self.group.lock().requests);
        [0, 1, 2].map(|number| requests.get(&number).copied().unwrap_or(0))
    }
}

#[test]
fn calls_follow_the_leader_from_one_manager_to_another() {
    let cluster = cluster(&[NAMES, NAMES, Manner::Leads]);
    cluster.hear_all();
    assert_eq!(cluster.ask().unwrap(), 2);
    assert_eq!(cluster.requests(), [1, 0, 1]);
    assert_eq!(cluster.ask().unwrap(), 2);
    assert_eq!(cluster.requests(), [0, 0, 1], "now it is known");
    cluster.set(&[NAMES, Manner::Leads, NAMES]);
    assert_eq!(cluster.ask().unwrap(), 1);
    assert_eq!(cluster.requests(), [0, 1, 1]);
    cluster.set(&[Manner::Leads, KNOWS_NOTHING, KNOWS_NOTHING]);
    assert_eq!(cluster.ask().unwrap(), 0);
    assert_eq!(cluster.requests(), [1, 1, 1]);
}

#[test]
fn a_call_waits_for_an_election_and_ends_with_its_time() {
    let cluster = cluster(&[KNOWS_NOTHING; 3]);
    let error = cluster.ask_for(Duration::from_millis(500)).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error:?}");
    assert!(error.message.starts_with("stands by (asked 127."), "{error:?}");
    cluster.requests();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| cluster.ask().unwrap());
        while cluster.requests() == [0; 3] {
            std::thread::sleep(Duration::from_millis(5));
        }
        cluster.set(&[KNOWS_NOTHING, Manner::Leads, KNOWS_NOTHING]);
        assert_eq!(asking.join().unwrap(), 1);
    });
}

#[test]
fn a_leader_that_is_gone_is_left_at_once() {
    let mut cluster = cluster(&[Manner::Leads, NAMES, NAMES]);
    cluster.hear_all();
    assert_eq!(cluster.ask().unwrap(), 0);
    cluster.servers[0].stop();
    cluster.set(&[Manner::Leads, KNOWS_NOTHING, Manner::Leads]);
    // What was sent when the connection broke has an error; what was not goes on.
    let answer = cluster.ask().or_else(|_| cluster.ask());
    assert_eq!(answer.unwrap(), 2);
    cluster.servers[1].stop();
    cluster.servers[2].stop();
    let first = cluster.ask().unwrap_err();
    assert_eq!(first.code(), Code::Unavailable);
    // By now nothing is connected.
    let error = cluster.ask().unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message.starts_with("cannot reach 127.0.0.1:"), "{error:?}");
    let addresses = cluster.group.lock().addresses.clone();
    assert!(addresses.iter().all(|address| error.message.contains(address)), "all are named: {error:?}");
}

/// P8: the caller repeats what may have been carried out.
#[test]
fn a_request_that_was_sent_is_not_repeated_elsewhere() {
    let cluster = cluster(&[Manner::Breaks, Manner::Leads, NAMES]);
    cluster.hear_all();
    assert_eq!(cluster.ask().unwrap_err().code(), Code::Unavailable);
    assert_eq!(cluster.requests(), [1, 0, 0]);
    assert_eq!(cluster.ask().unwrap(), 1, "its repetition");
}

#[test]
fn a_silent_leader_holds_one_time_out_and_then_nobody() {
    let cluster = cluster(&[Manner::Leads, NAMES, NAMES]);
    assert_eq!(cluster.ask().unwrap(), 0);
    cluster.set(&[Manner::Silent, NAMES, NAMES]);
    let (sender, held) = std::sync::mpsc::channel();
    let hold = Box::new(move |result: Result<_, Error>| sender.send(result.map(drop)).unwrap());
    let body = GetStatus {}.encode_to_vec().into();
    cluster.managers.call(Kind::GetStatus, body, Vec::new(), Duration::from_secs(600), hold);
    assert_eq!(cluster.ask_for(SILENCE).unwrap_err().code(), Code::Timeout);
    cluster.set(&[Manner::Silent, NAMES, Manner::Leads]);
    assert_eq!(cluster.ask().unwrap(), 2);
    // Another manager leads: what waits for the silent one is repeated there.
    assert_eq!(held.recv_timeout(WAIT).unwrap().unwrap_err().code(), Code::Unavailable);
}

fn hello_of_cluster() -> Hello {
    Hello { protocol_version: PROTOCOL_VERSION, cluster_id: CLUSTER.to_vec(), ..Hello::default() }
}

/// P14.
#[test]
fn a_dialer_that_knows_its_cluster_passes_over_a_manager_of_another() {
    let cluster = cluster_as(hello_of_cluster(), &[Manner::OtherCluster, Manner::Leads, NAMES]);
    assert_eq!(cluster.ask().unwrap(), 1);
    let all = cluster_as(hello_of_cluster(), &[Manner::OtherCluster; 3]);
    let error = all.ask().unwrap_err();
    assert_eq!(error.code(), Code::WrongCluster);
    assert!(error.message.contains("(managers 127."), "{error:?}");
}

/// P14: a manager that lost its directory has founded another cluster. Most of the list are of the right one.
#[test]
fn calls_pass_to_the_cluster_of_most_managers() {
    for at in 0..3 {
        let mut manners = [Manner::Leads, NAMES, NAMES];
        manners.rotate_right((at + 1) % 3);
        manners[at] = Manner::OtherCluster;
        let cluster = cluster(&manners);
        assert_eq!(cluster.ask().unwrap() as usize, (at + 1) % 3);
        assert_eq!(cluster.requests()[at], 0);
    }
}

/// P14: nothing says which of two is the right one.
#[test]
fn no_call_passes_if_two_clusters_answer() {
    for manners in [[Manner::OtherCluster, Manner::Leads], [Manner::Leads, Manner::OtherCluster]] {
        let cluster = managers_apart(&manners);
        for _ in 0..2 {
            let error = cluster.ask().unwrap_err();
            assert_eq!(error.code(), Code::WrongCluster);
            assert!(error.message.contains("two clusters answer"), "{error:?}");
        }
        assert_eq!(cluster.requests(), [0; 3]);
    }
}

/// P14: the group that a manager left by losing its directory still names it.
#[test]
fn calls_pass_to_the_cluster_that_names_the_other_manager() {
    for manners in [[Manner::OtherCluster, Manner::Late], [Manner::Leads, Manner::OtherCluster]] {
        let cluster = cluster(&manners);
        let right = manners.iter().position(|manner| *manner != Manner::OtherCluster).unwrap();
        assert_eq!(cluster.ask().unwrap() as usize, right);
        assert_eq!(cluster.requests()[1 - right], 0);
    }
}

/// P14: a manager that takes the connection may be the right one, so the calls wait for it.
#[test]
fn a_late_manager_is_waited_for() {
    let cluster = managers_apart(&[Manner::OtherCluster, Manner::Late]);
    assert_two_clusters(&cluster, &cluster.ask().unwrap_err(), 1, 0);
    assert_eq!(cluster.requests(), [0; 3]);
}

/// Checks that `error` names two clusters, and these managers with each.
fn assert_two_clusters(cluster: &Cluster, error: &Error, right: usize, wrong: usize) {
    assert_eq!(error.code(), Code::WrongCluster, "{error:?}");
    let addresses = cluster.group.lock().addresses.clone();
    for (id, at) in [(CLUSTER, right), (OTHER_CLUSTER, wrong)] {
        let says = format!("cluster {} at {}", hex(&id), addresses[at]);
        assert!(error.message.contains(&says), "{says}: {error:?}");
    }
}

/// P14: the wrong manager answered first, and calls have passed. The right one ends that, also for a call under way.
#[test]
fn a_late_answer_of_another_cluster_refuses_all_that_follows() {
    let cluster = hasty_cluster(&[Manner::OtherCluster, Manner::Late]);
    assert_eq!(cluster.ask().unwrap(), 0);
    cluster.set(&[Manner::Silent, Manner::Leads]);
    let under_way = cluster.ask().unwrap_err();
    assert_two_clusters(&cluster, &under_way, 1, 0);
    cluster.set(&[Manner::OtherCluster, Manner::Leads]);
    let _ = cluster.requests();
    assert_two_clusters(&cluster, &cluster.ask().unwrap_err(), 1, 0);
    assert_eq!(cluster.requests(), [0; 3]);
}

/// P14: after a power cut all managers start, and the wrong one, which has nothing to open, is the first that serves.
#[test]
fn managers_that_are_starting_are_waited_for() {
    let cluster = cluster(&[Manner::Opening, Manner::Opening, Manner::OtherCluster]);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| cluster.ask().unwrap());
        std::thread::sleep(HASTE);
        assert_eq!(cluster.requests(), [0; 3]);
        cluster.set(&[NAMES, Manner::Leads, Manner::OtherCluster]);
        assert_eq!(asking.join().unwrap(), 1);
    });
    assert_eq!(cluster.requests()[2], 0);
}

/// P14: whoever takes a cluster that others of the list do not confirm is told so.
#[test]
fn a_cluster_that_does_not_know_the_other_managers_is_in_doubt() {
    let mut alone = cluster(&[Manner::OtherCluster, Manner::Leads, Manner::Opening]);
    alone.stop(1);
    assert_eq!(alone.ask().unwrap(), 0);
    let doubt = alone.managers.doubt().unwrap();
    assert!(alone.group.lock().addresses[1..].iter().all(|address| doubt.contains(address)), "{doubt}");
    let outvoted = cluster(&[Manner::Leads, Manner::OtherCluster, NAMES]);
    assert_eq!(outvoted.ask().unwrap(), 0);
    outvoted.ask_until(|_| outvoted.dialer.identity(&outvoted.managers.list().endpoints()[1]).is_some()).unwrap();
    let mut known = cluster(&[NAMES, Manner::Leads, NAMES]);
    known.stop(0);
    known.stop(2);
    assert_eq!(known.ask().unwrap(), 1);
    assert_eq!(known.managers.doubt(), None);
}

impl Cluster {
    /// Ends a manager; returns its address.
    fn stop(&mut self, number: usize) -> Endpoint {
        let endpoint = self.servers[number].endpoints()[0].clone();
        self.servers[number].stop();
        endpoint
    }

    /// Starts a manager again.
    fn restart(&mut self, number: usize, endpoint: Endpoint) {
        let fake = Arc::new(Fake { number, group: self.group.clone() });
        self.servers[number] = Server::start(&[endpoint], fake, BufferPool::new(0), Limits::default()).unwrap();
    }

    /// Asks until the answer is as `is_expected` says.
    fn ask_until(&self, is_expected: impl Fn(&Result<u64, Error>) -> bool) -> Result<u64, Error> {
        let deadline = std::time::Instant::now() + WAIT;
        loop {
            let answer = self.ask();
            if is_expected(&answer) {
                return answer;
            }
            assert!(std::time::Instant::now() < deadline, "still {answer:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// P14: the right manager was down during the first contact.
#[test]
fn a_manager_that_starts_later_is_heard() {
    let mut cluster = cluster(&[Manner::OtherCluster, Manner::Leads]);
    let endpoint = cluster.stop(1);
    assert_eq!(cluster.ask().unwrap(), 0);
    cluster.restart(1, endpoint);
    let error = cluster.ask_until(Result::is_err).unwrap_err();
    assert_two_clusters(&cluster, &error, 1, 0);
}

/// P14: somebody starts the lost manager without `--join`, sees what it does, and mends it.
#[test]
fn calls_pass_again_once_all_managers_are_of_one_cluster() {
    let mut cluster = managers_apart(&[Manner::Leads, Manner::OtherCluster]);
    let endpoint = cluster.stop(1);
    assert_eq!(cluster.ask().unwrap(), 0);
    cluster.restart(1, endpoint);
    cluster.ask_until(Result::is_err).unwrap_err();
    cluster.set(&[Manner::Leads, NAMES]);
    assert_eq!(cluster.ask_until(Result::is_ok).unwrap(), 0);
    // Also if no call has passed before.
    let cluster = managers_apart(&[Manner::Leads, Manner::OtherCluster]);
    cluster.ask().unwrap_err();
    cluster.set(&[Manner::Leads, NAMES]);
    // It was ended, and its directory removed.
    cluster.dialer.hang_up(&cluster.managers.list().endpoints()[1]);
    assert_eq!(cluster.ask_until(Result::is_ok).unwrap(), 0);
}

/// P14: a wrong manager that comes late stops nobody while most of the list are of the right cluster.
#[test]
fn a_late_manager_of_another_cluster_is_outvoted() {
    let mut cluster = cluster(&[NAMES, Manner::Leads, Manner::OtherCluster]);
    let endpoint = cluster.stop(2);
    assert_eq!(cluster.ask().unwrap(), 1);
    cluster.restart(2, endpoint.clone());
    let deadline = std::time::Instant::now() + WAIT;
    while cluster.dialer.identity(&endpoint).is_none() {
        assert!(std::time::Instant::now() < deadline, "it was not greeted again");
        assert_eq!(cluster.ask().unwrap(), 1);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(cluster.ask().unwrap(), 1);
    assert_eq!(cluster.requests()[2], 0);
}

#[test]
fn one_thread_at_most_greets_managers_that_do_not_answer() {
    let mut cluster = cluster(&[Manner::Leads, Manner::Leads]);
    let endpoints = [cluster.stop(0), cluster.stop(1)];
    for _ in 0..20 {
        cluster.ask().unwrap_err();
    }
    // Each greeting thread holds one. Those that have told their calls are about to end.
    let deadline = std::time::Instant::now() + WAIT;
    while Arc::weak_count(&cluster.managers.0) > 1 {
        assert!(std::time::Instant::now() < deadline, "threads pile up");
        std::thread::sleep(Duration::from_millis(5));
    }
    for (number, endpoint) in endpoints.into_iter().enumerate() {
        cluster.restart(number, endpoint);
    }
    cluster.ask_until(Result::is_ok).unwrap();
}

/// What a manager said first confirms the cluster: one that loses its directory later stops nobody who works.
#[test]
fn a_manager_that_changes_its_cluster_later_is_passed_over() {
    let cluster = cluster(&[Manner::Leads, NAMES, NAMES]);
    cluster.hear_all();
    assert_eq!(cluster.ask().unwrap(), 0);
    cluster.set(&[Manner::OtherCluster, Manner::Leads, NAMES]);
    let first: Endpoint = cluster.group.lock().addresses[0].parse().unwrap();
    cluster.dialer.hang_up(&first);
    assert_eq!(cluster.ask().unwrap(), 1);
    assert_eq!(cluster.requests(), [1, 1, 0]);
}

/// P14: a new node writes its cluster onto its disks, so it hears all managers, late ones too.
#[test]
fn learning_the_cluster_waits_for_every_manager() {
    let late = cluster(&[Manner::OtherCluster, Manner::Late]);
    let (other, error) = late.managers.learn_cluster().unwrap_err();
    assert_two_clusters(&late, &error, 1, 0);
    assert_eq!(other.to_string(), late.group.lock().addresses[1]);
    let mut one = cluster(&[Manner::Leads, NAMES]);
    drop(one.servers.remove(0));
    assert_eq!(one.managers.learn_cluster().unwrap(), CLUSTER);
    // A member that is silent is known to the others; nobody knows what else one that they do not know may be.
    let hung = hasty_cluster(&[Manner::Leads, Manner::Late]);
    assert_eq!(hung.managers.learn_cluster().unwrap(), CLUSTER);
    let mut gone = cluster(&[Manner::OtherCluster, Manner::Leads]);
    gone.stop(1);
    let opening = cluster(&[Manner::OtherCluster, Manner::Opening]);
    let hung = hasty_cluster(&[Manner::OtherCluster, Manner::Late]);
    for unknown in [gone, opening, hung] {
        let (silent, error) = unknown.managers.learn_cluster().unwrap_err();
        assert_eq!(silent.to_string(), unknown.group.lock().addresses[1]);
        assert!(error.is_retryable() && error.message.contains("does not know"), "{error:?}");
    }
    let mut planned = managers_apart(&[Manner::Leads, NAMES, NAMES]);
    planned.stop(2);
    assert_eq!(planned.managers.learn_cluster().unwrap(), CLUSTER);
    let two = cluster(&[Manner::Leads, NAMES, Manner::OtherCluster]);
    assert_eq!(two.managers.learn_cluster().unwrap_err().1.code(), Code::WrongCluster);
    let node = cluster(&[Manner::Node]);
    assert_eq!(node.managers.learn_cluster().unwrap_err().1.code(), Code::Unsupported);
}

/// P14: for those that know their cluster, too.
#[test]
fn a_node_in_the_list_is_passed_over() {
    for hello in [hello_of_cluster(), Hello { cluster_id: Vec::new(), ..hello_of_cluster() }] {
        let cluster = cluster_as(hello.clone(), &[Manner::Node, Manner::Leads]);
        assert_eq!(cluster.ask().unwrap(), 1);
        assert_eq!(cluster.ask().unwrap(), 1);
        let alone = cluster_as(hello, &[Manner::Node]);
        let error = alone.ask().unwrap_err();
        assert_eq!(error.code(), Code::Unsupported);
        assert!(error.message.contains("is a node and no manager"), "{error:?}");
    }
}

/// The first of the list does not run any more.
#[test]
fn one_cluster_is_enough_if_the_other_managers_are_gone() {
    let mut cluster = cluster(&[NAMES, Manner::Leads, NAMES]);
    drop(cluster.servers.remove(0));
    assert_eq!(cluster.ask().unwrap(), 1);
    assert_eq!(cluster.managers.leader().to_string(), cluster.group.lock().addresses[1]);
}

#[test]
fn calls_begun_together_wait_for_one_greeting() {
    let cluster = cluster(&[Manner::Leads, NAMES, NAMES]);
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(|| cluster.ask())).collect();
        asking.into_iter().for_each(|asked| assert_eq!(asked.join().unwrap().unwrap(), 0));
    });
    assert_eq!(cluster.requests()[0], 8);
}

#[test]
fn closing_ends_the_calls_that_pause() {
    let cluster = cluster(&[KNOWS_NOTHING; 3]);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| cluster.ask_for(Duration::from_secs(600)).unwrap_err());
        while cluster.requests() == [0; 3] {
            std::thread::sleep(Duration::from_millis(5));
        }
        cluster.managers.close();
        assert_eq!(asking.join().unwrap().code(), Code::Unavailable);
    });
}

/// A first manager whose host takes connections and answers nothing: most of the list answer without it.
#[test]
fn a_dead_first_manager_of_four_costs_nothing() {
    let cluster = cluster(&[Manner::Leads, NAMES, NAMES]);
    let stuck = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut list = vec![stuck.local_addr().unwrap().to_string()];
    list.extend(cluster.group.lock().addresses.clone());
    let dialer = Dialer::new(hello(), Arc::new(NoService), BufferPool::new(0));
    let managers = Managers::new(dialer, list.join(",").parse().unwrap());
    let began = std::time::Instant::now();
    managers.call_wait(&GetStatus {}, Vec::new(), WAIT).unwrap();
    let took = began.elapsed();
    assert!(took < Duration::from_millis(1000), "it took {took:?}");
}
