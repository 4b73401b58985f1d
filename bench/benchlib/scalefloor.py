"""The floor of the manager's time for a small file: SQLite alone inserts the same rows, from SQL, without requests, log or checks."""

import json
import os
import sqlite3
import sys
import time

FILES, BATCH = 400_000, 4_096
EXTENT_BYTES = 28
TABLES = {
    "inodes": "INSERT INTO inodes (ino, kind, mode, uid, gid, nlink, size_bytes, mtime_ns, ctime_ns, version_id, version_number, content) "
              "SELECT i, 1, 420, 0, 0, 1, i % 65536, 1790000000000000000 + i, 1790000000000000000 + i, i, 1, i FROM n",
    "dentries": "INSERT INTO dentries SELECT 2 + i / 900, CAST(hex(randomblob(8)) AS BLOB), i FROM n",
    "versions": "INSERT INTO versions SELECT i, 1, i, i % 65536, i % 65536, i % 65536, 1790000000000000000 + i, 1790000000000000000 + i FROM n",
    "pages": f"INSERT INTO pages SELECT i, 0, 1, NULL, i % 65536, randomblob({EXTENT_BYTES}) FROM n",
    "contents": "INSERT INTO contents SELECT 281474976710656 + i, i / 512, i % 1048576, i % 65536, randomblob(32), 1 FROM n",
}


def insert_floor(schema, directory):
    """Microseconds and database bytes a file, for the tables and indexes of the manager's schema and its settings of SQLite."""
    path = os.path.join(directory, "floor.db")
    conn = sqlite3.connect(path, isolation_level=None)
    conn.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -131072;")
    with open(schema) as f:
        conn.executescript(f.read())
    numbers = "WITH RECURSIVE n(i) AS (VALUES (?1) UNION ALL SELECT i + 1 FROM n WHERE i < ?2) "
    began, cpu = time.monotonic(), time.process_time()
    for first in range(1, FILES + 1, BATCH):
        conn.execute("BEGIN IMMEDIATE")
        for sql in TABLES.values():
            conn.execute(numbers + sql, (first, min(first + BATCH - 1, FILES)))
        conn.execute("COMMIT")
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    conn.close()
    size = os.path.getsize(path)
    os.remove(path)
    return {"files": FILES, "us_a_file": seconds / FILES * 1e6, "cpu_us_a_file": cpu / FILES * 1e6, "bytes_a_file": size / FILES}


if __name__ == "__main__":
    print(json.dumps(insert_floor(*sys.argv[1:])))
