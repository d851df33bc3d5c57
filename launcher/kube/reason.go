package kube

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
)

// Bounds of what a reason says, in characters.
const (
	reasonLimit = 500 // of the whole
	quoteLimit  = 300 // of what Kubernetes, a registry or a container runtime has said
)

// class says what becomes of a kernel that is not running.
type class string

const (
	classNone    class = ""        // there is nothing to explain: it runs, or nothing is known yet
	classWaiting class = "waiting" // it may still run, with nobody doing anything here
	classNever   class = "never"   // it will not run as it is: somebody has to change something
	classDied    class = "died"    // it has ended, or is about to
)

// reason is why a kernel's pod does not do what it should: one sentence for the kernel's owner, without its full stop, of at
// most reasonLimit characters and with no control characters.
type reason struct {
	class class
	text  string
	since time.Time // zero if it is not known
}

func newReason(c class, since time.Time, format string, args ...any) reason {
	return reason{class: c, since: since, text: quote(fmt.Sprintf(format, args...), reasonLimit)}
}

// quote makes text that was written elsewhere fit for a sentence: one line, no control characters, no full stop, not long.
func quote(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, " "))
	text = strings.TrimRight(strings.Join(strings.Fields(text), " "), ". ")
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return text
}

// podReason tells why a kernel's pod is not running, from its status and its own events, newest last. It is a pure function
// of what it is given; the same pod gives the same text for as long as what it says is true.
func podReason(pod *corev1.Pod, events []corev1.Event, now time.Time) reason {
	e := explanation{pod: pod, now: now}
	for _, event := range events {
		if event.InvolvedObject.UID == "" || event.InvolvedObject.UID == pod.UID {
			e.events = append(e.events, event)
		}
	}
	switch phase := pod.Status.Phase; {
	case phase == corev1.PodSucceeded || phase == corev1.PodFailed:
		return e.ended()
	case pod.Status.Reason == "NodeLost":
		return newReason(classDied, e.deleted(), "its node %s was lost", pod.Spec.NodeName)
	case pod.DeletionTimestamp != nil || e.disrupted() != nil:
		return e.ending()
	case pod.Spec.NodeName == "" && !e.scheduled():
		return e.unscheduled()
	}
	if r := e.containers(); r.class != classNone {
		return r
	}
	if gone := e.last("NodeNotReady"); gone != nil && e.isFalse(corev1.PodReady) {
		return newReason(classWaiting, eventTime(gone), "its node %s does not answer", pod.Spec.NodeName)
	}
	return reason{}
}

// kernelEnd tells why the kernel's container ended last, although the pod may go on and the container be running again. Its
// class is classNone if it never ended.
func kernelEnd(pod *corev1.Pod) reason {
	for _, s := range pod.Status.ContainerStatuses {
		if s.Name != containerKernel {
			continue
		}
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil {
				return newReason(classDied, t.FinishedAt.Time, "%s", terminated(pod, s.Name, t))
			}
		}
	}
	return reason{}
}

// explanation is what a reason is made from.
type explanation struct {
	pod    *corev1.Pod
	events []corev1.Event // of this pod, newest last
	now    time.Time
}

// last returns the newest event with one of the reasons, nil if there is none.
func (e *explanation) last(reasons ...string) *corev1.Event {
	for i := range slices.Backward(e.events) {
		if slices.Contains(reasons, e.events[i].Reason) {
			return &e.events[i]
		}
	}
	return nil
}

// eventTime is when an event was seen last.
func eventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil && !e.Series.LastObservedTime.IsZero():
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

func source(e *corev1.Event) string { return cmp.Or(e.ReportingController, e.Source.Component) }

func (e *explanation) condition(t corev1.PodConditionType) *corev1.PodCondition {
	for i := range e.pod.Status.Conditions {
		if c := &e.pod.Status.Conditions[i]; c.Type == t {
			return c
		}
	}
	return nil
}

func (e *explanation) isFalse(t corev1.PodConditionType) bool {
	c := e.condition(t)
	return c != nil && c.Status == corev1.ConditionFalse
}

