package settings

import (
	"errors"
	"fmt"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// UserSources returns the names of the given options that are sources of users.
func (s *Settings) UserSources() []string {
	var given []string
	for _, source := range []struct {
		name  string
		there bool
	}{
		{"users-file", s.UsersFile != ""}, {"oidc-issuer", s.OIDC.Issuer != ""},
		{"auth-token-review", s.TokenReview}, {"hub-api-url", s.HubAPI != ""},
	} {
		if source.there {
			given = append(given, source.name)
		}
	}
	return given
}

// anySource lists the settings in errors that require one source of users.
const anySource = "users-file, --oidc-issuer, --auth-token-review or --hub-api-url"

// enterpriseUnauthorized is the user who may start no kernels where nothing is set, as in Enterprise Gateway.
const enterpriseUnauthorized = "root"

// unauthorizedByChoice reports whether the operator has chosen the users who may start no kernels. The default of
// Enterprise Gateway does not count: its deployments repeat it.
func (s *Settings) unauthorizedByChoice() bool {
	unauthorized := s.Specs.Users.Unauthorized
	return len(unauthorized) > 0 && !slices.Equal(unauthorized, []string{enterpriseUnauthorized})
}

// SpecUsers returns the gateway's own lists of users for its kernelspecs. They are empty if the gateway has no users.
func (s *Settings) SpecUsers() kernelspecs.Users {
	if len(s.UserSources()) == 0 {
		return kernelspecs.Users{}
	}
	return s.Specs.Users
}

// checkUsers rejects settings of users that contradict each other or would have no effect.
func (s *Settings) checkUsers(refuse func(name, format string, args ...any)) {
	sources := s.UserSources()
	if len(sources) > 0 {
		from := s.Place(sources[0])
		const why = "there are users (%s), so no token can be shared by all; make one for each user with `ekg token`"
		switch {
		case s.Gateway.Token != "":
			refuse("token", why, from)
		case s.TokenFile != "":
			refuse("token-file", why, from)
		case s.NoAuth:
			refuse("no-auth", "contradicts %s", from)
		}
	}
	for _, o := range []struct {
		name  string
		given bool
		needs string
		there bool
	}{
		{"oidc-audience", s.OIDC.Audience != "", "oidc-issuer", s.OIDC.Issuer != ""},
		{"oidc-max-token-age", s.OIDC.MaxAge > 0, "oidc-issuer", s.OIDC.Issuer != ""},
		{"auth-token-audience", len(s.TokenAudiences) > 0, "auth-token-review", s.TokenReview},
		{"admin-user", len(s.Identity.AdminUsers) > 0, anySource, len(sources) > 0},
		{"admin-group", len(s.Identity.AdminGroups) > 0, anySource, len(sources) > 0},
		{"authorized-user", len(s.Specs.Users.Authorized) > 0, anySource, len(sources) > 0},
		{"unauthorized-user", s.unauthorizedByChoice(), anySource, len(sources) > 0},
		{"max-kernels-per-group", s.Limits.PerGroup > 0, anySource, len(sources) > 0},
		{"max-gpus-per-group", s.Limits.GPUsPerGroup > 0, anySource, len(sources) > 0},
	} {
		if o.given && !o.there {
			refuse(o.name, "has no effect without --%s", o.needs)
		}
	}
	if _, err := s.NewOIDC(); err != nil {
		refuse("oidc-issuer", "%v", err)
	}
	if _, err := s.NewHub(); err != nil {
		refuse("hub-api-url", "%v", err)
	}
}

// NewOIDC returns the OpenID Connect issuer, or nil if the settings have none.
func (s *Settings) NewOIDC() (*identity.OIDC, error) {
	if s.OIDC.Issuer == "" {
		return nil, nil
	}
	if s.OIDC.Audience == "" {
		return nil, errors.New("--oidc-audience is missing: tokens for other services would be accepted")
	}
	return identity.NewOIDC(s.OIDC)
}

// NewHub returns the JupyterHub, or nil if the settings have none.
func (s *Settings) NewHub() (*identity.JupyterHub, error) {
	if s.HubAPI == "" {
		return nil, nil
	}
	if s.HubService == "" {
		return nil, errors.New("--hub-service is missing: the hub grants access to a service by its name")
	}
	return identity.NewJupyterHub(s.HubAPI, s.HubService, s.HubToken)
}

func checkUser(t string) error {
	if err := identity.CheckName(t); err != nil {
		return fmt.Errorf("%q: the name %w", t, err)
	}
	return nil
}
