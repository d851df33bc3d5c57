package settings

import (
	"strconv"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway"
	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
)

// gatewaySettings set the gateway's address, its users and their limits.
var gatewaySettings = []Group{
	{"Listen and be reached", []Option{
		{
			Name: "listen", Env: []string{"EKG_LISTEN"}, def: "127.0.0.1:8888",
			value: text(func(s *Settings) *string { return &s.Listen }, checkListen),
			Usage: "address to listen on: host:port or unix:/path. Port 0 takes a free port. EG_IP and EG_PORT are " +
				"accepted too",
		},
		{
			Name: "base-url", Env: []string{"EKG_BASE_URL"}, def: "/", field: "BaseURL",
			value: text(func(s *Settings) *string { return &s.Gateway.BaseURL }),
			Usage: "path in front of all routes",
		},
		{
			Name: "allow-origin", Env: []string{"EKG_ALLOW_ORIGIN"}, field: "AllowOrigins",
			value: list(func(s *Settings) *[]string { return &s.Gateway.AllowOrigins }),
			Usage: "origin of another host whose pages may use the gateway, as scheme://host[:port]; repeatable. * allows " +
				"the pages of all hosts, and needs tokens",
		},
		{
			Name: "allow-host", Env: []string{"EKG_ALLOW_HOST"}, field: "AllowHosts",
			value: list(func(s *Settings) *[]string { return &s.Gateway.AllowHosts }),
			Usage: "host name, without a port, that a request's Host header may have; repeatable. localhost and loopback " +
				"addresses are always allowed. A gateway on another address checks the header only if this is set",
		},
		{
			Name: "tls-cert", Env: []string{"EKG_TLS_CERT"},
			value: text(func(s *Settings) *string { return &s.TLSCert }),
			Usage: "PEM file with the certificate chain. It switches to HTTPS and needs --tls-key",
		},
		{
			Name: "tls-key", Env: []string{"EKG_TLS_KEY"},
			value: text(func(s *Settings) *string { return &s.TLSKey }),
			Usage: "PEM file with the key of the certificate",
		},
		{
			Name: "max-body", Env: []string{"EKG_MAX_BODY"}, def: formatSize(gateway.DefaultMaxBody), field: "MaxBody",
			value: size(func(s *Settings) *int64 { return &s.Gateway.MaxBody }, positive),
			Usage: "largest body of a REST request, in bytes or with KiB, MiB, GiB",
		},
		{
			Name: "compress-websockets", Env: []string{"EKG_COMPRESS_WEBSOCKETS"}, field: "CompressWebsockets",
			value: boolean(func(s *Settings) *bool { return &s.Gateway.CompressWebsockets }),
			Usage: "compress websocket messages of 1 KiB and more. The client must offer it and be on another machine",
		},
	}},
	{"Say who may connect", []Option{
		{
			Name: "token", Env: []string{"EKG_TOKEN"},
			defDoc: "generated once, kept in the state directory", secret: true, field: "Token",
			value: text(func(s *Settings) *string { return &s.Gateway.Token }, notEmpty),
			Usage: "token that every request needs. Other users of this machine can read it on the command line: prefer " +
				"--token-file",
		},
		{
			Name: "token-file", Env: []string{"EKG_TOKEN_FILE"},
			value: text(func(s *Settings) *string { return &s.TokenFile }),
			Usage: "file with the token",
		},
		{
			Name: "users-file", Env: []string{"EKG_USERS_FILE"},
			value: text(func(s *Settings) *string { return &s.UsersFile }),
			Usage: "YAML file with users and the hashes of their tokens; it is read again when it changes. With it, each " +
				"kernel belongs to a user, and --token, --token-file and --no-auth are rejected. See docs/users.md",
		},
		{
			Name: "oidc-issuer", Env: []string{"EKG_OIDC_ISSUER"},
			value: text(func(s *Settings) *string { return &s.OIDC.Issuer }),
			Usage: "URL of an OpenID Connect issuer whose signed tokens are accepted",
		},
		{
			Name: "oidc-audience", Env: []string{"EKG_OIDC_AUDIENCE"},
			value: text(func(s *Settings) *string { return &s.OIDC.Audience }),
			Usage: "audience that the issuer's tokens must have",
		},
		{
			Name: "oidc-name-claim", Env: []string{"EKG_OIDC_NAME_CLAIM"}, def: "sub",
			value: text(func(s *Settings) *string { return &s.OIDC.NameClaim }, notEmpty),
			Usage: "claim of the issuer's tokens with the name of the user",
		},
		{
			Name: "oidc-max-token-age", Env: []string{"EKG_OIDC_MAX_TOKEN_AGE"}, def: "0s",
			value: duration(func(s *Settings) *time.Duration { return &s.OIDC.MaxAge }),
			Usage: "greatest age of a token of the issuer; 0: tokens are accepted until they expire. Until then a signed " +
				"token cannot be revoked",
		},
		{
			Name: "auth-token-review", Env: []string{"EKG_AUTH_TOKEN_REVIEW"}, def: "false",
			value: boolean(func(s *Settings) *bool { return &s.TokenReview }),
			Usage: "accept tokens that the Kubernetes cluster knows, for example those of service accounts. The gateway's " +
				"account must be allowed to create tokenreviews",
		},
		{
			Name: "auth-token-audience", Env: []string{"EKG_AUTH_TOKEN_AUDIENCE"}, defDoc: "the cluster's own",
			value: list(func(s *Settings) *[]string { return &s.TokenAudiences }),
			Usage: "audience that the cluster's tokens must have; repeatable. One of them is enough",
		},
		{
			Name: "hub-api-url", Env: []string{"EKG_HUB_API_URL"},
			value: text(func(s *Settings) *string { return &s.HubAPI }),
			Usage: "URL of a JupyterHub's API, for example http://hub:8081/hub/api. The gateway accepts tokens of users who " +
				"may access this service of the hub",
		},
		{
			Name: "hub-service", Env: []string{"EKG_HUB_SERVICE", "JUPYTERHUB_SERVICE_NAME"},
			value: text(func(s *Settings) *string { return &s.HubService }),
			Usage: "name of this service in the hub's configuration",
		},
		{
			Name: "hub-token", Env: []string{"EKG_HUB_TOKEN", "JUPYTERHUB_API_TOKEN"}, secret: true,
			value: text(func(s *Settings) *string { return &s.HubToken }),
			Usage: "token of this service at the hub, with the scope read:users:name. With it, the gateway asks the hub " +
				"whether the owner of a job is still a user. Other users of this machine can read it on the command line: " +
				"prefer the environment",
		},
		{
			Name: "admin-user", Env: []string{"EKG_ADMIN_USER"},
			value: list(func(s *Settings) *[]string { return &s.Identity.AdminUsers }, checkUser),
			Usage: "user who may see and do everything, besides the admins of --users-file; repeatable",
		},
		{
			Name: "admin-group", Env: []string{"EKG_ADMIN_GROUP"},
			value: list(func(s *Settings) *[]string { return &s.Identity.AdminGroups }, checkUser),
			Usage: "group whose users may see and do everything; repeatable",
		},
		{
			Name: "auth-cache", Env: []string{"EKG_AUTH_CACHE"}, def: identity.DefaultKeep.String(),
			value: duration(func(s *Settings) *time.Duration { return &s.Identity.Keep }, positive),
			Usage: "how long the answer of an issuer, a cluster or a hub about a token is kept. A token that a cluster " +
				"or a hub revokes stays valid here for at most that time",
		},
		{
			Name: "no-auth", Env: []string{"EKG_NO_AUTH"}, def: "false",
			value: noAuth,
			Usage: "accept requests without a token: anyone who reaches the port can run code. --no-auth=remote allows that " +
				"on an address that other machines reach",
		},
	}},
	{"Limit what users may use", []Option{
		{
			Name: "authorized-user", Env: []string{"EKG_AUTHORIZED_USER"}, defDoc: "all users",
			value: list(func(s *Settings) *[]string { return &s.Specs.Users.Authorized }, checkUser),
			Usage: "user who may start kernels; repeatable. If it is set, only these users and admins may. A list in a " +
				"kernelspec replaces this one. See docs/users.md",
		},
		{
			Name: "unauthorized-user", Env: []string{"EKG_UNAUTHORIZED_USER"},
			def:   enterpriseUnauthorized,
			value: list(func(s *Settings) *[]string { return &s.Specs.Users.Unauthorized }, checkUser),
			Usage: "user who may start no kernels, even if authorized; repeatable. A list in a kernelspec adds to this one",
		},
		{
			Name: "max-kernels", Env: []string{"EKG_MAX_KERNELS"}, def: "0",
			value: most(func(s *Settings) *int { return &s.Limits.Kernels }),
			Usage: "most kernels at one time, over all gateways; 0 for no limit. Kernels that start, run or stop count. " +
				"See docs/limits.md",
		},
		{
			Name: "max-kernels-per-user", Env: []string{"EKG_MAX_KERNELS_PER_USER"}, def: "0",
			value: most(func(s *Settings) *int { return &s.Limits.PerUser }),
			Usage: "most kernels of each user at one time; 0 or less for no limit. --users-file can set another limit for " +
				"a user",
		},
		{
			Name: "max-kernels-per-group", Env: []string{"EKG_MAX_KERNELS_PER_GROUP"}, def: "0",
			value: most(func(s *Settings) *int { return &s.Limits.PerGroup }),
			Usage: "most kernels of all users of a group together; 0 for no limit. --users-file can set another limit for " +
				"a group",
		},
		{
			Name: "max-kernels-per-kernelspec", Env: []string{"EKG_MAX_KERNELS_PER_KERNELSPEC"}, def: "0",
			value: most(func(s *Settings) *int { return &s.Limits.PerKernelspec }),
			Usage: "most kernels of each kernelspec at one time; 0 for no limit. A kernelspec may set a lower limit " +
				"(metadata.ekg.limits)",
		},
		{
			Name: "max-gpus-per-user", Env: []string{"EKG_MAX_GPUS_PER_USER"}, def: "0",
			value: most(func(s *Settings) *int { return &s.Limits.GPUsPerUser }),
			Usage: "most GPUs, or slices of GPUs, of each user at one time; 0 for no limit",
		},
		{
			Name: "max-gpus-per-group", Env: []string{"EKG_MAX_GPUS_PER_GROUP"}, def: "0",
			value: most(func(s *Settings) *int { return &s.Limits.GPUsPerGroup }),
			Usage: "most GPUs of all users of a group together; 0 for no limit",
		},
		{
			Name: "max-starts-per-minute", Env: []string{"EKG_MAX_STARTS_PER_MINUTE"},
			def: "0", field: "StartsPerMinute",
			value: count(func(s *Settings) *int { return &s.Gateway.StartsPerMinute }),
			Usage: "most kernels that each user may start in a minute; 0 for no limit. A restart of a dead kernel counts",
		},
		{
			Name: "max-connections-per-user", Env: []string{"EKG_MAX_CONNECTIONS_PER_USER"},
			def: "0", field: "ConnectionsPerUser",
			value: count(func(s *Settings) *int { return &s.Gateway.ConnectionsPerUser }),
			Usage: "most connections of each user to one gateway: open websockets, readers of logs and events, and waits " +
				"for jobs; 0 for no limit",
		},
		{
			Name: "max-connections-per-kernel", Env: []string{"EKG_MAX_CONNECTIONS_PER_KERNEL"},
			def: "0", field: "ConnectionsPerKernel",
			value: count(func(s *Settings) *int { return &s.Gateway.ConnectionsPerKernel }),
			Usage: "most open websockets to one kernel through one gateway; 0: only the supervisor's own limits hold",
		},
		{
			Name: "max-jobs-per-user", Env: []string{"EKG_MAX_JOBS_PER_USER"}, def: strconv.Itoa(jobs.DefaultPerUser),
			value: count(func(s *Settings) *int { return &s.Gateway.Jobs.PerUser }),
			Usage: "most jobs of each user that have not ended; 0 for no limit. See docs/jobs.md",
		},
		{
			Name: "max-job-definitions-per-user", Env: []string{"EKG_MAX_JOB_DEFINITIONS_PER_USER"},
			def:   strconv.Itoa(jobs.DefaultDefinitions),
			value: count(func(s *Settings) *int { return &s.Gateway.Jobs.Definitions }),
			Usage: "most job definitions, for example schedules, of each user; 0 for no limit. See docs/jobs.md",
		},
		{
			Name: "jobs-keep", Env: []string{"EKG_JOBS_KEEP"}, def: strconv.Itoa(jobs.DefaultKeep),
			value: count(func(s *Settings) *int { return &s.Gateway.Jobs.Keep }),
			Usage: "how many ended jobs of each user are kept, with their notebooks; 0: all",
		},
		{
			Name: "jobs-keep-for", Env: []string{"EKG_JOBS_KEEP_FOR"}, def: jobs.DefaultKeepFor.String(),
			value: limit(func(s *Settings) *time.Duration { return &s.Gateway.Jobs.KeepFor }),
			Usage: "how long a job is kept after its end; 0: it is never removed",
		},
		{
			Name: "jobs-owner-absence", Env: []string{"EKG_JOBS_OWNER_ABSENCE"}, def: jobs.DefaultOwnerAbsence.String(),
			value: limit(func(s *Settings) *time.Duration { return &s.Gateway.Jobs.OwnerAbsence }),
			Usage: "how long jobs of a user start after the user's last verified token, where only tokens tell who is a user: " +
				"with an issuer or a cluster; 0: without a limit. See docs/users.md",
		},
		{
			Name: "jobs-dir", Env: []string{"EKG_JOBS_DIR"}, field: "Jobs",
			value: text(func(s *Settings) *string { return &s.Gateway.Jobs.Dir }),
			Usage: "folder, which all gateways mount, with the jobs and their notebooks. Empty: they are in --state-dir, or " +
				"in config maps of the cluster. See docs/jobs.md",
		},
	}},
}
