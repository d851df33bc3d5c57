package kube

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// Measure returns what metrics are made of.
func (l *Launcher) Measure() launcher.Measures {
	m := launcher.Measures{GPUs: map[string]int64{}, GPUSeconds: map[string]float64{}}
	known := l.known()
	for _, k := range known {
		if d, err := l.describe(k); err == nil { // else it went just now
			m.Kernels = append(m.Kernels, d)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.timing.now()
	for _, k := range known {
		l.holdGPUs(k, now)
		if n := gpusHeld(k.pod, now); n > 0 && !k.removed {
			m.GPUs[k.rec.spec] += n
		}
	}
	for spec, seconds := range l.gpuSeconds {
		m.GPUSeconds[spec] = seconds
	}
	m.Culls = maps.Clone(l.culls)
	total := l.tally.Total()
	for i, channel := range supervisor.CountedChannels {
		m.Traffic = append(m.Traffic,
			launcher.Traffic{Channel: channel, ToKernel: true, Messages: total.ToKernel[i][0], Bytes: total.ToKernel[i][1]},
			launcher.Traffic{Channel: channel, Messages: total.FromKernel[i][0], Bytes: total.FromKernel[i][1]})
	}
	m.LogEvicted, m.LogLost = total.LogEvicted, total.LogLost
	return m
}

// holdGPUs adds the time for which a kernel's pod has held GPUs since this was called last, up to until. Launcher.mu is held.
func (l *Launcher) holdGPUs(k *kernel, until time.Time) {
	if k.removed {
		return // and its time was added then
	}
	if k.gpusUntil.IsZero() {
		k.gpusUntil = l.opened
	}
	if held := gpuSeconds(k.pod, k.gpusUntil, until); held > 0 {
		l.gpuSeconds[k.rec.spec] += held
	}
	k.gpusUntil = until
}

// gpuCountOf is how many GPUs, or whole slices of one, a pod's containers ask for. Where only shares are asked for, in units of
// their own, it is 1.
func gpuCountOf(pod *corev1.Pod) (n int64) {
	shares := false
	for _, c := range pod.Spec.Containers {
		for name, q := range c.Resources.Limits {
			_, device, _ := strings.Cut(string(name), "/")
			switch {
			case !isGPU(string(name)) || q.Sign() <= 0:
			case device == "gpu" || strings.HasPrefix(device, "gpu.") || strings.HasPrefix(device, "mig-"):
				n += q.Value()
			default:
				shares = true
			}
		}
	}
	if n == 0 && shares {
		return 1
	}
	return n
}

// gpuHold is when a pod began to hold its GPUs and when it gave them back: on its node from when it was scheduled until its
// containers had ended. Zero times are not yet.
func gpuHold(pod *corev1.Pod) (from, to time.Time) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			from = c.LastTransitionTime.Time
		}
	}
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		return from, time.Time{}
	}
	to = from
	for _, st := range pod.Status.ContainerStatuses {
		if t := st.State.Terminated; t != nil && t.FinishedAt.After(to) {
			to = t.FinishedAt.Time
		}
	}
	return from, to
}

// gpusHeld is how many GPUs a pod holds at a moment.
func gpusHeld(pod *corev1.Pod, now time.Time) int64 {
	from, to := gpuHold(pod)
	if from.IsZero() || from.After(now) || !to.IsZero() && !to.After(now) {
		return 0
	}
	return gpuCountOf(pod)
}

// gpuSeconds is for how long a pod held GPUs within a time, times their number.
func gpuSeconds(pod *corev1.Pod, since, until time.Time) float64 {
	from, to := gpuHold(pod)
	if from.IsZero() {
		return 0
	}
	if from.Before(since) {
		from = since
	}
	if to.IsZero() || to.After(until) {
		to = until
	}
	return max(0, to.Sub(from).Seconds()) * float64(gpuCountOf(pod))
}

// usageOf is what a pod has held when its kernel has ended: up to that end, or to an earlier one of its containers, as of a dead
// kernel that is removed.
func usageOf(pod *corev1.Pod, end time.Time) launcher.Usage {
	from, to := gpuHold(pod)
	if from.IsZero() {
		return launcher.Usage{}
	}
	if to.After(from) && to.Before(end) { // of a pod whose node was lost nobody knows
		end = to
	}
	return launcher.Usage{Started: from.UTC(), Seconds: max(0, int64(end.Sub(from).Round(time.Second)/time.Second)), GPUs: gpuCountOf(pod)}
}

