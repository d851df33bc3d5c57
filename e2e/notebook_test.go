//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
)

// compared are the notebooks of the tests of papermill, nbclient and nbconvert --execute that TestE2E_NotebookPapermill
// runs, with the parameters that they get. Of those that run nothing, or the same as another, one is here. Not here are
// those that need Python 2, another language, no end, or a kernel that dies.
var compared = map[string]string{
	"papermill/tests/notebooks/simple_execute.ipynb":     `{"msg": "it's \"é\"\n"}`,
	"papermill/tests/notebooks/complex_parameters.ipynb": `{"a": 1.0, "b": [null, true, {"k": .nan}], "msg": -.inf}`,
	"papermill/tests/notebooks/no_parameters.ipynb":      `{"new": {"a": [1, -2.5e-7]}}`,
	"papermill/tests/notebooks/nb_version_4.4.ipynb":     ``,
	"papermill/tests/notebooks/broken1.ipynb":            ``,
	"papermill/tests/notebooks/broken2.ipynb":            ``,
	"papermill/tests/notebooks/line_magic_error.ipynb":   ``,
	"papermill/tests/notebooks/sysexit0.ipynb":           ``,
	"papermill/tests/notebooks/sysexit1.ipynb":           ``,
	"papermill/tests/notebooks/test_logging.ipynb":       ``,
	"tests/files/Clear Output.ipynb":                     ``,
	"tests/files/Disable Stdin.ipynb":                    ``,
	"tests/files/Empty Cell.ipynb":                       ``,
	"tests/files/Error.ipynb":                            ``,
	"tests/files/JupyterWidgets.ipynb":                   ``,
	"tests/files/Other Comms.ipynb":                      ``,
	"tests/files/Output.ipynb":                           ``,
	"tests/files/SVG.ipynb":                              ``,
	"tests/files/Skip Exceptions.ipynb":                  ``,
	"tests/files/Skip Execution with Cell Tag.ipynb":     ``,
	"tests/files/UnicodePy3.ipynb":                       ``,
	"tests/files/update-display-id.ipynb":                ``,
	"tests/preprocessors/files/HelloWorld.ipynb":         ``,
	"tests/exporters/files/notebook3.ipynb":              ``,
	"tests/exporters/files/rst_output.ipynb":             ``,
	"tests/files/Unexecuted_widget.ipynb":                ``,
	"tests/files/notebook3_with_errors.ipynb":            ``,
	"tests/files/Widget_List.ipynb":                      ``,
}

// run runs a notebook on a kernel through the gateway, as a job does.
func (g *gateway) runNotebook(id string, r *notebook.Run, cursor string) (notebook.Result, error) {
	relay := notebook.OpenRelay(notebook.RelayOptions{
		Session: r.ID, Cursor: cursor,
		Dial: func(ctx context.Context, query url.Values) (*websocket.Conn, error) {
			return g.connectWith(ctx, id, query, subprotocolRelay, 20*time.Second)
		},
		Interrupt: func(context.Context) error {
			_, _, err := g.tryAsk("POST", "/api/kernels/"+id+"/interrupt", "")
			return err
		},
	})
	defer relay.Close()
	r.Conn = relay
	return r.Do(g.t.Context())
}

