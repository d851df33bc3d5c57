package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// replicaTime bounds the time that other gateways of this machine have to answer.
const replicaTime = 3 * time.Second

// localGateways knows the gateways that share a state directory, by their files. It implements launcher.GatewayViewer.
type localGateways struct {
	stateDir string
	// self is this gateway's file; nil until it is written. A gateway in another container may have the same process id,
	// and then only one of both has a file.
	self *atomic.Pointer[client.GatewayFile]
}

// ViewGateways asks each gateway for its version, and whether it is ready.
func (l localGateways) ViewGateways(ctx context.Context) ([]launcher.Gateway, error) {
	// Files that cannot be read belong to other users, whose state directory this would not be.
	files, err := client.RunningGateways(l.stateDir, false)
	if len(files) == 0 && err != nil {
		return nil, err
	}
	self := l.self.Load()
	isSelf := func(f client.GatewayFile) bool {
		return self != nil && f.PID == self.PID && f.Started.Equal(self.Started)
	}
	if self != nil && !slices.ContainsFunc(files, isSelf) {
		files = append(files, *self)
	}
	ctx, cancel := context.WithTimeout(ctx, replicaTime)
	defer cancel()
	all := make([]launcher.Gateway, len(files))
	var asked sync.WaitGroup
	for i, f := range files {
		all[i] = launcher.Gateway{Name: f.Shown(), Started: f.Started, Self: isSelf(f)}
		if all[i].Self {
			continue
		}
		asked.Go(func() {
			var err error
			if all[i].Version, all[i].Ready, err = f.Ask(ctx); err != nil {
				all[i].Problem = "It does not answer."
			} else if !all[i].Ready {
				all[i].Problem = "It is starting or stopping."
			}
		})
	}
	asked.Wait()
	return all, nil
}
