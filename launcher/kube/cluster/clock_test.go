package cluster

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

func TestClusterClock(t *testing.T) {
	const ms = time.Millisecond
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	type answer struct {
		date        string        // "": that of the API server
		api, here   time.Duration // the clocks after noon, when the answer arrives
		tookSeconds int           // from the request
	}
	for name, c := range map[string]struct {
		answers []answer
		want    time.Duration
	}{
		"right":                 {[]answer{{api: 900 * ms, here: 900 * ms}}, 0},
		"right, up to a second": {[]answer{{api: 100 * ms, here: 900 * ms}}, 0},
		"ahead":                 {[]answer{{api: 0, here: 5 * time.Minute}}, 5*time.Minute - time.Second},
		"behind":                {[]answer{{api: 5 * time.Minute, here: 0}}, -5 * time.Minute},
		"a slow answer":         {[]answer{{api: 0, here: 10 * time.Second, tookSeconds: 20}}, 0},
		"more answers": {[]answer{{api: 900 * ms, here: 60*time.Second + 900*ms}, {api: time.Second, here: 61 * time.Second}},
			60*time.Second - 100*ms},
		"the clock is corrected": {[]answer{{api: 0, here: time.Hour}, {api: time.Second, here: time.Second}}, 0},
		"no time":                {[]answer{{api: 0, here: time.Hour}, {date: "soon", here: 0}}, time.Hour - time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var clock clusterClock
			for _, a := range c.answers {
				date := a.date
				if date == "" {
					date = noon.Add(a.api).Format(http.TimeFormat)
				}
				arrived := noon.Add(a.here)
				clock.answered(date, arrived.Add(-time.Duration(a.tookSeconds)*time.Second), arrived)
			}
			if ahead := time.Duration(clock.ahead.Load()); ahead != c.want {
				t.Errorf("ahead by %v, want %v", ahead, c.want)
			}
		})
	}
}

// TestClusterClock_Requests: the clock learns from each answer of the API server.
func TestClusterClock_Requests(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
	}))
	defer server.Close()
	var requests requestCounter
	config := &rest.Config{Host: server.URL}
	requests.countRequests(config)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	resp, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if ahead := time.Duration(requests.clock.ahead.Load()); ahead < 59*time.Minute || ahead > time.Hour {
		t.Errorf("this clock is ahead by %v", ahead)
	}
}
