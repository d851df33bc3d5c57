package lend

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Variables of kernels that are about GPUs.
const (
	CountVariable   = "KERNEL_GPUS"          // how many the kernel asks for
	VisibleVariable = "CUDA_VISIBLE_DEVICES" // which devices CUDA shows to it
	MemoryVariable  = "KERNEL_GPU_MEMORY"    // bytes of its part of a GPU
	JAXVariable     = "XLA_PYTHON_CLIENT_MEM_FRACTION"
	MPSVariable     = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
)

// maxGPUs bounds KERNEL_GPUS.
const maxGPUs = gpu.MaxDevices

// Wish is what a start asks for.
type Wish struct {
	Want *devices.Want // nil: nothing is assigned
	Hide bool          // the kernel sees no GPU
	Size gpu.Amount    // for limits
}

// Wish reads what a start asks for. env is the kernel's environment. The error is a *launcher.RefusedError.
func (l *Lender) Wish(f *flavor.Flavor, env map[string]string) (r Wish, err error) {
	count := int64(-1)
	if text := env[CountVariable]; text != "" {
		if count, err = strconv.ParseInt(text, 10, 32); err != nil || count < 0 || count > maxGPUs {
			return r, refused("%s: %.40q is not a number from 0 to %d", CountVariable, text, maxGPUs)
		}
	}
	if count == 0 || f != nil && f.None {
		r.Hide = true
		return r, nil
	}
	if f == nil {
		if count < 0 {
			return r, nil
		}
		r.Want = &devices.Want{Count: int(count)}
	} else if r.Want, err = WantOf(f); err != nil {
		return r, err
	}
	list := l.List()
	if f != nil {
		r.Size = f.Size()
		switch usual := int64(max(1, r.Want.Count)); {
		case count < 0 || count == usual:
		case !r.Want.Whole:
			return r, refused("%s: the flavor %q is one share or instance of a GPU; use 0 or 1", CountVariable, f.Name)
		default:
			r.Want.Count, r.Size = int(count), r.Size.Times(count, usual)
		}
	}
	if err := r.Want.Check(list); err != nil {
		return r, refused("%v", err)
	}
	if f == nil {
		r.Size = r.Want.Size(list)
	}
	return r, nil
}

func refused(format string, args ...any) error {
	return &launcher.RefusedError{Reason: fmt.Sprintf(format, args...)}
}

// WantOf returns what a flavor means on one machine.
func WantOf(f *flavor.Flavor) (*devices.Want, error) {
	w := &devices.Want{Product: f.NodeSelector[flavor.ProductLabel]}
	switch {
	case f.GPU != nil:
		w.Whole, w.Count = true, int(flavor.Count(f.GPU.Count))
	case f.MIG != nil && flavor.Count(f.MIG.Count) == 1:
		w.Profile = f.MIG.Profile
	case f.Replica != nil:
		w.Share = max(1, gpu.One.Times(1, f.Replica.Replicas))
	case f.GPUMem != nil && f.GPUMem.PerGPU > 0:
		w.Share = max(1, gpu.One.Times(f.GPUMem.Units, f.GPUMem.PerGPU))
	case f.GPUMem != nil:
		w.Memory = f.GPUMem.Units << 30
	case f.HAMi != nil && flavor.Count(f.HAMi.Count) == 1:
		w.Share, w.Memory = gpu.One.Times(f.HAMi.MemoryPercent, 100), f.HAMi.MemoryMiB<<20
	default:
		return nil, refused("the flavor %q is for kernels in a cluster: this machine has no %s", f.Name, f.Kind())
	}
	return w, nil
}

// Equip writes a loan into the configuration of a kernel's supervisor.
func (l *Lender) Equip(cfg *api.Config, loan *devices.Loan) {
	cfg.Env[VisibleVariable] = strings.Join(loan.Devices, ",")
	if loan.Memory > 0 {
		cfg.Env[MemoryVariable] = strconv.FormatInt(loan.Memory, 10)
		// MPS, if it runs, enforces this. The device is the kernel's only one.
		cfg.Env[MPSVariable] = fmt.Sprintf("0=%dM", loan.Memory>>20)
		cfg.Env[JAXVariable] = loan.Share.String() // otherwise JAX takes three quarters of the GPU when it starts
	}
	never := cfg.GPUSamples.Park.Never || len(loan.Devices) != 1 || loan.Share != gpu.One
	cfg.GPUSamples.Park = l.opts.Park
	cfg.GPUSamples.Park.Never = never
	l.Sample(cfg)
}

// Sample has the GPUs sampled that a kernel holds: those of its CUDA_VISIBLE_DEVICES. Without the variable it holds
// none.
func (l *Lender) Sample(cfg *api.Config) {
	devices := Visible(cfg.Env[VisibleVariable])
	if len(devices) == 0 || l.opts.Program == "" {
		return
	}
	cfg.GPUProgram = l.opts.Program
	cfg.GPUSamples.Every, cfg.GPUSamples.Devices = api.GPUSampleInterval, devices
}

// Visible returns the devices that a CUDA_VISIBLE_DEVICES names. CUDA ignores what follows the first invalid name.
func Visible(visible string) (devices []string) {
	for name := range strings.SplitSeq(visible, ",") {
		name = strings.TrimSpace(name)
		if name == "" || strings.HasPrefix(name, "-") || name == "NoDevFiles" || name == "none" || name == "void" {
			break
		}
		devices = append(devices, name)
	}
	return devices
}
