package local

import (
	"strings"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// sampleGPUs has the GPUs sampled that a kernel holds: those of its CUDA_VISIBLE_DEVICES. Without the variable it holds
// none.
func (l *Launcher) sampleGPUs(cfg *api.Config) {
	devices := heldGPUs(cfg.Env["CUDA_VISIBLE_DEVICES"])
	if len(devices) == 0 || l.opts.GPUSamples <= 0 || l.opts.GPUProgram == "" {
		return
	}
	cfg.GPUProgram = l.opts.GPUProgram
	cfg.GPUSamples = api.GPUSamples{Every: l.opts.GPUSamples, Devices: devices}
}

// heldGPUs returns the devices that a CUDA_VISIBLE_DEVICES names. CUDA ignores what follows the first invalid name.
func heldGPUs(visible string) (devices []string) {
	for name := range strings.SplitSeq(visible, ",") {
		name = strings.TrimSpace(name)
		if name == "" || strings.HasPrefix(name, "-") || name == "NoDevFiles" || name == "none" || name == "void" {
			break
		}
		devices = append(devices, name)
	}
	return devices
}
