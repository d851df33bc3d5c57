package supervisor

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestSupervisor_LostOutput: a cell shows once how many of its messages the kernel's sockets have lost. It shows that
// before its end, since front ends do not listen after it.
func TestSupervisor_LostOutput(t *testing.T) {
	for name, c := range map[string]struct {
		code  string
		least int // messages that the cell must say are lost
		most  int
	}{
		"at the end of the cell":  {"flood 1500\nlose 200\necho end", 200, 200},
		"while the cell runs":     {"flood 1500\nlose 200\necho on\nsleep 4s\necho end", 200, 200},
		"with the cell's idle":    {"flood 1500\nlose 200\nlose idle", 200, 201}, // the idle, if anything has come after it
		"all":                     {"lose 1200\necho end", 1200, 1200},
		"a display hook takes it": {"flood 500\nlose 200\necho end", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startSupervisor(t, nil).ready()
			cl := r.dial(dialOption{session: "ann"})
			id := cl.execute(c.code)
			text := output(cl.result(id), id)
			said := 0
			for _, m := range regexp.MustCompile(`(?m)^\[ekg\] (\d+) messages? `).FindAllStringSubmatch(text, -1) {
				n, err := strconv.Atoi(m[1])
				if err != nil {
					t.Fatal(err)
				}
				said += n
			}
			if said < c.least || said > c.most || strings.Count(text, "[ekg]") > c.most-c.least+1 {
				t.Errorf("the cell says that %d are lost: %s", said, text)
			}
		})
	}
}
