package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sort"

	"github.com/anishathalye/porcupine"
)

// Op is one operation of a history: a line of JSON that the driver wrote.
type Op struct {
	// Workload names the model.
	Workload string `json:"workload"`
	// Key is what the operation is about. Keys are independent of each other.
	Key string `json:"key"`
	// Process issued it. A process issues nothing more after an outcome `info`.
	Process int `json:"process"`
	// Kind is what was asked: read, write, cas, …
	Kind string `json:"kind"`
	// Args is what it was asked with.
	Args []string `json:"args"`
	// Outcome is `ok` (done), `fail` (surely not done) or `info` (unknown).
	Outcome string `json:"outcome"`
	// Result is what an `ok` answered; of a `fail` the error's code.
	Result string `json:"result"`
	// Invoke and Return are times of one monotonic clock, ns. Return has no meaning after `info`.
	Invoke int64 `json:"invoke"`
	Return int64 `json:"return"`
}

// arg returns argument i, or "".
func (op Op) arg(i int) string {
	if i < len(op.Args) {
		return op.Args[i]
	}
	return ""
}

// readHistory reads lines of JSON.
func readHistory(r io.Reader) ([]Op, error) {
	var ops []Op
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var op Op
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(ops)+1, err)
		}
		if op.Outcome != "ok" && op.Outcome != "fail" && op.Outcome != "info" {
			return nil, fmt.Errorf("line %d: outcome `%s`", len(ops)+1, op.Outcome)
		}
		if _, known := models[op.Workload]; !known {
			return nil, fmt.Errorf("line %d: workload `%s`", len(ops)+1, op.Workload)
		}
		ops = append(ops, op)
	}
	return ops, lines.Err()
}

// refusals are the errors that are observations: the model says when each of them is right.
var refusals = map[string]bool{"NotFound": true, "Exists": true, "VersionConflict": true}

// counts reports whether the model has something to say about an operation.
func counts(op Op) bool {
	switch op.Outcome {
	case "ok":
		return true
	case "fail":
		return refusals[op.Result]
	default:
		return op.Kind != "read" && op.Kind != "list"
	}
}

// partition groups the operations that count by workload and key, in the order of their first operations.
func partition(ops []Op) [][]Op {
	index := map[[2]string]int{}
	var groups [][]Op
	for _, op := range ops {
		if !counts(op) {
			continue
		}
		id := [2]string{op.Workload, op.Key}
		at, known := index[id]
		if !known {
			at = len(groups)
			index[id] = at
			groups = append(groups, nil)
		}
		groups[at] = append(groups[at], op)
	}
	return groups
}

// operations translates for the checker. An operation of unknown outcome is open for ever: it may take effect at any time after
// its begin, or never, which is the same as after everything else.
func operations(ops []Op) []porcupine.Operation {
	clients := map[int]int{}
	var processes []int
	for _, op := range ops {
		if _, known := clients[op.Process]; !known {
			clients[op.Process] = 0
			processes = append(processes, op.Process)
		}
	}
	sort.Ints(processes)
	for i, process := range processes {
		clients[process] = i
	}
	made := make([]porcupine.Operation, 0, len(ops))
	for _, op := range ops {
		end := op.Return
		if op.Outcome == "info" {
			end = math.MaxInt64
		}
		made = append(made, porcupine.Operation{ClientId: clients[op.Process], Input: op, Call: op.Invoke, Output: op, Return: end})
	}
	return made
}
