package kube

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	// endingShards is how many further config maps an hour may have: with 1 MiB each, for 27,000 kernels or more.
	endingShards = 16
	maxFull      = 256 // full config maps that are remembered
)

// endingsPlace names the config map of an hour.
type endingsPlace struct{ namespace, name string }

// storeEndings stores the endings of one hour. If the hour's config map is full, an ending goes into one of 16 further
// config maps, ekg-endings-2026112123-0 to -f, which the kernel's id chooses. So gateways need not agree which of them
// are full, and two versions of an entry are in two config maps at most. Earlier versions of ekg read the further
// config maps, and go on writing to the first. An error, if there is any, goes away with time.
func (l *Launcher) storeEndings(ctx context.Context, p endingsPlace, data map[string]string) error {
	l.mu.Lock()
	full := l.endings.full[p]
	l.mu.Unlock()
	if !full {
		err := l.writeEndingsOf(ctx, p.namespace, p.name, data)
		if !podstatus.IsTooLarge(err) {
			return err
		}
		l.log.Info("the endings of kernels in this hour need further config maps", logkey.Namespace, p.namespace,
			logkey.ConfigMap, p.name)
		l.mu.Lock()
		if len(l.endings.full) >= maxFull {
			clear(l.endings.full)
		}
		l.endings.full[p] = true
		l.mu.Unlock()
	}
	shards := map[string]map[string]string{}
	for id, text := range data {
		name := shardOf(p.name, id)
		if shards[name] == nil {
			shards[name] = map[string]string{}
		}
		shards[name][id] = text
	}
	var lost, temporary error
	for name, some := range shards {
		if err := l.writeEndingsOf(ctx, p.namespace, name, some); podstatus.IsTooLarge(err) {
			lost = errors.Join(lost, err)
		} else {
			temporary = errors.Join(temporary, err)
		}
	}
	if temporary != nil {
		return temporary
	}
	return lost
}

// shardOf returns the name of the further config map that has a kernel's ending.
func shardOf(hour, id string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return fmt.Sprintf("%s-%x", hour, h.Sum32()%endingShards)
}

// hourOf returns the name of the first config map of the hour of another one.
func hourOf(name string) (hour string, ok bool) {
	n := len(endingsPrefix) + len(endingsHour)
	if len(name) < n || len(name) > n && name[n] != '-' || !strings.HasPrefix(name, endingsPrefix) {
		return "", false
	}
	return name[:n], true
}

// precedes reports whether an ending is an earlier state of another one of the same kernel.
func (e *storedEnding) precedes(other *storedEnding) bool {
	return e.At.Before(other.At) || e.At.Equal(other.At) && other.Stopped && !e.Stopped
}
