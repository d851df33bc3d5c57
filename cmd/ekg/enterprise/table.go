package enterprise

import (
	"regexp"
	"slices"
	"strings"
)

// option is one setting of Enterprise Gateway. Its traits and variables are names of the same setting.
type option struct {
	group   string   // key of classes; "" for a variable without a trait
	traits  []string // the first is the present name
	env     []string
	list    bool
	secret  bool // the value may not be written anywhere
	setting string
	convert func(v value) (value, string) // nil: the value stays; the text is a remark on the line
	why     string                        // why there is no counterpart, or what to use instead
	explain func(v value) string          // if not nil, says the same by the value
}

// Groups of classes of traits. A trait can be given to each class of its group.
const (
	app        = "app"
	mapping    = "mapping"
	manager    = "manager"
	restarter  = "restarter"
	specs      = "specs"
	cache      = "cache"
	fileStore  = "file"
	hookStore  = "hook"
	appBase    = "base"
	remoteName = "RemoteKernelManager"
)

var classes = map[string][]string{
	app:       {"EnterpriseGatewayApp", "EnterpriseGatewayConfigMixin"},
	appBase:   {"EnterpriseGatewayApp", "JupyterApp", "Application"},
	mapping:   mappingClasses,
	manager:   {remoteName},
	restarter: {"KernelRestarter", "AsyncIOLoopKernelRestarter", "IOLoopKernelRestarter"},
	specs:     {"KernelSpecManager"},
	cache:     {"KernelSpecCache"},
	fileStore: {"FileKernelSessionManager", "KernelSessionManager", "WebhookKernelSessionManager"},
	hookStore: {"WebhookKernelSessionManager"},
}

var mappingClasses = []string{"RemoteMappingKernelManager", "AsyncMappingKernelManager", "MappingKernelManager",
	"AsyncMultiKernelManager", "MultiKernelManager"}

// aliases are the short forms of the command line.
var aliases = map[string]string{
	"ip": "EnterpriseGatewayApp.ip", "port": "EnterpriseGatewayApp.port",
	"port_retries": "EnterpriseGatewayApp.port_retries", "keyfile": "EnterpriseGatewayApp.keyfile",
	"certfile": "EnterpriseGatewayApp.certfile", "client-ca": "EnterpriseGatewayApp.client_ca",
	"ssl_version": "EnterpriseGatewayApp.ssl_version", "log-level": "Application.log_level",
}

// toggles are the flags without a value. "" means that the flag has no effect on a server.
var toggles = map[string]string{"debug": "Application.log_level", "y": "", "generate-config": "", "show-config": "",
	"show-config-json": ""}

// Reasons of several options.
const (
	noPython    = "ekg runs no Python of an operator"
	noRemote    = "ekg runs kernels as pods or as processes of its machine, and not on other hosts"
	noYarn      = "ekg runs no kernels on YARN or Conductor"
	noDocker    = "ekg runs no kernels on Docker"
	noSSH       = "ekg does not start kernels by SSH"
	noResponse  = "supervisors and gateways talk over TLS; no port for responses is needed"
	noPorts     = "kernels are reached on unix sockets, or inside their pods; see metadata.ekg.transport"
	ownCORS     = "ekg sends the headers that pages of --allow-origin need"
	keepsAlways = "kernels and sessions always outlive the gateway, without a store"
	onlyCommand = "it concerns one command and no server"
	noPoll      = "ekg watches its kernels and does not poll"
)

// variableLine matches NAME=VALUE.
var variableLine = regexp.MustCompile(`^(export )?[A-Za-z_][A-Za-z0-9_]*=`)

// serviceVariable matches what Kubernetes sets beside a service whose name begins with eg.
var serviceVariable = regexp.MustCompile(`^EG_(.*_)?(SERVICE_(HOST|PORT.*)|PORT_\d+_(TCP|UDP).*|PORT)$`)

// table has all options, in the order of ekg's settings.
var table = slices.Concat(gatewayOptions, kernelOptions, single(withoutCounterpart))

