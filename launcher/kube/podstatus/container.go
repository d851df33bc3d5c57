package podstatus

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// containers explains a pod that has a node by the container that is furthest from running.
func (e *explanation) containers() Reason {
	var worst Reason
	all := slices.Concat(e.pod.Status.InitContainerStatuses, e.pod.Status.ContainerStatuses)
	if len(all) == 0 && e.pod.Status.StartTime == nil {
		return e.notTaken()
	}
	if len(all) == 0 {
		return e.creating("")
	}
	for i := range all {
		r := e.container(&all[i])
		if r.Class == ClassNever || worst.Class == ClassNone {
			worst = r
		}
		if r.Class == ClassNever {
			break
		}
	}
	return worst
}

// notTaken explains a pod whose node's kubelet has not reported any status yet.
func (e *explanation) notTaken() Reason {
	since := e.started()
	long := e.howLong(since)
	if long == "" {
		return newReason(ClassWaiting, since, "its containers are being created")
	}
	return newReason(ClassWaiting, since, "its node %s has not accepted it%s; the kubelet there may be down",
		e.pod.Spec.NodeName, long)
}

// container explains one container that is not running.
func (e *explanation) container(s *corev1.ContainerStatus) Reason {
	if t := s.State.Terminated; t != nil {
		switch {
		case s.Name == podspec.ContainerSupervisor || s.Name == podspec.ContainerKernel:
		case t.ExitCode == 0:
			return Reason{} // an init container that an admission webhook has added, and that has ended
		}
		return e.restarting(s, t, "it is started again")
	}
	w := s.State.Waiting
	if w == nil {
		return Reason{}
	}
	since := e.started()
	said := OneLine(w.Message, quoteLimit)
	switch w.Reason {
	case "InvalidImageName":
		return newReason(ClassNever, since, "the image name %q is invalid", e.image(s.Name))
	case "ErrImageNeverPull":
		return newReason(ClassNever, since, "the image %q is not on the node, and may not be pulled", e.image(s.Name))
	case "SignatureValidationFailed":
		return newReason(ClassNever, since, "the image %q has no valid signature: %s", e.image(s.Name), said)
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError":
		return e.pulling(s.Name, w)
	case "CreateContainerConfigError":
		if strings.Contains(said, "failed to sync ") {
			return newReason(ClassWaiting, since, "its container is being created: %s", said)
		}
		said, _, _ = strings.Cut(said, " (pod: ")
		return newReason(ClassNever, since, "%s cannot be created: %s", containerWords(s.Name), said)
	case "CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError", "PostStartHookError":
		said := OneLine(shortRuntime(w.Message), quoteLimit)
		if isTransient(w.Message) {
			return newReason(ClassWaiting, since, "%s is being created: %s", containerWords(s.Name), said)
		}
		return newReason(ClassNever, since, "%s cannot be started: %s", containerWords(s.Name), said)
	case "CrashLoopBackOff":
		return e.restarting(s, s.LastTerminationState.Terminated, "it is started again"+backOff(w.Message))
	}
	return e.creating(s.Name) // ContainerCreating, PodInitializing, and reasons of later versions
}

// containerWords returns words for a container in a sentence.
func containerWords(container string) string {
	switch container {
	case podspec.ContainerKernel:
		return "the kernel's container"
	case podspec.ContainerSupervisor:
		return "the supervisor's container"
	}
	return fmt.Sprintf("container %q", container)
}

func (e *explanation) image(container string) string {
	for _, c := range slices.Concat(e.pod.Spec.InitContainers, e.pod.Spec.Containers) {
		if c.Name == container {
			return OneLine(c.Image, 200)
		}
	}
	return ""
}

// Words in the errors of container runtimes and registries.
var (
	// After errors with transientWords the kubelet's next attempt may succeed.
	transientWords = []string{
		"context deadline exceeded",
		"is reserved for",
		"i/o timeout",
		"connection refused",
		"connection reset",
		"no such host",
		"TLS handshake timeout",
		"server misbehaving",
		"unexpected EOF",
		"toomanyrequests",
		"Too Many Requests",
		"Internal Server Error",
		"Bad Gateway",
		"Service Unavailable",
		"Gateway Timeout",
		"no space left on device",
		"network is unreachable",
		"DeadlineExceeded",
		"context canceled",
		"error reading from server",
	}
	// A registry that answers with permanentWords has decided.
	permanentWords = []string{
		"not found",
		"manifest unknown",
		"name unknown",
		"does not exist",
		"denied",
		"unauthorized",
		"Unauthorized",
		"authorization failed",
		"Forbidden",
		"no match for platform",
		"invalid reference format",
		"no basic auth credentials",
		"authentication required",
	}
)

