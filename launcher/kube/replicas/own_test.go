package replicas

import (
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAddressTowards: other machines do not reach an address of loopback.
func TestAddressTowards(t *testing.T) {
	if at := addressTowards(t.Context(), "https://127.0.0.1:6443", slog.New(slog.DiscardHandler)); at != "" {
		t.Errorf("other machines reach this one at %s", at)
	}
}

// TestOwnIP: the own pod is found by name or address, and no answer is final while a pod has no address.
func TestOwnIP(t *testing.T) {
	pod := func(name, ip string) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{PodIP: ip}}
	}
	long := strings.Repeat("g", longestHost)
	for name, c := range map[string]struct {
		pods          []corev1.Pod
		host, address string
		ip            string
		sure          bool
	}{
		"none":                     {nil, "a", "10.0.0.1", "", true},
		"by name":                  {[]corev1.Pod{pod("b", ""), pod("a", "10.0.0.7")}, "a", "10.0.0.1", "10.0.0.7", true},
		"by address":               {[]corev1.Pod{pod("b", ""), pod("a", "10.0.0.1")}, "node", "10.0.0.1", "10.0.0.1", true},
		"by name, no address yet":  {[]corev1.Pod{pod("a", "")}, "a", "10.0.0.1", "10.0.0.1", false},
		"nothing is known of it":   {[]corev1.Pod{pod("a", "")}, "a", "", "", false},
		"perhaps by address later": {[]corev1.Pod{pod("a", ""), pod("b", "10.0.0.2")}, "node", "10.0.0.1", "", false},
		"a shortened name":         {[]corev1.Pod{pod(long+"-1", "")}, long, "10.0.0.1", "10.0.0.1", false},
		"others only":              {[]corev1.Pod{pod("b", "10.0.0.2")}, "a", "10.0.0.1", "", true},
		"no address of its own":    {[]corev1.Pod{pod("b", "10.0.0.2")}, "a", "", "", true},
	} {
		if ip, sure := ownIP(c.pods, c.host, c.address); ip != c.ip || sure != c.sure {
			t.Errorf("%s: got %q, %v", name, ip, sure)
		}
	}
}