// single returns an option for each trait. If there are as many variables as traits, each trait gets the variable at
// its place. An option without a trait becomes one for each variable. So several settings with one reason can share an
// entry.
func single(entries []option) []option {
	var options []option
	for _, o := range entries {
		names := o.env
		if o.group != "" {
			names = o.traits
		}
		if len(names) == 1 {
			options = append(options, o)
			continue
		}
		for i := range names {
			one := o
			if o.group == "" {
				one.env = o.env[i : i+1]
			} else {
				one.traits, one.env = o.traits[i:i+1], nil
				if len(o.env) == len(o.traits) {
					one.env = o.env[i : i+1]
				}
			}
			options = append(options, one)
		}
	}
	return options
}

// named is an option of the app, with its variable and the older name of that.
func named(trait, env string, o option) option {
	o.group, o.traits = app, append([]string{trait}, o.traits...)
	if env != "" {
		o.env = append([]string{"EG_" + env, "KG_" + env}, o.env...)
	}
	return o
}

// gone is an option of the app without a counterpart.
func gone(trait, env, why string) option { return named(trait, env, option{why: why}) }

var gatewayOptions = []option{
	named("ip", "IP", option{setting: "listen"}),
	named("port", "PORT", option{setting: "listen"}),
	named("base_url", "BASE_URL", option{setting: "base-url"}),
	named("allow_origin", "ALLOW_ORIGIN", option{setting: "allow-origin", convert: asList}),
	named("certfile", "CERTFILE", option{setting: "tls-cert"}),
	named("keyfile", "KEYFILE", option{setting: "tls-key"}),
	named("auth_token", "AUTH_TOKEN", option{setting: "token", secret: true}),
	named("max_kernels", "MAX_KERNELS", option{setting: "max-kernels"}),
	named("max_kernels_per_user", "MAX_KERNELS_PER_USER", option{setting: "max-kernels-per-user"}),
	{group: app, traits: []string{"authorized_users"}, env: []string{"EG_AUTHORIZED_USERS"}, list: true,
		setting: "authorized-user", convert: verified},
	{group: app, traits: []string{"unauthorized_users"}, env: []string{"EG_UNAUTHORIZED_USERS"}, list: true,
		setting: "unauthorized-user", convert: verified},
}

var kernelOptions = []option{
	{group: specs, traits: []string{"whitelist", "allowed_kernelspecs"},
		env: []string{"EG_ALLOWED_KERNELS", "EG_KERNEL_WHITELIST"}, list: true, setting: "allowed-kernelspec"},
	named("default_kernel_name", "DEFAULT_KERNEL_NAME", option{setting: "default-kernel"}),
	{group: mapping, traits: []string{"default_kernel_name"},
		why: "EnterpriseGatewayApp.default_kernel_name has the effect in Enterprise Gateway, too"},
	named("client_envs", "CLIENT_ENVS", option{setting: "client-env", convert: variables, list: true,
		traits: []string{"env_whitelist"}, env: []string{"EG_ENV_WHITELIST"}}),
	named("inherited_envs", "INHERITED_ENVS", option{setting: "inherit-env", list: true,
		traits: []string{"env_process_whitelist"}, env: []string{"EG_ENV_PROCESS_WHITELIST"}}),
	{group: manager, traits: []string{"shutdown_wait_time"}, setting: "stop-grace", convert: seconds},
	{group: mapping, traits: []string{"cull_idle_timeout"}, env: []string{"EG_CULL_IDLE_TIMEOUT"},
		setting: "cull-idle-timeout"},
	{group: mapping, traits: []string{"cull_connected"}, env: []string{"EG_CULL_CONNECTED"}, setting: "cull-connected"},
	{group: mapping, traits: []string{"cull_busy"}, setting: "cull-busy"},
	{group: mapping, traits: []string{"cull_interval"}, env: []string{"EG_CULL_INTERVAL"},
		why: "ekg culls at the moment that is due; --cull-interval is for --cull-cpu and --cull-gpu"},
	{env: []string{"EG_NAMESPACE"}, setting: "kube-namespace"},
	{env: []string{"EG_KERNEL_IMAGE"}, setting: "kernel-image"},
	{group: appBase, traits: []string{"log_level"}, env: []string{"EG_LOG_LEVEL"}, setting: "log-level"},
}

