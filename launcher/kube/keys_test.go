package kube

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// newKey replaces testKey.
var newKey = []byte("fedcba9876543210fedcba9876543210")

const annotationMasterKey = podspec.Domain + "master-key"

func fingerprintOf(t testing.TB, key []byte) string {
	t.Helper()
	k, err := podspec.NewMasterKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return k.Fingerprint
}

// withKeys opens a launcher with these master keys, which tries again at once to reach a supervisor.
func withKeys(t *testing.T, c *testCluster, key, second []byte) *Launcher {
	t.Helper()
	return openTest(t, c, func(o *Options, tm *timing) {
		o.MasterKey, o.SecondMasterKey = key, second
		tm.firstRedial, tm.lastRedial = time.Millisecond, time.Millisecond
	})
}

// TestMasterKeys: kernels with keys of the second master key are reached, and those of an unknown one are left alone.
// So is one of an earlier build, whose pod names no key. The pods were created with testKey.
func TestMasterKeys(t *testing.T) {
	c, f := newRunning(t, 2)
	c.setPod(t, idOf(1)+"-1", func(pod *corev1.Pod) { delete(pod.Annotations, annotationMasterKey) })
	reached := func(k launcher.Kernel) bool { return k.State == api.Idle && !k.Stale }
	count := func(l *Launcher, key string) {
		t.Helper()
		for what, n := range l.Measure().Keys {
			want := map[string]int64{launcher.KeyUnknown: 1}
			if want[key]++; n != want[what] {
				t.Errorf("%d kernels have the key %s, want %d", n, what, want[what])
			}
		}
	}
	for name, tt := range map[string]struct {
		key, second []byte
		count       string
	}{
		"the key is not replaced":          {testKey, nil, launcher.KeyCurrent},
		"replicas learn of the next key":   {testKey, newKey, launcher.KeyCurrent},
		"the key has become the second":    {newKey, testKey, launcher.KeySecond},
		"the key is removed":               {newKey, nil, ""},
		"both keys are others, both taken": {newKey, []byte(strings.Repeat("x", 32)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := withKeys(t, c, tt.key, tt.second)
			for n := range 2 {
				want := "" // or why it is not reached
				switch {
				case n == 1:
					want = "an earlier build of the gateway has made its pod"
				case tt.count == "":
					want = "master key that this gateway does not have"
				}
				waitFor(t, l, idOf(n), func(k launcher.Kernel) bool {
					return want == "" && reached(k) || want != "" && strings.Contains(k.Reason, want)
				})
				conn, err := l.Dial(t.Context(), idOf(n))
				if err == nil {
					_ = conn.Close()
				}
				if (err == nil) != (want == "") {
					t.Errorf("kernel %d: dial: %v", n, err)
				}
				if token := l.Token(idOf(n)); want == "" && token != f.of(idOf(n)).token {
					t.Errorf("kernel %d: token %q", n, token)
				}
			}
			if tt.count == "" {
				tt.count = launcher.KeyUnknown
			}
			count(l, tt.count)
		})
	}
}

// TestMasterKeys_NewPods: new pods, and those of restarted kernels, get keys of the first master key.
func TestMasterKeys_NewPods(t *testing.T) {
	c := newTestCluster(t)
	before := withKeys(t, c, testKey, nil)
	if _, _, err := before.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	after := withKeys(t, c, newKey, testKey)
	if _, _, err := after.Start(t.Context(), testRequest(idB)); err != nil {
		t.Fatal(err)
	}
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed })
	waitFor(t, after, idA, func(k launcher.Kernel) bool { return k.State == api.Dead })
	if _, err := after.Revive(t.Context(), idA); err != nil {
		t.Fatal(err)
	}
	for pod, key := range map[string][]byte{idB + "-1": newKey, idA + "-2": newKey} {
		if got := c.pod(t, pod).Annotations[annotationMasterKey]; got != fingerprintOf(t, key) {
			t.Errorf("pod %s: fingerprint %q", pod, got)
		}
		keys, err := podspec.DeriveKeys(key, "ns", pod, podspec.KeyVersionName)
		if err != nil {
			t.Fatal(err)
		}
		secret, err := c.CoreV1().Secrets("ns").Get(t.Context(), podspec.SecretName(pod), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if string(secret.Data["token"]) != keys.Token {
			t.Errorf("the secret of pod %s is not derived from the first key", pod)
		}
	}
}
