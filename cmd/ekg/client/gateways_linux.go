package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
)

// folderID identifies a folder of this machine; see files.FolderID.
func folderID(path string) string { return files.FolderID(path) }

const gatewayFiles = "gateway-*.json"

// WriteGatewayFile writes a gateway's file and returns the function that removes it. It removes the files of gateways
// that have died. Errors about other files are only passed to warn, since a gateway can work without them.
func WriteGatewayFile(stateDir string, g GatewayFile, warn func(error)) (remove func() error, err error) {
	if _, err := RunningGateways(stateDir, true); err != nil {
		warn(err)
	}
	b, err := json.Marshal(g)
	if err != nil {
		return nil, err
	}
	// A gateway whose kernels are pods may not have created the directory yet.
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(stateDir, ".gateway-*") // mode 0600
	if err != nil {
		return nil, err
	}
	path := filepath.Join(stateDir, "gateway-"+strconv.Itoa(g.PID)+".json")
	// The file is locked and complete before other processes can see it.
	err = flock.Take(f, unix.LOCK_EX)
	if err == nil {
		_, err = f.Write(append(b, '\n'))
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()), f.Close())
	}
	return func() error { return errors.Join(removeSame(path, f), f.Close()) }, nil
}

// removeSame removes the file at path only if it is f. A gateway in another container may have the same process id.
func removeSame(path string, f *os.File) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !os.SameFile(mine, there):
		return nil
	}
	return os.Remove(path)
}

// RunningGateways reads the files of the gateways that live, oldest first. With tidy it removes the files of those that
// have died. The error is about files that the result lacks.
func RunningGateways(stateDir string, tidy bool) ([]GatewayFile, error) {
	entries, err := os.ReadDir(stateDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []GatewayFile
	var odd []error
	for _, e := range entries {
		if match, err := filepath.Match(gatewayFiles, e.Name()); err != nil || !match {
			continue // the pattern is always valid
		}
		g, err := readGatewayFile(filepath.Join(stateDir, e.Name()), tidy)
		if err != nil {
			odd = append(odd, err)
		}
		if g != nil {
			all = append(all, *g)
		}
	}
	slices.SortStableFunc(all, func(a, b GatewayFile) int { return a.Started.Compare(b.Started) })
	return all, errors.Join(odd...)
}

// readGatewayFile returns nil for a gateway that has died.
func readGatewayFile(path string, tidy bool) (*GatewayFile, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the gateway has just ended
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return nil, fmt.Errorf("%s: other users have access to it and may have written it", path)
	}
	err = flock.Take(f, unix.LOCK_SH)
	if err == nil {
		if tidy {
			return nil, removeSame(path, f)
		}
		return nil, nil
	}
	if !errors.Is(err, flock.ErrBusy) {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxGatewayFile))
	if err != nil {
		return nil, err
	}
	var g GatewayFile
	if err := json.Unmarshal(b, &g); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &g, nil
}
