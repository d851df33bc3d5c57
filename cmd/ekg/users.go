package main

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/elastic-kernel-gateway/ekg/gateway"
	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube"
)

// userSources are the options that say where users come from, those that are given.
func (s *settings) userSources() []string {
	var given []string
	for _, source := range []struct {
		name  string
		there bool
	}{{"users-file", s.usersFile != ""}, {"oidc-issuer", s.oidcIssuer != ""}, {"auth-token-review", s.tokenReview}, {"hub-api-url", s.hubAPI != ""}} {
		if source.there {
			given = append(given, source.name)
		}
	}
	return given
}

// checkUsers refuses settings about users that contradict others or would have no effect.
func (s *settings) checkUsers(refuse func(name, format string, args ...any)) {
	sources := s.userSources()
	if len(sources) > 0 {
		from := s.origins[sources[0]].place
		const why = "there are users (%s): a shared token would be that of nobody, or of all of them. Make one for a user with `ekg token`"
		switch {
		case s.token != "":
			refuse("token", why, from)
		case s.tokenFile != "":
			refuse("token-file", why, from)
		case s.noAuth:
			refuse("no-auth", "contradicts %s", from)
		}
	}
	for _, o := range []struct {
		name  string
		given bool
		needs string
		there bool
	}{
		{"oidc-audience", s.oidcAudience != "", "oidc-issuer", s.oidcIssuer != ""},
		{"oidc-groups-claim", s.oidcGroups != "", "oidc-issuer", s.oidcIssuer != ""},
		{"auth-token-audience", len(s.tokenAudiences) > 0, "auth-token-review", s.tokenReview},
		{"admin-user", len(s.adminUsers) > 0, "users-file, --oidc-issuer, --auth-token-review or --hub-api-url", len(sources) > 0},
		{"admin-group", len(s.adminGroups) > 0, "users-file, --oidc-issuer, --auth-token-review or --hub-api-url", len(sources) > 0},
		{"max-kernels-per-group", s.maxKernelsPerGroup > 0, "users-file, --oidc-issuer, --auth-token-review or --hub-api-url", len(sources) > 0},
		{"max-gpus-per-group", s.maxGPUsPerGroup > 0, "users-file, --oidc-issuer, --auth-token-review or --hub-api-url", len(sources) > 0},
		{"max-gpus-per-group", s.maxGPUsPerGroup > 0, "launcher kubernetes", s.launcher == "kubernetes"},
		{"max-gpus-per-user", s.maxGPUsPerUser > 0, "launcher kubernetes", s.launcher == "kubernetes"},
	} {
		if o.given && !o.there {
			refuse(o.name, "has no effect without --%s", o.needs)
		}
	}
	if _, err := s.newOIDC(); err != nil {
		refuse("oidc-issuer", "%v", err)
	}
	if _, err := s.newHub(); err != nil {
		refuse("hub-api-url", "%v", err)
	}
}

// newOIDC returns nil where there is no issuer.
func (s *settings) newOIDC() (*identity.OIDC, error) {
	if s.oidcIssuer == "" {
		return nil, nil
	}
	if s.oidcAudience == "" {
		return nil, errors.New("--oidc-audience is missing: tokens that are for others would be taken")
	}
	return identity.NewOIDC(identity.OIDCOptions{Issuer: s.oidcIssuer, Audience: s.oidcAudience, NameClaim: s.oidcName, GroupsClaim: s.oidcGroups})
}

// newHub returns nil where there is no hub.
func (s *settings) newHub() (*identity.JupyterHub, error) {
	if s.hubAPI == "" {
		return nil, nil
	}
	if s.hubService == "" {
		return nil, errors.New("--hub-service is missing: the hub says by that name who may come here")
	}
	return identity.NewJupyterHub(s.hubAPI, s.hubService)
}

// openUsersFile returns the file of users, nil where there is none.
func (s *settings) openUsersFile() (*identity.File, error) {
	if s.usersFile == "" {
		return nil, nil
	}
	return identity.OpenFile(s.usersFile)
}

// kernelLimits are how many kernels there may be. Whether there is any limit may change with the file of users and the kernelspecs.
func (s *settings) kernelLimits(specs gateway.Specs, file *identity.File) *gateway.KernelLimits {
	return &gateway.KernelLimits{Kernels: s.maxKernels, PerUser: s.maxKernelsPerUser, PerGroup: s.maxKernelsPerGroup, PerKernelspec: s.maxKernelsPerSpec,
		GPUsPerUser: s.maxGPUsPerUser, GPUsPerGroup: s.maxGPUsPerGroup, Specs: specs, File: file}
}

// openUsers returns what tells whose token it is, nil where there are no users. The file may be nil.
func (s *settings) openUsers(file *identity.File, log *slog.Logger) (*identity.Verifier, error) {
	if len(s.userSources()) == 0 {
		return nil, nil
	}
	o := identity.Options{File: file, Keep: s.authCache, AdminUsers: s.adminUsers, AdminGroups: s.adminGroups, Log: log}
	// The issuer first: of the two that take JSON Web Tokens it takes only its own.
	oidc, err := s.newOIDC()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.origins["oidc-issuer"].place, err)
	}
	if oidc != nil {
		o.Sources = append(o.Sources, oidc)
	}
	if s.tokenReview {
		kube.LogTo(log)
		cluster, err := kube.Connect(s.kubeconfig, s.kubeContext)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.origins["auth-token-review"].place, err)
		}
		o.Sources = append(o.Sources, &identity.TokenReview{Reviewer: cluster, Audiences: s.tokenAudiences})
	}
	hub, err := s.newHub()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.origins["hub-api-url"].place, err)
	}
	if hub != nil {
		o.Sources = append(o.Sources, hub)
	}
	return identity.New(o)
}

func checkUser(t string) error {
	if err := identity.CheckName(t); err != nil {
		return fmt.Errorf("%q: the name %w", t, err)
	}
	return nil
}

const (
	minToken = 20      // characters of a token that somebody else has made
	maxStdin = 1 << 10 // bytes
)

// tokenCommand makes a token for a user, or the hash of one that there is.
func tokenCommand() *cli.Command {
	return &cli.Command{Name: "token", Usage: "make a token for a user, and the hash of it for the file of users", OnUsageError: refuseUsage,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "stdin", Usage: "read a token, and print its hash"}},
		Action: func(c *cli.Context) error {
			if err := arguments(c, 0); err != nil {
				return err
			}
			if c.Bool("stdin") {
				return hashToken(os.Stdin, c.App.Writer)
			}
			random := make([]byte, 32)
			if _, err := rand.Read(random); err != nil {
				return err
			}
			token := "ekg_" + base64.RawURLEncoding.EncodeToString(random)
			_, err := fmt.Fprintf(c.App.Writer, "token: %s\nhash: %s\n", token, identity.Hash(token))
			return err
		}}
}

// hashToken prints the hash of the token that is read.
func hashToken(r io.Reader, w io.Writer) error {
	b, err := io.ReadAll(io.LimitReader(r, maxStdin))
	if err != nil {
		return err
	}
	token := strings.TrimSpace(string(b))
	switch {
	case strings.ContainsAny(token, " \t\r\n"):
		return errors.New("standard input does not hold exactly one word")
	case len(token) < minToken:
		return fmt.Errorf("the token has fewer than %d characters: it could be guessed from its hash", minToken)
	}
	_, err = fmt.Fprintf(w, "hash: %s\n", identity.Hash(token))
	return err
}
