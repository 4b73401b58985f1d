package main

import (
	"fmt"
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// step is a sequential specification: what `state` becomes by `op`, and whether the outcome of `op` is right in `state`.
// States are strings; a new key's is "".
type step func(state string, op Op) (bool, string)

// models has the specification of each workload.
var models = map[string]step{
	"register": register,
	"dedup":    register,
	"append":   list,
	"lock":     list,
	"mutex":    mutex,
	"rename":   names,
}

// model wraps a step for the checker.
func model(next step) porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return "" },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			return wrap(next(state.(string), input.(Op)))
		},
		DescribeOperation: func(input, _ interface{}) string {
			op := input.(Op)
			return fmt.Sprintf("%s(%s) → %s %s", op.Kind, strings.Join(op.Args, ", "), op.Outcome, op.Result)
		},
		DescribeState: func(state interface{}) string { return state.(string) },
	}
}

func wrap(legal bool, state string) (bool, interface{}) { return legal, state }

// register is a file that is replaced, read, removed, and replaced if a version is current: cas(from, to) has read the version
// with the content `from`. No two writes of a key that has a cas have the same content, so a content stands for a version.
// The state is the content; "": there is no file.
func register(state string, op Op) (bool, string) {
	refused := op.Outcome == "fail"
	switch op.Kind {
	case "write":
		return !refused, op.arg(0)
	case "cas":
		same := state == op.arg(0)
		switch {
		case refused:
			return !same, state
		case op.Outcome == "info" && !same:
			return true, state
		}
		return same, op.arg(1)
	case "delete":
		if refused {
			return op.Result == "NotFound" && state == "", state
		}
		return op.Outcome == "info" || state != "", ""
	case "read":
		if refused {
			return op.Result == "NotFound" && state == "", state
		}
		return state != "" && op.Result == state, state
	}
	return false, state
}

// list is a file that only grows: an append answers with what the file held before, a read with all of it.
func list(state string, op Op) (bool, string) {
	refused := op.Outcome == "fail"
	switch op.Kind {
	case "create":
		switch {
		case refused:
			return op.Result == "VersionConflict" && state != "", state
		case state != "":
			return op.Outcome == "info", state
		}
		return true, op.arg(0)
	case "append":
		if refused {
			// A version conflict: another append came between, which the state does not show.
			return op.Result == "VersionConflict", state
		}
		return op.Outcome == "info" || op.Result == state, state + op.arg(0)
	case "read":
		return !refused && op.Result == state, state
	}
	return false, state
}

// mutex is a lock. The state is its holder.
func mutex(state string, op Op) (bool, string) {
	switch {
	case op.Kind == "acquire" && op.Outcome == "ok":
		return state == "", op.arg(0)
	case op.Kind == "release" && op.Outcome == "ok":
		return state == op.arg(0), ""
	}
	return false, state
}

// names is a directory: create(name) makes a file, and answers with its inode, unless there is the name; rename(from, to) does not
// replace; list answers `name=inode;…`. The state is such a list. The inode of a create without an answer is `?` and a number until a
// list shows it.
func names(state string, op Op) (bool, string) {
	entries := parse(state)
	there := func(name string) bool { return entries[name] != "" }
	refused, name := op.Outcome == "fail", op.arg(0)
	switch op.Kind {
	case "create":
		if refused {
			return op.Result == "VersionConflict" && there(name), state
		}
		if there(name) {
			return op.Outcome == "info", state
		}
		entries[name] = op.Result
		if op.Outcome == "info" {
			entries[name] = fmt.Sprintf("?%d", op.Process)
		}
	case "rename":
		to := op.arg(1)
		if refused {
			return op.Result == "NotFound" && !there(name) || op.Result == "Exists" && there(to), state
		}
		if !there(name) || there(to) {
			return op.Outcome == "info", state
		}
		entries[to] = entries[name]
		delete(entries, name)
	case "delete":
		if refused {
			return op.Result == "NotFound" && !there(name), state
		}
		if !there(name) {
			return op.Outcome == "info", state
		}
		delete(entries, name)
	case "list":
		return unify(entries, parse(op.Result))
	default:
		return false, state
	}
	return true, join(entries)
}

// unify compares the state with a list, which may show inodes that were unknown.
func unify(entries, seen map[string]string) (bool, string) {
	if len(entries) != len(seen) {
		return false, ""
	}
	inodes := map[string]bool{}
	for name, ino := range seen {
		known := entries[name]
		if inodes[ino] || known == "" || known != ino && known[0] != '?' {
			return false, ""
		}
		inodes[ino] = true
	}
	return true, join(seen)
}

func parse(state string) map[string]string {
	entries := map[string]string{}
	for _, pair := range strings.Split(state, ";") {
		if name, ino, found := strings.Cut(pair, "="); found {
			entries[name] = ino
		}
	}
	return entries
}

func join(entries map[string]string) string {
	pairs := make([]string, 0, len(entries))
	for name, ino := range entries {
		pairs = append(pairs, name+"="+ino)
	}
	sort.Strings(pairs)
	return strings.Join(pairs, ";")
}
