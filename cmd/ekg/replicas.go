package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// replicaTime bounds the time that other gateways of this machine have to answer.
const replicaTime = 3 * time.Second

// localGateways knows the gateways that share a state directory, by their files. It implements launcher.GatewayViewer.
type localGateways struct {
	stateDir string
	// self is this gateway's file; nil until it is written. A gateway in another container may have the same process id,
	// and then only one of both has a file.
	self *atomic.Pointer[gatewayFile]
}

// ViewGateways asks each gateway for its version, and whether it is ready.
func (l localGateways) ViewGateways(ctx context.Context) ([]launcher.Gateway, error) {
	// Files that cannot be read belong to other users, whose state directory this would not be.
	files, err := runningGateways(l.stateDir, false)
	if len(files) == 0 && err != nil {
		return nil, err
	}
	self := l.self.Load()
	isSelf := func(f gatewayFile) bool { return self != nil && f.PID == self.PID && f.Started.Equal(self.Started) }
	if self != nil && !slices.ContainsFunc(files, isSelf) {
		files = append(files, *self)
	}
	ctx, cancel := context.WithTimeout(ctx, replicaTime)
	defer cancel()
	all := make([]launcher.Gateway, len(files))
	var asked sync.WaitGroup
	for i, f := range files {
		all[i] = launcher.Gateway{Name: withoutQuery(f.URL), Started: f.Started, Self: isSelf(f)}
		if all[i].Self {
			continue
		}
		asked.Go(func() {
			var err error
			if all[i].Version, all[i].Ready, err = askGateway(ctx, f); err != nil {
				all[i].Problem = "It does not answer."
			} else if !all[i].Ready {
				all[i].Problem = "It is starting or stopping."
			}
		})
	}
	asked.Wait()
	return all, nil
}

// askGateway returns a gateway's version, and whether it is ready. Both routes need no token.
func askGateway(ctx context.Context, f gatewayFile) (version string, ready bool, err error) {
	client, err := newGatewayClient(f.URL, "", f.Certificate)
	if err != nil {
		return "", false, err
	}
	defer client.close()
	answer, err := client.get(ctx, "api", nil)
	if err != nil {
		return "", false, err
	}
	var about struct {
		Version string `json:"version"`
	}
	err = json.NewDecoder(io.LimitReader(answer.Body, maxGatewayFile)).Decode(&about)
	_ = answer.Body.Close() // it was read
	if err != nil {
		return "", false, fmt.Errorf("%s: the answer: %w", client.shown, err)
	}
	answer, err = client.get(ctx, "readyz", nil)
	var refused *refusedError
	if errors.As(err, &refused) && refused.status == http.StatusServiceUnavailable {
		return about.Version, false, nil
	}
	if err != nil {
		return about.Version, false, err
	}
	return about.Version, true, answer.Body.Close()
}
