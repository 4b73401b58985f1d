#!/usr/bin/env python3
"""A program that works on files of a mount under locks: one command a line on stdin, one answer on stdout.

    create PATH TEXT | append flock|fcntl PATH TEXT sync|close | read PATH

An append takes the lock, reads the file, writes behind its end with O_APPEND, and commits by fsync or close. It answers `ok BEFORE ACQUIRED
RELEASING`: what the file held, and between which times it surely had the lock (ns, monotonic). Else `fail CODE`, if surely nothing was
written, or `info CODE`.
"""

import errno
import fcntl
import os
import sys
import time

PATIENCE_S = 6.0
BUSY = {errno.EAGAIN, errno.EACCES}


def read_all(fd):
    pieces, at = [], 0
    while piece := os.pread(fd, 65536, at):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces).decode(errors="replace")


def lock(fd, kind):
    """Takes the lock, waiting a while."""
    take = fcntl.flock if kind == "flock" else fcntl.lockf
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return take(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def append(kind, path, text, commit):
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND)
    except OSError as error:
        return f"fail {errno.errorcode.get(error.errno, error.errno)}"
    written = False
    try:
        lock(fd, kind)
        acquired = time.monotonic_ns()
        before = read_all(fd)
        written = True
        os.write(fd, text.encode())
        releasing = time.monotonic_ns()
        if commit == "sync":
            os.fsync(fd)
    except OSError as error:
        close_quietly(fd)
        return f"{'info' if written else 'fail'} {errno.errorcode.get(error.errno, error.errno)}"
    try:
        os.close(fd)
    except OSError as error:
        if commit != "sync":
            return f"info {errno.errorcode.get(error.errno, error.errno)}"
    return f"ok {before or '-'} {acquired} {releasing}"


def close_quietly(fd):
    try:
        os.close(fd)
    except OSError:
        pass


def create(path, text):
    with open(path, "x") as f:
        f.write(text)
    return "ok"


def read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return f"ok {read_all(fd) or '-'}"
    finally:
        close_quietly(fd)


COMMANDS = {"create": create, "append": append, "read": read}


def main():
    for line in sys.stdin:
        name, *words = line.split()
        try:
            print(COMMANDS[name](*words), flush=True)
        except OSError as error:
            print(f"{'fail' if name == 'read' else 'info'} {errno.errorcode.get(error.errno, error.errno)}", flush=True)


if __name__ == "__main__":
    main()
