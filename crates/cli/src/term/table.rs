//! Columns that line up.

/// Rows of text under headings.
#[derive(Debug, Clone)]
pub struct Table {
    align: &'static str,
    /// The headings, then the rows; without those that [`Table::take_lines`] has returned.
    rows: Vec<Vec<String>>,
    /// Columns are at least this wide.
    widths: Vec<usize>,
}

impl Table {
    /// A table with these headings. `align` has one letter for each column: `l` (left, text) or `r` (right, numbers).
    pub fn new(align: &'static str, headings: &[&str]) -> Self {
        Table { align, rows: vec![headings.iter().map(ToString::to_string).collect()], widths: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether there are only headings.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// The lines so far, for a table that is printed in parts: the next call returns only later rows, in columns at least as wide.
    pub fn take_lines(&mut self) -> Vec<String> {
        let lines = self.lines();
        self.widths = self.widths();
        self.rows.clear();
        lines
    }

    fn widths(&self) -> Vec<usize> {
        let before = |i: usize| self.widths.get(i).copied().unwrap_or(0);
        let cells = |i: usize| self.rows.iter().filter_map(move |row| row.get(i)).map(|cell| cell.chars().count());
        (0..self.align.len()).map(|i| cells(i).fold(before(i), usize::max)).collect()
    }

    /// The lines, headings first. A character counts as one cell, which is right for the usual scripts of names.
    pub fn lines(&self) -> Vec<String> {
        let columns: Vec<(char, usize)> = self.align.chars().zip(self.widths()).collect();
        // A format takes no width above 65,535, and a cell may be a line of a file.
        let cell = |(text, (align, width)): (&String, &(char, usize))| {
            let room = " ".repeat(width - text.chars().count());
            if *align == 'r' { room + text } else { text.clone() + &room }
        };
        let line = |row: &Vec<String>| row.iter().zip(&columns).map(cell).collect::<Vec<_>>().join("  ");
        self.rows.iter().map(|row| line(row).trim_end().to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new("lr", &["name", "size"]);
        table.row(["ä".into(), "1".into()]);
        table.row(["longer".into(), "1,000".into()]);
        assert_eq!(table.lines(), ["name     size", "ä           1", "longer  1,000"]);
        table.row(["x".repeat(70_000), "2".into()]);
        assert_eq!(table.lines()[1].len(), 70_000 + 2 + 5 + "ä".len() - 1);
    }

    #[test]
    fn parts_line_up_with_the_parts_before() {
        let mut table = Table::new("lr", &["name", "size"]);
        table.row(["longer".into(), "1".into()]);
        assert_eq!(table.take_lines(), ["name    size", "longer     1"]);
        table.row(["b".into(), "10,000".into()]);
        assert_eq!(table.take_lines(), ["b       10,000"]);
        table.row(["c".into(), "3".into()]);
        assert_eq!(table.take_lines(), ["c            3"]);
        assert_eq!(table.take_lines(), [""; 0]);
    }
}