func (e *explanation) scheduled() bool {
	c := e.condition(corev1.PodScheduled)
	return c != nil && c.Status == corev1.ConditionTrue
}

// disrupted returns the condition that says who takes the pod away, nil if nobody does.
func (e *explanation) disrupted() *corev1.PodCondition {
	if c := e.condition(corev1.DisruptionTarget); c != nil && c.Status == corev1.ConditionTrue {
		return c
	}
	return nil
}

// deleted is when the pod was told to end.
func (e *explanation) deleted() time.Time {
	if at := e.pod.DeletionTimestamp; at != nil {
		grace := time.Duration(0)
		if s := e.pod.DeletionGracePeriodSeconds; s != nil {
			grace = time.Duration(*s) * time.Second
		}
		return at.Add(-grace)
	}
	return time.Time{}
}

// howLong says for how long something has lasted: " for 2 minutes", in steps that do not change at every look, or "".
func (e *explanation) howLong(since time.Time) string {
	switch d := e.now.Sub(since); {
	case since.IsZero() || d < 10*time.Second:
		return ""
	case d < time.Minute:
		return fmt.Sprintf(" for %d seconds", int(d/(10*time.Second))*10)
	case d < 2*time.Minute:
		return " for a minute"
	case d < 2*time.Hour:
		return fmt.Sprintf(" for %d minutes", int(d/time.Minute))
	default:
		return fmt.Sprintf(" for %d hours", int(d/time.Hour))
	}
}

// containers explains a pod that has its node: by the container that is furthest from running.
func (e *explanation) containers() reason {
	var worst reason
	all := slices.Concat(e.pod.Status.InitContainerStatuses, e.pod.Status.ContainerStatuses)
	if len(all) == 0 && e.pod.Status.StartTime == nil {
		return e.untaken()
	}
	if len(all) == 0 {
		return e.creating("")
	}
	for i := range all {
		r := e.container(&all[i])
		if r.class == classNever || worst.class == classNone {
			worst = r
		}
		if r.class == classNever {
			break
		}
	}
	return worst
}

// untaken explains a pod of which its node's kubelet has said nothing yet.
func (e *explanation) untaken() reason {
	since := e.started()
	long := e.howLong(since)
	if long == "" {
		return newReason(classWaiting, since, "its containers are being created")
	}
	return newReason(classWaiting, since, "its node %s has not taken it%s; the kubelet there may be down", e.pod.Spec.NodeName, long)
}

// container explains one container that is not running.
func (e *explanation) container(s *corev1.ContainerStatus) reason {
	if t := s.State.Terminated; t != nil {
		switch {
		case s.Name == containerSupervisor || s.Name == containerKernel:
		case t.ExitCode == 0:
			return reason{} // an init container of somebody's, and done
		}
		return e.restarting(s, t, "it is started again")
	}
	w := s.State.Waiting
	if w == nil {
		return reason{}
	}
	since := e.started()
	said := quote(w.Message, quoteLimit)
	switch w.Reason {
	case "InvalidImageName":
		return newReason(classNever, since, "the image name %q is invalid", e.image(s.Name))
	case "ErrImageNeverPull":
		return newReason(classNever, since, "the image %q is not on the node, and may not be pulled", e.image(s.Name))
	case "SignatureValidationFailed":
		return newReason(classNever, since, "the image %q has no valid signature: %s", e.image(s.Name), said)
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError":
		return e.pulling(s.Name, w)
	case "CreateContainerConfigError":
		if strings.Contains(said, "failed to sync ") {
			return newReason(classWaiting, since, "its container is being created: %s", said)
		}
		said, _, _ = strings.Cut(said, " (pod: ")
		return newReason(classNever, since, "%s cannot be created: %s", whose(s.Name), said)
	case "CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError", "PostStartHookError":
		said := quote(shortRuntime(w.Message), quoteLimit)
		if passing(w.Message) {
			return newReason(classWaiting, since, "%s is being created: %s", whose(s.Name), said)
		}
		return newReason(classNever, since, "%s cannot be started: %s", whose(s.Name), said)
	case "CrashLoopBackOff":
		return e.restarting(s, s.LastTerminationState.Terminated, "it is started again"+backOff(w.Message))
	}
	return e.creating(s.Name) // ContainerCreating, PodInitializing, and what later versions may say
}

