package gpumemory

import (
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Said is the line under the last cell of a parked kernel.
func Said(state api.ParkState, memory int64, at time.Time) string {
	if state == api.GPUNone {
		return fmt.Sprintf("The kernel has given its GPU back at %s: it had nothing there. It takes the GPU again "+
			"when it needs it.", api.ShownTime(at))
	}
	return fmt.Sprintf("The kernel has given its GPU back at %s. Its variables are kept, also the %d MiB of the GPU's "+
		"memory. The next cell takes the GPU again.", api.ShownTime(at), memory>>20)
}

// Lost and Silent are reasons of a kernel's end.
const (
	Lost   = "NVIDIA's driver could not bring its GPU memory back, and its variables there are lost"
	Silent = "NVIDIA's driver does not answer whether its GPU memory is saved"
)

// OverBound says why a kernel that would take so many bytes of the machine's memory is not parked beside others.
func OverBound(takes, others, bound int64) string {
	return fmt.Sprintf("it would take %d MiB of the machine's memory, and other parked kernels take %d of the %d MiB "+
		"that are allowed", takes>>20, others>>20, bound>>20)
}

// CauseOf returns the class of a failure; nil: ekg-gpu has ended.
func CauseOf(e *gpu.CUDAError) api.ParkCause {
	switch {
	case e == nil:
	case e.NoRoom:
		return api.CauseMemory
	case e.Computes():
		return api.CauseComputes
	case e.Call != "":
		return api.CauseDriver
	case e.Processes > 0:
		return api.CauseProcesses
	}
	return api.CauseProgram
}
