package podspec

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// labelMark matches what a template of Policy.Labels can name, and what looks like it.
var labelMark = regexp.MustCompile(`\{[^{}]*\}|[{}]`)

// labelMarks are the marks of a template of Policy.Labels.
var labelMarks = []string{"{flavor}", "{group}", "{namespace}", ownerMark, "{spec}"}

const (
	groupMark      = "{group}"
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

// labelProblems calls report for each bad key and template of Labels.
func (p *Policy) labelProblems(report func(key, text string)) {
	for _, key := range slices.Sorted(maps.Keys(p.Labels)) {
		template := p.Labels[key]
		switch {
		case isReserved(key):
			report(key, "is reserved for ekg")
		case len(validation.IsQualifiedName(key)) > 0:
			report(key, "is not a valid key of a label")
		case template == "":
			report(key, "has no value")
		}
		for _, mark := range labelMark.FindAllString(template, -1) {
			if !slices.Contains(labelMarks, mark) {
				report(key, fmt.Sprintf("%q has %s; a value can have %s", template, mark, strings.Join(labelMarks, ", ")))
			}
		}
	}
}

// labelsUse reports whether a label of the policy has a mark.
func (p *Policy) labelsUse(mark string) bool {
	for _, template := range p.Labels {
		if strings.Contains(template, mark) {
			return true
		}
	}
	return false
}

// labelGroup returns the group that replaces {group}. It is the alphabetically first group that the policy's
// labelGroups match. It is "" if there is none, or if no label has {group}.
func (p *Policy) labelGroup(all []string) string {
	if !p.labelsUse(groupMark) {
		return ""
	}
	for _, group := range slices.Sorted(slices.Values(all)) {
		if p.LabelGroups == nil || p.LabelGroups.matches(group) {
			return group
		}
	}
	return ""
}

// labelForCosts adds the policy's labels. A label whose template names something that the kernel does not have is left
// out.
func (b *builder) labelForCosts(pod *corev1.Pod) {
	p := b.o.Policy
	values := map[string]string{ownerMark: b.req.Owner, "{spec}": b.req.Spec.Name, "{namespace}": pod.Namespace,
		groupMark: p.labelGroup(b.req.OwnerGroups)}
	if b.req.Flavor != nil {
		values["{flavor}"] = b.req.Flavor.Name
	}
	for key, template := range p.Labels {
		known := true
		text := labelMark.ReplaceAllStringFunc(template, func(mark string) string {
			known = known && values[mark] != ""
			return values[mark]
		})
		if known {
			pod.Labels[key] = safeLabelValue(text)
		}
	}
}
