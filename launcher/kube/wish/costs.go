package wish

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// LabelMark matches what a template of Policy.Labels can name, and what looks like it.
var LabelMark = regexp.MustCompile(`\{[^{}]*\}|[{}]`)

// labelMarks are the marks of a template of Policy.Labels.
var labelMarks = []string{"{flavor}", "{group}", "{namespace}", OwnerMark, "{spec}"}

// GroupMark stands for one group of the kernel's owner in a template of Policy.Labels.
const GroupMark = "{group}"

// labelProblems calls report for each bad key and template of Labels.
func (p *Policy) labelProblems(report func(key, text string)) {
	for _, key := range slices.Sorted(maps.Keys(p.Labels)) {
		template := p.Labels[key]
		switch {
		case podspec.IsReserved(key):
			report(key, "is reserved for ekg")
		case len(validation.IsQualifiedName(key)) > 0:
			report(key, "is not a valid key of a label")
		case template == "":
			report(key, "has no value")
		}
		for _, mark := range LabelMark.FindAllString(template, -1) {
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

// LabelGroup returns the group that replaces {group}. It is the alphabetically first group that the policy's
// labelGroups match. It is "" if they match no group, or if no label has {group}.
func (p *Policy) LabelGroup(all []string) string {
	if !p.labelsUse(GroupMark) {
		return ""
	}
	for _, group := range slices.Sorted(slices.Values(all)) {
		if p.LabelGroups == nil || p.LabelGroups.matches(group) {
			return group
		}
	}
	return ""
}
