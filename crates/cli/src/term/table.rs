//! Columns that line up.

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows of text under headings.
#[derive(Debug, Clone)]
pub struct Table {
    headings: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new<'a>(headings: impl IntoIterator<Item = (&'a str, Align)>) -> Self {
        Table { headings: headings.into_iter().map(|(h, a)| (h.to_string(), a)).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, headings first.
    pub fn lines(&self) -> Vec<String> {
        let widths: Vec<usize> = (0..self.headings.len())
            .map(|i| {
                let cells = self.rows.iter().filter_map(|r| r.get(i)).map(|c| width(c));
                cells.chain([width(&self.headings[i].0)]).max().unwrap_or(0)
            })
            .collect();
        let headings: Vec<String> = self.headings.iter().map(|(h, _)| h.clone()).collect();
        std::iter::once(&headings).chain(&self.rows).map(|row| self.line(row, &widths)).collect()
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let empty = String::new();
        let cells = widths.iter().enumerate().map(|(i, w)| {
            let cell = row.get(i).unwrap_or(&empty);
            let gap = " ".repeat(w.saturating_sub(width(cell)));
            match self.headings[i].1 {
                Align::Left => format!("{cell}{gap}"),
                Align::Right => format!("{gap}{cell}"),
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    }
}

/// Width on a terminal in cells: one a character, which is right for the usual scripts of names.
fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new([("name", Align::Left), ("size", Align::Right)]);
        table.row(["ä".into(), "1".into()]);
        table.row(["longer".into(), "1,000".into()]);
        assert_eq!(table.lines(), ["name     size", "ä           1", "longer  1,000"]);
    }
}
