package kube

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestManyKernels: what a list costs does not grow with the number of kernels, nor does what a gateway asks meanwhile.
func TestManyKernels(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	const n = 200
	for i := range n {
		if _, _, err := l.Start(t.Context(), testRequest(fmt.Sprintf("aaaaaaaa-0000-4000-8000-%012d", i))); err != nil {
			t.Fatal(err)
		}
	}
	l.freshness.proved(time.Now())
	before := c.requests()
	took := make([]time.Duration, 100)
	for i := range took {
		began := time.Now()
		all, err := l.Kernels(t.Context())
		if err != nil || len(all) != n {
			t.Fatalf("%d kernels, %v", len(all), err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	t.Logf("a list of %d kernels: median %v, p99 %v", n, took[50], took[98])
	if took[50] > 50*time.Millisecond { // on a busy machine some take longer for other reasons
		t.Errorf("a list takes %v", took[50])
	}
	if asked := c.requests() - before; asked > 1 {
		t.Errorf("100 lists asked the cluster %d times", asked)
	}
}
