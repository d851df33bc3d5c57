package kube

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// boundConfigMaps makes the cluster reject config maps of more bytes, as the API server does.
func (c *testCluster) boundConfigMaps(most int) {
	check := func(name string, entries ...map[string]string) error {
		all, size := map[string]string{}, 0
		for _, some := range entries {
			for id, text := range some {
				all[id] = text
			}
		}
		for _, text := range all {
			size += len(text)
		}
		if size <= most {
			return nil
		}
		return apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, name,
			field.ErrorList{field.TooLong(field.NewPath(""), "", most)})
	}
	c.PrependReactor("*", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		var err error
		switch a := a.(type) {
		case k8stesting.CreateActionImpl:
			m := a.GetObject().(*corev1.ConfigMap)
			err = check(m.Name, m.Data)
		case k8stesting.PatchActionImpl:
			var m corev1.ConfigMap
			if err := json.Unmarshal(a.Patch, &m); err != nil {
				return true, nil, err
			}
			o, gerr := c.Tracker().Get(a.GetResource(), a.GetNamespace(), a.GetName())
			if gerr != nil {
				return true, nil, gerr
			}
			err = check(a.GetName(), o.(*corev1.ConfigMap).Data, m.Data)
		}
		return err != nil, nil, err
	})
}

// More kernels may end in an hour than one config map can hold. Every gateway finds all endings, in their last state.
func TestEndings_FullHour(t *testing.T) {
	const kernels, hour = 1000, "ekg-endings-2026112123"
	c := newTestCluster(t)
	c.boundConfigMaps(50_000) // about 200 endings
	at := time.Date(2026, 11, 21, 23, 5, 6, 0, time.UTC)
	end := func(l *Launcher, n int, end endings.Ending) {
		t.Helper()
		end.At = at
		l.mu.Lock()
		l.recordEndingLocked(podspec.Record{ID: numberedID(n), Owner: "ann", SpecName: "python3"},
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: "u"}}, &end)
		l.mu.Unlock()
		if n%100 == 99 {
			writeEndings(t, l)
		}
	}
	l, other := openTest(t, c, nil), openTest(t, c, nil)
	for n := range kernels {
		end([]*Launcher{l, other}[n/100%2], n, endings.Ending{Reason: strings.Repeat("x", 100)})
	}
	// A later state has room in the first config map by now.
	first, err := c.CoreV1().ConfigMaps("ns").Get(t.Context(), hour, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for n := range 50 {
		delete(first.Data, numberedID(n))
	}
	if _, err := c.CoreV1().ConfigMaps("ns").Update(t.Context(), first, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	later := openTest(t, c, nil)
	end(later, kernels-1, endings.Ending{Reason: "it was shut down", Stopped: true})

	all := 0
	for name, m := range c.endingsMaps(t) {
		all += len(m)
		if !strings.HasPrefix(name, hour) {
			t.Errorf("%s belongs to another hour", name)
		}
	}
	if maps := len(c.endingsMaps(t)); all != kernels-50+1 || maps < 5 || maps > 1+16 {
		t.Errorf("%d endings in %d config maps", all, maps)
	}
	next := openTest(t, c, nil)
	for n := 50; n < kernels; n++ {
		if why := whyGone(t, next, numberedID(n)); (why == "it was shut down") != (n == kernels-1) {
			t.Fatalf("%d: %s", n, why)
		}
	}
	t.Run("old ones are removed", func(t *testing.T) {
		now := at.Add(endings.Kept + time.Hour)
		l := openTest(t, c, func(_ *Options, tm *timing) {
			tm.now = func() time.Time { return now }
		})
		l.endings.Prune(t.Context(), "ns")
		if maps := c.endingsMaps(t); len(maps) > 0 {
			t.Errorf("%d are left", len(maps))
		}
	})
}
