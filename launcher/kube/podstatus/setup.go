package podstatus

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// silentWarnings are events of the kubelet that do not say why a container is not running.
var silentWarnings = []string{"DNSConfigForming", "MissingClusterDNS", "Unhealthy", "Failed", "BackOff",
	"FailedScheduling", "FailedToRetrieveImagePullSecret", "NodeNotReady"}

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
			return newReason(ClassWaiting, since, "%s: %s", textOf(attachErrors, said, "its volume cannot be attached yet"),
				OneLine(said, quoteLimit))
		case "FailedCreatePodSandBox", "FailedPodSandBoxStatus", "NetworkNotReady":
			return newReason(ClassWaiting, since, "%s: %s", sandboxText(said), OneLine(shortSandbox(said), quoteLimit))
		case "Pulled", "Created", "Started", "SuccessfulAttachVolume", "Scheduled":
			// Earlier problems are solved.
			return newReason(ClassWaiting, since, "its containers are being created%s", e.howLong(since))
		}
		// A virtual kubelet reports with FailedScheduling that it cannot create the pod's machine.
		virtual := event.Reason == "FailedScheduling" && strings.HasPrefix(source(event), "virtual-kubelet")
		if virtual || event.Type == corev1.EventTypeWarning && !slices.Contains(silentWarnings, event.Reason) {
			return newReason(ClassWaiting, since, "its containers are being created%s; the cluster reports %s: %s",
				e.howLong(since), OneLine(event.Reason, 60), OneLine(said, quoteLimit))
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
	text := name + " cannot be mounted yet"
	if m := noDriver.FindStringSubmatch(said); m != nil {
		text += fmt.Sprintf(", as the storage driver %s does not run on its node; if it stays so, ask the operator", m[1])
	} else if why := textOf(mountErrors, said, ""); why != "" {
		text += ", " + why
	}
	return text + ": " + OneLine(said, quoteLimit)
}

// errorText has the text for an error in which all of the words occur.
type errorText struct {
	says []string
	text string
}

// textOf returns the text of the first entry that matches, or another text.
func textOf(known []errorText, said, other string) string {
	for _, k := range known {
		if !slices.ContainsFunc(k.says, func(word string) bool { return !strings.Contains(said, word) }) {
			return k.text
		}
	}
	return other
}

var noDriver = regexp.MustCompile(`driver name (\S+) not found in the list of registered CSI drivers`)

// Texts for errors with volumes.
var (
	mountErrors = []errorText{
		{[]string{"timed out waiting for the condition"},
			"as they are not attached to its node or the storage does not answer"},
		{[]string{"context deadline exceeded"}, "as the storage does not answer"},
		{[]string{"access denied"}, "as the storage does not allow it to its node; ask the operator"},
		{[]string{"No such file or directory"}, "as the storage does not have it; check its name"},
		{[]string{"does not support this disk category"},
			"as machines like its node cannot use such a disk; ask the operator"},
		{[]string{"wrong fs type"}, "as its node lacks the program for such a volume; ask the operator"},
	}
	attachErrors = []errorText{
		{[]string{"Multi-Attach error"},
			"its volume is still attached to another node; end the kernel that uses it there (a lost node keeps it for 6 " +
				"minutes)"},
		{[]string{"maximum number of data disks"}, fullNode},
		{[]string{"attachment limit"}, fullNode},
		{[]string{"maximum number of volumes"}, fullNode},
		{[]string{"ZoneNotMatch"}, "its volume is in another zone than its node; ask the operator"},
		{[]string{"DeadlineExceeded"}, "its volume cannot be attached yet, as the storage does not answer"},
		{[]string{"deadline exceeded"}, "its volume cannot be attached yet, as the storage does not answer"},
	}
)

const fullNode = "its node has as many volumes as it can attach; start it again, or ask the operator for another node"

var noRuntime = regexp.MustCompile(`no runtime for "([^"]+)" is configured`)

// Texts for errors with a pod's sandbox, which is its network and its cgroup.
var sandboxErrors = []errorText{
	{[]string{"failed to assign an IP address"}, noAddress},
	{[]string{"no IP addresses available"}, noAddress},
	{[]string{"IP address reservation failed"}, noAddress},
	{[]string{"no more free IP addresses"}, noAddress},
	{[]string{"eniip"}, noAddress},
	{[]string{"name is reserved"}, slowRuntime},
	{[]string{"is reserved for"}, slowRuntime},
	{[]string{"failed to get sandbox image"}, "its node cannot pull the image of pods' sandboxes; ask the operator"},
	{[]string{".sock: connect: "}, "the container runtime of its node does not answer"},
	{[]string{"code = DeadlineExceeded"}, slowRuntime},
}

const (
	noAddress   = "its node has no free IP address yet; if it stays so, ask the operator"
	slowRuntime = "the container runtime of its node is slow, and it is tried again"
)

// sandboxText says why a pod's sandbox could not be made.
func sandboxText(said string) string {
	if m := noRuntime.FindStringSubmatch(said); m != nil {
		return fmt.Sprintf("its node lacks the container runtime %q; ask the operator to install it there", m[1])
	}
	other := "its pod cannot be set up on its node yet"
	for _, word := range []string{"network", "Network", "CNI", "cni"} {
		if strings.Contains(said, word) {
			other = "its network cannot be set up yet"
		}
	}
	return textOf(sandboxErrors, said, other)
}

var sandboxPrefix = regexp.MustCompile(
	`^.*(rpc error: code = \w+ desc = |failed to setup network for sandbox "[^"]*": |` +
		`network for pod "[^"]*": |network for sandbox "[^"]*": )`,
)

func shortSandbox(said string) string {
	return sandboxPrefix.ReplaceAllString(strings.ReplaceAll(said, "\n", " "), "")
}
