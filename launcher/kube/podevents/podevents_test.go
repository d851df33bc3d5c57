package podevents

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const id = "aaaaaaaa-0000-4000-8000-000000000001"

// event returns an event of a kernel's pod.
func event(ns string, uid types.UID, n int) *corev1.Event {
	e := &corev1.Event{Reason: "FailedScheduling", Message: "0/1 nodes are available"}
	e.Namespace, e.Name, e.UID = ns, fmt.Sprint("e", n), types.UID(fmt.Sprint(uid, "-", n))
	e.InvolvedObject = corev1.ObjectReference{Kind: "Pod", Name: id + "-1", Namespace: ns, UID: uid}
	return e
}

// Events of other pods never displace events of kernels' pods, and few of them are kept.
func TestStore_Others(t *testing.T) {
	s := New(func(string) bool { return true })
	s.Add(event("ns", "early", 0), false) // as if its informer were faster than that of the pods
	s.Claim("early")
	s.Add(event("ns", "known", 0), true)
	for n := range 2 * maxOthers {
		s.Add(event("ns", types.UID(fmt.Sprint("other-", n)), 0), false)
	}
	for _, uid := range []types.UID{"early", "known"} {
		if got := s.Of(uid); len(got) != 1 {
			t.Errorf("of %s there are %d events", uid, len(got))
		}
	}
	if len(s.kernels) != 2 || s.others.Len() != maxOthers {
		t.Errorf("events of %d kernels and %d other pods are kept", len(s.kernels), s.others.Len())
	}
	s.Forget("known")
	if got := s.Of("known"); got != nil || len(s.kernels) != 1 {
		t.Errorf("a removed pod has %d events", len(got))
	}
}

// The newest events of a pod are kept, each once, and a list that was read does not change.
func TestStore_Newest(t *testing.T) {
	s := New(func(string) bool { return true })
	s.Add(event("ns", "pod", 0), true)
	read := s.Of("pod")
	for n := range maxEvents + 3 {
		s.Add(event("ns", "pod", n), true)
	}
	again := event("ns", "pod", maxEvents)
	again.Count = 7
	s.Add(again, true)
	got := s.Of("pod")
	if len(read) != 1 || read[0].Name != "e0" || len(got) != maxEvents || got[0].Name != "e3" ||
		got[maxEvents-1].Count != 7 {
		t.Errorf("read %d, got %d from %s", len(read), len(got), got[0].Name)
	}
}

// Of an event outside the namespaces of kernels, and of a pod with another name, only the name is kept.
func TestStore_Trim(t *testing.T) {
	s := New(func(ns string) bool { return ns == "ns" })
	other := event("ns", "pod", 0)
	other.InvolvedObject.Name = "web-1"
	for want, e := range map[string]*corev1.Event{id: event("ns", "pod", 0), "": event("elsewhere", "pod", 0),
		"no": other} {
		kernel := s.KernelOf(e)
		o, err := s.Trim(e)
		trimmed, ok := o.(*corev1.Event)
		if err != nil || !ok || trimmed.Name != "e0" || (trimmed.Message != "") != (want == id) ||
			(kernel == id) != (want == id) {
			t.Errorf("%q: %+v, %v", kernel, o, err)
		}
	}
}
