package records

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

var testKey = []byte("0123456789abcdef0123456789abcdef")

// testCluster is client-go's fake plus growing resource versions and creation times of config maps. Its changes of
// config maps are atomic: the fake checks a precondition and writes in two steps.
type testCluster struct {
	*fake.Clientset
	version atomic.Int64
}

func newTestCluster() *testCluster {
	c := &testCluster{Clientset: fake.NewSimpleClientset()}
	var lock sync.Mutex
	chain := c.ReactionChain
	c.ReactionChain = nil
	c.AddReactor("*", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		lock.Lock()
		defer lock.Unlock()
		var m *corev1.ConfigMap
		switch a := a.(type) {
		case k8stesting.CreateActionImpl:
			m = a.GetObject().(*corev1.ConfigMap)
			m.CreationTimestamp = metav1.Now()
		case k8stesting.UpdateActionImpl:
			m = a.GetObject().(*corev1.ConfigMap)
			now, err := c.Tracker().Get(a.GetResource(), a.GetNamespace(), m.Name)
			if err == nil && now.(*corev1.ConfigMap).ResourceVersion != m.ResourceVersion {
				err = apierrors.NewConflict(a.GetResource().GroupResource(), m.Name, errors.New("it is another by now"))
			}
			if err != nil {
				return true, nil, err
			}
		}
		if m != nil {
			m.ResourceVersion = fmt.Sprint(c.version.Add(1))
		}
		for _, r := range chain {
			if done, o, err := r.React(a); done {
				return done, o, err
			}
		}
		return false, nil, nil
	})
	return c
}

func (c *testCluster) maps() corev1client.ConfigMapInterface { return c.CoreV1().ConfigMaps("ns") }

// openTest returns the records of a cluster, as a gateway with these master keys has them.
func openTest(t *testing.T, c *testCluster, now func() time.Time, secrets ...[]byte) *Store {
	t.Helper()
	o := Options{
		ConfigMaps: c.maps(),
		Log:        slog.New(slog.DiscardHandler),
		Metadata: func(ctx context.Context, o metav1.ListOptions) ([]metav1.ObjectMeta, string, error) {
			list, err := c.maps().List(ctx, o)
			if err != nil {
				return nil, "", err
			}
			var all []metav1.ObjectMeta
			for i := range list.Items {
				all = append(all, list.Items[i].ObjectMeta)
			}
			return all, "", nil
		},
		Bound:       func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithCancel(ctx) },
		Unavailable: func(context.Context, string, error) error { return launcher.ErrUnavailable },
		Now:         now,
	}
	for _, secret := range secrets {
		key, err := podspec.NewMasterKey(secret)
		if err != nil {
			t.Fatal(err)
		}
		o.Keys = append(o.Keys, key)
	}
	return New(o)
}

// TestRecords runs the suite for records with two gateways.
func TestRecords(t *testing.T) {
	c := newTestCluster()
	launchertest.Records(t, openTest(t, c, time.Now, testKey), openTest(t, c, time.Now, testKey))
	if left := recordMaps(t, c); len(left) != 0 {
		t.Errorf("%d config maps are left", len(left))
	}
}

// recordMaps returns the config maps of records.
func recordMaps(t *testing.T, c *testCluster) []corev1.ConfigMap {
	t.Helper()
	all, err := c.maps().List(t.Context(), metav1.ListOptions{
		LabelSelector: podspec.LabelComponent + " in (" + componentRecord + "," + componentPiece + ")"})
	if err != nil {
		t.Fatal(err)
	}
	return all.Items
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}

// fuse makes requests for config maps fail from one of them on: as if the gateway was killed before it, or, with
// applied, behind it.
type fuse struct {
	mu      sync.Mutex
	left    int
	applied bool
	blown   bool
}

func (f *fuse) react(c *testCluster) k8stesting.ReactionFunc {
	killed := errors.New("connection reset")
	return func(a k8stesting.Action) (bool, runtime.Object, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch {
		case f.blown:
			return true, nil, killed
		case a.GetVerb() == "get" || a.GetVerb() == "list":
			return false, nil, nil
		case f.left > 1 || f.left == 1 && f.applied:
			f.left--
			f.blown = f.left == 0
			if !f.blown {
				return false, nil, nil
			}
			// The request is carried out, and its answer is lost.
			f.applyLocked(c, a)
			return true, nil, killed
		}
		f.blown = true
		return true, nil, killed
	}
}

