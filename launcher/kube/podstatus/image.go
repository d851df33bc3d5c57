package podstatus

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

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
		"Schema 1 images",
	}
)

// pullHelp says what helps after an error of a registry. The first match holds.
var pullHelp = []struct {
	says []string
	help string
}{
	{[]string{"toomanyrequests", "Too Many Requests"},
		"the registry limits pulls, and a pull secret or a mirror raises the limit"},
	{[]string{"no space left on device"}, "the disk of the node is full, ask the operator"},
	{[]string{"x509: "}, "the node does not trust the certificate of the registry, ask the operator"},
	{[]string{"no match for platform"}, "the image is not built for the processor of the node"},
	{[]string{"Schema 1 images"}, "the format of the image is too old, build it again"},
	{[]string{"failed to unpack image"}, "push the image again, or ask the operator"},
	{[]string{"denied", "nauthorized", "authorization failed", "Forbidden", "no basic auth credentials",
		"authentication required"}, "check its name and the pull secret"},
	{[]string{"not found", "manifest unknown", "name unknown", "does not exist"}, "check its name and tag"},
}

// helpWithPull returns what helps after an error of a registry, to be appended.
func helpWithPull(said string) string {
	for _, h := range pullHelp {
		if contains(said, h.says) {
			return "; " + h.help
		}
	}
	return ""
}

func contains(text string, words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}

// isTransient reports whether an error may go away without any change.
func isTransient(said string) bool { return contains(said, transientWords) }

// pulling explains an image that could not be pulled. The class is ClassNever only if the registry has refused the
// image more than once. A first refusal may pass: a new node has no credentials at first, and a mirror answers 404
// until it has the image. containerd 2 reports an error of the network as 401 or 404
// (https://github.com/containerd/containerd/issues/12402).
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
		return newReason(ClassWaiting, since, "the image %q cannot be pulled now, and is tried again: %s%s", image, short,
			helpWithPull(said))
	case contains(said, permanentWords) && (failures.count > 1 || e.failsForLong(failures, w)):
		text := fmt.Sprintf("the image %q cannot be pulled: %s%s", image, short, helpWithPull(said))
		if event := e.last("FailedToRetrieveImagePullSecret"); event != nil {
			text += "; " + OneLine(strings.SplitN(event.Message, ";", 2)[0], 150)
		}
		return newReason(ClassNever, since, "%s", text)
	}
	return newReason(ClassWaiting, since, "the image %q could not be pulled, and is tried again: %s%s", image, short,
		helpWithPull(said))
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
