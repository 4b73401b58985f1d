//! Schedules: the order in which packets are computed, and the packets they are computed from, chosen to read few.
//!
//! Two rows of the bit matrix often differ in fewer packets than either has. Given the packet of one row, XORing the
//! difference gives that of the other. The order with the fewest such XORs is a minimum spanning tree from the empty
//! row over the rows, which Prim's algorithm grows (Plank, "The RAID-6 Liberation codes", §5, calls a greedy version
//! bit-matrix scheduling). Decoding gains the most, because solved equations have many ones. The code's own equations
//! help there: a packet that is the last unknown of an equation costs the other packets of that equation.

use super::bits::BitRow;

/// A packet of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Word {
    /// Fragment number, 0..k+m.
    pub fragment: u8,
    /// Packet in the fragment's stripe, 0..w.
    pub packet: u8,
}

/// One packet computed: `target` = XOR of `sources`. Sources may be targets of earlier steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The packet that is written.
    pub target: Word,
    /// The packets that are read, at least one.
    pub sources: Vec<Word>,
}

/// Steps in the order of computation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    steps: Vec<Step>,
    /// For each step its target, the number of its sources, and the sources; packet p of fragment f is f·w + p.
    flat: Vec<u32>,
}

/// A packet to compute.
pub struct PacketSum {
    /// Number of the packet.
    pub target: usize,
    /// The present packets that sum to it.
    pub present: BitRow,
}

/// Known facts besides the wanted packets' own sums: sets of packets that sum to zero.
pub struct Equations {
    /// The sets.
    pub rows: Vec<BitRow>,
    /// Missing packets that are not computed yet.
    pub lost: BitRow,
}

impl Program {
    /// Computes the packets in an order, and from sources, that need few XORs.
    pub fn optimised(w: usize, wanted: &[PacketSum], mut equations: Equations) -> Program {
        let mut ways: Vec<Way> = wanted.iter().map(|x| Way { reads: x.present.count(), from: From::Present }).collect();
        equations.offer(wanted, &mut ways);
        let mut left: Vec<usize> = (0..wanted.len()).collect();
        let mut steps = Vec::with_capacity(wanted.len());
        while let Some(at) = (0..left.len()).min_by_key(|at| (ways[left[*at]].reads, left[*at])) {
            let i = left.remove(at);
            let (target, present) = (wanted[i].target, &wanted[i].present);
            steps.push(match ways[i].from {
                From::Present => step(w, target, present, None),
                From::Computed(base) => step(w, target, present, Some(&wanted[base])),
                From::Equation(row) => {
                    let mut others = equations.rows[row].clone();
                    others.flip(target);
                    step(w, target, &others, None)
                }
            });
            for &j in &left {
                ways[j].offer(wanted[j].present.distance(present) + 1, From::Computed(i));
            }
            if equations.lost.has(target) {
                equations.lost.flip(target);
                equations.offer(wanted, &mut ways);
            }
        }
        Program::of(w, steps)
    }

    /// These steps.
    pub(super) fn of(w: usize, steps: Vec<Step>) -> Program {
        let number = |word: &Word| u32::from(word.fragment) * w as u32 + u32::from(word.packet);
        let mut flat = Vec::new();
        for step in &steps {
            flat.extend([number(&step.target), step.sources.len() as u32]);
            flat.extend(step.sources.iter().map(number));
        }
        Program { steps, flat }
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub(super) fn flat(&self) -> &[u32] {
        &self.flat
    }
}

/// The cheapest way found so far to compute a packet.
struct Way {
    reads: usize,
    from: From,
}

#[derive(Clone, Copy)]
enum From {
    /// From its present packets.
    Present,
    /// From a wanted packet that is computed already, and the difference.
    Computed(usize),
    /// From the other packets of an equation.
    Equation(usize),
}

impl Way {
    fn offer(&mut self, reads: usize, from: From) {
        if reads < self.reads {
            *self = Way { reads, from };
        }
    }
}

impl Equations {
    /// Offers every equation with one unknown packet to that packet.
    fn offer(&self, wanted: &[PacketSum], ways: &mut [Way]) {
        for (number, row) in self.rows.iter().enumerate() {
            let mut unknown = row.ones().filter(|word| self.lost.has(*word));
            if let (Some(last), None) = (unknown.next(), unknown.next())
                && let Some(i) = wanted.iter().position(|x| x.target == last)
            {
                ways[i].offer(row.count() - 1, From::Equation(number));
            }
        }
    }
}

fn step(w: usize, target: usize, row: &BitRow, base: Option<&PacketSum>) -> Step {
    // Fragment numbers and w are below 256.
    let word = |i: usize| Word { fragment: (i / w) as u8, packet: (i % w) as u8 };
    let mut sources = Vec::new();
    let mut row = row.clone();
    if let Some(base) = base {
        sources.push(word(base.target));
        row.add(&base.present);
    }
    sources.extend(row.ones().map(word));
    Step { target: word(target), sources }
}
