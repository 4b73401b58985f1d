//! Nothing is written. What is executed is a query, its explanation or a description, wherever it stands: `EXPLAIN ANALYZE`
//! executes what it explains, so the top of a plan tells nothing.

use crate::error::Error;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast;

fn refused() -> Error {
    Error::Usage("only SELECT, EXPLAIN and DESCRIBE are executed: files are not changed".to_string())
}

/// Refuses statements by their words, before the engine looks for the tables that they would write.
///
/// # Errors
/// It is none of SELECT, EXPLAIN and DESCRIBE.
pub fn check_statement(statement: &Statement) -> Result<(), Error> {
    match statement {
        Statement::Statement(statement) => check_ast(statement),
        Statement::Explain(explain) => check_statement(&explain.statement),
        _ => Err(refused()),
    }
}

fn check_ast(statement: &ast::Statement) -> Result<(), Error> {
    match statement {
        ast::Statement::Query(_) | ast::Statement::ExplainTable { .. } => Ok(()),
        ast::Statement::Explain { statement, .. } => check_ast(statement),
        _ => Err(refused()),
    }
}

/// Refuses a plan that would change something anywhere in it, subqueries included.
///
/// # Errors
/// It would.
pub fn check_plan(plan: &LogicalPlan) -> Result<(), Error> {
    let mut changes = false;
    plan.apply_with_subqueries(|plan| {
        changes |= matches!(
            plan,
            LogicalPlan::Ddl(_) | LogicalPlan::Dml(_) | LogicalPlan::Copy(_) | LogicalPlan::Statement(_)
        );
        Ok(if changes { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if changes { Err(refused()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::prelude::SessionContext;

    /// Whatever the words are, the plan is looked at, too.
    #[tokio::test]
    async fn a_plan_that_writes_is_refused_wherever_the_node_is() {
        let state = SessionContext::new().state();
        let copy = "COPY (SELECT 1 AS x) TO 'x.csv' STORED AS CSV";
        for sql in [copy.to_string(), format!("EXPLAIN {copy}"), format!("EXPLAIN ANALYZE VERBOSE {copy}")] {
            let statement = state.sql_to_statement(&sql, &datafusion::config::Dialect::Generic).expect("it parses");
            assert!(check_statement(&statement).is_err(), "{sql}");
            let plan = state.statement_to_plan(statement).await.expect("it is planned");
            assert!(check_plan(&plan).is_err(), "{sql}");
        }
        let plan =
            state.create_logical_plan("EXPLAIN ANALYZE SELECT 1 WHERE 1 IN (SELECT 1)").await.expect("it is planned");
        assert!(check_plan(&plan).is_ok());
    }
}
