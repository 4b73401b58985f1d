"""What people do with trees of files on a mount: copies, archives, git, grep, SQLite, removal.

Each work is (name, run, amount): `run()` is timed, `amount` is what it did, in files or commits. Those that need the mount to be
cold say so by `COLD` before them.
"""

import os
import random
import shutil
import sqlite3
import subprocess

# Between two works: mount anew, without page cache.
COLD = object()
SQLITE_COMMITS = 100


def prepare(tree, directory):
    """Makes what the works read, outside the mount: the tree, an archive of it, and a repository with it. Returns the number of files."""
    os.makedirs(directory)
    source = os.path.join(directory, "tree")
    subprocess.run(["cp", "-a", tree, source], check=True)
    subprocess.run(["tar", "-C", directory, "-cf", os.path.join(directory, "tree.tar"), "tree"], check=True)
    repository = os.path.join(directory, "repository")
    git("init", "-q", repository)
    subprocess.run(["cp", "-a", f"{source}/.", repository], check=True)
    git("-C", repository, "add", "-A")
    git("-C", repository, "-c", "user.name=bench", "-c", "user.email=bench@localhost", "commit", "-q", "-m", "the tree")
    return sum(len(files) for _, _, files in os.walk(source))


def git(*args):
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_TERMINAL_PROMPT": "0"}
    subprocess.run(["git", *args], check=True, env=environment, stdout=subprocess.DEVNULL)


def works(directory, top, files):
    """The works in order, on `top`, a directory of the mount."""
    place = lambda name: os.path.join(top, name)
    clone = place("clone")

    def grep():
        found = subprocess.run(["grep", "-r", "nowhere in this tree, surely", place("copy")])
        if found.returncode != 1:
            raise RuntimeError(f"grep ends with {found.returncode}")

    yield "cp -a", lambda: subprocess.run(["cp", "-a", os.path.join(directory, "tree"), place("copy")], check=True), files
    yield "untar", lambda: subprocess.run(["tar", "-C", top, "-xf", os.path.join(directory, "tree.tar")], check=True), files
    yield "git clone", lambda: git("clone", "-q", f"file://{directory}/repository", clone), files
    yield "SQLite, commits", lambda: commits(place("db")), SQLITE_COMMITS
    yield COLD, None, 0
    yield "grep -r, cold", grep, files
    yield "git status, cold", lambda: git("-C", clone, "status", "--porcelain"), files
    yield "rm -rf", lambda: shutil.rmtree(place("copy")), files
    for name in ("tree", "clone"):
        shutil.rmtree(place(name))


def commits(path):
    """Rows of 100 bytes into a database in its default mode, a commit each."""
    rng, db = random.Random(7), sqlite3.connect(path)
    db.execute("CREATE TABLE rows (key INTEGER PRIMARY KEY, value BLOB)")
    for _ in range(SQLITE_COMMITS):
        db.execute("INSERT INTO rows (value) VALUES (?)", (rng.randbytes(100),))
        db.commit()
    if db.execute("SELECT count(*) FROM rows").fetchone() != (SQLITE_COMMITS,):
        raise RuntimeError("the database lacks rows")
    db.close()
