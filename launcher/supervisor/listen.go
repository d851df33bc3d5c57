package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/listener"
)

// Bounds of the supervisor's HTTP server.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 5 * time.Minute
	maxHeaderBytes    = 64 << 10
	shutdownLimit     = 2 * time.Second
)

// ListenForChild opens the socket that the child dials, if there is a child. Serve does the same. A caller that tells
// the child when to dial calls it before.
func (s *Supervisor) ListenForChild() error {
	if s.container == nil {
		return nil
	}
	if err := s.container.Listen(); err != nil {
		return fmt.Errorf("child_socket: %w", err)
	}
	return nil
}

// Serve runs the supervisor's HTTP server on the listener while s runs its kernel. It returns when both have ended. In
// a pod, its last act is to tell the child that the kernel has ended. If the kernel ended for good before, Serve
// returns at once.
func Serve(ctx context.Context, s *Supervisor, l net.Listener) error {
	if s.container == nil {
		return s.serve(ctx, l)
	}
	ended, err := s.ending.Earlier(child.EndedFile(s.cfg.ChildSocket))
	if ended {
		s.logger.Info("the kernel has ended before")
	}
	if ended || err != nil {
		l.Close() //nolint:errcheck // nothing was sent
		return err
	}
	if err := s.ListenForChild(); err != nil {
		l.Close() //nolint:errcheck // nothing was sent
		return err
	}
	var listening sync.WaitGroup
	listening.Go(s.container.Serve)
	err = s.serve(ctx, l)
	s.container.Close(s.ending.JSON())
	listening.Wait()
	return err
}

// serve does the work of Serve. In a pod, the child can connect already.
func (s *Supervisor) serve(ctx context.Context, l net.Listener) error {
	handler := s.Handler()
	if s.container != nil { // else the kernel would end too
		handler = listener.EndOnPanic(handler)
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- srv.Serve(l)
		cancel() // a kernel that no client can reach is useless
	}()
	s.Run(ctx)
	last, done := context.WithTimeout(context.Background(), shutdownLimit)
	defer done()
	err := srv.Shutdown(last)
	if err != nil {
		srv.Close() //nolint:errcheck // the error of Shutdown is the one that matters
	}
	s.log.Close()
	if serr := <-served; err == nil && !errors.Is(serr, http.ErrServerClosed) {
		err = serr
	}
	return err
}