// TestE2E_NotebookPapermill: `ekg run` writes what papermill, which is nbclient, writes in the same environment: field
// by field, and cell by cell. A page that is opened after the same run has the same outputs.
func TestE2E_NotebookPapermill(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	for _, d := range []string{"in", "ekg", "parameters"} {
		if err := os.Mkdir(filepath.Join(g.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	given := map[string]string{} // files with parameters, by the notebook's name
	for path, with := range compared {
		found, err := filepath.Glob(filepath.Join(g.in.dir, "notebooks/*", path))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v %v", path, found, err)
		}
		name := filepath.Base(path)
		copyFile(t, found[0], filepath.Join(g.dir, "in", name))
		if with == "" {
			continue
		}
		given[name] = filepath.Join(g.dir, "parameters", name+".yaml")
		if err := os.WriteFile(given[name], []byte(with), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	script := filepath.Join(g.in.repository, "e2e/testdata/python/notebooks.py")
	var both sync.WaitGroup
	both.Go(func() {
		env := []string{
			"JUPYTER_PATH=" + filepath.Join(g.in.dir, "share/jupyter"),
			"PYTHONPATH=" + filepath.Join(g.in.repository, "python/jupyter-ekg"),
		}
		g.script(10*time.Minute, env,
			filepath.Join(g.in.dir, "lab/bin/python"), script, "run", g.dir)
	})
	paths, err := filepath.Glob(filepath.Join(g.dir, "in", "*.ipynb"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		args := []string{"run", path, "--kernel", "python3", "-o", filepath.Join(g.dir, "ekg", name)}
		if given[name] != "" {
			args = append(args, "-f", given[name])
		}
		if code, _, errs := g.prints(args...); code > 1 || !strings.Contains(errs, ": succeeded") &&
			!strings.Contains(errs, ": failed") {
			t.Errorf("%s: %d, %s", name, code, errs)
		}
	}
	both.Wait()
	g.script(time.Minute, []string{"PYTHONPATH=" + filepath.Join(g.in.repository, "python/jupyter-ekg")},
		filepath.Join(g.in.dir, "lab/bin/python"), script, "compare", g.dir)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// pieces is what a run has stored: pieces by name, and its state without a name.
type pieces map[string]string

func (p pieces) Put(_ context.Context, data []byte) (string, error) {
	name := fmt.Sprint("p", len(p))
	p[name] = string(data)
	return name, nil
}

func (p pieces) Get(_ context.Context, name string) ([]byte, error) { return []byte(p[name]), nil }

func (p pieces) Remove(_ context.Context, names []string) {
	for _, name := range names {
		delete(p, name)
	}
}

func (p pieces) save(_ context.Context, s *notebook.State, _ notebook.Progress) error {
	b, err := json.Marshal(s)
	p[""] = string(b)
	return err
}

// state returns the state that was stored last.
func (p pieces) state(t *testing.T) *notebook.State {
	t.Helper()
	s := &notebook.State{}
	if err := json.Unmarshal([]byte(p[""]), s); err != nil {
		t.Fatal(err)
	}
	return s
}

// notebook returns the notebook that was stored last.
func (p pieces) notebook(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := notebook.Write(t.Context(), &b, *p.state(t), p,
		func(_ context.Context, err error) (notebook.State, error) { return notebook.State{}, err })
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestE2E_NotebookCarried: a run is left in the middle of a cell, as when its gateway dies, and carried on. Then the
// gateway is killed and started again. Every cell runs once, and no line of output is missing or twice.
func TestE2E_NotebookCarried(t *testing.T) {
	g := newGateway(t)
	file := filepath.Join(g.dir, "ran")
	source := fmt.Sprintf("import time\\nwith open('%s', 'a') as f: f.write('x')\\nfor i in range(300):\\n"+
		"    print('line', i, flush=True); time.sleep(0.01)", file)
	d, err := notebook.Read([]byte(`{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [
		{"cell_type": "code", "id": "a", "metadata": {}, "source": "` + source + `", "outputs": []},
		{"cell_type": "code", "id": "b", "metadata": {}, "source": "print(f.name)", "outputs": []}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Prepare(notebook.Plan{}); err != nil {
		t.Fatal(err)
	}
	id := g.kernel("python3")
	saved := pieces{}
	errLeft := errors.New("left")
	killed, saves := false, 0
	save := func(ctx context.Context, s *notebook.State, p notebook.Progress) error {
		switch saves++; {
		case saves == 4:
			return errLeft // what was saved before counts
		case saves > 6 && !killed:
			killed = true
			g.kill()
			g.start()
		}
		return saved.save(ctx, s, p)
	}
	run := &notebook.Run{Document: d, ID: "job-" + id, Pieces: saved, Save: save, SaveEvery: 100 * time.Millisecond}
	if _, err := g.runNotebook(id, run, ""); !errors.Is(err, errLeft) {
		t.Fatalf("the first run: %v", err)
	}
	state := saved.state(t)
	run = &notebook.Run{ID: "job-" + id, Pieces: saved, Save: save, Resume: state, SaveEvery: 100 * time.Millisecond}
	res, err := g.runNotebook(id, run, state.Cursor)
	if err != nil || res.Status != notebook.Completed {
		t.Fatalf("the second run: %+v, %v", res, err)
	}
	ran, err := os.ReadFile(file)
	if err != nil || string(ran) != "x" || !killed {
		t.Errorf("the cell ran as %q, killed: %v, %v", ran, killed, err)
	}
	var want strings.Builder
	for i := range 300 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	var got struct {
		Cells []struct {
			Outputs []struct {
				Text []string `json:"text"`
			} `json:"outputs"`
		} `json:"cells"`
	}
	if err := json.Unmarshal([]byte(saved.notebook(t)), &got); err != nil {
		t.Fatal(err)
	}
	if o := got.Cells[0].Outputs; len(o) != 1 || strings.Join(o[0].Text, "") != want.String() {
		t.Errorf("the output is %v", o)
	}
	if o := got.Cells[1].Outputs; len(o) != 1 || strings.Join(o[0].Text, "") != file+"\n" {
		t.Errorf("the second cell's output is %v", o)
	}
}
