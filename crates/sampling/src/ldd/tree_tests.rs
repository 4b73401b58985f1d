//! Scripted orders, and random ones against an evaluator that knows no order.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn merge(task: TaskId, inputs: &[TaskId], last: bool) -> Option<Job> {
    Some(Job::Merge { task, inputs: inputs.to_vec(), last })
}

/// The tree of figure 1.5: loads 0 to 3, tasks 4 to 7 on each, and a wide task 8 over these.
fn figure_1_5() -> Tree {
    let mut tree = Tree::new();
    for _ in 0..4 {
        tree.add(Task::Io);
    }
    let computed: Vec<TaskId> = (0..4).map(|input| tree.add(Task::Compute(input))).collect();
    let wide = tree.add(Task::Wide(computed));
    tree.set_goal(wide);
    tree
}

fn load_and_compute(tree: &mut Tree, loads: &[TaskId]) {
    for load in loads {
        assert!(tree.done(*load));
        assert_eq!(tree.next_job(), Some(Job::Compute { task: load + 4, input: *load }));
    }
    loads.iter().for_each(|load| assert!(tree.done(load + 4)));
}

#[test]
fn a_wide_task_merges_what_has_arrived_and_does_not_wait() {
    let mut tree = figure_1_5();
    assert_eq!(tree.next_job(), None);
    assert!(tree.done(0) && tree.done(1));
    assert_eq!(tree.next_job(), Some(Job::Compute { task: 4, input: 0 }));
    assert_eq!(tree.next_job(), Some(Job::Compute { task: 5, input: 1 }));
    assert!(tree.done(5) && tree.done(4));
    // T'9 of the paper: tasks 6 and 7 are still waiting for their loads.
    assert_eq!(tree.next_job(), merge(8, &[5, 4], false));
    load_and_compute(&mut tree, &[2]);
    assert_eq!(tree.next_job(), None, "one merge at a time");
    assert!(!tree.done(8));
    assert_eq!(tree.next_job(), merge(8, &[6], false));
    assert!(!tree.done(8));
    load_and_compute(&mut tree, &[3]);
    assert_eq!(tree.next_job(), merge(8, &[7], true));
    assert_eq!(tree.open_goals(), 1);
    assert!(tree.done(8));
    assert_eq!((tree.open_goals(), tree.outcome(8)), (0, Some(Outcome::Done)));
}

#[test]
fn a_dropped_load_is_not_waited_for() {
    let mut tree = figure_1_5();
    load_and_compute(&mut tree, &[0, 1, 2]);
    assert!(tree.dropped(3));
    assert_eq!(tree.outcome(7), Some(Outcome::Dropped));
    assert_eq!(tree.next_job(), merge(8, &[4, 5, 6], true));
    assert!(!tree.done(3), "it came too late");
    assert!(!tree.dropped(0), "it was done before");
    assert!(tree.done(8));
}

#[test]
fn a_drop_during_the_merge_of_the_rest_still_ends_the_task() {
    let mut tree = figure_1_5();
    load_and_compute(&mut tree, &[0, 1, 2]);
    assert_eq!(tree.next_job(), merge(8, &[4, 5, 6], false));
    assert!(tree.dropped(3));
    assert_eq!(tree.next_job(), None);
    assert!(!tree.done(8));
    assert_eq!(tree.next_job(), merge(8, &[], true));
    assert!(tree.done(8));
}

#[test]
fn a_drop_after_everything_else_was_merged_ends_the_task() {
    let mut tree = figure_1_5();
    load_and_compute(&mut tree, &[0, 1, 2]);
    assert_eq!(tree.next_job(), merge(8, &[4, 5, 6], false));
    assert!(!tree.done(8));
    assert_eq!(tree.next_job(), None);
    assert!(tree.dropped(3));
    assert_eq!(tree.next_job(), merge(8, &[], true));
}

#[test]
fn a_task_without_any_input_left_is_dropped() {
    let mut tree = figure_1_5();
    let after = tree.add(Task::Compute(8));
    (0..4).for_each(|load| assert!(tree.dropped(load)));
    assert_eq!((tree.outcome(8), tree.outcome(after)), (Some(Outcome::Dropped), Some(Outcome::Dropped)));
    assert_eq!((tree.next_job(), tree.open_goals()), (None, 0));
}

#[test]
fn a_wide_task_over_nothing_has_an_empty_result() {
    let mut tree = Tree::new();
    let wide = tree.add(Task::Wide(vec![]));
    assert_eq!(tree.next_job(), merge(wide, &[], true));
    assert!(tree.done(wide));
}

/// How often the result of each load is in the result of a task; `None` if it was dropped.
type Content = Option<BTreeMap<TaskId, u32>>;

