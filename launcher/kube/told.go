package kube

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// endUpdateAge is the age up to which the end of a kernel's container is sent to its supervisor.
const endUpdateAge = 30 * time.Second

// told is what a supervisor was told of its pod, and what it is told next. Launcher.mu guards it.
type told struct {
	reason  podstatus.Reason // the last one
	version uint64           // of the update with reason
	pull    time.Time        // when the image was pulled whose pull was sent last
	end     time.Time        // when the container ended whose end was sent last
	unsent  []waitingUpdate  // updates to be sent, in order; the first is being sent
}

// waitingUpdate is an update that has to be sent to the supervisor in a pod.
type waitingUpdate struct {
	pod     *corev1.Pod
	waiting api.Waiting
}

// news returns what a supervisor has to be told of its pod. news is false if it knows that.
func (t *told) news(pod *corev1.Pod, why podstatus.Reason, pull *api.Pull, now time.Time,
) (said api.Waiting, news bool) {
	// The end of the kernel's container is sent first: the supervisor waits for it, to show it in the cell.
	if end := podstatus.KernelEnd(pod); end.Class == podstatus.ClassDied && !end.Since.Equal(t.end) &&
		now.Sub(end.Since) < endUpdateAge {
		t.end, why = end.Since, end
	}
	pulled := pull != nil && !pull.At.Equal(t.pull) && (why.Class == "" || why.Class == podstatus.ClassWaiting)
	if !pulled && why.Class == t.reason.Class && why.Text == t.reason.Text {
		return said, false
	}
	version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil {
		return said, false // no version can be made from it
	}
	// Newer updates have greater versions, whichever gateway sends them. An event changes the reason without a new
	// version of the pod.
	if version <<= 8; version <= t.version {
		version = t.version + 1
	}
	t.reason, t.version = why, version
	if pull != nil {
		t.pull = pull.At
	}
	return api.Waiting{Class: string(why.Class), Text: why.Text, Version: version, Pulled: pull}, true
}

// queue adds an update. send begins to send the updates, unless the launcher is closed. Updates are sent one after the
// other: the supervisor ignores older versions, so an end could be lost if the container is restarted at once. An
// update that is out of date before it is sent is dropped, unless it is an end.
func (t *told) queue(pod *corev1.Pod, said api.Waiting, send func() bool) {
	if said.Class == "" {
		said.Class = api.WaitingClass // there is nothing to wait for
	}
	if last := len(t.unsent) - 1; last > 0 && t.unsent[last].waiting.Class != api.DiedClass {
		t.unsent = t.unsent[:last]
	}
	if t.unsent = append(t.unsent, waitingUpdate{pod, said}); len(t.unsent) == 1 && !send() {
		t.unsent = nil // the launcher is closed
	}
}
