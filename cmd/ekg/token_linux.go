package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/internal/files"
)

// readToken returns the required token, or "" if none is required. It also reports whether a gateway generated the
// token, now or earlier.
func readToken(s *settings.Settings) (token string, generated bool, err error) {
	switch {
	case s.NoAuth, len(s.UserSources()) > 0:
		return "", false, nil
	case s.Gateway.Token != "":
		return s.Gateway.Token, false, nil
	case s.TokenFile != "":
		token, err := client.ReadTokenFile(s.TokenFile)
		if err != nil {
			return "", false, fmt.Errorf("%s: %w", s.Place("token-file"), err)
		}
		return token, false, nil
	}
	path := settings.TokenPath(s.Local.StateDir)
	token, err = client.ReadTokenFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		token, err = makeTokenFile(path)
	}
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", s.Place("state-dir"), err)
	}
	return token, true, nil
}

// makeTokenFile writes a new token. If several gateways do so at once, one wins and all use its token.
func makeTokenFile(path string) (string, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	random := make([]byte, 24)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	token := hex.EncodeToString(random)
	err := files.Create(path, []byte(token+"\n"))
	if errors.Is(err, fs.ErrExist) {
		return client.ReadTokenFile(path)
	}
	return token, err
}
