//! Parameters of statements, and rows read into numbers, tuples and structs.

use crate::db::Db;
use crate::error::corrupt_row;
use bytes::Bytes;
use rusqlite::Row;
use rusqlite::types::{FromSql, ToSqlOutput, ValueRef};
use tessera_wire::Health;

/// A parameter of a statement. Numbers become their two's complement.
pub trait Param {
    fn param(&self) -> ToSqlOutput<'_>;
}

macro_rules! numbers {
    ($($type:ty)*) => { $(impl Param for $type {
        fn param(&self) -> ToSqlOutput<'_> {
            ToSqlOutput::from(*self as i64)
        }
    })* };
}
numbers! { i64 u64 usize i32 u32 u8 bool Health }

impl Param for str {
    fn param(&self) -> ToSqlOutput<'_> {
        ToSqlOutput::Borrowed(ValueRef::Text(self.as_bytes()))
    }
}

impl Param for [u8] {
    fn param(&self) -> ToSqlOutput<'_> {
        ToSqlOutput::Borrowed(ValueRef::Blob(self))
    }
}

macro_rules! by_content {
    ($($type:ty => $content:ty),*) => { $(impl Param for $type {
        fn param(&self) -> ToSqlOutput<'_> {
            <$content>::param(self)
        }
    })* };
}
by_content! { String => str, Vec<u8> => [u8], [u8; 16] => [u8], Bytes => [u8] }

impl Param for Option<Vec<u8>> {
    fn param(&self) -> ToSqlOutput<'_> {
        self.as_ref().map_or(ToSqlOutput::Borrowed(ValueRef::Null), Param::param)
    }
}

impl<T: Param + ?Sized> Param for &T {
    fn param(&self) -> ToSqlOutput<'_> {
        (**self).param()
    }
}

/// The parameters of a statement.
macro_rules! args {
    ($($value:expr),* $(,)?) => { [$($crate::db::sql::Param::param(&$value)),*] };
}
pub(crate) use args;

/// The columns of a row, from left to right.
pub struct Columns<'r, 's> {
    row: &'r Row<'s>,
    at: usize,
}

impl Columns<'_, '_> {
    /// Reads the next value.
    ///
    /// # Errors
    /// The row has no such column, or the column no such value.
    pub fn next<T: FromRow>(&mut self) -> rusqlite::Result<T> {
        T::read(self)
    }

    fn column<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        self.at += 1;
        self.row.get(self.at - 1)
    }
}

/// A value of one or more columns.
pub trait FromRow: Sized {
    /// Reads it from the next columns.
    ///
    /// # Errors
    /// As [`Columns::next`].
    fn read(columns: &mut Columns<'_, '_>) -> rusqlite::Result<Self>;

    /// Reads it from the first columns of a row.
    ///
    /// # Errors
    /// As [`Columns::next`].
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Self::read(&mut Columns { row, at: 0 })
    }
}

/// A struct that [`row!`] declares.
pub trait TableRow: FromRow {
    /// Its columns, in order.
    const COLUMNS: &'static [&'static str];

    /// Its values, in that order.
    fn values(&self) -> Vec<ToSqlOutput<'_>>;

    /// `SELECT`, the columns, and the rest of the statement.
    fn select(rest: &str) -> String {
        format!("SELECT {} {rest}", Self::COLUMNS.join(", "))
    }

    /// A statement that writes the row back: `update` is `UPDATE table`, the first `keys` columns are the key.
    fn update(update: &str, keys: usize) -> String {
        let all: Vec<String> = (1..).zip(Self::COLUMNS).map(|(i, column)| format!("{column} = ?{i}")).collect();
        format!("{update} SET {} WHERE {}", all[keys..].join(", "), all[..keys].join(" AND "))
    }

    /// Adds the row: `INSERT INTO table`, the columns and the values.
    ///
    /// # Errors
    /// SQLite fails.
    fn add(&self, db: &Db, insert_into: &str) -> rusqlite::Result<()> {
        let marks = vec!["?"; Self::COLUMNS.len()].join(", ");
        let sql = format!("{insert_into} ({}) VALUES ({marks})", Self::COLUMNS.join(", "));
        db.exec(&sql, rusqlite::params_from_iter(self.values()))
    }
}