// start is the start of a kernel that this launcher has begun, until it has answered or will not.
type start struct {
	asked time.Time // when Start was called
	made  time.Time // when there was a pod
}

// followStart tells the observer how a kernel's start ends.
func (l *Launcher) followStart(id string, s start) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[id]
	if k == nil || k.rec.generation != 1 {
		return // it was stopped at once
	}
	k.start = &s
	l.observe(k)
}

// observe tells how a start has ended, once it has. A kernel that somebody stops has neither started nor failed. Launcher.mu is held.
func (l *Launcher) observe(k *kernel) {
	if k.start == nil {
		return
	}
	up := k.heard && (k.status.State == string(launcher.Idle) || k.status.State == string(launcher.Busy))
	switch {
	case k.stop != nil || k.end != nil && k.end.Stopped:
	case up:
		l.opts.Observer.KernelUp(k.rec.spec, phases(k.pod, l.events[k.pod.UID], *k.start, l.timing.now()))
	case k.end != nil || k.heard && k.status.State == string(launcher.Dead):
		l.opts.Observer.KernelFailed(k.rec.spec, failureOf(k.pod))
	default:
		return
	}
	k.start = nil
}

// phases are the parts of a start that is over now, from what the cluster says of the pod. It tells times in whole seconds, so that
// short phases may be none; together they are what the start took. What the cluster does not tell belongs to the phase after it.
func phases(pod *corev1.Pod, events []corev1.Event, s start, now time.Time) []launcher.Phase {
	all := []launcher.Phase{{Name: launcher.PhaseAdmission, Took: s.made.Sub(s.asked)}}
	last := s.made
	reached := func(name string, at time.Time) {
		if at.IsZero() {
			return
		}
		if at.Before(last) {
			at = last
		}
		if at.After(now) { // its node's clock is ahead
			at = now
		}
		all = append(all, launcher.Phase{Name: name, Took: at.Sub(last)})
		last = at
	}
	scheduled, _ := gpuHold(pod)
	reached(launcher.PhaseScheduled, scheduled)
	e := explanation{pod: pod}
	for i := range slices.Backward(events) {
		if event := &events[i]; event.Reason == "Pulled" && event.InvolvedObject.UID == pod.UID && e.ofContainer(event, containerKernel) {
			reached(launcher.PhasePulled, eventTime(event))
			break
		}
	}
	if st := containerStatus(pod, containerKernel); st != nil && st.State.Running != nil {
		reached(launcher.PhaseStarted, st.State.Running.StartedAt.Time)
	}
	reached(launcher.PhaseReady, now)
	return all
}

// failureOf says in a word why the kernel of a pod has not come up.
func failureOf(pod *corev1.Pod) launcher.Failure {
	e := explanation{pod: pod}
	if pod.Annotations[annotationLimit] != "" {
		return launcher.FailedLimit
	}
	if e.disrupted() != nil || pod.Status.Reason == "NodeLost" || pod.Status.Reason == "Evicted" {
		return launcher.FailedTaken
	}
	if pod.Spec.NodeName == "" && !e.scheduled() {
		return launcher.FailedUnscheduled
	}
	for _, st := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := st.State.Waiting; w != nil {
			switch {
			case strings.Contains(w.Reason, "Image") || w.Reason == "RegistryUnavailable" || w.Reason == "SignatureValidationFailed":
				return launcher.FailedImage
			case strings.HasSuffix(w.Reason, "Error"):
				return launcher.FailedContainer
			}
		}
		for _, t := range []*corev1.ContainerStateTerminated{st.State.Terminated, st.LastTerminationState.Terminated} {
			switch {
			case t == nil || st.Name != containerKernel && st.Name != containerSupervisor:
			case t.Reason == "OOMKilled":
				return launcher.FailedMemory
			case t.Reason == "StartError" || t.Reason == "ContainerCannotRun":
				return launcher.FailedContainer
			case st.Name == containerKernel || t.ExitCode != 0 || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
				return launcher.FailedExited
			}
		}
	}
	if st := containerStatus(pod, containerKernel); st != nil && st.State.Running != nil {
		return launcher.FailedSilent
	}
	return launcher.FailedContainer
}

// failureClass says in a word why the API server did not take a pod.
func failureClass(err error) launcher.Failure {
	switch {
	case exceeded.MatchString(err.Error()):
		return launcher.FailedQuota
	case errorReason(err).class == classNever:
		return launcher.FailedInvalid
	}
	return launcher.FailedUnavailable
}
