package podspec

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Options are what the pods of all kernels have in common. The zero value of a field means its default.
type Options struct {
	Namespace             string // of kernels whose client names no other
	SupervisorImage       string // ekg's own image
	SupervisorPullPolicy  string // Always, IfNotPresent or Never; "": the cluster decides by the image's tag
	SupervisorPullSecrets []string
	SupervisorCPU         string // request, a quantity; the container has no CPU limit
	SupervisorMemory      string // request, a quantity
	SupervisorMemoryLimit string // a quantity; default: what the log may take of it, and 512 MiB
	KernelImage           string // for kernelspecs that name no image

	LogLimit  int64         // bytes of a kernel's log; 0: as its volume and the node's free space allow
	StopGrace time.Duration // from the shutdown request to SIGTERM, and from SIGTERM to SIGKILL
	Cull      api.Cull      // when a supervisor ends its kernel by itself
	Policy    *Policy       // nil: DefaultPolicy; not modified
}

func (o Options) withDefaults() Options {
	def := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	if o.Policy == nil {
		o.Policy = DefaultPolicy()
	}
	if o.StopGrace == 0 {
		o.StopGrace = api.DefaultStopGrace
	}
	def(&o.SupervisorCPU, defaultSupervisorCPU)
	def(&o.SupervisorMemory, defaultSupervisorMemory)
	def(&o.SupervisorMemoryLimit, resource.NewQuantity(o.logMemory()+supervisorWork, resource.BinarySI).String())
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
	if !imageName.MatchString(o.SupervisorImage) {
		return fmt.Errorf("%s: %q is not a valid image name", "SupervisorImage", o.SupervisorImage)
	}
	for field, value := range map[string]string{"SupervisorCPU": o.SupervisorCPU, "SupervisorMemory": o.SupervisorMemory,
		"SupervisorMemoryLimit": o.SupervisorMemoryLimit} {
		if _, err := parseQuantity(value); err != nil {
			return fmt.Errorf("%s: %q is not a quantity", field, value)
		}
	}
	if o.LogLimit < 0 || o.StopGrace < 0 {
		return fmt.Errorf("%s and %s cannot be negative", "LogLimit", "StopGrace")
	}
	return nil
}
