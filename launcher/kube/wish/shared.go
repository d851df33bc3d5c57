package wish

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Shared is a volume that all kernels can read and none can write. ekg creates no claim for it.
type Shared struct {
	Claim     string `yaml:"claim"`     // name, in the namespace of the kernel
	MountPath string `yaml:"mountPath"` // absolute
}

// sharedProblems calls report for each key of a shared volume with a bad value.
func (p *Policy) sharedProblems(report func(i int, key, text string)) {
	paths := []string{}
	if p.Home != nil {
		paths = append(paths, p.Home.MountPath)
	}
	for i, s := range p.Shared {
		if len(validation.IsDNS1123Subdomain(s.Claim)) > 0 {
			report(i, "claim", fmt.Sprintf("%q is not the name of a claim", s.Claim))
		}
		text := folderProblem(s.MountPath)
		if text == "" && slices.Contains(paths, s.MountPath) {
			text = fmt.Sprintf("%q is the folder of another volume", s.MountPath)
		}
		if text != "" {
			report(i, "mountPath", text)
		}
		paths = append(paths, s.MountPath)
	}
}

// folderProblem returns why no volume can be mounted at a path of the kernel's container, or "".
func folderProblem(p string) string {
	taken := func(reserved string) bool { return within(p, reserved) || within(reserved, p) }
	switch {
	case !path.IsAbs(p), path.Clean(p) != p, p == "/", strings.Contains(p, ":"):
		return fmt.Sprintf("%q is not the path of a folder", p)
	case slices.ContainsFunc(podspec.ReservedPaths, taken):
		return fmt.Sprintf("%q is ekg's own or the system's", p)
	}
	return ""
}
