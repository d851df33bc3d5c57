package podstatus

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Unheard says in a sentence since when the supervisor in a pod has not answered, and what Explain says of the pod. The
// text changes at most every ten seconds.
func Unheard(pod *corev1.Pod, events []corev1.Event, since, now time.Time) string {
	e := explanation{pod: pod, now: now}
	text := "its supervisor has not answered" + e.howLong(since)
	if why := Explain(pod, events, now); why.Text != "" {
		text += ": " + why.Text
	}
	return text
}
