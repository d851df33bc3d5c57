package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tokenPath is where the generated token is kept. It outlives the gateway as the kernels do: otherwise every client
// would have to be told a new one after a restart.
func tokenPath(stateDir string) string { return filepath.Join(stateDir, "token") }

// readToken returns the token to demand, "" for none, and whether it was generated here, now or earlier.
func (s *settings) readToken() (token string, generated bool, err error) {
	switch {
	case s.noAuth, len(s.userSources()) > 0:
		return "", false, nil
	case s.token != "":
		return s.token, false, nil
	case s.tokenFile != "":
		token, err := readTokenFile(s.tokenFile)
		if err != nil {
			return "", false, fmt.Errorf("%s: %w", s.origins["token-file"].place, err)
		}
		return token, false, nil
	}
	path := tokenPath(s.stateDir)
	token, err = readTokenFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		token, err = makeTokenFile(path)
	}
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", s.origins["state-dir"].place, err)
	}
	return token, true, nil
}

func readTokenFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("%s does not hold exactly one word", path)
	}
	return token, nil
}

// makeTokenFile writes a new token. Of several gateways that do so at once one wins, and all take its token.
func makeTokenFile(path string) (string, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	random := make([]byte, 24)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	token := hex.EncodeToString(random)
	tmp, err := os.CreateTemp(filepath.Dir(path), ".token-*") // mode 0600
	if err != nil {
		return "", err
	}
	_, err = tmp.WriteString(token + "\n")
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Link(tmp.Name(), path) // unlike a rename it never replaces the winner's
	}
	err = errors.Join(err, os.Remove(tmp.Name()))
	if errors.Is(err, fs.ErrExist) {
		return readTokenFile(path)
	}
	return token, err
}
