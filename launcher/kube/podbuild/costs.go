package podbuild

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

const (
	maxLabelValue  = 63 // bytes, of Kubernetes
	labelHashChars = 10 // hexadecimal digits at the end of a value that was changed
)

var (
	badLabelBytes = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
	hashLike      = regexp.MustCompile(`-[0-9a-f]{10}$`)
)

// safeLabelValue returns a text as the value of a label that a person can read: the text itself if it is valid, else
// its valid characters, '-' for the others, and a hash. Values that end like such a hash get one too, so that different
// texts have different values.
func safeLabelValue(text string) string {
	if text == "" || len(validation.IsValidLabelValue(text)) == 0 && !hashLike.MatchString(text) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	hash := hex.EncodeToString(sum[:])[:labelHashChars]
	readable := badLabelBytes.ReplaceAllString(text, "-")
	readable = strings.Trim(readable[:min(len(readable), maxLabelValue-labelHashChars-1)], "-_.")
	if readable == "" {
		readable = "x" // a hash alone could be another text
	}
	return readable + "-" + hash
}

// labelForCosts adds the policy's labels. A label whose template names something that the kernel does not have is left
// out.
func (b *builder) labelForCosts(pod *corev1.Pod) {
	p := b.o.Policy
	values := map[string]string{wish.OwnerMark: b.req.Owner, "{spec}": b.req.Spec.Name, "{namespace}": pod.Namespace,
		wish.GroupMark: p.LabelGroup(b.req.OwnerGroups)}
	if b.req.Flavor != nil {
		values["{flavor}"] = b.req.Flavor.Name
	}
	for key, template := range p.Labels {
		known := true
		text := wish.LabelMark.ReplaceAllStringFunc(template, func(mark string) string {
			known = known && values[mark] != ""
			return values[mark]
		})
		if known {
			pod.Labels[key] = safeLabelValue(text)
		}
	}
}
