package podspec

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Labels that select the pods of one owner or of one kernelspec. LabelValue returns their values. The annotations with
// the same keys hold the names unchanged.
const (
	LabelOwner = AnnotationOwner
	LabelSpec  = annotationSpec
)

// Labels of Enterprise Gateway's pods, by which scripts and dashboards select. A kernelspec can set other values.
const (
	labelEGKernel    = "kernel_id"
	labelEGComponent = "component"
	labelEGApp       = "app"
)

// hashedPrefix begins a label's value that is a hash. Names that begin so are hashed too, so that no name has the value
// of another one.
const hashedPrefix = "sha256-"

// LabelValue returns a name as the value of a label: the name itself if it is a valid value, else hashedPrefix and the
// first 40 hexadecimal digits of the name's SHA-256. Different names have different values.
func LabelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 && !strings.HasPrefix(name, hashedPrefix) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hashedPrefix + hex.EncodeToString(sum[:])[:40]
}

// labelAsEG adds the labels of Enterprise Gateway's pods that the kernelspec does not set.
func (b *builder) labelAsEG(pod *corev1.Pod) {
	for key, value := range map[string]string{
		labelEGKernel: b.req.ID, labelEGComponent: "kernel", labelEGApp: "enterprise-gateway",
	} {
		if _, ok := pod.Labels[key]; !ok {
			pod.Labels[key] = value
		}
	}
}
