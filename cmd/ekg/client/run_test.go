package client

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// In a terminal, a job that is followed has one line with a bar. Elsewhere it has a line for each change.
func TestProgress(t *testing.T) {
	row := func(state string, cell int) jobRow {
		var j jobRow
		j.Name, j.State, j.Cell, j.Cells = "train", state, cell, 3
		return j
	}
	for terminal, want := range map[bool]string{
		true: "\r\x1b[Ktrain: starting" +
			"\r\x1b[Ktrain [##########--------------------] cell 1 of 3, running" +
			"\r\x1b[Ktrain [##############################] cell 3 of 3, succeeded\n",
		false: "ekg: train: starting\nekg: train: running, cell 1 of 3\nekg: train: succeeded, cell 3 of 3\n",
	} {
		var out strings.Builder
		p := &progress{w: &out, terminal: terminal}
		now := row(running, 1)
		for _, j := range []jobRow{row("starting", 0), now, now, row(succeeded, 3)} {
			p.show(j)
		}
		p.end()
		if out.String() != want {
			t.Errorf("terminal %v: %q, want %q", terminal, out.String(), want)
		}
	}
}

// TestRun_Duration: the error of a duration without a unit says that it needs one.
func TestRun_Duration(t *testing.T) {
	for _, args := range [][]string{{"run", "--timeout", "5", "x.ipynb"}, {"keep", "--for", "5", kernelA}} {
		code, _, errs := ekg(t, args...)
		if code != 2 || !strings.HasSuffix(errs, ": parse error: a duration needs a unit, as in 5s\n") {
			t.Errorf("%s: %d %s", args, code, errs)
		}
	}
	if _, _, errs := ekg(t, "run", "--retries", "x", "x.ipynb"); strings.Contains(errs, "duration") {
		t.Errorf("of a number: %s", errs)
	}
}

func TestParameterPairs(t *testing.T) {
	for line, want := range map[string]string{
		"ekg run n.ipynb -p x 1 -r y a=b -p z=3": "ekg run n.ipynb -p x=1 -r y=a=b -p z=3",
		"ekg run n.ipynb -p":                     "ekg run n.ipynb -p",
		"ekg run n.ipynb -p x":                   "ekg run n.ipynb -p x",
		"ekg run -- -p x 1":                      "ekg run -- -p x 1",
		"ekg ps -p x 1":                          "ekg ps -p x 1",
		"ekg":                                    "ekg",
	} {
		if got := parameterPairs(strings.Fields(line)); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: got %v, want %s", line, got, want)
		}
	}
}

// TestRun_Folder: the kernel's folder is the notebook's, or --cwd. The command says if the gateway does not see it.
func TestRun_Folder(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	notebook := filepath.Join(dir, "x.ipynb")
	if err := os.WriteFile(notebook, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := true
	var env map[string]string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Env map[string]string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		env = body.Env
		answer := map[string]string{"id": kernelA}
		if seen {
			answer["working_dir"] = env["KERNEL_WORKING_DIR"]
		}
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	for _, tt := range []struct {
		args []string
		seen bool
		want string // the folder that is sent
		says string
	}{
		{nil, true, dir, ""},
		{nil, false, dir, "ekg: the kernel does not see the folder " + dir + ", and runs in another one\n"},
		{[]string{"--cwd", other}, true, other, ""},
		{[]string{"--env", "KERNEL_WORKING_DIR=/no/data"}, false, "/no/data", ""},
		{[]string{"--schedule", "@daily"}, false, dir,
			"ekg: the kernel does not see the folder " + dir + ", and runs in another one\n"},
	} {
		seen, env = tt.seen, nil
		args := append([]string{"run", "--gateway-url", server.URL, "--token", "x"}, tt.args...)
		code, out, errs := ekg(t, append(args, notebook)...)
		if code != 0 || out != kernelA+"\n" || errs != tt.says || env["KERNEL_WORKING_DIR"] != tt.want {
			t.Errorf("%v: %d %q %q, folder %q", tt.args, code, out, errs, env["KERNEL_WORKING_DIR"])
		}
		wantID := folderID(tt.want) // "" for /no/data
		if id := env["KERNEL_WORKING_DIR_ID"]; id != wantID {
			t.Errorf("%v: the folder's id is %q, want %q", tt.args, id, wantID)
		}
	}
	for _, args := range [][]string{{"--cwd", notebook}, {"--cwd", filepath.Join(dir, "none")},
		{"--cwd", other, "--in-kernel", "5c1d"}} {
		args = append([]string{"run", "--gateway-url", server.URL, "--token", "x"}, args...)
		if code, _, errs := ekg(t, append(args, notebook)...); code == 0 {
			t.Errorf("%v: %s", args, errs)
		}
	}
}
