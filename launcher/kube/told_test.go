package kube

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestTold_News: a supervisor is told of each change once. Later news have greater versions, also without a new version
// of the pod.
func TestTold_News(t *testing.T) {
	now := time.Now()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7"}}
	pulling := podstatus.Reason{Class: podstatus.ClassWaiting, Text: "its image is pulled"}
	pull := &api.Pull{At: now}
	var k told
	var last uint64
	for i, step := range []struct {
		version string
		why     podstatus.Reason
		pull    *api.Pull
		news    bool
	}{
		{"7", pulling, nil, true},
		{"7", pulling, nil, false},
		{"8", pulling, nil, false},
		{"8", podstatus.Reason{}, nil, true},
		{"8", podstatus.Reason{}, pull, true},
		{"8", podstatus.Reason{}, pull, false},
		{"8", pulling, pull, true}, // an event changes the reason
		{"9", podstatus.Reason{}, pull, true},
		{"none", pulling, pull, false},
	} {
		pod.ResourceVersion = step.version
		said, news := k.news(pod, step.why, step.pull, now)
		if news != step.news || news && (said.Version <= last || said.Text != step.why.Text || said.Pulled != step.pull) {
			t.Errorf("step %d: %+v, %v", i, said, news)
		}
		last = max(last, said.Version)
	}
}

// TestTold_Queue: an update that is out of date before it is sent is dropped, an end is not.
func TestTold_Queue(t *testing.T) {
	var k told
	sends := 0
	send := func() bool { sends++; return true }
	for _, class := range []string{"", api.WaitingClass, api.DiedClass, api.WaitingClass, ""} {
		k.queue(nil, api.Waiting{Class: class, Version: uint64(len(k.unsent))}, send)
	}
	var classes []string
	for _, u := range k.unsent {
		classes = append(classes, u.waiting.Class)
	}
	if len(classes) != 3 || classes[1] != api.DiedClass || sends != 1 {
		t.Errorf("%v, sent %d times", classes, sends)
	}
	var closed told
	if closed.queue(nil, api.Waiting{}, func() bool { return false }); len(closed.unsent) != 0 {
		t.Errorf("after Close %d updates wait", len(closed.unsent))
	}
}
