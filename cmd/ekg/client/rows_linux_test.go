package client

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
)

// members returns the names of a struct's members in JSON, with those of embedded structs.
func members(of reflect.Type) (names []string) {
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			names = append(names, members(f.Type)...)
		} else if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// The rows of tables have members that gateways send, and a job ends here when it ends there.
func TestRows(t *testing.T) {
	for _, tt := range []struct{ row, sent any }{
		{jobRow{}, struct {
			jobs.Job
			Version string `json:"version"`
		}{}},
		{definitionRow{}, jobs.Definition{}},
	} {
		rows, sent := members(reflect.TypeOf(tt.row)), members(reflect.TypeOf(tt.sent))
		if len(rows) < 10 {
			t.Errorf("%T has only %q", tt.row, rows)
		}
		for _, name := range rows {
			if !slices.Contains(sent, name) {
				t.Errorf("%T: no gateway sends %s", tt.row, name)
			}
		}
	}
	for _, state := range []jobs.State{jobs.Queued, jobs.Starting, jobs.Running, jobs.Succeeded, jobs.Failed,
		jobs.Stopped} {
		if j := (jobRow{State: string(state)}); j.ended() != state.Final() {
			t.Errorf("%s: ended is %t", state, j.ended())
		}
	}
	if running != jobs.Running || succeeded != jobs.Succeeded {
		t.Errorf("states %s and %s", running, succeeded)
	}
}