// started is when the pod came to its node.
func (e *explanation) started() time.Time {
	if c := e.condition(corev1.PodScheduled); c != nil {
		return c.LastTransitionTime.Time
	}
	return e.pod.CreationTimestamp.Time
}

// whose names a container for its owner.
func whose(container string) string {
	switch container {
	case containerKernel:
		return "the kernel's container"
	case containerSupervisor:
		return "the supervisor's container"
	}
	return fmt.Sprintf("container %q", container)
}

func (e *explanation) image(container string) string {
	for _, c := range slices.Concat(e.pod.Spec.InitContainers, e.pod.Spec.Containers) {
		if c.Name == container {
			return quote(c.Image, 200)
		}
	}
	return ""
}

// Words of container runtimes and registries.
var (
	passingWords = []string{"context deadline exceeded", "is reserved for", "i/o timeout", "connection refused", "connection reset",
		"no such host", "TLS handshake timeout", "server misbehaving", "unexpected EOF", "toomanyrequests", "Too Many Requests",
		"Internal Server Error", "Bad Gateway", "Service Unavailable", "Gateway Timeout", "no space left on device", "network is unreachable",
		"DeadlineExceeded", "context canceled", "error reading from server"}
	finalWords = []string{"not found", "manifest unknown", "name unknown", "does not exist", "denied", "unauthorized", "Unauthorized",
		"authorization failed", "Forbidden", "no match for platform", "invalid reference format", "no basic auth credentials",
		"authentication required"}
)

func contains(text string, words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}

// passing reports whether an error is one that may pass by itself.
func passing(said string) bool { return contains(said, passingWords) }

// pulling explains an image that could not be pulled. Its class is classNever only if the registry has said so.
func (e *explanation) pulling(container string, w *corev1.ContainerStateWaiting) reason {
	said := w.Message
	since := e.started()
	if !strings.Contains(said, ": ") || w.Reason == "ImagePullBackOff" && !strings.Contains(said, "ErrImagePull") {
		// Before Kubernetes 1.31 the back-off hides its cause, which the event before it tells.
		for i := range slices.Backward(e.events) {
			if event := &e.events[i]; event.Reason == "Failed" && strings.HasPrefix(event.Message, "Failed to pull image") {
				said = event.Message
				break
			}
		}
	}
	short := quote(shortPull(said), quoteLimit)
	image := e.image(container)
	switch {
	case passing(said):
		return newReason(classWaiting, since, "the image %q cannot be pulled now, and is tried again: %s", image, short)
	case contains(said, finalWords):
		text := fmt.Sprintf("the image %q cannot be pulled: %s", image, short)
		if event := e.last("FailedToRetrieveImagePullSecret"); event != nil {
			text += "; " + quote(strings.SplitN(event.Message, ";", 2)[0], 150)
		}
		return newReason(classNever, since, "%s", text)
	}
	return newReason(classWaiting, since, "the image %q could not be pulled, and is tried again: %s", image, short)
}

var pullPrefix = regexp.MustCompile(`^.*(failed to resolve reference "[^"]*"|failed to pull and unpack image "[^"]*"|` +
	`Failed to pull image "[^"]*"|ErrImagePull|rpc error: code = \w+ desc|Error response from daemon)(: | = )`)

// shortPull leaves of a failed pull what the registry or the network has said.
func shortPull(said string) string {
	return strings.TrimSpace(pullPrefix.ReplaceAllString(strings.ReplaceAll(said, "\n", " "), ""))
}

var runtimePrefix = regexp.MustCompile(`^.*(unable to start container process|runc create failed|OCI runtime create failed|` +
	`failed to create containerd task|failed to create shim task|error during container init|container_linux\.go:\d+|` +
	`starting container process caused|failed to generate spec|rpc error: code = \w+ desc|Error response from daemon)(: | = )`)

