package settings

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// idleSettings set when kernels are culled.
var idleSettings = []Group{
	{"Stop idle kernels", []Option{
		{
			Name: "cull-idle-timeout", Env: []string{"EKG_CULL_IDLE_TIMEOUT"}, def: "0s",
			value: limit(func(s *Settings) *time.Duration { return &s.Local.Cull.IdleTimeout }),
			Usage: "how long a kernel may be idle before it is culled, for example 2h, or a number of seconds; 0: never. A " +
				"kernel with any request in progress is not idle. See docs/idle.md",
		},
		{
			Name: "cull-parked-timeout", Env: []string{"EKG_CULL_PARKED_TIMEOUT"}, def: "0s",
			value: limit(func(s *Settings) *time.Duration { return &s.Local.Cull.ParkedTimeout }),
			Usage: "how long a parked kernel may be idle before it is culled; 0: as long as any other. See --park-idle",
		},
		{
			Name: "cull-connected", Env: []string{"EKG_CULL_CONNECTED"}, def: "true",
			value: not(func(s *Settings) *bool { return &s.Local.Cull.Unattended }),
			Usage: "cull idle kernels even while pages are connected. With false, the idle time begins when the last page " +
				"disconnects",
		},
		{
			Name: "cull-busy", Env: []string{"EKG_CULL_BUSY"}, def: "false",
			value: boolean(func(s *Settings) *bool { return &s.Local.Cull.Busy }),
			Usage: "cull busy kernels too: a busy kernel counts as idle since its last message",
		},
		{
			Name: "cull-interval", Env: []string{"EKG_CULL_INTERVAL"},
			def:   api.DefaultCullInterval.String(),
			value: limit(func(s *Settings) *time.Duration { return &s.Local.Cull.Interval }),
			Usage: "how often the use of processors and GPUs is measured, if it keeps kernels, for example 5m, or a number " +
				"of seconds. A change of the machine's clock is noticed after this time at the latest. It does not delay culling",
		},
		{
			Name: "cull-gpu", Env: []string{"EKG_CULL_GPU"}, def: "0",
			value: number(func(s *Settings) *float64 { return &s.Local.Cull.GPU }),
			Usage: "a kernel that uses more GPUs than this, for example 0.05, counts as busy; 0: GPUs are not measured. " +
				"NVIDIA's driver is queried for at most 10 seconds of each --cull-interval",
		},
		{
			Name: "cull-max-age", Env: []string{"EKG_CULL_MAX_AGE"}, def: "0s",
			value: limit(func(s *Settings) *time.Duration { return &s.Local.Cull.MaxAge }),
			Usage: "how old a kernel may become before it is culled, idle or not; 0: no limit",
		},
		{
			Name: "cull-warning", Env: []string{"EKG_CULL_WARNING"}, def: "5m0s",
			value: limit(func(s *Settings) *time.Duration { return &s.Local.Cull.Warning }),
			Usage: "how long before its end a kernel's open notebooks show a warning. At most half of the time that ends it",
		},
		{
			Name: "cull-keep-limit", Env: []string{"EKG_CULL_KEEP_LIMIT"}, def: "24h0m0s",
			value: limit(func(s *Settings) *time.Duration { return &s.Local.Cull.KeepLimit }),
			Usage: "how long an owner may keep a kernel from being culled, counted from the request; 0: not at all",
		},
	}},
	{"Park idle kernels", []Option{
		{
			Name: "park-idle", Env: []string{"EKG_PARK_IDLE"}, def: "0s",
			value: limit(func(s *Settings) *time.Duration { return &s.Local.Park.Idle }),
			Usage: "idle time after which a kernel gives its GPU to a kernel that waits, for example 1m; 0: never. Its GPU " +
				"memory is saved. Its next cell takes the GPU again. In pods only flavors with park do, and 0 counts as 1m. See " +
				"docs/parking.md",
		},
		{
			Name: "park-after", Env: []string{"EKG_PARK_AFTER"}, def: "0s",
			value: limit(func(s *Settings) *time.Duration { return &s.Local.Park.After }),
			Usage: "idle time after which a kernel gives its GPU back though no kernel waits; 0: never. It needs --park-idle",
		},
		{
			Name: "park-idle-memory", Env: []string{"EKG_PARK_IDLE_MEMORY"}, def: "8GiB",
			value: size(func(s *Settings) *int64 { return &s.Local.Park.IdleMemory }),
			Usage: "a kernel with more in its GPU's memory gives it back only to a kernel that waits",
		},
		{
			Name: "park-memory", Env: []string{"EKG_PARK_MEMORY"}, def: "0",
			value: size(func(s *Settings) *int64 { return &s.Local.Park.Memory }),
			Usage: "how much of the machine's memory all parked kernels may take together: each takes its GPU memory and 582 " +
				"MiB. A kernel that would take more keeps its GPU; 0: no bound. It needs --park-idle, and does not concern pods",
		},
	}},
}
