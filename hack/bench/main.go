// Bench measures ekg beside what it is compared with, in one run, and writes docs/benchmarks.md. `make bench` runs it. It
// is a module of its own. Its working folder is the repository's root, so the names of files below begin there:
//
//	go run -C hack/bench .                      everything, about an hour
//	go run -C hack/bench . -quick               five minutes
//	go run -C hack/bench . -run 'output 10 kB'  only the scenarios whose name matches
//	go run -C hack/bench . -out FILE.json       also write the figures to this file, after each scenario
//	go run -C hack/bench . -compare FILE.json   name every ratio that fell by more than 20 % since FILE.json, and exit 1
//	go run -C hack/bench . -before DIR          also measure the ekg and ekg-supervisor in DIR, in the same rounds
//	go run -C hack/bench . -docs                write docs/benchmarks.md and its picture from results.json again
//
// The peers are: direct, a client in C on libzmq without a gateway; ekg as it is installed; Enterprise Gateway; and
// jupyter_server as a gateway. All use the fake kernel of launcher/launchertest. In each round of a scenario every peer
// has its turn, so the machine's moods meet all of them. Messages that are lost and requests that fail are figures, and
// are never tried again.
//
// The harness talks to loopback only. Every wait has a bound. It ends the processes that it started, by their ids.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
)

// Files that the harness writes, from the repository's root.
const (
	resultsFile = "hack/bench/results.json"
	docsFile    = "docs/benchmarks.md"
	pictureFile = "docs/pictures/benchmarks.svg"
)

func main() {
	if path := os.Getenv(hostVariable); path != "" {
		fmt.Fprintln(os.Stderr, "host:", host(path))
		os.Exit(1)
	}
	if most := os.Getenv(supervisorsVariable); most != "" {
		if err := hostSupervisors(most); err != nil {
			fmt.Fprintln(os.Stderr, "supervisors:", err)
			os.Exit(1)
		}
		return
	}
	if err := enterRoot(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		code = 1
	}
	os.Exit(code)
}

// enterRoot makes the repository's root the working folder. "go run -C" leaves the program in hack/bench.
func enterRoot() error {
	if _, err := os.Stat(resultsFile); err == nil {
		return nil
	}
	if err := os.Chdir("../.."); err != nil {
		return err
	}
	_, err := os.Stat(resultsFile)
	return err
}

// options are the flags.
type options struct {
	quick, list, docs, write bool
	match                    string
	peers                    string
	out, compare             string
	before                   string // a folder with other programs
	rounds                   int
	command                  string // the flags that change what is measured
}

func parseOptions(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.BoolVar(&o.quick, "quick", false, "short measurements and small numbers: five minutes")
	f.BoolVar(&o.list, "list", false, "list the scenarios")
	f.BoolVar(&o.docs, "docs", false, "measure nothing; write the documents from "+resultsFile)
	f.BoolVar(&o.write, "write", false, "write "+resultsFile+" and the documents")
	f.StringVar(&o.match, "run", "", "measure only the scenarios whose name matches this `regexp`")
	f.StringVar(&o.peers, "peers", "", "measure only these peers, a comma between: direct,ekg,EG,JS")
	f.StringVar(&o.out, "out", "", "write the figures to this `file`, as JSON")
	f.StringVar(&o.compare, "compare", "", "compare with the figures of this `file`; exit 1 if a ratio fell by over 20 %")
	f.StringVar(&o.before, "before", "", "also measure the ekg and ekg-supervisor in this `folder`, in the same rounds")
	f.IntVar(&o.rounds, "rounds", 5, "measurements of each peer in a scenario")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var given []string
	f.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "quick", "run", "peers", "rounds":
			given = append(given, fmt.Sprintf("-%s=%s", f.Name, f.Value))
		}
	})
	o.command = strings.Join(append([]string{"go run -C hack/bench ."}, given...), " ")
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.before != "" && o.write {
		return o, errors.New("-before and -write exclude each other: the documents have no column for it")
	}
	if o.rounds < 1 {
		return o, fmt.Errorf("-rounds is %d, at least 1 expected", o.rounds)
	}
	return o, nil
}

// run does what the flags say. It returns the exit code.
func run(ctx context.Context, args []string) (int, error) {
	o, err := parseOptions(args)
	if err != nil {
		return 2, err
	}
	match, err := regexp.Compile(o.match)
	if err != nil {
		return 2, err
	}
	if o.docs {
		r, err := readResults(resultsFile)
		if err != nil {
			return 1, err
		}
		return 0, writeDocs(r)
	}
	var chosen []scenario
	for _, s := range scenarios(o.quick) {
		if match.MatchString(s.name) {
			chosen = append(chosen, s)
		}
	}
	if o.list {
		for _, s := range chosen {
			fmt.Println(s.name)
		}
		return 0, nil
	}
	if len(chosen) == 0 {
		return 2, fmt.Errorf("no scenario matches %q", o.match)
	}
	var before *results
	if o.compare != "" {
		// Before the run, which may overwrite the file.
		if before, err = readResults(o.compare); err != nil {
			return 1, err
		}
	}
	r, err := measure(ctx, o, chosen)
	if err != nil {
		return 1, err
	}
	return report(o, r, before)
}

// measure runs the scenarios.
func measure(ctx context.Context, o options, chosen []scenario) (*results, error) {
	b, err := newBench(ctx, o)
	if err != nil {
		return nil, err
	}
	defer b.close()
	began := time.Now()
	for i, s := range chosen {
		b.say("[%d/%d, %s] %s", i+1, len(chosen), time.Since(began).Round(time.Second), s.name)
		b.measure(s)
		b.results.Took = time.Since(began).Round(time.Second).String()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if o.out != "" { // a run that is ended early leaves what it has measured
			if err := b.results.write(o.out); err != nil {
				return nil, err
			}
		}
	}
	return b.results, nil
}

// measure runs a scenario with peers of its own. A fault of the harness is a failure of the scenario, and does not end
// the run.
func (b *bench) measure(s scenario) {
	b.scenario = s.name
	defer b.stopPeers() // memory that one scenario has used is not the next one's
	defer func() {
		if v := recover(); v != nil {
			b.fail(peerHarness, "", fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
		}
	}()
	s.run(b)
}

// report prints, writes and compares the figures. It returns the exit code.
func report(o options, r, before *results) (int, error) {
	fmt.Print(tables(r) + beforeTable(r))
	if o.out != "" {
		if err := r.write(o.out); err != nil {
			return 1, err
		}
	}
	if o.write {
		if err := r.write(resultsFile); err != nil {
			return 1, err
		}
		committed, err := readResults(resultsFile) // its values are rounded
		if err != nil {
			return 1, err
		}
		if err := writeDocs(committed); err != nil {
			return 1, err
		}
	}
	if before == nil {
		return 0, nil
	}
	fallen := compare(before, r)
	if len(fallen) == 0 {
		fmt.Println("No ratio fell by more than 20 %.")
		return 0, nil
	}
	fmt.Println("Worse than before:\n" + strings.Join(fallen, "\n"))
	return 1, nil
}
