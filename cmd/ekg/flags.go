package main

import (
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway"
	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube"
	"github.com/elastic-kernel-gateway/ekg/launcher/local"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// option is one setting. All that is to be said about it stands in its literal: the command line, the environment, the
// config file, the help, `ekg config` and the README's table are made from these.
type option struct {
	name   string   // of the flag (with --) and of the key in the config file
	env    []string // variables; the first that is not empty counts. A list is separated by commas in them
	usage  string   // what it is for, with its unit
	def    string   // default; of a list, separated by commas
	defDoc string   // how the default is described where it depends on the machine
	value  value    // where it goes, and how it is read and shown
	secret bool     // never shown
	field  string   // field of gateway.Options that checks it further
}

// options are all settings, in the order of the documentation.
var options = []option{
	// Where it listens, and who may ask.
	{name: "listen", env: []string{"EKG_LISTEN"}, def: "127.0.0.1:8888", value: text(func(s *settings) *string { return &s.listen }, checkListen),
		usage: "address to listen on: host:port, or unix:/path. Port 0 takes a free one. EG_IP and EG_PORT are understood too"},
	{name: "base-url", env: []string{"EKG_BASE_URL", "EG_BASE_URL"}, def: "/", value: text(func(s *settings) *string { return &s.baseURL }), field: "BaseURL",
		usage: "path in front of all routes"},
	{name: "token", env: []string{"EKG_TOKEN", "EG_AUTH_TOKEN"}, value: text(func(s *settings) *string { return &s.token }, notEmpty), field: "Token",
		secret: true, defDoc: "generated once, kept in the state directory",
		usage: "token demanded of every request. Others on this machine can read it on the command line: better use --token-file"},
	{name: "token-file", env: []string{"EKG_TOKEN_FILE"}, value: text(func(s *settings) *string { return &s.tokenFile }),
		usage: "file with the token"},
	{name: "users-file", env: []string{"EKG_USERS_FILE"}, value: text(func(s *settings) *string { return &s.usersFile }),
		usage: "YAML file with users and the hashes of their tokens, read again when it changes; see docs/users.md. With users, kernels belong to them and there is no shared token"},
	{name: "oidc-issuer", env: []string{"EKG_OIDC_ISSUER"}, value: text(func(s *settings) *string { return &s.oidcIssuer }),
		usage: "URL of an OpenID Connect issuer whose signed tokens are taken"},
	{name: "oidc-audience", env: []string{"EKG_OIDC_AUDIENCE"}, value: text(func(s *settings) *string { return &s.oidcAudience }),
		usage: "audience that the issuer's tokens must be for"},
	{name: "oidc-name-claim", env: []string{"EKG_OIDC_NAME_CLAIM"}, def: "sub", value: text(func(s *settings) *string { return &s.oidcName }, notEmpty),
		usage: "claim of the issuer's tokens that names the user"},
	{name: "oidc-groups-claim", env: []string{"EKG_OIDC_GROUPS_CLAIM"}, defDoc: "none", value: text(func(s *settings) *string { return &s.oidcGroups }),
		usage: "claim of the issuer's tokens that lists the user's groups"},
	{name: "auth-token-review", env: []string{"EKG_AUTH_TOKEN_REVIEW"}, def: "false", value: boolean(func(s *settings) *bool { return &s.tokenReview }),
		usage: "take tokens that the Kubernetes cluster knows, those of service accounts for one; the gateway's account must be allowed to create tokenreviews"},
	{name: "auth-token-audience", env: []string{"EKG_AUTH_TOKEN_AUDIENCE"}, defDoc: "the cluster's own", value: list(func(s *settings) *[]string { return &s.tokenAudiences }),
		usage: "audience, one of which the cluster's tokens must be for; repeatable"},
	{name: "hub-api-url", env: []string{"EKG_HUB_API_URL"}, value: text(func(s *settings) *string { return &s.hubAPI }),
		usage: "URL of a JupyterHub's API, as http://hub:8081/hub/api: its users' tokens are taken if they may access this service"},
	{name: "hub-service", env: []string{"EKG_HUB_SERVICE", "JUPYTERHUB_SERVICE_NAME"}, value: text(func(s *settings) *string { return &s.hubService }),
		usage: "name of this service in the hub's configuration"},
	{name: "admin-user", env: []string{"EKG_ADMIN_USER"}, value: list(func(s *settings) *[]string { return &s.adminUsers }, checkUser),
		usage: "user who may see and do everything, besides the admins of --users-file; repeatable"},
	{name: "admin-group", env: []string{"EKG_ADMIN_GROUP"}, value: list(func(s *settings) *[]string { return &s.adminGroups }, checkUser),
		usage: "group whose users may see and do everything; repeatable"},
	{name: "auth-cache", env: []string{"EKG_AUTH_CACHE"}, def: identity.DefaultKeep.String(), value: duration(func(s *settings) *durationOf { return &s.authCache }, positive),
		usage: "how long the answer of an issuer, cluster or hub about a token counts, and so how long a token that is revoked there may still be used"},
	{name: "no-auth", env: []string{"EKG_NO_AUTH"}, def: "false", value: boolean(func(s *settings) *bool { return &s.noAuth }),
		usage: "demand no token: whoever reaches the port can run code"},
	{name: "allow-unauthenticated-remote", env: []string{"EKG_ALLOW_UNAUTHENTICATED_REMOTE"}, def: "false",
		value: boolean(func(s *settings) *bool { return &s.allowUnauthenticatedRemote }),
		usage: "let --no-auth be used on an address that other machines reach"},
	{name: "allow-origin", env: []string{"EKG_ALLOW_ORIGIN", "EG_ALLOW_ORIGIN"}, value: list(func(s *settings) *[]string { return &s.allowOrigins }), field: "AllowOrigins",
		usage: "origin of another host whose pages may use the gateway, exactly as scheme://host[:port]; repeatable"},
	{name: "allow-host", env: []string{"EKG_ALLOW_HOST"}, value: list(func(s *settings) *[]string { return &s.allowHosts }), field: "AllowHosts",
		usage: "name without port by which clients may call the gateway, besides loopback addresses; repeatable. Checked on loopback, and elsewhere once given"},
	{name: "tls-cert", env: []string{"EKG_TLS_CERT", "EG_CERTFILE"}, value: text(func(s *settings) *string { return &s.tlsCert }),
		usage: "PEM file with the certificate chain; switches to HTTPS"},
	{name: "tls-key", env: []string{"EKG_TLS_KEY", "EG_KEYFILE"}, value: text(func(s *settings) *string { return &s.tlsKey }),
		usage: "PEM file with the certificate's key"},
	{name: "max-body", env: []string{"EKG_MAX_BODY"}, def: formatSize(gateway.DefaultMaxBody), value: size(func(s *settings) *int64 { return &s.maxBody }, positive), field: "MaxBody",
		usage: "largest body of a REST request, in bytes or with KiB, MiB, GiB"},

	{name: "max-starts-per-minute", env: []string{"EKG_MAX_STARTS_PER_MINUTE"}, def: "0", value: count(func(s *settings) *int { return &s.startsPerMinute }), field: "StartsPerMinute",
		usage: "kernels that each user may start in a minute; 0 for no limit"},
	{name: "max-connections-per-user", env: []string{"EKG_MAX_CONNECTIONS_PER_USER"}, def: "0", value: count(func(s *settings) *int { return &s.connectionsPerUser }), field: "ConnectionsPerUser",
		usage: "websockets that each user may have open at one gateway; 0 for no limit"},
	{name: "max-connections-per-kernel", env: []string{"EKG_MAX_CONNECTIONS_PER_KERNEL"}, def: "0", value: count(func(s *settings) *int { return &s.connectionsPerKernel }), field: "ConnectionsPerKernel",
		usage: "websockets that may lead to one kernel from one gateway; 0 for no limit but its supervisor's, 64"},

	// How much there may be.
	{name: "max-kernels", env: []string{"EKG_MAX_KERNELS", "EG_MAX_KERNELS"}, def: "0", value: most(func(s *settings) *int { return &s.maxKernels }),
		usage: "kernels that there may be at one time, by whatever gateway; 0 for no limit. Those count that run, start or end; see docs/limits.md"},
	{name: "max-kernels-per-user", env: []string{"EKG_MAX_KERNELS_PER_USER", "EG_MAX_KERNELS_PER_USER"}, def: "0", value: most(func(s *settings) *int { return &s.maxKernelsPerUser }),
		usage: "kernels that each user may have at one time; 0 or less for no limit. --users-file can say otherwise for single users"},
	{name: "max-kernels-per-group", env: []string{"EKG_MAX_KERNELS_PER_GROUP"}, def: "0", value: most(func(s *settings) *int { return &s.maxKernelsPerGroup }),
		usage: "kernels that all users of a group may have together; 0 for no limit. --users-file can say otherwise for single groups"},
	{name: "max-kernels-per-kernelspec", env: []string{"EKG_MAX_KERNELS_PER_KERNELSPEC"}, def: "0", value: most(func(s *settings) *int { return &s.maxKernelsPerSpec }),
		usage: "kernels of one kernelspec that there may be; 0 for no limit. A kernelspec may have a lower one (metadata.ekg.limits)"},
	{name: "max-gpus-per-user", env: []string{"EKG_MAX_GPUS_PER_USER"}, def: "0", value: most(func(s *settings) *int { return &s.maxGPUsPerUser }),
		usage: "GPUs, or slices of one, that the kernels of each user may have at one time, with the launcher kubernetes; 0 for no limit"},
	{name: "max-gpus-per-group", env: []string{"EKG_MAX_GPUS_PER_GROUP"}, def: "0", value: most(func(s *settings) *int { return &s.maxGPUsPerGroup }),
		usage: "GPUs that the kernels of all users of a group may have together; 0 for no limit"},

	// Kernels.
	{name: "kernelspec-dir", env: []string{"EKG_KERNELSPEC_DIR"}, value: list(func(s *settings) *[]string { return &s.kernelspecDirs }),
		usage: "directory with kernelspecs, looked at before Jupyter's own; repeatable"},
	{name: "default-kernel", env: []string{"EKG_DEFAULT_KERNEL", "EG_DEFAULT_KERNEL_NAME"}, defDoc: "python3, else the first",
		value: text(func(s *settings) *string { return &s.defaultKernel }), field: "DefaultKernel",
		usage: "kernelspec for requests that name none"},
	{name: "start-wait", env: []string{"EKG_START_WAIT"}, def: gateway.DefaultStartWait.String(), value: duration(func(s *settings) *durationOf { return &s.startWait }), field: "StartWait",
		usage: "how long a request for a kernel waits until it runs, as 5s or 1m; the kernel goes on starting after it"},
	{name: "launcher", env: []string{"EKG_LAUNCHER"}, def: "local", value: text(func(s *settings) *string { return &s.launcher }, oneOf("local", "kubernetes")),
		usage: "what runs kernels: local (processes of this machine) or kubernetes (pods of a cluster)"},
	{name: "supervisor", env: []string{"EKG_SUPERVISOR"}, value: text(func(s *settings) *string { return &s.supervisor }), defDoc: "beside ekg, else on PATH",
		usage: "the ekg-supervisor program"},
	{name: "state-dir", env: []string{"EKG_STATE_DIR"}, value: text(func(s *settings) *string { return &s.stateDir }), defDoc: "$XDG_STATE_HOME/ekg, else ~/.local/state/ekg",
		usage: "directory that remembers kernels"},
	{name: "runtime-dir", env: []string{"EKG_RUNTIME_DIR"}, value: text(func(s *settings) *string { return &s.runtimeDir }), defDoc: "$XDG_RUNTIME_DIR/ekg, else ekg-UID in the temp directory",
		usage: "directory for sockets; its path must be short"},
	{name: "client-env", env: []string{"EKG_CLIENT_ENV", "EG_CLIENT_ENVS", "EG_ENV_WHITELIST"}, value: list(func(s *settings) *[]string { return &s.clientEnv }), field: "ClientEnv",
		usage: "environment variable that clients may set for their kernels, besides KERNEL_*; repeatable"},
	{name: "inherit-env", env: []string{"EKG_INHERIT_ENV", "EG_INHERITED_ENVS", "EG_ENV_PROCESS_WHITELIST"}, value: list(func(s *settings) *[]string { return &s.inheritEnv }, checkEnvName),
		usage: "environment variable of ekg that kernels get, besides PATH, HOME, LANG and the like; repeatable"},
	{name: "log-limit", env: []string{"EKG_LOG_LIMIT"}, def: formatSize(local.DefaultLogLimit), value: size(func(s *settings) *int64 { return &s.logLimit }, positive),
		usage: "how much of a kernel's output is kept for clients that are slow or away, in bytes or with KiB, MiB, GiB; what is over 16 MiB lies on disk, in --state-dir"},
	{name: "log-total", env: []string{"EKG_LOG_TOTAL"}, def: formatSize(local.DefaultLogTotal), value: size(func(s *settings) *int64 { return &s.logTotal }, positive),
		usage: "the same for all kernels together"},
	{name: "stop-grace", env: []string{"EKG_STOP_GRACE"}, def: local.DefaultStopGrace.String(), value: duration(func(s *settings) *durationOf { return &s.stopGrace }, positive),
		usage: "how long a kernel may take to end by itself before SIGTERM, and again before SIGKILL"},

	// Kernels that nobody uses.
	{name: "cull-idle-timeout", env: []string{"EKG_CULL_IDLE_TIMEOUT", "EG_CULL_IDLE_TIMEOUT"}, def: "0s", value: limit(func(s *settings) *durationOf { return &s.cullIdleTimeout }),
		usage: "how long a kernel may be idle before it is ended, as 2h or in seconds; 0: for ever. A kernel with any request in progress is not idle; see docs/idle.md"},
	{name: "cull-connected", env: []string{"EKG_CULL_CONNECTED", "EG_CULL_CONNECTED"}, def: "true", value: boolean(func(s *settings) *bool { return &s.cullConnected }),
		usage: "end idle kernels also while pages are connected to them; with false their time begins when the last one has gone"},
	{name: "cull-busy", env: []string{"EKG_CULL_BUSY", "EG_CULL_BUSY"}, def: "false", value: boolean(func(s *settings) *bool { return &s.cullBusy }),
		usage: "count a kernel as idle also while it is busy, from when it last said something"},
	{name: "cull-interval", env: []string{"EKG_CULL_INTERVAL", "EG_CULL_INTERVAL"}, def: supervisor.DefaultCullInterval.String(), value: limit(func(s *settings) *durationOf { return &s.cullInterval }),
		usage: "how often --cull-cpu and --cull-gpu are measured, and the longest time until a changed clock of the machine is noticed, as 5m or in seconds; kernels are ended when it is time, not at the next look"},
	{name: "cull-cpu", env: []string{"EKG_CULL_CPU"}, def: "0", value: number(func(s *settings) *float64 { return &s.cullCPU }),
		usage: "processors in use, as 0.2, above which a kernel counts as busy, whatever it computes; 0: that does not matter"},
	{name: "cull-gpu", env: []string{"EKG_CULL_GPU"}, def: "0", value: number(func(s *settings) *float64 { return &s.cullGPU }),
		usage: "GPUs in use, as 0.05, above which a kernel counts as busy: of what NVIDIA's driver tells in at most 10 seconds of each interval; 0: that does not matter"},
	{name: "cull-activity", env: []string{"EKG_CULL_ACTIVITY"}, value: list(func(s *settings) *[]string { return &s.cullActivity }, oneOf(supervisor.CullActivities()...)),
		usage: "what restarts the time of an idle kernel besides cells and answers to prompts: " + strings.Join(supervisor.CullActivities(), ", ") + "; repeatable"},
	{name: "cull-busy-limit", env: []string{"EKG_CULL_BUSY_LIMIT"}, def: "0s", value: limit(func(s *settings) *durationOf { return &s.cullBusyLimit }),
		usage: "how long one request may keep a kernel busy before the kernel is ended; 0: for ever"},
	{name: "cull-max-age", env: []string{"EKG_CULL_MAX_AGE"}, def: "0s", value: limit(func(s *settings) *durationOf { return &s.cullMaxAge }),
		usage: "how old a kernel may become, whatever it does; 0: as old as it wants"},
	{name: "cull-warning", env: []string{"EKG_CULL_WARNING"}, def: "5m0s", value: limit(func(s *settings) *durationOf { return &s.cullWarning }),
		usage: "how long before a kernel's end its open notebooks say so, but for no more than half of the time that it has"},
	{name: "cull-keep-limit", env: []string{"EKG_CULL_KEEP_LIMIT"}, def: "24h0m0s", value: limit(func(s *settings) *durationOf { return &s.cullKeepLimit }),
		usage: "how far ahead owners may have their kernels kept, idle or not; 0: not at all"},
	{name: "cull-idle-max", env: []string{"EKG_CULL_IDLE_MAX"}, def: "0s", value: limit(func(s *settings) *durationOf { return &s.cullIdleMax }),
		usage: "the longest idle time that a kernelspec can give its kernels (metadata.ekg.cull); 0: any"},

	// Kubernetes.
	{name: "kubeconfig", env: []string{"EKG_KUBECONFIG"}, defDoc: "in a pod its service account, else $KUBECONFIG, else ~/.kube/config",
		value: text(func(s *settings) *string { return &s.kubeconfig }),
		usage: "file that says how the cluster is reached; pods are reached through it, too, by port-forward"},
	{name: "kube-context", env: []string{"EKG_KUBE_CONTEXT"}, defDoc: "the file's current one", value: text(func(s *settings) *string { return &s.kubeContext }),
		usage: "context of the kubeconfig"},
	{name: "kube-namespace", env: []string{"EKG_KUBE_NAMESPACE"}, defDoc: "the gateway's own, or the context's",
		value: text(func(s *settings) *string { return &s.kubeNamespace }),
		usage: "namespace of kernels' pods"},
	{name: "kube-policy", env: []string{"EKG_KUBE_POLICY"}, value: text(func(s *settings) *string { return &s.kubePolicy }),
		usage: "YAML file that says what kernelspecs and clients may ask of a pod; see docs/kernelspecs.md"},
	{name: "supervisor-image", env: []string{"EKG_SUPERVISOR_IMAGE"}, value: text(func(s *settings) *string { return &s.supervisorImage }),
		usage: "ekg's own image, of which each kernel's pod has a container"},
	{name: "kernel-image", env: []string{"EKG_KERNEL_IMAGE"}, value: text(func(s *settings) *string { return &s.kernelImage }),
		usage: "image of kernelspecs that name none"},
	{name: "master-key-file", env: []string{"EKG_MASTER_KEY_FILE"}, defDoc: "outside a cluster generated once, kept in the state directory",
		value: text(func(s *settings) *string { return &s.masterKeyFile }),
		usage: "file with the secret, of 32 characters or more, from which kernels' keys are derived; all replicas need the same"},
	{name: "start-limit", env: []string{"EKG_START_LIMIT"}, def: kube.DefaultStartLimit.String(), value: duration(func(s *settings) *durationOf { return &s.startLimit }, positive),
		usage: "how long the start of a kernel's pod may make no progress (a node, its images, its first answer) before it is given up; a longer KERNEL_LAUNCH_TIMEOUT counts for one"},
	{name: "keep-endings", env: []string{"EKG_KEEP_ENDINGS"}, def: kube.DefaultKeepEndings.String(), value: duration(func(s *settings) *durationOf { return &s.keepEndings }, positive),
		usage: "how long the cluster keeps the reasons for which kernels have ended"},
	{name: "kube-peers", env: []string{"EKG_KUBE_PEERS"}, value: text(func(s *settings) *string { return &s.kubePeers }),
		usage: "label selector of the pods of all replicas of this gateway, in its own namespace; with --pod-ip they tell each other of changes"},
	{name: "pod-ip", env: []string{"EKG_POD_IP", "POD_IP"}, value: text(func(s *settings) *string { return &s.podIP }),
		usage: "address of this gateway's own pod"},

	// Its own life.
	{name: "stop-kernels-on-exit", env: []string{"EKG_STOP_KERNELS_ON_EXIT"}, def: "false", value: boolean(func(s *settings) *bool { return &s.stopKernels }),
		usage: "stop all kernels when the gateway is told to end; otherwise they go on, and the next gateway finds them"},
	{name: "drain-delay", env: []string{"EKG_DRAIN_DELAY"}, def: "0s", value: duration(func(s *settings) *durationOf { return &s.drainDelay }),
		usage: "how long it serves on after /readyz has failed, when told to end; give 5s behind a load balancer"},
	{name: "metrics-listen", env: []string{"EKG_METRICS_LISTEN"}, value: text(func(s *settings) *string { return &s.metricsListen }, checkMetricsListen),
		defDoc: "none", usage: "address, host:port, on which Prometheus finds /metrics, without a token; see docs/monitoring.md"},
	{name: "pprof", env: []string{"EKG_PPROF"}, def: "false", value: boolean(func(s *settings) *bool { return &s.pprof }),
		usage: "serve Go's profiles, under /debug/pprof, on --metrics-listen too; whoever asks for one slows the gateway down"},
	{name: "audit-log", env: []string{"EKG_AUDIT_LOG"}, value: text(func(s *settings) *string { return &s.auditLog }), defDoc: "none",
		usage: "file to which is added, in JSON lines, who started, stopped, interrupted, restarted or connected to which kernel, and who was refused; - is standard output. SIGHUP opens it anew"},
	{name: "log-format", env: []string{"EKG_LOG_FORMAT"}, def: "text", value: text(func(s *settings) *string { return &s.logFormat }, oneOf("text", "json")),
		usage: "form of log lines on standard error: text or json"},
	{name: "log-level", env: []string{"EKG_LOG_LEVEL", "EG_LOG_LEVEL"}, def: "info", value: level(func(s *settings) *levelOf { return &s.logLevel }),
		usage: "least important level that is logged: debug, info, warn or error"},
}

// configOption names the file that the others may be read from; it cannot stand in that file itself.
var configOption = option{name: "config", env: []string{"EKG_CONFIG"}, value: text(func(s *settings) *string { return &s.config }),
	usage: "YAML file with any of these settings: the flag's name without dashes in front as key"}
