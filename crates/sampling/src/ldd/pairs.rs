//! Sets of pairs: records are merged by key.

use super::part::Part;
use super::plan::{Merge, Merged, Node, Value};
use super::set::{Data, Ldd, typed};
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::marker::PhantomData;
use std::sync::Arc;

/// Keys: values that can be told apart.
pub trait Key: Data + Hash + Eq {}

impl<K: Data + Hash + Eq> Key for K {}

/// Pairs of one partition, by the partition that merges them; each takes its bucket.
struct Buckets<K, V>(Vec<Mutex<Vec<(K, V)>>>);

impl<K: Key, V: Data> Buckets<K, V> {
    fn of(pairs: Vec<(K, V)>, count: usize) -> Self {
        // Not a hash with a random seed: both sides of a join must agree, and equal runs give equal partitions.
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let mut buckets: Vec<Vec<(K, V)>> = (0..count).map(|_| Vec::new()).collect();
        for pair in pairs {
            buckets[(hasher.hash_one(&pair.0) % count as u64) as usize].push(pair);
        }
        Buckets(buckets.into_iter().map(Mutex::new).collect())
    }

    fn take(&self, bucket: usize) -> Vec<(K, V)> {
        std::mem::take(&mut *self.0[bucket].lock())
    }
}

/// The sides of a join have types of their own, so that a merge knows which it has.
struct Left<K, V>(Buckets<K, V>);
struct Right<K, V>(Buckets<K, V>);

/// Values by key. `None` only while two values are merged, so that a key is looked up once.
type Values<K, V> = HashMap<K, Option<V>>;

fn put<K: Key, V>(values: &mut Values<K, V>, key: K, value: V, f: impl Fn(V, V) -> V) {
    let slot = values.entry(key).or_insert(None);
    *slot = Some(match slot.take() {
        Some(before) => f(before, value),
        None => value,
    });
}

fn pairs<K, V>(values: Values<K, V>) -> Vec<(K, V)> {
    values.into_iter().map(|(key, value)| (key, value.expect("a merge has ended"))).collect()
}

struct Reduce<K, V, F> {
    f: F,
    pairs: PhantomData<fn() -> (K, V)>,
}

impl<K: Key, V: Data, F: Fn(V, V) -> V + Send + Sync> Merge for Reduce<K, V, F> {
    fn begin(&self) -> Merged {
        Box::new(Values::<K, V>::new())
    }

    fn merge(&self, merged: &mut Merged, partition: usize, input: Value) {
        let values = merged.downcast_mut::<Values<K, V>>().expect("what `begin` made");
        let buckets = input.downcast_ref::<Buckets<K, V>>().expect("what was split for this merge");
        for (key, value) in buckets.take(partition) {
            put(values, key, value, &self.f);
        }
    }

    fn finish(&self, merged: Merged) -> Value {
        let values = merged.downcast::<Values<K, V>>().expect("what `begin` made");
        Arc::new(Part::whole(pairs(*values)))
    }
}

/// For each key the values of both sides.
type Sides<K, V, W> = HashMap<K, (Vec<V>, Vec<W>)>;

struct Join<K, V, W> {
    left: PhantomData<fn() -> (K, V)>,
    right: PhantomData<fn() -> W>,
}

impl<K: Key, V: Data, W: Data> Merge for Join<K, V, W> {
    fn begin(&self) -> Merged {
        Box::new(Sides::<K, V, W>::new())
    }

    fn merge(&self, merged: &mut Merged, partition: usize, input: Value) {
        let sides = merged.downcast_mut::<Sides<K, V, W>>().expect("what `begin` made");
        if let Some(left) = input.downcast_ref::<Left<K, V>>() {
            for (key, value) in left.0.take(partition) {
                sides.entry(key).or_default().0.push(value);
            }
        } else {
            let right = input.downcast_ref::<Right<K, W>>().expect("what was split for this merge");
            for (key, value) in right.0.take(partition) {
                sides.entry(key).or_default().1.push(value);
            }
        }
    }

    fn finish(&self, merged: Merged) -> Value {
        let sides = merged.downcast::<Sides<K, V, W>>().expect("what `begin` made");
        let mut pairs = Vec::new();
        for (key, (left, right)) in *sides {
            for v in &left {
                pairs.extend(right.iter().map(|w| (key.clone(), (v.clone(), w.clone()))));
            }
        }
        Arc::new(Part::whole(pairs))
    }
}

/// Pairs are merged in as many partitions as there are computing threads.
fn split<K: Key, V: Data, B: Send + Sync + 'static>(
    set: &Ldd<(K, V)>,
    count: usize,
    side: impl Fn(Buckets<K, V>) -> B + Send + Sync + 'static,
) -> Arc<Node> {
    let compute = move |_: usize, value: Value| {
        let pairs = typed::<Part<(K, V)>>(value).items;
        Ok(Arc::new(side(Buckets::of(pairs, count))) as Value)
    };
    Node::map(&set.node, set.node.basis, Arc::new(compute))
}

impl<K: Key, V: Data> Ldd<(K, V)> {
    /// Merges the values of equal keys in each partition. `f` is associative and commutative.
    pub fn reduce_by_key_partitions(&self, f: impl Fn(V, V) -> V + Send + Sync + 'static) -> Ldd<(K, V)> {
        self.map_partitions(move |records| {
            let mut values = Values::new();
            for (key, value) in records {
                put(&mut values, key, value, &f);
            }
            pairs(values)
        })
    }

    /// Merges the values of equal keys, first in each partition. `f` is associative and commutative: partitions are
    /// merged in the order in which they arrive. Of a sample, the result is that of what was sampled.
    pub fn reduce_by_key(&self, f: impl Fn(V, V) -> V + Send + Sync + 'static) -> Ldd<(K, V)> {
        let f = Arc::new(f);
        let first = f.clone();
        let combined = self.reduce_by_key_partitions(move |a, b| first(a, b));
        let count = self.threads.max(1);
        let split = split(&combined, count, |buckets| buckets);
        let reduce = Reduce { f: move |a, b| f(a, b), pairs: PhantomData::<fn() -> (K, V)> };
        Ldd::of(Node::merge(vec![split], count, Arc::new(reduce)), self.threads)
    }

    /// Each pair of values with equal keys, one from each set. Samples are joined as they are; no estimate follows.
    pub fn join<W: Data>(&self, other: &Ldd<(K, W)>) -> Ldd<(K, (V, W))> {
        let count = self.threads.max(1);
        let sides = vec![split(self, count, Left), split(other, count, Right)];
        Ldd::of(
            Node::merge(sides, count, Arc::new(Join::<K, V, W> { left: PhantomData, right: PhantomData })),
            self.threads,
        )
    }
}
