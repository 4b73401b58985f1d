"""DuckDB or Spark as a process that answers questions of `make bench-sampling`: a line of JSON in, one out.

In: {"question": "words", "files": […], "sample": null, "system" or "bernoulli", "ratio": 0.1}.
Out: {"seconds": …, "groups": {key: value}, "total": …}, values of a sample scaled to the whole.

    python3 bench/benchlib/samplingpeer.py duckdb|spark
"""

import json
import sys
import time

TOP = 20


class DuckDb:
    """Text is read by the CSV reader, with a delimiter that no line has: it reads lines in parallel, `read_text` does not."""

    SOURCES = {
        "words": "read_csv({}, delim='\x01', quote='', escape='', header=false, auto_detect=false, columns={{'line': 'VARCHAR'}}, "
                 "max_line_size=2000000, strict_mode=false)",
        "links": "read_csv({}, delim='\t', quote='', header=true, auto_detect=false, columns={{'source': 'VARCHAR', 'target': 'VARCHAR'}})",
        "requests": "read_csv({}, delim=',', quote='', header=true, auto_detect=false, columns={{'hour': 'BIGINT', 'project': 'VARCHAR', "
                    "'page': 'VARCHAR', 'count': 'BIGINT', 'bytes': 'BIGINT'}})",
        "regions": "read_csv({}, delim=',', quote='', header=true, auto_detect=false, columns={{'trace': 'VARCHAR', 'region': 'VARCHAR', "
                   "'bytes': 'BIGINT'}})",
    }
    ROWS = {
        "words": "SELECT word AS key, 1 AS value FROM (SELECT unnest(string_split(translate(line, E'\\t\\f\\r', '   '), ' ')) AS word "
                 "FROM {}) WHERE word <> ''",
        "links": "SELECT target AS key, 1 AS value FROM {}",
        "rate": "SELECT hour AS key, count AS value FROM {}",
        "pages": "SELECT page AS key, count AS value FROM {}",
        "regions": "SELECT region AS key, 1 AS value FROM {}",
    }

    def __init__(self):
        import duckdb

        self.database = duckdb.connect()
        self.database.execute("SET enable_progress_bar = false; SET preserve_insertion_order = false")
        self.version = duckdb.__version__

    def ask(self, question, files, sample, ratio):
        source = self.SOURCES["requests" if question in ("rate", "pages") else question].format(files)
        if sample:
            source = f"(SELECT * FROM {source} TABLESAMPLE {sample}({100 * ratio} PERCENT))"
        rows = self.ROWS[question].format(source)
        found = self.database.execute(
            f"WITH groups AS (SELECT key, sum(value) AS value FROM ({rows}) GROUP BY key) "
            f"(SELECT key, value FROM groups ORDER BY value DESC LIMIT {TOP}) UNION ALL (SELECT NULL, sum(value) FROM groups)").fetchall()
        groups = {str(key): float(value) for key, value in found if key is not None}
        return groups, float(next(value for key, value in found if key is None) or 0)


class Spark:
    """DataFrames with schemas, so that nothing is read twice."""

    def __init__(self):
        import pyspark
        from pyspark.sql import SparkSession, functions

        self.functions, self.version = functions, pyspark.__version__
        self.session = (SparkSession.builder.master("local[*]").config("spark.driver.memory", "8g").config("spark.ui.enabled", "false")
                        .config("spark.sql.shuffle.partitions", "8").config("spark.ui.showConsoleProgress", "false").getOrCreate())
        self.session.sparkContext.setLogLevel("ERROR")

    def rows(self, question, files, sample, ratio):
        f, read = self.functions, self.session.read
        part = lambda table: table.sample(ratio) if sample else table
        if question == "words":
            words = f.explode(f.split("value", "[ \\t\\f\\r]+")).alias("key")
            return part(read.text(files)).select(words, f.lit(1).alias("value")).where("key <> ''")
        if question == "links":
            table = read.csv(files, sep="\t", header=True, schema="source STRING, target STRING")
            return part(table).select(f.col("target").alias("key"), f.lit(1).alias("value"))
        if question == "regions":
            table = read.csv(files, header=True, schema="trace STRING, region STRING, bytes BIGINT")
            return part(table).select(f.col("region").alias("key"), f.lit(1).alias("value"))
        table = read.csv(files, header=True, schema="hour INT, project STRING, page STRING, count BIGINT, bytes BIGINT")
        return part(table).select(f.col("hour" if question == "rate" else "page").alias("key"), f.col("count").alias("value"))

    def ask(self, question, files, sample, ratio):
        f = self.functions
        groups = self.rows(question, files, sample, ratio).groupBy("key").agg(f.sum("value").alias("value")).cache()
        top = groups.orderBy(f.desc("value")).limit(TOP).collect()
        total = groups.agg(f.sum("value")).collect()[0][0]
        groups.unpersist()
        return {str(row["key"]): float(row["value"]) for row in top}, float(total or 0)


def main():
    peer = {"duckdb": DuckDb, "spark": Spark}[sys.argv[1]]()
    print(json.dumps({"version": peer.version}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        started = time.monotonic()
        groups, total = peer.ask(asked["question"], asked["files"], asked["sample"], asked["ratio"])
        seconds, scale = time.monotonic() - started, asked["ratio"] or 1
        print(json.dumps({"seconds": seconds, "groups": {key: value / scale for key, value in groups.items()}, "total": total / scale}),
              flush=True)


if __name__ == "__main__":
    main()