func contains(text string, words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}

// isTransient reports whether an error may go away without any change.
func isTransient(said string) bool { return contains(said, transientWords) }

// pulling explains an image that could not be pulled. The class is ClassNever only if the registry has refused the
// image, and not only once: a new node has no credentials at first, a mirror answers 404 until it has the image, and
// containerd 2 reports an error of the network as 401 or 404 (https://github.com/containerd/containerd/issues/12402).
func (e *explanation) pulling(container string, w *corev1.ContainerStateWaiting) Reason {
	said := w.Message
	since := e.started()
	failures := e.failedPulls(container)
	if !strings.Contains(said, ": ") || w.Reason == "ImagePullBackOff" && !strings.Contains(said, "ErrImagePull") {
		// Before Kubernetes 1.31 the back-off's message hides the cause, which an event before it has.
		if failures.newest != "" {
			said = failures.newest
		}
	}
	short := OneLine(shortPull(said), quoteLimit)
	image := e.image(container)
	switch {
	case isTransient(said):
		return newReason(ClassWaiting, since, "the image %q cannot be pulled now, and is tried again: %s", image, short)
	case contains(said, permanentWords) && (failures.count > 1 || e.failsForLong(failures, w)):
		text := fmt.Sprintf("the image %q cannot be pulled: %s", image, short)
		if event := e.last("FailedToRetrieveImagePullSecret"); event != nil {
			text += "; " + OneLine(strings.SplitN(event.Message, ";", 2)[0], 150)
		}
		return newReason(ClassNever, since, "%s", text)
	}
	return newReason(ClassWaiting, since, "the image %q could not be pulled, and is tried again: %s", image, short)
}

// failedPulls is what the events say about the failed pulls of an image.
type failedPulls struct {
	count  int       // the kubelet counts equal events
	first  time.Time // time of the first; zero without one
	newest string    // message of the newest
}

// failedPulls counts the failed pulls of a container's image.
func (e *explanation) failedPulls(container string) (all failedPulls) {
	for i := range e.events {
		event := &e.events[i]
		if event.Reason != "Failed" || !strings.HasPrefix(event.Message, "Failed to pull image") ||
			!e.ofContainer(event, container) {
			continue
		}
		all.newest = event.Message
		all.count += max(1, int(event.Count))
		if at := timeOr(event.FirstTimestamp.Time, EventTime(event)); all.first.IsZero() || at.Before(all.first) {
			all.first = at
		}
	}
	return all
}

// pullPatience is how long a registry's refusal may be the error of a new node or of a mirror.
const pullPatience = time.Minute

// failsForLong reports whether an image's pulls have failed for pullPatience. Without any event only the kubelet's
// pause proves that a pull has failed: the first pull may have waited long for its turn.
func (e *explanation) failsForLong(failures failedPulls, w *corev1.ContainerStateWaiting) bool {
	if !failures.first.IsZero() {
		return e.now.Sub(failures.first) >= pullPatience
	}
	return w.Reason == "ImagePullBackOff" && e.now.Sub(e.started()) >= pullPatience
}

var pullPrefix = regexp.MustCompile(`^.*(failed to resolve reference "[^"]*"|failed to pull and unpack image "[^"]*"|` +
	`Failed to pull image "[^"]*"|ErrImagePull|rpc error: code = \w+ desc|Error response from daemon)(: | = )`)

// shortPull returns the part of a failed pull's message that comes from the registry or the network.
func shortPull(said string) string {
	return strings.TrimSpace(pullPrefix.ReplaceAllString(strings.ReplaceAll(said, "\n", " "), ""))
}

