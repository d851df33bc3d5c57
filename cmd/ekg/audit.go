package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// auditFile is the file of the audit log. It is opened for appending, and each entry is one write: several gateways may share it,
// and it may be copied and truncated while it is in use. After it was moved away, reopen begins it anew.
type auditFile struct {
	path string // fixed

	mu   sync.Mutex
	file *os.File // guarded by mu
}

func openAuditFile(path string) (*auditFile, error) {
	a := &auditFile{path: path}
	return a, a.reopen()
}

// reopen opens the file by its name, and closes the one that was open. If that fails, the one before stays.
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

// Write adds an entry.
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

// openAudit opens the audit log, nil if there is none, and has SIGHUP open it anew. Without a file SIGHUP means what it always does.
func (v *server) openAudit() (io.Writer, error) {
	switch v.settings.auditLog {
	case "":
		return nil, nil
	case "-":
		return v.stdout, nil
	}
	file, err := openAuditFile(v.settings.auditLog)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", v.settings.origins["audit-log"].place, err)
	}
	v.onStop("audit log", func(context.Context) error { return file.Close() })
	hangups, end, done := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(hangups, syscall.SIGHUP)
	go func() {
		defer close(done)
		for {
			select {
			case <-hangups:
				if err := file.reopen(); err != nil {
					v.log.Error("the audit log cannot be opened anew; the old file is used on", "err", err)
				} else {
					v.log.Info("the audit log was opened anew", "file", v.settings.auditLog)
				}
			case <-end:
				return
			}
		}
	}()
	v.onStop("audit log's signal", func(context.Context) error {
		signal.Stop(hangups)
		close(end)
		<-done
		return nil
	})
	return file, nil
}
