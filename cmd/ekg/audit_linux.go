package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// auditFile is the file of the audit log. Each entry is one write in append mode, so several gateways may share the
// file. It may be copied and truncated while it is in use. After a rotation reopen creates a new file.
type auditFile struct {
	path string // fixed

	mu   sync.Mutex
	file *os.File // guarded by mu
}

func openAuditFile(path string) (*auditFile, error) {
	a := &auditFile{path: path}
	return a, a.reopen()
}

// reopen opens the file by its name and closes the old one. If that fails, the old file stays open.
func (a *auditFile) reopen() error {
	f, err := os.OpenFile(a.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	a.mu.Lock()
	old := a.file
	a.file = f
	a.mu.Unlock()
	if old != nil {
		return old.Close()
	}
	return nil
}

// Write appends an entry.
func (a *auditFile) Write(entry []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.file.Write(entry)
}

// Close closes the file.
func (a *auditFile) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.file.Close()
}

// openAudit opens the audit log, and reopens it at SIGHUP. It returns nil if there is no audit log. Without a file
// SIGHUP keeps its default effect.
func (v *server) openAudit() (io.Writer, error) {
	switch v.settings.AuditLog {
	case "":
		return nil, nil
	case "-":
		return v.stdout, nil
	}
	file, err := openAuditFile(v.settings.AuditLog)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", v.settings.Place("audit-log"), err)
	}
	v.onStop("audit log", func(context.Context) error { return file.Close() })
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	v.inBackground(context.Background(), "audit log's signal", func(ctx context.Context) {
		defer signal.Stop(hangups)
		for {
			select {
			case <-hangups:
				if err := file.reopen(); err != nil {
					v.log.Error("the audit log cannot be reopened; entries still go to the old file", logkey.Err, err)
				} else {
					v.log.Info("the audit log was reopened", logkey.File, v.settings.AuditLog)
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return file, nil
}
