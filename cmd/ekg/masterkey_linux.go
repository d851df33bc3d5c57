package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// masterKeys reads the key from which the kernels' keys are derived, and the second one, which may be nil.
func masterKeys(s *settings.Settings, inside bool) (key, second []byte, err error) {
	if key, err = firstMasterKey(s, inside); err != nil || s.SecondMasterKeyFile == "" {
		return key, nil, err
	}
	place := s.Place("second-master-key-file")
	second, err = readMasterKey(s.SecondMasterKeyFile, place)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return key, nil, nil
	case err != nil:
		return nil, nil, err
	case bytes.Equal(key, second):
		return nil, nil, fmt.Errorf("%s: %s holds the same key as %s", place, s.SecondMasterKeyFile,
			s.Place("master-key-file"))
	}
	return key, second, nil
}

// firstMasterKey reads the key for new kernels. By default a gateway outside the cluster generates its own key. Inside
// a cluster the key must be given, since all replicas need the same one.
func firstMasterKey(s *settings.Settings, inside bool) ([]byte, error) {
	if path, place := s.MasterKeyFile, s.Place("master-key-file"); path != "" {
		return readMasterKey(path, place)
	} else if inside {
		return nil, fmt.Errorf("%s: a gateway in a cluster needs a key that all its replicas share", place)
	}
	path, place := filepath.Join(s.Local.StateDir, "master-key"), s.Place("state-dir")
	key, err := readMasterKey(path, place)
	if errors.Is(err, fs.ErrNotExist) {
		text, err := makeTokenFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", place, err)
		}
		return []byte(text), nil
	}
	return key, err
}

// readMasterKey reads a key from a file. The error names the setting.
func readMasterKey(path, place string) ([]byte, error) {
	text, err := client.ReadTokenFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", place, err)
	}
	if len(text) < podspec.MinMasterKey {
		return nil, fmt.Errorf("%s: %s has %d characters, %d are needed", place, path, len(text), podspec.MinMasterKey)
	}
	return []byte(text), nil
}