// shortRuntime leaves of a failed start what was wrong with it, where the runtime tells of every step on the way.
func shortRuntime(said string) string {
	said = runtimePrefix.ReplaceAllString(strings.ReplaceAll(said, "\n", " "), "")
	return strings.TrimSuffix(strings.TrimSpace(said), ": unknown")
}

var backOffTime = regexp.MustCompile(`back-off (\d[0-9hms]*) `)

// backOff says how long the kubelet waits before it starts a container again.
func backOff(said string) string {
	if m := backOffTime.FindStringSubmatch(said); m != nil {
		return " after a pause of " + m[1]
	}
	return " after a pause"
}

// restarting explains a container that has ended and comes back. One that could not even begin will not do so next time.
func (e *explanation) restarting(s *corev1.ContainerStatus, t *corev1.ContainerStateTerminated, what string) reason {
	if t == nil {
		return newReason(classWaiting, e.started(), "%s has ended; %s", whose(s.Name), what)
	}
	if (t.Reason == "StartError" || t.Reason == "ContainerCannotRun") && !passing(t.Message) {
		return newReason(classNever, t.FinishedAt.Time, "%s cannot be started: %s", whose(s.Name), quote(shortRuntime(t.Message), quoteLimit))
	}
	return newReason(classWaiting, t.FinishedAt.Time, "%s; %s", terminated(e.pod, s.Name, t), what)
}

// creating explains a container that waits for something on its node.
func (e *explanation) creating(container string) reason {
	since := e.started()
	for i := range slices.Backward(e.events) {
		event := &e.events[i]
		at, said := eventTime(event), event.Message
		switch event.Reason {
		case "Pulling":
			if !e.ofContainer(event, container) {
				continue
			}
			return newReason(classWaiting, at, "the image %q is being pulled%s", e.pulledImage(event, container), e.howLong(at))
		case "FailedMount":
			return newReason(classWaiting, since, "%s", mountText(said))
		case "FailedAttachVolume":
			return newReason(classWaiting, since, "its volume cannot be attached yet: %s", quote(said, quoteLimit))
		case "FailedCreatePodSandBox", "FailedPodSandBoxStatus", "NetworkNotReady":
			return newReason(classWaiting, since, "its network cannot be set up yet: %s", quote(shortSandbox(said), quoteLimit))
		case "Pulled", "Created", "Started", "SuccessfulAttachVolume", "Scheduled":
			// What was wrong before is mended.
			return newReason(classWaiting, since, "its containers are being created%s", e.howLong(since))
		}
	}
	return newReason(classWaiting, since, "its containers are being created%s", e.howLong(since))
}

// ofContainer reports whether an event is of a container, or of one that cannot be told.
func (e *explanation) ofContainer(event *corev1.Event, container string) bool {
	path := event.InvolvedObject.FieldPath
	return container == "" || path == "" || strings.HasSuffix(path, "{"+container+"}")
}

func (e *explanation) pulledImage(event *corev1.Event, container string) string {
	if _, rest, ok := strings.Cut(event.Message, `image "`); ok {
		if name, _, ok := strings.Cut(rest, `"`); ok {
			return quote(name, 200)
		}
	}
	return e.image(container)
}

var (
	notThere   = regexp.MustCompile(`(secret|configmap|persistentvolumeclaim) "([^"]+)" not found`)
	volumeName = regexp.MustCompile(`volume "([^"]+)"`)
)

// mountText explains a volume that is not mounted.
func mountText(said string) string {
	if m := notThere.FindStringSubmatch(said); m != nil {
		return fmt.Sprintf("the %s %q is not there yet", m[1], m[2])
	}
	name := "its volumes"
	if m := volumeName.FindStringSubmatch(said); m != nil {
		name = fmt.Sprintf("its volume %q", m[1])
	}
	return fmt.Sprintf("%s cannot be mounted yet: %s", name, quote(said, quoteLimit))
}

var sandboxPrefix = regexp.MustCompile(`^.*(rpc error: code = \w+ desc = |failed to setup network for sandbox "[^"]*": |network for pod "[^"]*": |network for sandbox "[^"]*": )`)

func shortSandbox(said string) string {
	return sandboxPrefix.ReplaceAllString(strings.ReplaceAll(said, "\n", " "), "")
}
