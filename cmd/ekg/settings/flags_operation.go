package settings

// operationSettings are for the operation of the gateway.
var operationSettings = []Group{
	{"Observe the gateway", []Option{
		{
			Name: "log-level", Env: []string{"EKG_LOG_LEVEL"}, def: "info",
			value: level(func(s *Settings) *levelOf { return &s.LogLevel }),
			Usage: "lowest level that is logged: debug, info, warn or error",
		},
		{
			Name: "log-format", Env: []string{"EKG_LOG_FORMAT"}, def: "text",
			value: text(func(s *Settings) *string { return &s.LogFormat }, oneOf("text", "json")),
			Usage: "format of log lines on standard error: text or json",
		},
		{
			Name: "metrics-listen", Env: []string{"EKG_METRICS_LISTEN"}, defDoc: "none",
			value: text(func(s *Settings) *string { return &s.MetricsListen }, checkMetricsListen),
			Usage: "address, host:port, of /metrics for Prometheus, without a token; see docs/monitoring.md",
		},
		{
			Name: "pprof", Env: []string{"EKG_PPROF"}, def: "false",
			value: boolean(func(s *Settings) *bool { return &s.PProf }),
			Usage: "serve Go's profiles under /debug/pprof on --metrics-listen. A profile slows the gateway down",
		},
		{
			Name: "audit-log", Env: []string{"EKG_AUDIT_LOG"}, defDoc: "none",
			value: text(func(s *Settings) *string { return &s.AuditLog }),
			Usage: "file for the audit log: JSON lines that say which user started, stopped, interrupted, restarted or " +
				"connected to which kernel, and which requests were rejected; - is standard output. SIGHUP reopens the file",
		},
	}},
	{"Restart and stop the gateway", []Option{
		{
			Name: "stop-kernels-on-exit", Env: []string{"EKG_STOP_KERNELS_ON_EXIT"}, def: "false",
			value: boolean(func(s *Settings) *bool { return &s.StopKernels }),
			Usage: "stop all kernels when the gateway stops. Otherwise they keep running, and the next gateway adopts them",
		},
	}},
}
