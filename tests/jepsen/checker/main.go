// Command checker decides whether histories are linearizable (P7), by porcupine, an implementation of the algorithm of
// Wing and Gong with Lowe's improvements. models.go says what each workload may do, history.go what a history is.
//
//	checker -html DIR HISTORY.jsonl
//
// prints one JSON object: by workload the keys checked, those that are not linearizable, and those not decided in time.
// -html DIR receives a picture of each of them.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Verdict is about one workload.
type Verdict struct {
	Keys       int      `json:"keys"`
	Operations int      `json:"operations"`
	Wrong      []string `json:"wrong"`
	Undecided  []string `json:"undecided"`
}

// check decides about each key, and draws those that are not linearizable into `html`, unless that is "".
func check(ops []Op, limit time.Duration, html string) (map[string]*Verdict, error) {
	verdicts := map[string]*Verdict{}
	for _, group := range partition(ops) {
		first := group[0]
		verdict := verdicts[first.Workload]
		if verdict == nil {
			verdict = &Verdict{Wrong: []string{}, Undecided: []string{}}
			verdicts[first.Workload] = verdict
		}
		verdict.Keys++
		verdict.Operations += len(group)
		spec := model(models[first.Workload])
		result, info := porcupine.CheckOperationsVerbose(spec, operations(group), limit)
		switch result {
		case porcupine.Ok:
			continue
		case porcupine.Illegal:
			verdict.Wrong = append(verdict.Wrong, first.Key)
		default:
			verdict.Undecided = append(verdict.Undecided, first.Key)
		}
		if html != "" {
			name := first.Workload + "-" + strings.ReplaceAll(first.Key, "/", "_") + ".html"
			if err := porcupine.VisualizePath(spec, info, filepath.Join(html, name)); err != nil {
				return nil, err
			}
		}
	}
	return verdicts, nil
}

func main() {
	html := flag.String("html", "", "directory for pictures of what is not linearizable")
	limit := flag.Duration("limit", time.Minute, "time for one key")
	flag.Parse()
	if err := run(flag.Arg(0), *limit, *html); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func run(path string, limit time.Duration, html string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	ops, err := readHistory(file)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	verdicts, err := check(ops, limit, html)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(verdicts)
}