func (f *fuse) applyLocked(c *testCluster, a k8stesting.Action) {
	if w, ok := a.(k8stesting.CreateActionImpl); ok {
		m := w.GetObject().(*corev1.ConfigMap)
		m.ResourceVersion = fmt.Sprint(c.version.Add(1))
	}
	if w, ok := a.(k8stesting.UpdateActionImpl); ok {
		m := w.GetObject().(*corev1.ConfigMap)
		m.ResourceVersion = fmt.Sprint(c.version.Add(1))
	}
	_, _, _ = k8stesting.ObjectReaction(c.Tracker())(a)
}

// TestRecords_Killed kills a gateway before and behind each request of a replacement and of a removal. The next gateway
// reads the earlier data or the later, and the sweep leaves nothing else.
func TestRecords_Killed(t *testing.T) {
	for _, remove := range []bool{false, true} {
		for _, applied := range []bool{false, true} {
			for n := 1; ; n++ {
				done := false
				t.Run(fmt.Sprintf("remove %v, applied %v, request %d", remove, applied, n), func(t *testing.T) {
					done = killRecord(t, remove, &fuse{left: n, applied: applied})
				})
				if done || t.Failed() {
					if n < 4 {
						t.Errorf("only %d requests were made", n-1)
					}
					break
				}
			}
		}
	}
}

func killRecord(t *testing.T, remove bool, f *fuse) (done bool) {
	c := newTestCluster()
	l := openTest(t, c, time.Now, testKey)
	before, after := randomBytes(recordPiece+1), randomBytes(recordPiece+1) // two pieces each
	r, err := l.CreateRecord(t.Context(), launcher.Record{Kind: "test", ID: "one", Data: before})
	if err != nil {
		t.Fatal(err)
	}
	had := len(recordMaps(t, c))
	c.Lock()
	chain := c.ReactionChain
	c.Unlock()
	c.PrependReactor("*", "configmaps", f.react(c))
	r.Data = after
	if remove {
		err = l.RemoveRecord(t.Context(), "test", "one")
	} else {
		_, err = l.ReplaceRecord(t.Context(), r)
	}
	f.mu.Lock()
	blown := f.blown
	f.mu.Unlock()
	c.Lock()
	c.ReactionChain = chain
	c.Unlock()

	next := openTest(t, c, func() time.Time { return time.Now().Add(2 * orphanAge) }, testKey)
	got, readErr := next.Record(t.Context(), "test", "one")
	isAfter := readErr == nil && bytes.Equal(got.Data, after)
	switch {
	case remove && errors.Is(readErr, launcher.ErrNoRecord):
		had = 0
	case remove && err == nil:
		t.Errorf("after a removal: %d bytes, %v", len(got.Data), readErr)
	case readErr != nil, !bytes.Equal(got.Data, before) && !isAfter:
		t.Fatalf("%d bytes, %v", len(got.Data), readErr)
	case !remove && err == nil && !isAfter:
		t.Error("a replacement is lost")
	}
	if err := next.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := recordMaps(t, c); len(left) != had {
		t.Errorf("%d config maps are left, the record has %d", len(left), had)
	}
	again, err := next.Record(t.Context(), "test", "one")
	if !errors.Is(err, readErr) || !bytes.Equal(again.Data, got.Data) {
		t.Errorf("after the sweep: %d bytes, %v", len(again.Data), err)
	}
	return !blown
}

// TestRecords_SweepWaits: pieces whose head may still be written are kept.
func TestRecords_SweepWaits(t *testing.T) {
	c := newTestCluster()
	l := openTest(t, c, time.Now, testKey)
	n := recordName{"test", "one"}
	if _, err := l.createPieces(t.Context(), n, "new", randomBytes(10)); err != nil {
		t.Fatal(err)
	}
	if err := l.Sweep(t.Context()); err != nil || len(recordMaps(t, c)) != 1 {
		t.Errorf("a new piece was removed: %v", err)
	}
}

