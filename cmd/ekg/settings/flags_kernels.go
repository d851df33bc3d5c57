package settings

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// kernelSettings set which kernels can run, and how they run.
var kernelSettings = []Group{
	{"Choose and start kernels", []Option{
		{
			Name: "launcher", Env: []string{"EKG_LAUNCHER"}, def: "local",
			value: text(func(s *Settings) *string { return &s.Launcher }, oneOf("local", "kubernetes")),
			Usage: "where kernels run: local (processes of this machine) or kubernetes (pods of a cluster)",
		},
		{
			Name: "kernelspec-dir", Env: []string{"EKG_KERNELSPEC_DIR"},
			value: list(func(s *Settings) *[]string { return &s.Specs.Dirs }),
			Usage: "directory with kernelspecs, searched before Jupyter's own; repeatable",
		},
		{
			Name: "allowed-kernelspec", Env: []string{"EKG_ALLOWED_KERNELSPEC"},
			defDoc: "all", enterpriseLists: true,
			value: list(func(s *Settings) *[]string { return &s.Specs.Allowed }),
			Usage: "name of a kernelspec that is offered, with its profiles and flavors; repeatable. If it is set, all other " +
				"kernelspecs are hidden and cannot be started",
		},
		{
			Name: "default-kernel", Env: []string{"EKG_DEFAULT_KERNEL"},
			defDoc: "python3, else the first", field: "DefaultKernel",
			value: text(func(s *Settings) *string { return &s.Gateway.DefaultKernel }),
			Usage: "kernelspec of requests that name none",
		},
		{
			Name: "start-wait", Env: []string{"EKG_START_WAIT"},
			def: kernels.DefaultStartWait.String(), field: "StartWait",
			value: duration(func(s *Settings) *time.Duration { return &s.Gateway.StartWait }),
			Usage: "how long a request for a kernel waits until the kernel runs, for example 5s or 1m. The start goes on " +
				"after that",
		},
		{
			Name: "stop-grace", Env: []string{"EKG_STOP_GRACE"}, def: api.DefaultStopGrace.String(),
			value: duration(func(s *Settings) *time.Duration { return &s.Local.StopGrace }, positive),
			Usage: "how long a kernel may take to stop by itself before it gets SIGTERM, and again as long before SIGKILL",
		},
		{
			Name: "client-env", Env: []string{"EKG_CLIENT_ENV"},
			field: "ClientEnv",
			value: list(func(s *Settings) *[]string { return &s.Gateway.ClientEnv }),
			Usage: "environment variable that clients may set for their kernels, besides KERNEL_*; repeatable",
		},
		{
			Name: "inherit-env", Env: []string{"EKG_INHERIT_ENV"},
			value: list(func(s *Settings) *[]string { return &s.Local.InheritEnv }, CheckEnvName),
			Usage: "variable of the gateway's environment that kernels get too, besides PATH, HOME, LANG and the like; " +
				"repeatable",
		},
		{
			Name: "supervisor", Env: []string{"EKG_SUPERVISOR"}, defDoc: "beside ekg, else on PATH",
			value: text(func(s *Settings) *string { return &s.Supervisor }),
			Usage: "path of the program ekg-supervisor",
		},
		{
			Name: "upgrade-idle-supervisors", Env: []string{"EKG_UPGRADE_IDLE_SUPERVISORS"}, def: "false",
			value: boolean(func(s *Settings) *bool { return &s.Local.UpgradeIdle }),
			Usage: "after an upgrade of ekg, replace the supervisors of running kernels of this machine. This happens once a " +
				"kernel has been idle for a minute and pages have its output. It keeps its variables, and loses its log",
		},
		{
			Name: "state-dir", Env: []string{"EKG_STATE_DIR"}, defDoc: client.StateDirText,
			value: text(func(s *Settings) *string { return &s.Local.StateDir }),
			Usage: "directory with the records of kernels and the generated token",
		},
		{
			Name: "runtime-dir", Env: []string{"EKG_RUNTIME_DIR"},
			defDoc: "$XDG_RUNTIME_DIR/ekg, else ekg-UID in the temp directory",
			value:  text(func(s *Settings) *string { return &s.Local.RuntimeDir }),
			Usage:  "directory for sockets. Its path must be short",
		},
	}},
	{"Keep the output of kernels", []Option{
		{
			Name: "log-limit", Env: []string{"EKG_LOG_LIMIT"}, def: automatic,
			value: automaticSize(func(s *Settings) *int64 { return &s.Local.LogLimit }, positive),
			Usage: "how much output of a kernel is kept for clients that are slow or away, in bytes or with KiB, MiB, GiB. " +
				"Output beyond 16 MiB is kept on disk, in --state-dir. auto: 64MiB to 4GiB, by the free space of the disk; in " +
				"a pod at most 1GiB",
		},
		{
			Name: "log-total", Env: []string{"EKG_LOG_TOTAL"}, def: automatic,
			value: automaticSize(func(s *Settings) *int64 { return &s.Local.LogTotal }, positive),
			Usage: "how much output of all kernels of this machine is kept. auto: a quarter of the free space of the disk, " +
				"and at least 1GiB",
		},
	}},
}
