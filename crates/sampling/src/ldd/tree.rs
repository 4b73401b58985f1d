//! The dependency tree: which task may run, given the tasks that are done and dropped. Does no I/O.
//!
//! Three kinds of tasks exist (ApproxSSD, section on task scheduling): an *I/O task* loads a partition, a *computing
//! task* works on one other task's result, and a *wide task* merges the results of many. The caller reports each end by
//! [`Tree::done`] or [`Tree::dropped`]. A wide task does not wait for all of its inputs: what has arrived becomes a merge
//! at once, the paper's dynamically constructed task T'9. A dropped input is removed from the tasks that wait for it; a
//! task that has no input left is dropped too.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::collections::VecDeque;

/// Number of a task, in the order of [`Tree::add`].
pub type TaskId = usize;

/// What a task needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Loads a partition. The caller decides when it starts.
    Io,
    /// Works on the result of one task.
    Compute(TaskId),
    /// Merges the results of many tasks.
    Wide(Vec<TaskId>),
}

/// What a computing thread does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Job {
    /// Run a computing task.
    Compute {
        /// The task.
        task: TaskId,
        /// The task whose result it takes.
        input: TaskId,
    },
    /// Merge results into a wide task. A task has one merge at a time.
    Merge {
        /// The task.
        task: TaskId,
        /// The tasks whose results are merged now.
        inputs: Vec<TaskId>,
        /// No further merge follows: the task is finished after this one.
        last: bool,
    },
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It has a result.
    Done,
    /// It has none, and nothing waits for it.
    Dropped,
}

#[derive(Debug)]
enum Kind {
    Io,
    Compute(TaskId),
    Wide(Wide),
}

#[derive(Debug)]
struct Wide {
    /// Inputs that are neither done nor dropped.
    waiting: usize,
    /// Inputs that are done and not in a merge yet.
    arrived: Vec<TaskId>,
    /// The merge under way, and whether it is the last.
    merge: Option<bool>,
    queued: bool,
    /// The task has a result even if nothing more arrives.
    begun: bool,
}

#[derive(Debug)]
struct State {
    kind: Kind,
    users: Vec<TaskId>,
    outcome: Option<Outcome>,
    goal: bool,
}

/// All tasks of a run.
#[derive(Debug, Default)]
pub struct Tree {
    tasks: Vec<State>,
    ready: VecDeque<TaskId>,
    open_goals: usize,
}

impl Tree {
    /// A tree without tasks.
    pub fn new() -> Tree {
        Tree::default()
    }

    /// Adds a task. Its inputs were added before, and none has ended yet.
    pub fn add(&mut self, task: Task) -> TaskId {
        let id = self.tasks.len();
        let inputs: &[TaskId] = match &task {
            Task::Io => &[],
            Task::Compute(input) => std::slice::from_ref(input),
            Task::Wide(inputs) => inputs,
        };
        for input in inputs {
            assert!(self.tasks[*input].outcome.is_none(), "task {input} has ended before it got a dependent");
            self.tasks[*input].users.push(id);
        }
        let nothing_to_wait_for = matches!(&task, Task::Wide(inputs) if inputs.is_empty());
        let kind = match task {
            Task::Io => Kind::Io,
            Task::Compute(input) => Kind::Compute(input),
            Task::Wide(inputs) => Kind::Wide(Wide {
                waiting: inputs.len(),
                arrived: Vec::new(),
                merge: None,
                queued: false,
                begun: nothing_to_wait_for,
            }),
        };
        self.tasks.push(State { kind, users: Vec::new(), outcome: None, goal: false });
        if nothing_to_wait_for {
            self.queue_wide(id);
        }
        id
    }

    /// The caller wants the result of a task.
    pub fn set_goal(&mut self, task: TaskId) {
        let state = &mut self.tasks[task];
        if !state.goal && state.outcome.is_none() {
            self.open_goals += 1;
        }
        state.goal = true;
    }

