package client

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

var tableTime = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const tableModels = `[
{"id": "3f2a91c0-0000-4000-8000-000000000001", "name": "python3", "execution_state": "idle", "owner": "ann",
 "created": "2026-11-21T09:55:00.000000Z", "last_activity": "2026-11-21T11:25:00.000000Z", "connections": 2,
 "cull_at": "2026-11-21T12:05:00.000000Z", "flavor": "t4", "gpus": 1},
{"id": "3f2a91c0-0000-4000-8000-000000000002", "name": "r", "execution_state": "starting", "owner": "bob",
 "created": "2026-11-21T11:59:50.000000Z", "last_activity": "2026-11-21T11:59:50.000000Z", "connections": 0,
 "gpus": 0.25, "reason": "full\u001b[31m\tnow"},
{"id": "7b000000-0000-4000-8000-000000000003", "name": "python3", "execution_state": "busy", "owner": "bob",
 "created": "2026-11-18T12:00:00.000000Z", "last_activity": "2026-11-21T11:59:59.000000Z", "connections": 1,
 "keep_until": "2026-11-21T20:00:00.000000Z", "job": {"id": "j", "name": "train", "cell": 3, "cells": 9}}]`

func TestPrintKernels(t *testing.T) {
	var all []kernelRow
	if err := json.Unmarshal([]byte(tableModels), &all); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		format outputFormat
		want   string
	}{
		{formatTable, `
KERNEL                                 SPEC      OWNER   STATE      AGE    IDLE   GPU    ENDS IN   K` +
			`EPT FOR   JOB         REASON
3f2a91c0-0000-4000-8000-000000000001   python3   ann     idle       2h5m   35m    t4     5m        -` +
			`          -           
3f2a91c0-0000-4000-8000-000000000002   r         bob     starting   10s    -      0.25   -         -` +
			`          -           ` +
			`full\x1b[31m\tnow
7b000000-0000-4000-8000-000000000003   python3   bob     busy       3d     -      -      -         8` +
			`h         train 3/9   
`},
		{formatWide, `
KERNEL                                 SPEC      OWNER   STATE      AGE    IDLE   GPU    ENDS IN   K` +
			`EPT FOR   CLIENTS   ` +
			`JOB         REASON
3f2a91c0-0000-4000-8000-000000000001   python3   ann     idle       2h5m   35m    t4     5m        -` +
			`          2         -           
3f2a91c0-0000-4000-8000-000000000002   r         bob     starting   10s    -      0.25   -         -` +
			`          0         -           ` +
			`full\x1b[31m\tnow
7b000000-0000-4000-8000-000000000003   python3   bob     busy       3d     -      -      -         8` +
			`h         1         train 3/9   
`},
		{formatName, `
3f2a91c0-0000-4000-8000-000000000001
3f2a91c0-0000-4000-8000-000000000002
7b000000-0000-4000-8000-000000000003
`},
	} {
		var b strings.Builder
		if err := tt.format.printKernels(&b, all, tableTime); err != nil {
			t.Fatal(err)
		}
		if got := "\n" + b.String(); got != tt.want {
			t.Errorf("%q:\n%s\nwant\n%s", tt.format, got, tt.want)
		}
	}
	var b strings.Builder
	err := formatTable.printKernels(&b, all[1:], tableTime)
	if err != nil || !strings.Contains(b.String(), "\n3f2a91c0  ") {
		t.Errorf("ids are not shortened: %v\n%s", err, b.String())
	}
}

// JSON and YAML are what the gateway sent, unknown members included.
func TestPrintKernels_Whole(t *testing.T) {
	var all []kernelRow
	if err := json.Unmarshal([]byte(`[{"id": "a", "name": "yes", "later": {"n": [1, 2.50, null]}}]`), &all); err != nil {
		t.Fatal(err)
	}
	for format, want := range map[outputFormat]string{
		formatJSON: "[\n  {\n    \"id\": \"a\",\n    \"name\": \"yes\",\n    \"later\": {\n      \"n\": [\n        1,\n" +
			"        2.50,\n        null\n      ]\n    }\n  }\n]\n",
		formatYAML: "- id: \"a\"\n  name: \"yes\"\n  later:\n    n:\n      - 1\n      - 2.50\n      - null\n",
	} {
		var b strings.Builder
		if err := format.printKernels(&b, all, tableTime); err != nil || b.String() != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", format, err, b.String(), want)
		}
	}
}

// A kernel that has waited has no reason once it runs: the command decodes each model into the same row.
func TestKernelRow_Again(t *testing.T) {
	var k kernelRow
	for _, text := range []string{`{"id": "a", "execution_state": "starting", "reason": "no node", "gpus": 1}`,
		`{"id": "a", "execution_state": "idle"}`} {
		if err := json.Unmarshal([]byte(text), &k); err != nil {
			t.Fatal(err)
		}
	}
	if k.Reason != "" || k.GPUs != 0 || k.State != "idle" {
		t.Errorf("got %+v", k)
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 59 * time.Second: "59s", time.Minute: "1m", time.Hour: "1h", 3*time.Hour + 5*time.Minute: "3h5m",
		11*time.Hour + 5*time.Minute: "11h", 49 * time.Hour: "2d",
	} {
		if got := age(tableTime, tableTime.Add(-d)); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
	if got := age(tableTime, time.Time{}); got != "" {
		t.Errorf("no time is %q", got)
	}
}