var withoutCounterpart = []option{
	gone("port_retries", "PORT_RETRIES", "ekg takes the port of --listen and no other; port 0 takes a free one"),
	gone("allow_credentials", "ALLOW_CREDENTIALS", ownCORS),
	gone("allow_headers", "ALLOW_HEADERS", ownCORS),
	gone("allow_methods", "ALLOW_METHODS", ownCORS),
	gone("expose_headers", "EXPOSE_HEADERS", ownCORS),
	gone("max_age", "MAX_AGE", ownCORS),
	gone("trust_xheaders", "TRUST_XHEADERS", "a client's address only decides whether its websockets are compressed"),
	gone("client_ca", "CLIENT_CA", "ekg takes no client certificates; a proxy in front of it can demand them"),
	gone("authorized_origin", "AUTHORIZED_ORIGIN", "ekg takes no client certificates; a proxy can demand them"),
	gone("ssl_version", "SSL_VERSION", "ekg serves TLS 1.2 and 1.3"),
	gone("authorizer_class", "AUTHORIZER_CLASS", noPython+"; see docs/users.md for the rights of users"),
	gone("list_kernels", "LIST_KERNELS", "kernels are always listed; with users, each sees their own"),
	gone("kernel_headers", "KERNEL_HEADERS", "no header of a client reaches a kernel"),
	gone("impersonation_enabled", "IMPERSONATION_ENABLED",
		"kernels of one machine run as ekg's user; in a cluster KERNEL_UID sets the user"),
	gone("port_range", "PORT_RANGE", noPorts),
	{group: app, traits: []string{"ws_ping_interval"}, env: []string{"EG_WS_PING_INTERVAL_SECS"},
		why: "supervisors send pings as often as delivery needs them"},
	gone("dynamic_config_interval", "DYNAMIC_CONFIG_INTERVAL",
		"a restart of ekg reads the settings; kernels go on, and clients reconnect"),
	gone("availability_mode", "AVAILABILITY_MODE", keepsAlways),
	gone("kernel_manager_class", "", noPython),
	gone("kernel_session_manager_class", "", noPython),
	gone("kernel_spec_manager_class", "", noPython),
	gone("kernel_spec_cache_class", "", noPython),
	gone("remote_hosts", "REMOTE_HOSTS", noRemote),
	gone("load_balancing_algorithm", "LOAD_BALANCING_ALGORITHM", noRemote),
	gone("yarn_endpoint", "YARN_ENDPOINT", noYarn),
	gone("alt_yarn_endpoint", "ALT_YARN_ENDPOINT", noYarn),
	gone("yarn_endpoint_security_enabled", "YARN_ENDPOINT_SECURITY_ENABLED", noYarn),
	gone("conductor_endpoint", "CONDUCTOR_ENDPOINT", noYarn),
	{group: appBase, traits: []string{"log_format", "log_datefmt", "logging_config"},
		why: "--log-format chooses between text and json"},
	{group: appBase, traits: []string{"answer_yes", "config_file", "config_file_name", "generate_config", "show_config",
		"show_config_json"}, why: onlyCommand},
	{group: mapping, traits: []string{"kernel_info_timeout"}, env: []string{"EG_KERNEL_INFO_TIMEOUT"},
		why: "30 minutes without progress end a start"},
	{group: mapping, traits: []string{"buffer_offline_messages"}, why: "output is always kept, up to --log-limit"},
	{group: mapping, traits: []string{"allowed_message_types", "allow_tracebacks", "traceback_replacement_message"},
		why: "ekg passes on all messages of a kernel unchanged"},
	{group: mapping, traits: []string{"root_dir"}, why: "ekg serves no files"},
	{group: mapping, traits: []string{"shared_context"}, why: "each kernel has a supervisor of its own"},
	{group: mapping, traits: []string{"kernel_manager_class"}, why: noPython},
	{group: restarter, traits: []string{"time_to_dead", "restart_limit", "random_ports_until_alive", "debug"},
		why: "a supervisor notices the end of its kernel at once, and says why it ended"},
	{group: specs, traits: []string{"ensure_native_kernel", "kernel_spec_class"},
		why: "ekg offers only kernelspecs of files"},
	{group: cache, traits: []string{"cache_enabled"}, env: []string{"EG_KERNELSPEC_CACHE_ENABLED"},
		why: "kernelspecs are always kept in memory, and their directories watched"},
	{group: fileStore, traits: []string{"enable_persistence", "persistence_root"},
		env: []string{"EG_KERNEL_SESSION_PERSISTENCE", "EG_PERSISTENCE_ROOT"}, why: keepsAlways},
	{group: hookStore, traits: []string{"webhook_url", "auth_type", "webhook_username", "webhook_password"},
		env: []string{"EG_WEBHOOK_URL", "EG_AUTH_TYPE", "EG_WEBHOOK_USERNAME", "EG_WEBHOOK_PASSWORD"}, why: keepsAlways},
	{group: manager, traits: []string{"autorestart"}, why: "a supervisor decides by how its kernel ended"},
	{group: manager, traits: []string{"*"},
		why: "ekg has no kernel managers; the option has no effect on kernels"},
	{env: []string{"EG_SHARED_NAMESPACE", "EG_KERNEL_CLUSTER_ROLE"},
		why: "all kernels run in the namespace of --kube-namespace, and get no rights there"},
	{env: []string{"EG_DEFAULT_KERNEL_SERVICE_ACCOUNT_NAME"}, explain: defaultAccount},
	{env: []string{"EG_KERNEL_EXECUTOR_IMAGE"}, why: "ekg starts no executors of Spark"},
	{env: []string{"EG_PROHIBITED_UIDS"}, explain: prohibited("userIDs")},
	{env: []string{"EG_PROHIBITED_GIDS"}, explain: prohibited("groupIDs")},
	{env: []string{"EG_MIRROR_WORKING_DIRS"}, why: "metadata.ekg.workingDir of a kernelspec sets the working directory"},
	{env: []string{"EG_POD_TEMPLATE_DIR"}, why: "ekg runs no templates; metadata.ekg describes the pod"},
	{env: []string{"EG_KERNEL_LAUNCH_TIMEOUT"}, why: "KERNEL_LAUNCH_TIMEOUT of a client works. Without it, --start-wait " +
		"is how long a POST waits; the start goes on then, and 30 minutes without progress end it"},
	{env: []string{"EG_POLL_INTERVAL", "EG_MAX_POLL_ATTEMPTS", "EG_RESTART_STATUS_POLL_INTERVAL"}, why: noPoll},
	{env: []string{"EG_SOCKET_TIMEOUT", "EG_RESPONSE_IP", "EG_RESPONSE_PORT", "EG_RESPONSE_PORT_RETRIES",
		"EG_RESPONSE_ADDR_ANY", "EG_PROHIBITED_LOCAL_IPS"}, why: noResponse},
	{env: []string{"EG_MIN_PORT_RANGE_SIZE", "EG_MAX_PORT_RANGE_RETRIES"}, why: noPorts},
	{env: []string{"EG_SENSITIVE_ENV_KEYS", "EG_REDACTION_MASK"}, why: "ekg logs no values of variables"},
	{env: []string{"EG_KUBERNETES_LOG_LEVEL", "EG_SSH_LOG_LEVEL", "EG_DOCKER_LOG_LEVEL", "EG_YARN_LOG_LEVEL"},
		why: "--log-level holds for all of ekg"},
	{env: []string{"EG_ZMQ_MAX_SOCKETS", "EG_ZMQ_IO_THREADS"}, why: "each kernel has a supervisor of its own"},
	{env: []string{"EG_ENABLE_TUNNELING", "EG_SSH_PORT", "EG_REMOTE_USER", "EG_REMOTE_PWD", "EG_REMOTE_GSS_SSH",
		"EG_KERNEL_LOG_DIR"}, why: noSSH},
	{env: []string{"EG_DOCKER_NETWORK", "EG_DOCKER_MODE", "EG_REMOVE_CONTAINER"}, why: noDocker},
	{env: []string{"EG_YARN_CERT_BUNDLE", "EG_YARN_MUTUAL_AUTHENTICATION", "EG_YARN_SHUTDOWN_WAIT_TIME"}, why: noYarn},
	{env: []string{"EG_ALTERNATE_SIGINT"}, why: "Enterprise Gateway reads it in a kernelspec's env only"},
}

// optionOf returns the option of Class.trait, or nil.
func optionOf(name string) *option {
	class, trait, _ := strings.Cut(name, ".")
	for i, o := range table {
		if slices.Contains(classes[o.group], class) && (slices.Contains(o.traits, trait) || slices.Contains(o.traits, "*")) {
			return &table[i]
		}
	}
	return nil
}

// variableOf returns the option that a variable sets, or nil.
func variableOf(name string) *option {
	for i, o := range table {
		if slices.Contains(o.env, name) {
			return &table[i]
		}
	}
	return nil
}
