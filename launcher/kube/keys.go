package kube

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/poddial"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// masterKeys returns the keys of the options. The first one is for new pods.
func (o *Options) masterKeys() ([]podspec.MasterKey, error) {
	var all []podspec.MasterKey
	for _, secret := range [][]byte{o.MasterKey, o.SecondMasterKey} {
		if len(secret) == 0 {
			continue
		}
		key, err := podspec.NewMasterKey(secret)
		if err != nil {
			return nil, err
		}
		all = append(all, key)
	}
	return all, nil
}

// checkKeys rejects bad master keys by name.
func (o *Options) checkKeys() error {
	switch second := len(o.SecondMasterKey); {
	case len(o.MasterKey) < podspec.MinMasterKey:
		return fmt.Errorf("MasterKey: %d bytes, %d are needed", len(o.MasterKey), podspec.MinMasterKey)
	case second > 0 && second < podspec.MinMasterKey:
		return fmt.Errorf("SecondMasterKey: %d bytes, %d are needed", second, podspec.MinMasterKey)
	case bytes.Equal(o.MasterKey, o.SecondMasterKey):
		return errors.New("SecondMasterKey: equals MasterKey")
	}
	return nil
}

// logKeys logs the fingerprints of the master keys. They are in the pods' annotations, too.
func (l *Launcher) logKeys() {
	second := "none"
	if len(l.keys) > 1 {
		second = l.keys[1].Fingerprint
	}
	l.log.Info("master keys", logkey.MasterKey, l.keys[0].Fingerprint, logkey.SecondKey, second)
}

// errKeyFound says that a connection has shown which master key a pod's keys are derived from. The next attempt uses
// that key.
var errKeyFound = errors.New("the supervisor's keys are derived from the other master key; this is tried again")

// podKeys are the keys of a pod.
type podKeys struct {
	podspec.Keys
	master string // fingerprint of the master key
	marked bool   // the pod's record has the fingerprint
}

// keysOf returns the keys of a pod. The pod's record names their master key. Pods of earlier releases have no such
// record: their master key is the one that a connection has shown, and before that the first one.
func (l *Launcher) keysOf(pod *corev1.Pod) (podKeys, error) {
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		return podKeys{}, err
	}
	wanted := cmp.Or(rec.MasterKey, l.shownKey(pod), l.keys[0].Fingerprint)
	for _, key := range l.keys {
		if key.Fingerprint == wanted {
			keys, err := podspec.DeriveKeys(key.Secret, pod.Namespace, pod.Name, rec.KeyVersion)
			return podKeys{keys, wanted, rec.MasterKey != ""}, err
		}
	}
	return podKeys{}, &launcher.UnsupportedError{Reason: fmt.Sprintf(
		"its keys are derived from a master key that this gateway does not have (fingerprint %.32q)", wanted)}
}

// shownKey returns the fingerprint of the master key that a connection to a pod has shown, or "".
func (l *Launcher) shownKey(pod *corev1.Pod) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.kernels[pod.Labels[podspec.LabelKernel]]; k != nil && k.pod.UID == pod.UID {
		return k.shownKey
	}
	return ""
}

// showKey records the fingerprint of the master key that a connection to a pod has shown.
func (l *Launcher) showKey(pod *corev1.Pod, fingerprint string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.kernels[pod.Labels[podspec.LabelKernel]]; k != nil && k.pod.UID == pod.UID {
		k.shownKey = fingerprint
	}
}

// Token returns the bearer token that the kernel's supervisor demands.
func (l *Launcher) Token(id string) string {
	l.mu.Lock()
	k := l.kernels[id]
	var pod *corev1.Pod
	if k != nil {
		pod = k.pod
	}
	l.mu.Unlock()
	if pod == nil {
		return ""
	}
	keys, err := l.keysOf(pod)
	if err != nil {
		return ""
	}
	return keys.Token
}

// connect dials a pod's supervisor, whatever the kernel's state.
func (l *Launcher) connect(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	k, err := l.keysOf(pod)
	if err != nil {
		return nil, err
	}
	return l.connectWith(ctx, pod, k)
}

// connectWith dials a pod's supervisor, which must have the given keys. If the pod's record does not name their master
// key, the supervisor may have keys of another one. That is recorded, and the error is errKeyFound.
func (l *Launcher) connectWith(ctx context.Context, pod *corev1.Pod, keys podKeys) (net.Conn, error) {
	c, firstErr := poddial.DialTLS(ctx, l.dialer, pod, keys.Keys)
	if keys.marked {
		return c, firstErr
	}
	if firstErr == nil {
		l.showKey(pod, keys.master)
	}
	if !errors.Is(firstErr, api.ErrOtherKey) {
		return c, firstErr
	}
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		return nil, err
	}
	for _, key := range l.keys {
		if key.Fingerprint == keys.master {
			continue
		}
		other, err := podspec.DeriveKeys(key.Secret, pod.Namespace, pod.Name, rec.KeyVersion)
		if err != nil {
			return nil, err
		}
		c, err := poddial.DialTLS(ctx, l.dialer, pod, other)
		if err == nil {
			_ = c.Close() // its caller would send a token that is derived from the first key
			l.showKey(pod, key.Fingerprint)
			return nil, errKeyFound
		}
		if !errors.Is(err, api.ErrOtherKey) {
			return nil, err
		}
	}
	return nil, firstErr
}

// supervisor returns a client of a pod's supervisor.
func (l *Launcher) supervisor(pod *corev1.Pod) (*api.Client, error) {
	k, err := l.keysOf(pod)
	if err != nil {
		return nil, err
	}
	return &api.Client{
		KernelID: pod.Labels[podspec.LabelKernel],
		Token:    k.Token,
		Dial:     func(ctx context.Context) (net.Conn, error) { return l.connectWith(ctx, pod, k) },
	}, nil
}

// measureKeysLocked counts the kernels that live, by the master key of their pods.
func (l *Launcher) measureKeysLocked(known []*kernel) map[string]int64 {
	counts := map[string]int64{launcher.KeyCurrent: 0, launcher.KeySecond: 0, launcher.KeyUnknown: 0}
	for _, k := range known {
		if k.end != nil || k.removed {
			continue
		}
		switch cmp.Or(k.rec.MasterKey, k.shownKey) {
		case l.keys[0].Fingerprint:
			counts[launcher.KeyCurrent]++
		case l.keys[len(l.keys)-1].Fingerprint:
			counts[launcher.KeySecond]++
		default:
			counts[launcher.KeyUnknown]++
		}
	}
	return counts
}
