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
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
)

// runNotebook runs a notebook on a kernel through the gateway, as a job does.
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
	var document []byte
	var state notebook.State
	errLeft := errors.New("left")
	killed, saves := false, 0
	save := func(_ context.Context, b []byte, s notebook.State, _ notebook.Progress) error {
		switch saves++; {
		case saves == 4:
			return errLeft // what was saved before counts
		case saves > 6 && !killed:
			killed = true
			g.kill()
			g.start()
		}
		encoded, err := json.Marshal(s)
		document, state = b, notebook.State{}
		return errors.Join(err, json.Unmarshal(encoded, &state))
	}
	run := &notebook.Run{Document: d, ID: "job-" + id, Save: save, SaveEvery: 100 * time.Millisecond}
	if _, err := g.runNotebook(id, run, ""); !errors.Is(err, errLeft) {
		t.Fatalf("the first run: %v", err)
	}
	if d, err = notebook.Read(document); err != nil {
		t.Fatal(err)
	}
	run = &notebook.Run{Document: d, ID: "job-" + id, Save: save, Resume: &state, SaveEvery: 100 * time.Millisecond}
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
	if err := json.Unmarshal(document, &got); err != nil {
		t.Fatal(err)
	}
	if o := got.Cells[0].Outputs; len(o) != 1 || strings.Join(o[0].Text, "") != want.String() {
		t.Errorf("the output is %v", o)
	}
	if o := got.Cells[1].Outputs; len(o) != 1 || strings.Join(o[0].Text, "") != file+"\n" {
		t.Errorf("the second cell's output is %v", o)
	}
}
