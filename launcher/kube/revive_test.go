package kube

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/diff"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// mutate changes a pod as admission, schedulers, networks and device plugins do, before and after it is bound.
func mutate(pod *corev1.Pod) {
	for key, value := range map[string]string{
		// OVN-Kubernetes: go-controller/pkg/types, annotation of a pod's networks
		"k8s.ovn.org/pod-networks": `{"default":{"ip_addresses":["10.128.2.7/23"],"mac_address":"0a:58:0a:80:02:07"}}`,
		// Kube-OVN: docs, fixed addresses
		"ovn.kubernetes.io/allocated":   "true",
		"ovn.kubernetes.io/ip_address":  "10.16.0.15",
		"ovn.kubernetes.io/mac_address": "00:00:00:53:6B:B6",
		// Amazon VPC resource controller
		"vpc.amazonaws.com/pod-eni": `[{"eniId":"eni-01","privateIp":"192.168.1.4","vlanId":1}]`,
		// HAMi: docs/develop/protocol.md
		"hami.io/vgpu-node":              "node-1",
		"hami.io/vgpu-devices-allocated": "GPU-03f6,NVIDIA,8000,30:;",
		"hami.io/bind-phase":             "success",
		// Multus, Istio
		"k8s.v1.cni.cncf.io/network-status": `[{"ips":["10.128.2.7"]}]`,
		"sidecar.istio.io/status":           `{"initContainers":["istio-init"],"containers":["istio-proxy"]}`,
	} {
		pod.Annotations[key] = value
	}
	pod.Labels["security.istio.io/tlsMode"] = "istio"
	pod.Finalizers = []string{"example.com/addresses"}
	spec := &pod.Spec
	spec.NodeName, spec.SchedulerName, spec.ServiceAccountName = "node-1", "hami-scheduler", "default"
	spec.Priority = new(int32(0))
	spec.Tolerations = append(spec.Tolerations,
		corev1.Toleration{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists})
	spec.InitContainers = []corev1.Container{{Name: "istio-init", Image: "proxyv2"}}
	spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "istio-token"})
	for i := range spec.Containers {
		k := &spec.Containers[i]
		k.Env = append(k.Env, corev1.EnvVar{Name: "HTTPS_PROXY", Value: "http://proxy"},
			corev1.EnvVar{Name: "KERNEL_TEAM", Value: "injected a second time"})
		k.VolumeMounts = append(k.VolumeMounts, corev1.VolumeMount{Name: "istio-token", MountPath: "/var/run/tokens"})
		if k.Resources.Limits == nil {
			k.Resources.Limits = corev1.ResourceList{}
		}
		k.Resources.Limits["vpc.amazonaws.com/pod-eni"] = resource.MustParse("1")
	}
	spec.Containers = append(spec.Containers, corev1.Container{Name: "istio-proxy", Image: "proxyv2"})
}

