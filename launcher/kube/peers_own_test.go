package kube

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
)

// TestFindPeers: a gateway's own pod has the labels of gateways, and the name or the address of this machine.
func TestFindPeers(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	c := newTestCluster(t)
	var said lockedBuffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	of := &cluster.Cluster{Client: c.Clientset, Namespace: "ns"}
	add := func(name, ip string, labels map[string]string) {
		t.Helper()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: labels},
			Status: corev1.PodStatus{PodIP: ip}}
		if _, err := c.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	found := func(what string, want *peers) {
		t.Helper()
		got, err := findPeers(t.Context(), of, context.WithCancel, log)
		if err != nil || (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s: got %+v, %v", what, got, err)
		}
	}
	found("no pod", nil)
	add(host, "10.1.2.3", nil)
	add("another", "10.1.2.4", gatewayLabels)
	found("other labels", nil)
	if !strings.Contains(said.String(), "has not found its pod among those with the labels of gateways") {
		t.Errorf("the log has %s", said.String())
	}
	if err := c.CoreV1().Pods("ns").Delete(t.Context(), host, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	add(host, "10.1.2.3", gatewayLabels)
	found("by name", &peers{"ns", "10.1.2.3"})
	of.Forward = &rest.Config{}
	found("outside the cluster", nil)
	of.Forward = nil
	c.refuse("list", "pods", apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no")))
	found("without the right", nil)
}
