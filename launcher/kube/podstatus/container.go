package podstatus

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// containers explains a pod that has a node by the container that is furthest from running.
func (e *explanation) containers() Reason {
	var worst Reason
	all := e.pod.Status.ContainerStatuses
	if c := e.condition(corev1.PodInitialized); c == nil || c.Status != corev1.ConditionTrue {
		// Later on, an init container that goes on running neither delays the kernel nor ends it.
		all = slices.Concat(e.pod.Status.InitContainerStatuses, all)
	}
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
			return Reason{} // an init container that has ended, or a container that an admission webhook has added
		}
		return e.restarting(s, t, "it is started again")
	}
	w := s.State.Waiting
	if w == nil {
		return e.beforeKernel(s)
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

// beforeKernel explains a start that waits for a running init container. The class is ClassNone for other containers.
func (e *explanation) beforeKernel(s *corev1.ContainerStatus) Reason {
	init := slices.ContainsFunc(e.pod.Status.InitContainerStatuses,
		func(i corev1.ContainerStatus) bool { return i.Name == s.Name })
	if !init || s.State.Running == nil {
		return Reason{}
	}
	since := s.State.Running.StartedAt.Time
	switch {
	case !e.goesOn(s.Name):
		return newReason(ClassWaiting, since, "container %q runs before the kernel starts%s", s.Name, e.howLong(since))
	case s.Started == nil || !*s.Started:
		return newReason(ClassWaiting, since, "container %q has not started completely%s", s.Name, e.howLong(since))
	}
	return Reason{}
}

// goesOn reports whether a container is an init container that runs for as long as the pod.
func (e *explanation) goesOn(container string) bool {
	return slices.ContainsFunc(e.pod.Spec.InitContainers, func(c corev1.Container) bool {
		return c.Name == container && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	})
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
