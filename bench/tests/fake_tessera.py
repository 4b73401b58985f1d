#!/usr/bin/env -S python3 -SE
"""A toy in place of the `tessera` binary: files in one directory, daemons that do nothing. For testing chaos.py.

FAKE_BUG plants one fault: `lose` (an acknowledged file vanishes now and then), `wrong` (a byte is flipped),
`undelete` (a removed file comes back), `crash` (a node ends by itself). Without it the toy keeps its promises.
"""

import json
import os
import random
import signal
import sys
import time
import zlib

ROOT = os.environ.get("FAKE_ROOT", "")
BUG = os.environ.get("FAKE_BUG", "")


def place(path):
    return os.path.join(ROOT, path.removeprefix("tess:/").replace("/", "%"))


def store(path, content):
    temporary = f"{place(path)}.{os.getpid()}.tmp"
    with open(temporary, "wb") as f:
        f.write(content)
    os.rename(temporary, place(path))


def daemon(kind):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while os.read(0, 1) != b"":
        pass


def main():
    words = [w for w in sys.argv[1:] if w not in ("--quiet", "--force", "--json")]
    command, rest = words[0], words[1:]
    unlucky = random.random() < 0.4
    if command in ("manager", "node"):
        if BUG == "crash" and command == "node" and unlucky:
            time.sleep(2)
            sys.exit(3)
        daemon(command)
    elif command == "status":
        print(json.dumps({"nodes": [{"state": "up"}] * int(os.environ["FAKE_NODES"]),
                          "healthy": True}))
    elif command == "put":
        content = sys.stdin.buffer.read() if rest[0] == "-" else open(rest[0], "rb").read()
        time.sleep(0.02)
        if not (BUG == "lose" and unlucky):
            store(rest[1], content)
    elif command == "get":
        try:
            content = open(place(rest[0]), "rb").read()
        except FileNotFoundError:
            sys.exit(3)
        if BUG == "wrong" and content and zlib.crc32(content) % 3 == 0:
            content = content[:-1] + bytes([content[-1] ^ 1])
        sys.stdout.buffer.write(content)
    elif command == "mv":
        try:
            os.rename(place(rest[0]), place(rest[1]))
        except FileNotFoundError:
            sys.exit(3)
    elif command == "rm":
        if not (BUG == "undelete" and unlucky) and os.path.exists(place(rest[0])):
            os.unlink(place(rest[0]))


main()