    /// The caller wants the result of this task.
    pub fn is_goal(&self, task: TaskId) -> bool {
        self.tasks[task].goal
    }

    /// Goals that have not ended.
    pub fn open_goals(&self) -> usize {
        self.open_goals
    }

    /// How a task ended; `None` if it has not.
    pub fn outcome(&self, task: TaskId) -> Option<Outcome> {
        self.tasks[task].outcome
    }

    /// How often the result of a task is taken: by its dependents, and by the caller if it is a goal.
    pub fn uses(&self, task: TaskId) -> usize {
        self.tasks[task].users.len() + usize::from(self.tasks[task].goal)
    }

    /// What can run now. The caller reports its end.
    pub fn next_job(&mut self) -> Option<Job> {
        while let Some(task) = self.ready.pop_front() {
            if self.tasks[task].outcome.is_some() {
                continue;
            }
            match &mut self.tasks[task].kind {
                Kind::Io => unreachable!("the caller starts I/O"),
                Kind::Compute(input) => return Some(Job::Compute { task, input: *input }),
                Kind::Wide(wide) => {
                    let last = wide.waiting == 0;
                    (wide.queued, wide.begun, wide.merge) = (false, true, Some(last));
                    return Some(Job::Merge { task, inputs: std::mem::take(&mut wide.arrived), last });
                }
            }
        }
        None
    }

    /// A load, a computing task or a merge has ended. True if the task has its result now: it was not dropped meanwhile,
    /// and no merge follows.
    pub fn done(&mut self, task: TaskId) -> bool {
        let state = &mut self.tasks[task];
        if state.outcome.is_some() {
            return false;
        }
        if let Kind::Wide(wide) = &mut state.kind {
            let last = wide.merge.take().expect("a merge was under way");
            if !last {
                self.queue_wide(task);
                return false;
            }
        }
        for user in self.settle(task, Outcome::Done) {
            match &mut self.tasks[user].kind {
                Kind::Io => unreachable!("a load needs no other task"),
                Kind::Compute(_) => self.ready.push_back(user),
                Kind::Wide(wide) => {
                    wide.waiting -= 1;
                    wide.arrived.push(task);
                    self.queue_wide(user);
                }
            }
        }
        true
    }

    /// A task will not run, or its result is not wanted. False if it had ended before: then nothing changes.
    pub fn dropped(&mut self, task: TaskId) -> bool {
        if self.tasks[task].outcome.is_some() {
            return false;
        }
        let mut without_input = vec![task];
        while let Some(task) = without_input.pop() {
            for user in self.settle(task, Outcome::Dropped) {
                if self.tasks[user].outcome.is_some() {
                    continue;
                }
                match &mut self.tasks[user].kind {
                    Kind::Io => unreachable!("a load needs no other task"),
                    Kind::Compute(_) => without_input.push(user),
                    Kind::Wide(wide) => {
                        wide.waiting -= 1;
                        if wide.waiting == 0 && wide.arrived.is_empty() && !wide.begun {
                            without_input.push(user);
                        } else {
                            self.queue_wide(user);
                        }
                    }
                }
            }
        }
        true
    }

    /// Ends a task; returns those that depend on it.
    fn settle(&mut self, task: TaskId, outcome: Outcome) -> Vec<TaskId> {
        let state = &mut self.tasks[task];
        assert!(state.outcome.is_none(), "task {task} ends once");
        state.outcome = Some(outcome);
        self.open_goals -= usize::from(state.goal);
        state.users.clone()
    }

    /// Makes a wide task ready if there is something to merge, or if only its end is missing.
    fn queue_wide(&mut self, task: TaskId) {
        let state = &mut self.tasks[task];
        let Kind::Wide(wide) = &mut state.kind else { unreachable!("only wide tasks merge") };
        let something = !wide.arrived.is_empty() || (wide.waiting == 0 && wide.begun);
        if something && state.outcome.is_none() && !wide.queued && wide.merge.is_none() {
            wide.queued = true;
            self.ready.push_back(task);
        }
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