var runtimePrefix = regexp.MustCompile(
	`^.*(unable to start container process|runc create failed|OCI runtime create failed|` +
		`failed to create containerd task|failed to create shim task|error during container init|container_linux\.go:\d+|` +
		`starting container process caused|failed to generate spec|rpc error: code = \w+ desc|` +
		`Error response from daemon)(: | = )`,
)

// shortRuntime returns the cause from a failed start's message, in which the runtime lists every step.
func shortRuntime(said string) string {
	said = runtimePrefix.ReplaceAllString(strings.ReplaceAll(said, "\n", " "), "")
	return strings.TrimSuffix(strings.TrimSpace(said), ": unknown")
}

var backOffTime = regexp.MustCompile(`back-off (\d[0-9hms]*) `)

// backOff returns how long the kubelet waits before it starts a container again.
func backOff(said string) string {
	if m := backOffTime.FindStringSubmatch(said); m != nil {
		return " after a pause of " + m[1]
	}
	return " after a pause"
}

// restarting explains a container that has ended and is started again. The class is ClassNever if it could not even
// begin.
func (e *explanation) restarting(s *corev1.ContainerStatus, t *corev1.ContainerStateTerminated, what string) Reason {
	if t == nil {
		return newReason(ClassWaiting, e.started(), "%s has ended; %s", containerWords(s.Name), what)
	}
	if (t.Reason == "StartError" || t.Reason == "ContainerCannotRun") && !isTransient(t.Message) {
		return newReason(ClassNever, t.FinishedAt.Time, "%s cannot be started: %s", containerWords(s.Name),
			OneLine(shortRuntime(t.Message), quoteLimit))
	}
	return newReason(ClassWaiting, t.FinishedAt.Time, "%s; %s", containerEnd(e.pod, s.Name, t), what)
}

// creating explains a container that waits for something on its node.
func (e *explanation) creating(container string) Reason {
	since := e.started()
	for i := range slices.Backward(e.events) {
		event := &e.events[i]
		at, said := EventTime(event), event.Message
		switch event.Reason {
		case "Pulling":
			if !e.ofContainer(event, container) {
				continue
			}
			return newReason(ClassWaiting, at, "the image %q is being pulled%s", e.pulledImage(event, container), e.howLong(at))
		case "FailedMount":
			return newReason(ClassWaiting, since, "%s", mountText(said))
		case "FailedAttachVolume":
			return newReason(ClassWaiting, since, "its volume cannot be attached yet: %s", OneLine(said, quoteLimit))
		case "FailedCreatePodSandBox", "FailedPodSandBoxStatus", "NetworkNotReady":
			return newReason(ClassWaiting, since, "its network cannot be set up yet: %s",
				OneLine(shortSandbox(said), quoteLimit))
		case "Pulled", "Created", "Started", "SuccessfulAttachVolume", "Scheduled":
			// Earlier problems are solved.
			return newReason(ClassWaiting, since, "its containers are being created%s", e.howLong(since))
		}
	}
	return newReason(ClassWaiting, since, "its containers are being created%s", e.howLong(since))
}

// ofContainer reports whether an event is about a container, or does not say about which.
func (e *explanation) ofContainer(event *corev1.Event, container string) bool {
	path := event.InvolvedObject.FieldPath
	return container == "" || path == "" || strings.HasSuffix(path, "{"+container+"}")
}

func (e *explanation) pulledImage(event *corev1.Event, container string) string {
	if _, rest, ok := strings.Cut(event.Message, `image "`); ok {
		if name, _, ok := strings.Cut(rest, `"`); ok {
			return OneLine(name, 200)
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
		return fmt.Sprintf("the %s %q does not exist yet", m[1], m[2])
	}
	name := "its volumes"
	if m := volumeName.FindStringSubmatch(said); m != nil {
		name = fmt.Sprintf("its volume %q", m[1])
	}
	return fmt.Sprintf("%s cannot be mounted yet: %s", name, OneLine(said, quoteLimit))
}

var sandboxPrefix = regexp.MustCompile(
	`^.*(rpc error: code = \w+ desc = |failed to setup network for sandbox "[^"]*": |` +
		`network for pod "[^"]*": |network for sandbox "[^"]*": )`,
)

func shortSandbox(said string) string {
	return sandboxPrefix.ReplaceAllString(strings.ReplaceAll(said, "\n", " "), "")
}
