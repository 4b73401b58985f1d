package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A history in words: `PROCESS INVOKE RETURN KIND ARGS OUTCOME [RESULT]` a line, arguments with commas between them, `-` for none.
func parseHistory(t *testing.T, workload, text string) []Op {
	var ops []Op
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		var args string
		op := Op{Workload: workload, Key: "k"}
		words := strings.Fields(line)
		if _, err := fmt.Sscan(strings.Join(words[:6], " "), &op.Process, &op.Invoke, &op.Return, &op.Kind, &args, &op.Outcome); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if args != "-" {
			op.Args = strings.Split(args, ",")
		}
		if len(words) > 6 {
			op.Result = words[6]
		}
		ops = append(ops, op)
	}
	return ops
}

var histories = []struct {
	name, workload string
	good           bool
	text           string
}{
	{"reads see the last write", "register", true, `
		1 0 10 write a ok
		1 20 30 write b ok
		2 40 50 read - ok b`},
	{"a read beside a write sees either", "register", true, `
		1 0 10 write a ok
		1 20 50 write b ok
		2 25 30 read - ok a
		2 35 40 read - ok b`},
	{"a stale read", "register", false, `
		1 0 10 write a ok
		1 20 30 write b ok
		2 40 50 read - ok a`},
	{"two reads beside a write go back", "register", false, `
		1 0 10 write a ok
		1 20 90 write b ok
		2 25 30 read - ok b
		3 35 40 read - ok a`},
	{"a lost write", "register", false, `
		1 0 10 write a ok
		2 20 30 read - fail NotFound`},
	{"a write without an answer may take effect late", "register", true, `
		1 0 10 write a ok
		2 20 0 write b info
		3 30 40 read - ok a
		3 50 60 read - ok b`},
	{"a write without an answer takes effect once", "register", false, `
		1 0 10 write a ok
		2 20 0 write b info
		3 30 40 read - ok b
		1 50 60 write c ok
		3 70 80 read - ok b`},
	{"a write that surely failed was seen", "register", false, `
		1 0 10 write a ok
		2 20 30 cas z,b fail VersionConflict
		3 40 50 read - ok b`},
	{"a cas on the current content", "register", true, `
		1 0 10 write a ok
		2 20 30 cas a,b ok
		3 40 50 read - ok b`},
	{"two cas of one version", "register", false, `
		1 0 10 write a ok
		2 20 30 cas a,b ok
		3 20 30 cas a,c ok`},
	{"a cas is refused by its own first attempt", "register", false, `
		1 0 10 write a ok
		2 20 30 cas a,b fail VersionConflict
		3 40 50 read - ok a`},
	{"a cas without an answer beside another", "register", true, `
		1 0 10 write a ok
		2 20 0 cas a,b info
		3 20 30 cas a,c ok
		1 40 50 read - ok c`},
	{"a removed file comes back", "register", false, `
		1 0 10 write a ok
		1 20 30 delete - ok
		2 40 50 read - ok a`},
	{"a shared chunk goes with the other file", "dedup", false, `
		1 0 10 write a ok
		2 40 50 read - ok 0000`},
	{"appends of two clients", "append", true, `
		1 0 10 create 0. ok
		1 20 40 append a. ok 0.b.
		2 20 40 append b. ok 0.
		1 50 60 read - ok 0.b.a.`},
	{"a create without an answer, and one that finds the file", "append", true, `
		1 0 0 create 0. info
		2 20 40 create 0. fail VersionConflict
		1 50 60 read - ok 0.`},
	{"a create that finds no file and makes none", "append", false, `
		2 20 40 create 0. fail VersionConflict
		1 50 60 create 0. ok`},
	{"an append that surely failed", "append", true, `
		1 0 10 create 0. ok
		1 20 40 append a. ok 0.
		2 20 40 append b. fail VersionConflict
		1 50 60 read - ok 0.a.`},
	{"a duplicate append", "append", false, `
		1 0 10 create 0. ok
		1 20 40 append a. ok 0.
		2 50 60 read - ok 0.a.a.`},
	{"a lost append", "append", false, `
		1 0 10 create 0. ok
		1 20 40 append a. ok 0.
		2 50 60 append b. ok 0.`},
	{"an append without an answer that appears", "append", true, `
		1 0 10 create 0. ok
		1 20 0 append a. info
		2 50 60 read - ok 0.
		2 70 80 read - ok 0.a.`},
	{"appended elements change places", "append", false, `
		1 0 10 create 0. ok
		1 20 40 append a. ok 0.
		2 50 60 append b. ok 0.a.
		2 70 80 read - ok 0.b.a.`},
	{"a lost update under a lock", "lock", false, `
		1 0 10 create 0. ok
		1 20 40 append a. ok 0.
		2 30 50 append b. ok 0.`},
	{"a lock changes hands", "mutex", true, `
		1 0 10 acquire 1 ok
		1 20 30 release 1 ok
		2 0 40 acquire 2 ok`},
	{"a lock held twice", "mutex", false, `
		1 0 10 acquire 1 ok
		2 12 14 acquire 2 ok
		1 20 30 release 1 ok
		2 20 30 release 2 ok`},
	{"one winner", "rename", true, `
		1 0 10 create a ok 7
		1 11 12 create b ok 8
		2 20 40 rename a,c ok
		3 20 40 rename b,c fail Exists
		1 50 60 list - ok b=8;c=7`},
	{"two winners", "rename", false, `
		1 0 10 create a ok 7
		1 11 12 create b ok 8
		2 20 40 rename a,c ok
		3 20 40 rename b,c ok`},
	{"a file under two names", "rename", false, `
		1 0 10 create a ok 7
		2 20 40 rename a,c ok
		1 50 60 list - ok a=7;c=7`},
	{"a repeated rename does not find its source", "rename", false, `
		1 0 10 create a ok 7
		2 20 40 rename a,c fail NotFound
		1 50 60 list - ok c=7`},
	{"a create without an answer shows its inode once", "rename", true, `
		1 0 0 create a info
		2 20 40 rename a,c ok
		1 50 60 list - ok c=9`},
	{"the inode of a name changes", "rename", false, `
		1 0 0 create a info
		2 20 40 list - ok a=9
		1 50 60 list - ok a=10`},
	{"a listing lacks an earlier name", "rename", false, `
		1 0 10 create a ok 7
		2 20 40 list - ok -`},
}

func TestHistories(t *testing.T) {
	for _, history := range histories {
		verdicts, err := check(parseHistory(t, history.workload, history.text), time.Minute, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		verdict := verdicts[history.workload]
		if len(verdict.Undecided) > 0 || (len(verdict.Wrong) == 0) != history.good {
			t.Errorf("%s: %+v", history.name, verdict)
		}
	}
}

func TestKeysAreIndependent(t *testing.T) {
	text := "1 0 10 write a ok\n2 20 30 read - ok b"
	ops := parseHistory(t, "register", text)
	ops[1].Key = "other"
	verdicts, _ := check(ops, time.Minute, "")
	if wrong := verdicts["register"].Wrong; len(wrong) != 1 || wrong[0] != "other" {
		t.Error(wrong)
	}
}

func TestMalformedHistoriesAreRefused(t *testing.T) {
	for _, text := range []string{
		`{"workload":"register"`,
		`{"workload":"register","outcome":"maybe"}`,
		`{"workload":"queue","outcome":"ok"}`,
	} {
		if _, err := readHistory(strings.NewReader(text)); err == nil {
			t.Error(text)
		}
	}
}
