//! Tests of the table of locks and of the clients that hold them.

mod clients;
mod grants;
mod model;

use super::table::{LockTable, Owner, Ticket, Want};
use super::*;

const INO: u64 = 5;

fn owner(number: u64) -> Owner {
    Owner { client_id: number % 3 + 1, number }
}

fn ticket(number: u64, seq: u64) -> Ticket {
    Ticket { client_id: owner(number).client_id, seq }
}

fn want(ino: u64, number: u64, start: u64, end: u64, mode: LockMode, families: u8) -> Want {
    let held = Held { mode, families, pid: number as u32 };
    Want { ino, owner: owner(number), bytes: Bytes { start, end }, held }
}

fn granted(table: &mut LockTable) -> Vec<Ticket> {
    table.take_granted().into_iter().map(|(ticket, _)| ticket).collect()
}