// A restart builds the next pod from what was asked for. Nothing that the cluster has put into the last pod returns.
func TestRevive_MutatedPod(t *testing.T) {
	c := newTestCluster(t)
	req := testRequest(idA)
	req.Spec.Env = map[string]string{"MODE": "${KERNEL_TEAM} $$5"}
	req.Spec.Metadata = []byte(`{"debugger": true, "ekg": {"image": "kernel:2", "annotations": {"example.com/a": "b"},
		"resources": {"limits": {"nvidia.com/gpu": "1"}}}}`)
	req.Env = map[string]string{"KERNEL_TEAM": "a $(HOME) b $$ ${MODE}", "KERNEL_USERNAME": "ann", "KERNEL_EMPTY": "",
		"KERNEL_WORKING_DIR": "/work", "KERNEL_LAUNCH_TIMEOUT": "90", "KERNEL_MEMORY": "2Gi"}
	req.Groups = []string{"vision"}
	if err := req.ParseEnv(); err != nil {
		t.Fatal(err)
	}
	l := openTest(t, c, nil)
	if _, _, err := l.Start(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	sessions := []launcher.Session{{ID: "s", Path: "a.ipynb"}}
	if _, err := l.UpdateNotes(t.Context(), idA, func(n launcher.Notes) (launcher.Notes, error) {
		n.Sessions = sessions
		return n, nil
	}); err != nil {
		t.Fatal(err)
	}
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) { mutate(pod); pod.Status.Phase = corev1.PodFailed })

	upgraded := testPods
	upgraded.SupervisorImage = "ekg:2"
	l = openTest(t, c, func(o *Options, _ *timing) { o.Pods = upgraded })
	waitFor(t, l, idA, isDead)
	k, err := l.Revive(t.Context(), idA)
	if err != nil || len(k.Sessions) != 1 || k.Sessions[0] != sessions[0] {
		t.Fatalf("%+v, %v", k, err)
	}
	rec, err := podspec.ReadRecord(c.pod(t, idA+"-2"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := podbuild.Build(upgraded, req, rec)
	if err != nil {
		t.Fatal(err)
	}
	want.Annotations[podspec.AnnotationClaimed] = podspec.Claimed
	want.Annotations[podspec.AnnotationSessions] = `[{"id":"s","path":"a.ipynb","name":"","type":""}]`
	want.Annotations[podspec.AnnotationSharedToUse], want.Annotations[podspec.AnnotationShared] = "", ""
	got := c.pod(t, idA+"-2").DeepCopy()
	got.UID, got.ResourceVersion, got.CreationTimestamp = "", "", metav1.Time{}
	if !apiequality.Semantic.DeepEqual(got, want) {
		t.Errorf("got is -, want is +:\n%s", diff.Diff(got, want))
	}
}

// The policy of today holds for a restart.
func TestRevive_Refused(t *testing.T) {
	c := newTestCluster(t)
	req := testRequest(idA)
	req.Env = map[string]string{"KERNEL_MEMORY": "8Gi"}
	if _, _, err := openTest(t, c, nil).Start(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed })
	policy := wish.DefaultPolicy()
	policy.Clients.Maxima["memory"] = resource.MustParse("4Gi")
	l := openTest(t, c, func(o *Options, _ *timing) { o.Pods.Policy = policy })
	waitFor(t, l, idA, isDead)
	var refused *launcher.RefusedError
	if _, err := l.Revive(t.Context(), idA); !errors.As(err, &refused) || !strings.Contains(err.Error(), "KERNEL_MEMORY") {
		t.Errorf("%v", err)
	}
}

// TestRevive_EarlierBuild: a kernel whose pod has no stored request is not restarted, and the error says why.
func TestRevive_EarlierBuild(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) {
		delete(pod.Annotations, podspec.Domain+"request")
		pod.Status.Phase = corev1.PodFailed
	})
	waitFor(t, l, idA, isDead)
	_, err := l.Revive(t.Context(), idA)
	if failed := (*launcher.FailedError)(nil); !errors.As(err, &failed) ||
		!strings.Contains(failed.Reason, "an earlier build of the gateway has made its pod") {
		t.Errorf("%v", err)
	}
}

// A restart of a kernel whose supervisor speaks another protocol version replaces its pod. Every replica knows that the
// kernel has not ended for good.
func TestRevive_OtherProtocol(t *testing.T) {
	c, f := newRunning(t, 1)
	l, other := openTest(t, c, nil), openTest(t, c, nil)
	for _, l := range []*Launcher{l, other} {
		waitFor(t, l, idOf(0), func(k launcher.Kernel) bool { return k.State == api.Idle && !k.Stale })
	}
	if k, err := l.Revive(t.Context(), idOf(0)); err != nil || k.State != api.Idle {
		t.Fatalf("a living one is revived: %+v, %v", k, err)
	}
	s := f.of(idOf(0))
	s.mu.Lock()
	s.status.Protocol, s.status.Build = 99, "9.9"
	s.touch()
	s.mu.Unlock()
	why := "its supervisor (9.9) speaks protocol version 99, and this gateway "
	k := waitFor(t, l, idOf(0), func(k launcher.Kernel) bool { return strings.HasPrefix(k.Reason, why) })
	if k.State != api.Unknown || !k.Stale {
		t.Errorf("it is %+v", k)
	}
	var unsupported *launcher.UnsupportedError
	if _, err := l.Dial(t.Context(), idOf(0)); !errors.As(err, &unsupported) || unsupported.Reason != k.Reason {
		t.Errorf("dial: %v", err)
	}
	if k, err := l.Revive(t.Context(), idOf(0)); err != nil || k.State != api.Starting {
		t.Fatalf("%+v, %v", k, err)
	}
	c.pod(t, idOf(0)+"-2")
	if _, err := c.CoreV1().Pods("ns").Get(t.Context(), idOf(0)+"-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the old pod: %v", err)
	}
	waitFor(t, other, idOf(0), func(k launcher.Kernel) bool { return k.State == api.Starting })
}
