package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// events returns the events of a test that prints these lines and ends.
func events(name, result string, lines ...string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	add := func(action, output string) {
		e := map[string]string{"Action": action, "Package": "p", "Test": name, "Output": output}
		if err := enc.Encode(e); err != nil {
			panic(err)
		}
	}
	add("run", "")
	add("output", "=== RUN   "+name+"\n")
	for _, l := range lines {
		add("output", l+"\n")
	}
	add("output", "    --- "+strings.ToUpper(result)+": "+name+" (0.00s)\n")
	add(result, "")
	return b.String()
}

// TestFailures: the failures' own lines are printed, also those of a test that passed when it ran again.
func TestFailures(t *testing.T) {
	numbered := make([]string, 40)
	for i := range numbered {
		numbered[i] = fmt.Sprintf("    line %d", i)
	}
	for name, c := range map[string]struct{ events, want string }{
		"none failed": {events("TestA", "pass", "fine"), ""},
		"one failed and passed then": {
			events("TestA/b", "fail", `    a_test.go:3: got "<x>"`) + events("TestA", "fail") + events("TestA/b", "pass", "fine") +
				events("TestA", "pass"), "=== TestA/b failed:\n    a_test.go:3: got \"<x>\"\n"},
		"it failed twice": {events("TestA", "fail", "one") + events("TestA", "fail", "two"),
			"=== TestA failed:\none\n=== TestA failed:\ntwo\n"},
		"many lines": {events("TestA", "fail", numbered...),
			"=== TestA failed:\n" + strings.Join(numbered[len(numbered)-maxLines:], "\n") + "\n"},
		"a long line": {events("TestA", "fail", strings.Repeat("x", 10*maxLine)),
			"=== TestA failed:\n" + strings.Repeat("x", maxLine) + "\n"},
	} {
		file := filepath.Join(t.TempDir(), "events.json")
		if err := os.WriteFile(file, []byte(c.events), 0o600); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		if err := run([]string{file}, &got); err != nil || got.String() != c.want {
			t.Errorf("%s: got %q, %v, want %q", name, got.String(), err, c.want)
		}
	}
}

// TestFailures_Bound: many failures do not fill the end of an output.
func TestFailures_Bound(t *testing.T) {
	failed := make([]test, 30)
	for i := range failed {
		failed[i] = test{fmt.Sprint("Test", i), []string{strings.Repeat("ü", maxLine), "first", strings.Repeat("y", 250)}}
	}
	got := text(failed)
	if len(got) > maxBytes+maxTests*40 || !strings.HasSuffix(got, "=== and 20 more failed\n") ||
		strings.Count(got, "first\n") != maxTests {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}
