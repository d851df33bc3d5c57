//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestE2E_Limits: two gateways with one state directory share a limit.
func TestE2E_Limits(t *testing.T) {
	g := newGateway(t, "--max-kernels-per-user", "2")
	second := *g
	second.addr = freeAddress(t, "127.0.0.1")
	second.url = "http://" + second.addr
	second.start()
	t.Cleanup(second.kill)
	gateways := []*gateway{g, &second}

	var mu sync.Mutex
	var refused, others []string
	started := 0
	var asking sync.WaitGroup
	for i := range 20 {
		asking.Go(func() {
			status, b, err := gateways[i%2].tryAsk("POST", "/api/kernels", `{"name": "fake"}`)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && status == 201:
				started++
			case err == nil && status == 403:
				refused = append(refused, string(b))
			default:
				others = append(others, fmt.Sprint(status, string(b), err))
			}
		})
	}
	asking.Wait()
	if started != 2 || len(refused) != 18 || len(others) > 0 {
		t.Fatalf("%d were started, %d were refused, and the other answers are %q", started, len(refused), others)
	}
	const why = `"you have 2 kernels, and you may have 2 kernels at one time (limit kernels-per-user); shut one down ` +
		`to start another: fake `
	var all []model
	g.want(200, "GET", "/api/kernels", "", &all)
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	for _, text := range refused {
		if strings.Count(text, why) != 1 || !strings.Contains(text, all[0].ID) || !strings.Contains(text, all[1].ID) {
			t.Fatalf("a start was refused with %s", text)
		}
	}
	for _, m := range all {
		g.state(m.ID, "idle", 20*time.Second)
	}
	_, b := second.ask("POST", "/api/sessions", `{"path": "x", "type": "notebook", "kernel": {"name": "fake"}}`)
	if !strings.Contains(string(b), "(idle since 20") {
		t.Errorf("a session: %s", b)
	}
	g.want(200, "POST", "/api/kernels/"+all[0].ID+"/restart", "{}", nil)
	second.want(204, "DELETE", "/api/kernels/"+all[0].ID, "", nil)
	g.want(201, "POST", "/api/kernels", `{"name": "fake"}`, nil)
	second.want(403, "POST", "/api/kernels", `{"name": "fake"}`, nil)
	g.want(200, "GET", "/api/kernels", "", &all)
	for _, m := range all {
		g.want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
	}
}
