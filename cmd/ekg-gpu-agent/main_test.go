package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
)

// fakeKubelet answers like a kubelet.
type fakeKubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	pods []*podresources.PodResources
}

func (k *fakeKubelet) List(context.Context, *podresources.ListPodResourcesRequest) (
	*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: k.pods}, nil
}

// kubelet serves pods on a socket, and returns its path.
func kubelet(t *testing.T, pods ...*podresources.PodResources) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, &fakeKubelet{pods: pods})
	ended := make(chan error)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return socket
}

func holder(name string, devices ...*podresources.ContainerDevices) *podresources.PodResources {
	return &podresources.PodResources{Name: name, Namespace: "ns",
		Containers: []*podresources.ContainerResources{{Name: "kernel", Devices: devices}}}
}

func TestAgent_Pods(t *testing.T) {
	of := func(resource string, ids ...string) *podresources.ContainerDevices {
		return &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids}
	}
	claim := holder("claim")
	claim.Containers[0].DynamicResources = []*podresources.DynamicResource{{ClaimResources: []*podresources.ClaimResource{
		{DriverName: "gpu.nvidia.com", PoolName: "node", DeviceName: "gpu-0"}}}}
	socket := kubelet(t, holder("cpu"), holder("a", of("nvidia.com/gpu", "GPU-2"), of("nvidia.com/gpu", "GPU-1"),
		of("example.com/nic", "eth0")), claim)
	got, err := podsOf(t.Context(), socket)
	want := []podDevices{{"ns", "a", "kernel", "nvidia.com/gpu", []string{"GPU-1", "GPU-2"}},
		{"ns", "a", "kernel", "example.com/nic", []string{"eth0"}},
		{"ns", "claim", "kernel", "gpu.nvidia.com", []string{"node/gpu-0"}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := podsOf(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("podsOf returned no error without a kubelet")
	}
}

func TestAgent_PodOf(t *testing.T) {
	const uid = "0f9fa34c-0b6d-4b52-9c3e-0e1b3e6b7a11"
	underscores := strings.ReplaceAll(uid, "-", "_")
	proc := t.TempDir()
	for pid, text := range map[string]string{
		"1": "0::/kubepods/besteffort/pod" + uid + "/3f1c\n",
		"2": "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscores +
			".slice/cri-containerd-3f.scope\n",
		"3": "12:memory:/kubepods/pod" + uid + "/3f1c\n1:name=systemd:/kubepods/pod" + uid + "/3f1c\n",
		"4": "0::/../../kubepods-pod" + underscores + ".slice/crio-3f.scope\n",
		"5": "0::/system.slice/podman.service\n",
	} {
		if err := os.MkdirAll(filepath.Join(proc, pid), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "cgroup"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := &agent{proc: proc}
	for pid, want := range map[int]string{1: uid, 2: uid, 3: uid, 4: uid, 5: "", 6: ""} {
		if got := a.podOf(pid); got != want {
			t.Errorf("process %d: %q, want %q", pid, got, want)
		}
	}
}

// TestAgent_Report: the answers while all is well, and with a lost GPU and without a kubelet.
func TestAgent_Report(t *testing.T) {
	const uid = "0f9fa34c-0b6d-4b52-9c3e-0e1b3e6b7a11"
	proc := t.TempDir()
	err := errors.Join(os.MkdirAll(filepath.Join(proc, "7"), 0o700),
		os.WriteFile(filepath.Join(proc, "7", "cgroup"), []byte("0::/kubepods/pod"+uid+"/x\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{node: "n", proc: proc, pods: func(context.Context) ([]podDevices, error) {
		return []podDevices{{"ns", "p", "c", "nvidia.com/gpu", []string{"GPU-1::0", "GPU-1::1"}}}, nil
	}}
	const line = `{"seconds":10,"devices":[{"uuid":"GPU-1","model":"T4","memory_total":4096,"memory_used":1024,` +
		`"utilization":0.5,"processes":[{"pid":7,"use":0.4,"memory":1024}]}]}`
	if err := a.take([]byte(line)); err != nil {
		t.Fatal(err)
	}
	ask := func(path string) string {
		rec := httptest.NewRecorder()
		a.handler().ServeHTTP(rec, httptest.NewRequest("GET", path, nil))
		if rec.Code != 200 {
			t.Errorf("%s: %d", path, rec.Code)
		}
		return rec.Body.String()
	}
	var r nodeReport
	if err := json.Unmarshal([]byte(ask("/gpus")), &r); err != nil || r.Node != "n" || len(r.Devices) != 1 ||
		r.Devices[0].UUID != "GPU-1" || r.Devices[0].MemoryTotal != 4096 || len(r.Pods) != 1 || r.PodsError != "" ||
		len(r.Devices[0].Processes) != 1 || r.Devices[0].Processes[0].Pod != uid || r.Devices[0].Utilization == nil {
		t.Errorf("%+v, %v", r, err)
	}
	metrics := ask("/metrics")
	for _, want := range []string{
		`ekg_node_gpu_up{model="T4",node="n",uuid="GPU-1"} 1`,
		`ekg_node_gpu_memory_bytes{model="T4",node="n",uuid="GPU-1"} 4096`,
		`ekg_node_gpu_held{container="c",namespace="ns",node="n",pod="p",resource="nvidia.com/gpu"} 2`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %s in\n%s", want, metrics)
		}
	}
	ask("/healthz")
	a.pods = func(context.Context) ([]podDevices, error) { return nil, errors.New("no kubelet") }
	err = a.take([]byte(`{"seconds":10,"devices":[{"uuid":"GPU-1","memory_used":0,"utilization":null,"processes":null,` +
		`"error":"ERROR_GPU_IS_LOST"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := ask("/gpus"); !strings.Contains(got, `"pods_error": "no kubelet"`) || !strings.Contains(got, `"pods": []`) ||
		!strings.Contains(got, "ERROR_GPU_IS_LOST") {
		t.Error(got)
	}
	if got := ask("/metrics"); !strings.Contains(got, `ekg_node_gpu_up{model="",node="n",uuid="GPU-1"} 0`) {
		t.Error(got)
	}
}

// TestAgent_Serve: ekg-gpu is started, started again when it has ended, and ends with the agent.
func TestAgent_Serve(t *testing.T) {
	dir := t.TempDir()
	program, count := filepath.Join(dir, "ekg-gpu"), filepath.Join(dir, "count")
	script := "#!/bin/sh\n[ \"$*\" = 'watch --every 10ms' ] || exit 2\necho x >> " + count + "\n" +
		`echo '{"seconds":1,"devices":[{"uuid":"GPU-1","memory_used":0,"utilization":1,"processes":null}]}'` + "\n" +
		"[ $(wc -l < " + count + ") = 1 ] && { echo first >&2; exit 3; }\ncat > /dev/null\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{proc: dir, pods: func(context.Context) ([]podDevices, error) { return nil, nil }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.serve(ctx, l, program, 10*time.Millisecond) }()
	poll.Until(t, "it runs again, and its samples are served", func() bool {
		started, err := os.ReadFile(count)
		resp, err2 := http.Get("http://" + l.Addr().String() + "/gpus")
		if err != nil || err2 != nil {
			return false
		}
		defer resp.Body.Close() //nolint:errcheck // it was only read
		body, err := io.ReadAll(resp.Body)
		return err == nil && strings.Count(string(started), "x") == 2 && strings.Contains(string(body), `"GPU-1"`)
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := a.watch(t.Context(), program+"-none", time.Second); err == nil {
		t.Error("watch returned no error without the program")
	}
}
