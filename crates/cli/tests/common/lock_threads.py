"""Threads of one process lock overlapping ranges of a file with fcntl: every second one a POSIX lock, the others locks of the open file.

The pattern of the Linux Test Project's fcntl36. Each thread takes a range, waits for it if it must, changes its bytes and gives it up.
Bytes are counted under write locks, so a lock that two owners hold at once shows. A wait that is refused with EDEADLK is repeated: the
mount cannot tell locks of open files from POSIX locks (docs/mount.md), and threads of one process wait for one another without a cycle.
"""
import errno, fcntl, os, random, struct, sys, threading, time, traceback

path, threads, rounds, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
F_OFD_SETLKW = 38
STEP, STEPS = 1024, 16
posix = os.open(path, os.O_RDWR)
# What the holders of locks of open files count, by step: POSIX locks of one process do not exclude each other.
holders, guard, wrong = [set() for _ in range(STEPS)], threading.Lock(), []


def lock(fd, command, kind, start, length):
    while True:
        try:
            return fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, start * STEP, length * STEP, 0))
        except OSError as error:
            if error.errno != errno.EDEADLK:
                raise
            time.sleep(0.01)


def work(number):
    rng = random.Random(seed * 1000 + number)
    is_posix = number % 2 == 0
    fd = posix if is_posix else os.open(path, os.O_RDWR)
    command = fcntl.F_SETLKW if is_posix else F_OFD_SETLKW
    owner = "posix" if is_posix else number
    for _ in range(rounds):
        length = rng.randint(1, 4)
        start = rng.randint(0, STEPS - length)
        kind = rng.choice([fcntl.F_WRLCK, fcntl.F_RDLCK])
        lock(fd, command, kind, start, length)
        if not is_posix and kind == fcntl.F_WRLCK:
            for step in range(start, start + length):
                with guard:
                    holders[step].add(owner)
                    if len(holders[step]) > 1:
                        wrong.append((step, set(holders[step])))
            with guard:
                for step in range(start, start + length):
                    holders[step].discard(owner)
        lock(fd, command, fcntl.F_UNLCK, start, length)


def run(number):
    """Does the work; a failure of one thread ends the program at once."""
    try:
        work(number)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


workers = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(threads)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
if wrong:
    sys.exit(f"two owners hold a write lock at once: {wrong[:3]}")
print("done")
