package wish

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// shortestKeep is the least Home.DeleteAfter.
const shortestKeep = 24 * time.Hour

// Home is the volume that each owner's kernels have as home folder. Its claim is created for the owner's first kernel.
type Home struct {
	Claim        string   `yaml:"claim"`        // name, with {owner}
	MountPath    string   `yaml:"mountPath"`    // absolute; it is HOME of the kernels
	Size         string   `yaml:"size"`         // a quantity such as 10Gi
	StorageClass *string  `yaml:"storageClass"` // nil: the cluster's default
	AccessModes  []string `yaml:"accessModes"`  // of corev1.PersistentVolumeAccessMode; empty: ReadWriteOnce
	FSGroup      *int64   `yaml:"fsGroup"`      // group that owns the files, for kernels that are not root; nil: not set

	DeleteAfter time.Duration `yaml:"deleteAfter"` // since a pod was last seen with it; 0: the claim is never deleted
}

// accessModes are the modes that a home may have.
var accessModes = []string{
	string(corev1.ReadWriteOnce),
	string(corev1.ReadWriteMany),
	string(corev1.ReadWriteOncePod),
}

// problems calls report for each key with a bad value.
func (h *Home) problems(report func(key, text string)) {
	before, after, marked := strings.Cut(h.Claim, OwnerMark)
	example := strings.Replace(h.Claim, OwnerMark, ExampleOwner, 1)
	switch {
	case !marked, hasOwnerMark(after):
		report("claim", fmt.Sprintf("%q needs %s once: each owner has a claim", h.Claim, OwnerMark))
	case !joinsOwner(before):
		report("claim", fmt.Sprintf("%q %s", h.Claim, ownerProblem(h.Claim)))
	case len(validation.IsDNS1123Subdomain(example)) > 0:
		report("claim", fmt.Sprintf("%q makes no valid name of a claim", h.Claim))
	}
	if text := folderProblem(h.MountPath); text != "" {
		report("mountPath", text)
	}
	if q, err := resource.ParseQuantity(h.Size); err != nil || q.Sign() <= 0 {
		report("size", fmt.Sprintf("%q is not an amount like 10Gi", h.Size))
	}
	if h.StorageClass != nil && len(validation.IsDNS1123Subdomain(*h.StorageClass)) > 0 && *h.StorageClass != "" {
		report("storageClass", fmt.Sprintf("%q is not the name of a storage class", *h.StorageClass))
	}
	for _, mode := range h.AccessModes {
		if !slices.Contains(accessModes, mode) {
			report("accessModes", fmt.Sprintf("%q is not a mode; valid: %s", mode, strings.Join(accessModes, ", ")))
		}
	}
	if h.DeleteAfter != 0 && h.DeleteAfter < shortestKeep {
		report("deleteAfter", fmt.Sprintf("%s is too short; the least is %s, and 0 is never", h.DeleteAfter, shortestKeep))
	}
	if h.FSGroup != nil && (*h.FSGroup < 0 || *h.FSGroup > maxID) {
		report("fsGroup", fmt.Sprintf("%d is not a group id", *h.FSGroup))
	}
}

// within reports whether a clean path is another one or below it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// HomeOf returns the name of the claim of an owner's home. The policy must have homes.
func (p *Policy) HomeOf(owner string) string {
	return strings.Replace(p.Home.Claim, OwnerMark, p.OwnerNames.of(owner), 1)
}
