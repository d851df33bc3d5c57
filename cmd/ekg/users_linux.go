package main

import (
	"fmt"
	"log/slog"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
)

// openUsersFile returns the file of users, or nil without --users-file.
func openUsersFile(s *settings.Settings) (*identity.File, error) {
	if s.UsersFile == "" {
		return nil, nil
	}
	return identity.OpenFile(s.UsersFile)
}

// openUsers returns the verifier of users' tokens, or nil if the settings have no users. The file may be nil.
func openUsers(s *settings.Settings, file *identity.File, log *slog.Logger) (*identity.Verifier, error) {
	if len(s.UserSources()) == 0 {
		return nil, nil
	}
	o := s.Identity
	o.File, o.Log = file, log
	// The issuer comes first. Two sources accept JSON Web Tokens, and the issuer accepts only its own.
	oidc, err := s.NewOIDC()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Place("oidc-issuer"), err)
	}
	if oidc != nil {
		o.Sources = append(o.Sources, oidc)
	}
	if s.TokenReview {
		cluster.LogTo(log)
		cluster, err := cluster.Connect(s.Kubeconfig, s.KubeContext)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Place("auth-token-review"), err)
		}
		o.Sources = append(o.Sources, &identity.TokenReview{Reviewer: cluster, Audiences: s.TokenAudiences})
	}
	hub, err := s.NewHub()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Place("hub-api-url"), err)
	}
	if hub != nil {
		o.Sources = append(o.Sources, hub)
	}
	return identity.New(o)
}
