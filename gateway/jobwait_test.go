package gateway

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
)

// TestJobs_Wait: an answer waits for a change of the job, and not longer than the client and the gateway want.
func TestJobs_Wait(t *testing.T) {
	g := startUserGateway(t, func(o *Options) { o.ConnectionsPerUser = 1 })
	made := g.do("POST", "/api/jobs", `{"kernelspec":"python3","notebook":{"nbformat":4,"nbformat_minor":5,"metadata":{},`+
		`"cells":[]}}`, as("ann")).want(t, 201, "queued")
	path := strings.TrimPrefix(made.Header.Get("Location"), g.base)
	type answer struct{ State, Version string }
	read := func(query string) (a answer) {
		t.Helper()
		if err := json.Unmarshal([]byte(g.do("GET", path+query, "", as("ann")).want(t, 200, "").body), &a); err != nil {
			t.Error(err)
		}
		return a
	}
	first := read("?wait=50&after=")
	if first.State != "queued" || first.Version == "" || first != read("?wait=50&after=other") || first != read("") {
		t.Fatalf("the job is %+v", first)
	}
	began := time.Now()
	if again := read("?wait=1&after=" + first.Version); again != first || time.Since(began) < time.Second {
		t.Errorf("after %v the job is %+v", time.Since(began), again)
	}
	for _, wrong := range []string{"?wait=51", "?wait=-1", "?wait=x"} {
		g.do("GET", path+wrong, "", as("ann")).want(t, 400, "The parameter wait is not")
	}
	g.do("GET", path+"?wait=50&after="+first.Version, "", as("bob")).want(t, 404, "")

	waits := func() (got chan answer) {
		got = make(chan answer, 1)
		go func() { got <- read("?wait=50&after=" + first.Version) }()
		poll.Until(t, "the client waits", func() bool {
			readers, _, _ := g.eventReaders.Traffic()
			return readers == 1
		})
		return got
	}
	got := waits()
	g.do("GET", path+"?wait=50&after="+first.Version, "", as("ann")).want(t, 429, "connections")
	began = time.Now()
	g.do("POST", path+"/stop", "", as("ann")).want(t, 202, "")
	if a := <-got; a.State != "stopped" || a.Version == first.Version || time.Since(began) > 20*time.Second {
		t.Errorf("after %v the stopped job is %+v", time.Since(began), a)
	}
	last := read("")
	if a := read("?wait=50&after=" + last.Version); a != last { // it will not change any more
		t.Errorf("the ended job is %+v", a)
	}
}

// TestJobs_WaitDrain: a gateway that ends does not wait for those who wait.
func TestJobs_WaitDrain(t *testing.T) {
	g := startGateway(t, nil)
	made := g.do("POST", "/api/jobs", `{"kernelspec":"python3","notebook":{"nbformat":4,"nbformat_minor":5,"metadata":{},`+
		`"cells":[]}}`).want(t, 201, "queued")
	path := strings.TrimPrefix(made.Header.Get("Location"), g.base)
	var job struct{ Version string }
	if err := json.Unmarshal([]byte(g.do("GET", path, "").body), &job); err != nil {
		t.Fatal(err)
	}
	done := make(chan string, 1)
	go func() { done <- g.do("GET", path+"?wait=50&after="+job.Version, "").body }()
	poll.Until(t, "the client waits", func() bool {
		readers, _, _ := g.eventReaders.Traffic()
		return readers == 1
	})
	g.EndLogs()
	if body := <-done; !strings.Contains(body, job.Version) {
		t.Errorf("the answer is %s", body)
	}
}
