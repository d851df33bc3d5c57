package podbuild

import (
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Options are what the pods of all kernels have in common. The zero value of a field means its default.
type Options struct {
	Namespace       string               // of kernels whose client names no other, unless their owner has one
	SupervisorImage string               // ekg's own image
	Supervisor      wish.SupervisorRules // as the policy says
	KernelImage     string               // for kernelspecs that name no image

	// ClusterChoosesUser leaves the user and group of the supervisor's container to the cluster, as OpenShift requires:
	// there each namespace has a range of its own. Without such a rule it runs as the user of its image.
	ClusterChoosesUser bool

	// Architectures are the values of kubernetes.io/arch for which SupervisorImage exists. Pods run on such nodes only,
	// unless their kernelspec chooses by that label. Empty: any.
	Architectures []string

	LogLimit  int64         // bytes of a kernel's log; 0: as its volume and the node's free space allow
	StopGrace time.Duration // from the shutdown request to SIGTERM, and from SIGTERM to SIGKILL
	Cull      api.Cull      // when a supervisor ends its kernel by itself
	Park      api.Park      // when a kernel whose flavor has Park gives its GPU back; Idle 0: after parkIdle
	Policy    *wish.Policy  // nil: wish.DefaultPolicy; not modified
}

func (o Options) withDefaults() Options {
	if o.Policy == nil {
		o.Policy = wish.DefaultPolicy()
	}
	if o.StopGrace == 0 {
		o.StopGrace = api.DefaultStopGrace
	}
	o.Supervisor = o.Supervisor.WithDefaults(o.logMemory())
	return o
}

// logLimit returns the bytes of a kernel's log, and the percentage of the node's disk that it leaves free.
func (o *Options) logLimit() (limit int64, keepFree int) {
	if o.LogLimit > 0 {
		return o.LogLimit, 0
	}
	return volumeLogLimit, nodeKeepFree
}

// logMemory returns how many bytes of the log may be in memory if the disk fails.
func (o *Options) logMemory() int64 {
	if o.LogLimit > 0 {
		return o.LogLimit
	}
	return api.LeastLogLimit
}

// Validate returns an error that names the first field with an invalid value.
func (o Options) Validate() error {
	o = o.withDefaults()
	if o.Namespace == "" {
		return fmt.Errorf("%s is missing", "Namespace")
	}
	if !wish.ImageName.MatchString(o.SupervisorImage) {
		return fmt.Errorf("%s: %q is not a valid image name", "SupervisorImage", o.SupervisorImage)
	}
	var wrong error
	o.Supervisor.Problems(func(key string, _ int, err error) {
		if wrong == nil {
			wrong = fmt.Errorf("supervisor.%s: %w", key, err)
		}
	})
	if wrong != nil {
		return wrong
	}
	for _, arch := range o.Architectures {
		if err := wish.CheckArchitecture(arch); err != nil {
			return fmt.Errorf("Architectures: %w", err)
		}
	}
	if o.LogLimit < 0 || o.StopGrace < 0 {
		return fmt.Errorf("%s and %s cannot be negative", "LogLimit", "StopGrace")
	}
	return nil
}