// TestRecords_ReplacedWhileRead: a reader whose pieces are removed reads the next ones.
func TestRecords_ReplacedWhileRead(t *testing.T) {
	c := newTestCluster()
	a, b := openTest(t, c, time.Now, testKey), openTest(t, c, time.Now, testKey)
	r, err := a.CreateRecord(t.Context(), launcher.Record{Kind: "test", ID: "one", Data: randomBytes(2 * recordPiece)})
	if err != nil {
		t.Fatal(err)
	}
	head, err := c.maps().Get(t.Context(), "ekg-record.test.one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.Data = randomBytes(3 * recordPiece)
	if r, err = a.ReplaceRecord(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	got, err := b.assemble(t.Context(), recordName{"test", "one"}, head)
	if err != nil || !bytes.Equal(got.Data, r.Data) || got.Version != r.Version {
		t.Errorf("%d bytes, %v", len(got.Data), err)
	}
}

// TestRecords_Private: a config map shows nothing of the data. Data of another record or key is not accepted.
func TestRecords_Private(t *testing.T) {
	c := newTestCluster()
	l := openTest(t, c, time.Now, testKey)
	const secret = "the password is swordfish"
	for _, id := range []string{"one", "two"} {
		r := launcher.Record{Kind: "test", ID: id, Data: []byte(secret + id)}
		if _, err := l.CreateRecord(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	maps := recordMaps(t, c)
	for i := range maps {
		content := maps[i].BinaryData[recordContent]
		if bytes.Contains(content, []byte("password")) || strings.Contains(maps[i].String(), secret) {
			t.Errorf("%s shows its data", maps[i].Name)
		}
	}
	maps[0].BinaryData, maps[1].BinaryData = maps[1].BinaryData, maps[0].BinaryData
	if _, err := c.maps().Update(t.Context(), &maps[0], metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Record(t.Context(), "test", "one"); !errors.Is(err, launcher.ErrRecordDamaged) {
		t.Errorf("the content of another record: %v", err)
	}
	all, err := l.Records(t.Context(), "test")
	if err != nil || len(all) != 2 || (all[0].Data == nil) == (all[1].Data == nil) {
		t.Errorf("a list with a damaged record: %d, %v", len(all), err)
	}
	newKey := bytes.Repeat([]byte{'n'}, 32)
	rotated := openTest(t, c, time.Now, newKey, testKey)
	r, err := rotated.Record(t.Context(), "test", "two")
	if err != nil || string(r.Data) != secret+"two" {
		t.Errorf("with the second key: %s, %v", r.Data, err)
	}
	if _, err := rotated.ReplaceRecord(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Record(t.Context(), "test", "two"); !errors.Is(err, launcher.ErrRecordDamaged) {
		t.Errorf("with a key that is not known here: %v", err)
	}
}

// TestRecords_Refusals: what the API server rejects for a while is ErrUnavailable, and nothing else.
func TestRecords_Refusals(t *testing.T) {
	for _, refusal := range []error{
		apierrors.NewTooManyRequests("slow down", 0),
		apierrors.NewInternalError(errors.New("x")),
		apierrors.NewForbidden(corev1.Resource("configmaps"), "x", errors.New("exceeded quota")),
	} {
		c := newTestCluster()
		l := openTest(t, c, time.Now, testKey)
		r, err := l.CreateRecord(t.Context(), launcher.Record{Kind: "test", ID: "one"})
		if err != nil {
			t.Fatal(err)
		}
		c.PrependReactor("*", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
			return true, nil, refusal
		})
		_, get := l.Record(t.Context(), "test", "one")
		_, list := l.Records(t.Context(), "test")
		_, stamps := l.RecordStamps(t.Context(), "test", true)
		_, ids := l.RecordIDs(t.Context(), "test")
		_, replace := l.ReplaceRecord(t.Context(), r)
		r.Data = randomBytes(2 * recordPiece)
		_, large := l.ReplaceRecord(t.Context(), r)
		for i, err := range []error{get, list, stamps, ids, replace, large, l.RemoveRecord(t.Context(), "test", "one")} {
			if !errors.Is(err, launcher.ErrUnavailable) {
				t.Errorf("%v: request %d: %v", refusal, i, err)
			}
		}
	}
	c := newTestCluster()
	l := openTest(t, c, time.Now, testKey)
	_, err := l.CreateRecord(t.Context(), launcher.Record{Kind: "test", ID: "one", Data: make([]byte, maxRecord+1)})
	if !errors.Is(err, launcher.ErrRecordTooLarge) {
		t.Errorf("a record over the limit: %v", err)
	}
	r := launcher.Record{Kind: "test", ID: "one", Data: randomBytes(maxRecord)}
	if _, err := l.CreateRecord(t.Context(), r); err != nil {
		t.Errorf("a record of the limit: %v", err)
	}
	if r, err := l.Record(t.Context(), "test", "one"); err != nil || len(r.Data) != maxRecord {
		t.Errorf("a record of the limit: %d bytes, %v", len(r.Data), err)
	}
}