macro_rules! columns {
    ($($type:ty)*) => { $(impl FromRow for $type {
        fn read(columns: &mut Columns<'_, '_>) -> rusqlite::Result<Self> {
            columns.column()
        }
    })* };
}
columns! { i64 i32 u32 u8 bool String Vec<u8> [u8; 16] Option<i64> Option<Vec<u8>> }

/// Ids and sizes stay far below 2^63 (schema.sql).
impl FromRow for u64 {
    fn read(columns: &mut Columns<'_, '_>) -> rusqlite::Result<Self> {
        let value: i64 = columns.column()?;
        u64::try_from(value).map_err(|_| {
            let column = columns.row.as_ref().column_name(columns.at - 1).unwrap_or("?");
            corrupt_row(format!("column {column}"), format!("{value} is negative"))
        })
    }
}

/// A number chosen by a client, which may use all 64 bits.
pub struct Bits(pub u64);

impl FromRow for Bits {
    fn read(columns: &mut Columns<'_, '_>) -> rusqlite::Result<Self> {
        columns.column::<i64>().map(|value| Bits(value as u64))
    }
}

impl FromRow for Health {
    fn read(columns: &mut Columns<'_, '_>) -> rusqlite::Result<Self> {
        columns.column::<i32>().map(|value| Health::try_from(value).unwrap_or(Health::Unknown))
    }
}

impl FromRow for Bytes {
    fn read(columns: &mut Columns<'_, '_>) -> rusqlite::Result<Self> {
        columns.column::<Vec<u8>>().map(Bytes::from)
    }
}

macro_rules! tuples {
    ($(($($type:ident)*))*) => { $(impl<$($type: FromRow),*> FromRow for ($($type,)*) {
        fn read(columns: &mut Columns<'_, '_>) -> rusqlite::Result<Self> {
            Ok(($(columns.next::<$type>()?,)*))
        }
    })* };
}
tuples! { (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) }

/// Declares a struct whose fields are the columns of a row, in order: `field: type`, then `as Bits` if clients choose the
/// number, and `= "column"` if the column has another name. `for`: the struct exists, and other fields get their default.
macro_rules! row {
    (for $name:ident { $($field:ident $(= $column:literal)?),* $(,)? }) => {
        impl $crate::db::sql::FromRow for $name {
            fn read(columns: &mut $crate::db::sql::Columns<'_, '_>) -> rusqlite::Result<Self> {
                let mut row = $name::default();
                $(row.$field = columns.next()?;)*
                Ok(row)
            }
        }
        $crate::db::sql::row!(@table $name { $($field $($column)?,)* });
    };
    ($(#[$attr:meta])* $vis:vis struct $name:ident {
        $($(#[$doc:meta])* $field_vis:vis $field:ident: $type:ty $(as $via:ident)? $(= $column:literal)?,)*
    }) => {
        $(#[$attr])*
        $vis struct $name {
            $($(#[$doc])* $field_vis $field: $type,)*
        }

        impl $crate::db::sql::FromRow for $name {
            fn read(columns: &mut $crate::db::sql::Columns<'_, '_>) -> rusqlite::Result<Self> {
                Ok($name { $($field: $crate::db::sql::row!(@read columns $type $(, $via)?),)* })
            }
        }
        $crate::db::sql::row!(@table $name { $($field $($column)?,)* });
    };
    (@table $name:ident { $($field:ident $($column:literal)?,)* }) => {
        impl $crate::db::sql::TableRow for $name {
            const COLUMNS: &'static [&'static str] = &[$($crate::db::sql::row!(@column $field $($column)?)),*];

            fn values(&self) -> Vec<rusqlite::types::ToSqlOutput<'_>> {
                vec![$($crate::db::sql::Param::param(&self.$field)),*]
            }
        }
    };
    (@column $field:ident) => { stringify!($field) };
    (@column $field:ident $column:literal) => { $column };
    (@read $columns:ident $type:ty) => { $columns.next::<$type>()? };
    (@read $columns:ident $type:ty, $via:ident) => { $columns.next::<$crate::db::sql::$via>()?.0 };
}
pub(crate) use row;
