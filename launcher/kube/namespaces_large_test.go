package kube

import (
	"fmt"
	"maps"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
)

// keptHomes is the policy of namespaces, whose homes are deleted when no pod has had them for some time.
var keptHomes = strings.Replace(namespacePolicy, "size: 1Gi", "size: 1Gi, deleteAfter: 240h", 1)

// newNamespaces makes a cluster in which each of so many users has a namespace, a home and a running kernel.
func newNamespaces(t testing.TB, users int) (*testCluster, *fakeSupervisors, func(*Options, *timing)) {
	t.Helper()
	c, f := newTestCluster(t), newSupervisors(t)
	c.pods = f
	f.pipe = func() (net.Conn, net.Conn, error) { a, b := net.Pipe(); return a, b, nil }
	change := withNamespaces(t, keptHomes)
	o := Options{Pods: testPods}
	change(&o, &timing{})
	for n := range users {
		req := testRequest(idOf(n))
		req.Owner = fmt.Sprintf("user-%d", n)
		pod := runningPodBy(t, o.Pods, n, req)
		made, err := podbuild.NamespaceFor(o.Pods, pod)
		if err != nil {
			t.Fatal(err)
		}
		made.Namespace.Annotations[podbuild.AnnotationContent] = made.Content
		f.add(t, pod)
		if _, err = c.CoreV1().Namespaces().Create(t.Context(), made.Namespace, metav1.CreateOptions{}); err == nil {
			_, err = c.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		}
		if err == nil {
			_, err = c.CoreV1().PersistentVolumeClaims(pod.Namespace).Create(t.Context(), podbuild.HomeClaim(o.Pods, pod),
				metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return c, f, change
}

// TestNamespaces_Requests: the requests of the regular work and of a start do not depend on the number of users that
// have a namespace.
func TestNamespaces_Requests(t *testing.T) {
	few, many := askedByNamespaces(t, 10), askedByNamespaces(t, 300)
	for i, phase := range []struct {
		name  string
		total int // requests that are allowed
	}{{"the first two minutes", 10}, {"ten starts", 10 * 5}, {"the first start of a user", 15}} {
		if !maps.Equal(few[i], many[i]) {
			t.Errorf("%s: with 10 users %v, with 300 %v", phase.name, few[i], many[i])
		}
		total := 0
		for _, n := range many[i] {
			total += n
		}
		if total > phase.total {
			t.Errorf("%s: %v", phase.name, many[i])
		}
		t.Logf("%s: with 10 users %v, with 300 %v", phase.name, few[i], many[i])
	}
}

// askedByNamespaces returns a launcher's requests to a cluster with so many users, in each phase. Requests for leases
// depend on the time, and are left out.
func askedByNamespaces(t *testing.T, users int) (phases []map[string]int) {
	synctest.Test(t, func(t *testing.T) {
		c, _, change := newNamespaces(t, users)
		l := openTest(t, c, func(o *Options, tm *timing) {
			change(o, tm)
			tm.resync = 1000 * time.Hour // the bubble's clock stops while a goroutine waits for client-go's resync
		})
		awaitStreams(t, l, users)
		c.asked()
		end := func() {
			synctest.Wait()
			all := c.asked()
			for _, a := range c.objects.Actions() {
				all[a.GetVerb()+" "+a.GetResource().Resource]++
			}
			c.objects.ClearActions()
			maps.DeleteFunc(all, func(what string, _ int) bool { return strings.HasSuffix(what, " leases") })
			phases = append(phases, all)
		}
		time.Sleep(2 * time.Minute) // the reaper's hourly work is done first
		end()
		start := func(n int, owner string) {
			req := testRequest(idOf(users + n))
			req.Owner, req.AnyID = owner, true
			if _, _, err := l.Start(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 10 {
			start(n, fmt.Sprintf("user-%d", n))
		}
		end()
		start(10, "new")
		end()
	})
	return phases
}

// BenchmarkNamespaces measures the start of a kernel of a user that has a namespace, beside those of other users, and
// the hourly look at all homes. Each has the number of its requests besides.
func BenchmarkNamespaces(b *testing.B) {
	for _, users := range []int{10, 1000} {
		c, _, change := newNamespaces(b, users)
		l := openTest(b, c, change)
		awaitStreams(b, l, users)
		n := users
		requests := func(b *testing.B) {
			b.ReportMetric(float64(c.requests())/float64(b.N), "requests/op")
		}
		b.Run(fmt.Sprintf("start/%d", users), func(b *testing.B) {
			c.ClearActions()
			for b.Loop() {
				req := testRequest(idOf(n))
				req.Owner, req.AnyID = fmt.Sprintf("user-%d", n%users), true
				if _, _, err := l.Start(b.Context(), req); err != nil {
					b.Fatal(err)
				}
				n++
			}
			requests(b)
		})
		b.Run(fmt.Sprintf("homes/%d", users), func(b *testing.B) {
			c.ClearActions()
			for b.Loop() {
				if err := l.homes.Sweep(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			requests(b)
		})
	}
}