fn add(sum: &mut BTreeMap<TaskId, u32>, part: &BTreeMap<TaskId, u32>) {
    for (load, times) in part {
        *sum.entry(*load).or_default() += times;
    }
}

/// What each task yields if the loads in `dropped` yield nothing: in the order of tasks, one after the other.
fn evaluate(tasks: &[Task], dropped: &[TaskId]) -> Vec<Content> {
    let mut contents: Vec<Content> = Vec::new();
    for (id, task) in tasks.iter().enumerate() {
        let content = match task {
            Task::Io => (!dropped.contains(&id)).then(|| BTreeMap::from([(id, 1)])),
            Task::Compute(input) => contents[*input].clone(),
            Task::Wide(inputs) => {
                let mut sum = BTreeMap::new();
                let arrived: Vec<_> = inputs.iter().filter_map(|input| contents[*input].as_ref()).collect();
                arrived.iter().for_each(|part| add(&mut sum, part));
                (!arrived.is_empty() || inputs.is_empty()).then_some(sum)
            }
        };
        contents.push(content);
    }
    contents
}

/// Runs a tree in the order that `choices` give, with jobs of any number under way at once.
struct Runner {
    tree: Tree,
    loads: Vec<TaskId>,
    jobs: Vec<Job>,
    contents: Vec<BTreeMap<TaskId, u32>>,
    dropped: Vec<TaskId>,
}

impl Runner {
    fn new(tasks: &[Task]) -> Runner {
        let mut tree = Tree::new();
        for task in tasks {
            let id = tree.add(task.clone());
            tree.set_goal(id);
        }
        let loads = (0..tasks.len()).filter(|id| tasks[*id] == Task::Io).collect();
        let contents = vec![BTreeMap::new(); tasks.len()];
        Runner { tree, loads, jobs: Vec::new(), contents, dropped: Vec::new() }
    }

    /// One event: a load ends or is dropped, a job starts, or a job ends.
    fn step(&mut self, choice: u32, drops: bool) -> bool {
        let which = choice as usize / 8;
        if choice.is_multiple_of(3)
            && let Some(job) = self.tree.next_job()
        {
            self.jobs.push(job);
        } else if choice % 8 < 4 && !self.loads.is_empty() {
            let load = self.loads.swap_remove(which % self.loads.len());
            if drops && choice % 8 < 2 {
                assert!(self.tree.dropped(load));
                self.dropped.push(load);
            } else {
                self.contents[load] = BTreeMap::from([(load, 1)]);
                assert!(self.tree.done(load));
            }
        } else if !self.jobs.is_empty() {
            let job = self.jobs.swap_remove(which % self.jobs.len());
            self.finish(&job);
        } else if let Some(job) = self.tree.next_job() {
            self.jobs.push(job);
        } else {
            return !self.loads.is_empty();
        }
        true
    }

    fn finish(&mut self, job: &Job) {
        let (task, inputs, last) = match job {
            Job::Compute { task, input } => (*task, vec![*input], true),
            Job::Merge { task, inputs, last } => (*task, inputs.clone(), *last),
        };
        for input in inputs {
            assert_eq!(self.tree.outcome(input), Some(Outcome::Done), "a job got a result that is not there");
            let part = self.contents[input].clone();
            add(&mut self.contents[task], &part);
        }
        assert_eq!(self.tree.done(task), last);
    }
}

fn tasks() -> impl Strategy<Value = Vec<Task>> {
    prop::collection::vec((0u8..5, prop::collection::vec(any::<prop::sample::Index>(), 0..6)), 1..40).prop_map(
        |specs| {
            let mut tasks = vec![Task::Io];
            for (kind, inputs) in specs {
                let inputs: Vec<TaskId> = inputs.iter().map(|input| input.index(tasks.len())).collect();
                tasks.push(match (kind, inputs.first()) {
                    (0 | 1, _) | (2, None) => Task::Io,
                    (2, Some(input)) => Task::Compute(*input),
                    _ => Task::Wide(inputs),
                });
            }
            tasks
        },
    )
}

proptest! {
    #[test]
    fn every_order_gives_what_the_evaluator_gives(tasks in tasks(), drops: bool, choices in prop::collection::vec(any::<u32>(), 600)) {
        let mut runner = Runner::new(&tasks);
        let mut choices = choices.into_iter().cycle();
        while runner.step(choices.next().unwrap(), drops) {}
        prop_assert_eq!(runner.tree.open_goals(), 0, "every task ends");
        let expected = evaluate(&tasks, &runner.dropped);
        for (id, content) in expected.into_iter().enumerate() {
            let outcome = if content.is_some() { Outcome::Done } else { Outcome::Dropped };
            prop_assert_eq!(runner.tree.outcome(id), Some(outcome), "task {}", id);
            if let Some(content) = content {
                prop_assert_eq!(&runner.contents[id], &content, "task {}", id);
            }
        }
    }
}
