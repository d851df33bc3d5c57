package settings

import (
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// idleSettings set when kernels are culled.
var idleSettings = []group{
	{"Stop idle kernels", []Option{
		{
			Name: "cull-idle-timeout", Env: []string{"EKG_CULL_IDLE_TIMEOUT", "EG_CULL_IDLE_TIMEOUT"}, def: "0s",
			value: limit(func(s *Settings) *time.Duration { return &s.CullIdleTimeout }),
			Usage: "how long a kernel may be idle before it is culled, for example 2h, or a number of seconds; 0: never. A " +
				"kernel with any request in progress is not idle. See docs/idle.md",
		},
		{
			Name: "cull-connected", Env: []string{"EKG_CULL_CONNECTED", "EG_CULL_CONNECTED"}, def: "true",
			value: boolean(func(s *Settings) *bool { return &s.CullConnected }),
			Usage: "cull idle kernels even while pages are connected. With false, the idle time begins when the last page " +
				"disconnects",
		},
		{
			Name: "cull-busy", Env: []string{"EKG_CULL_BUSY", "EG_CULL_BUSY"}, def: "false",
			value: boolean(func(s *Settings) *bool { return &s.CullBusy }),
			Usage: "count a busy kernel as idle since its last message",
		},
		{
			Name: "cull-interval", Env: []string{"EKG_CULL_INTERVAL", "EG_CULL_INTERVAL"},
			def:   api.DefaultCullInterval.String(),
			value: limit(func(s *Settings) *time.Duration { return &s.CullInterval }),
			Usage: "how often --cull-cpu and --cull-gpu are measured, for example 5m, or a number of seconds. It is also " +
				"the longest time until a changed clock of the machine is noticed. It does not delay culling",
		},
		{
			Name: "cull-cpu", Env: []string{"EKG_CULL_CPU"}, def: "0",
			value: number(func(s *Settings) *float64 { return &s.CullCPU }),
			Usage: "processors in use, for example 0.2, above which a kernel counts as busy; 0: processors are not " +
				"measured",
		},
		{
			Name: "cull-gpu", Env: []string{"EKG_CULL_GPU"}, def: "0",
			value: number(func(s *Settings) *float64 { return &s.CullGPU }),
			Usage: "GPUs in use, for example 0.05, above which a kernel counts as busy; 0: GPUs are not measured. NVIDIA's " +
				"driver is queried for at most 10 seconds of each interval",
		},
		{
			Name: "gpu-samples", Env: []string{"EKG_GPU_SAMPLES"}, def: "10s",
			value: limit(func(s *Settings) *time.Duration { return &s.GPUSamples }),
			Usage: "how often the memory and use of a kernel's NVIDIA GPUs are measured, for its model and for usage; 0: " +
				"never. On one machine it needs the program ekg-gpu beside the supervisor",
		},
		{
			Name: "cull-activity", Env: []string{"EKG_CULL_ACTIVITY"},
			value: list(func(s *Settings) *[]string { return &s.CullActivity }, oneOf(api.CullActivities()...)),
			Usage: "what else restarts the time of an idle kernel, besides cells and answers to prompts: " +
				strings.Join(api.CullActivities(), ", ") + "; repeatable",
		},
		{
			Name: "cull-busy-limit", Env: []string{"EKG_CULL_BUSY_LIMIT"}, def: "0s",
			value: limit(func(s *Settings) *time.Duration { return &s.CullBusyLimit }),
			Usage: "how long one request may keep a kernel busy before the kernel is culled; 0: no limit",
		},
		{
			Name: "cull-max-age", Env: []string{"EKG_CULL_MAX_AGE"}, def: "0s",
			value: limit(func(s *Settings) *time.Duration { return &s.CullMaxAge }),
			Usage: "how old a kernel may become before it is culled, idle or not; 0: no limit",
		},
		{
			Name: "cull-warning", Env: []string{"EKG_CULL_WARNING"}, def: "5m0s",
			value: limit(func(s *Settings) *time.Duration { return &s.CullWarning }),
			Usage: "how long before a kernel is culled its open notebooks are warned, at most half of its time",
		},
		{
			Name: "cull-keep-limit", Env: []string{"EKG_CULL_KEEP_LIMIT"}, def: "24h0m0s",
			value: limit(func(s *Settings) *time.Duration { return &s.CullKeepLimit }),
			Usage: "how far ahead owners may ask for their kernels to be kept, idle or not; 0: not at all",
		},
		{
			Name: "cull-idle-max", Env: []string{"EKG_CULL_IDLE_MAX"}, def: "0s",
			value: limit(func(s *Settings) *time.Duration { return &s.CullIdleMax }),
			Usage: "the longest idle time that a kernelspec may give its kernels (metadata.ekg.cull); 0: no limit",
		},
	}},
}
