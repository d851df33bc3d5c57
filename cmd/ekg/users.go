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

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube"
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
	o := identity.Options{File: file, Keep: s.AuthCache, AdminUsers: s.AdminUsers, AdminGroups: s.AdminGroups, Log: log}
	// The issuer comes first. Two sources accept JSON Web Tokens, and the issuer accepts only its own.
	oidc, err := s.NewOIDC()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Place("oidc-issuer"), err)
	}
	if oidc != nil {
		o.Sources = append(o.Sources, oidc)
	}
	if s.TokenReview {
		kube.LogTo(log)
		cluster, err := kube.Connect(s.Kubeconfig, s.KubeContext)
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

const (
	minToken = 20      // characters of a token that another program has made
	maxStdin = 1 << 10 // bytes
)

// tokenCommand creates a token for a user, or hashes an existing one.
func tokenCommand() *cli.Command {
	return &cli.Command{
		Name:         "token",
		Usage:        "create a token for a user, and its hash for --users-file",
		OnUsageError: refuseUsage,
		Flags:        []cli.Flag{&cli.BoolFlag{Name: "stdin", Usage: "read a token from standard input, and print its hash"}},
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
		},
	}
}

// hashToken prints the hash of the token in r.
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
