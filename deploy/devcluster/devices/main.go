// Command devices is a driver of dynamic resource allocation with two devices, device-0 and device-1, of which there is nothing but the
// names: claims are allocated, prepared and given back as they are for real ones. Its containers find nothing of them, since Debian's
// containerd knows no CDI.
//
//	devices KUBECONFIG NODE KUBELET-FOLDER
//
// It runs until it is told to end, in the name of the node's kubelet. What it offers is withdrawn by the cluster a little later.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const driverName = "devcluster"

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: devices KUBECONFIG NODE KUBELET-FOLDER")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "devices:", err)
		os.Exit(1)
	}
}

// run offers the devices until ctx ends, or until that cannot be done.
func run(ctx context.Context, kubeconfig, node, kubelet string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	folder := filepath.Join(kubelet, "plugins", driverName)
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	d := &driver{claimOf: map[string]types.UID{}, fail: fail}
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.KubeClient(client), kubeletplugin.NodeName(node), kubeletplugin.DriverName(driverName),
		kubeletplugin.PluginDataDirectoryPath(folder), kubeletplugin.RegistrarDirectoryPath(filepath.Join(kubelet, "plugins_registry")))
	if err != nil {
		return err
	}
	defer helper.Stop()
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{{Name: "device-0"}, {Name: "device-1"}}}}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}); err != nil {
		return err
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// driver says which claim has which device. Its methods are called one at a time, but for HandleError.
type driver struct {
	claimOf map[string]types.UID // by device
	fail    context.CancelCauseFunc
}

// PrepareResourceClaims gives claims the devices that were allocated to them, however often it is asked to.
func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = d.prepare(claim)
	}
	return results, nil
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) (result kubeletplugin.PrepareResult) {
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != driverName {
			continue
		}
		if other, taken := d.claimOf[r.Device]; taken && other != claim.UID {
			return kubeletplugin.PrepareResult{Err: fmt.Errorf("%s is in use by the claim %s", r.Device, other)}
		}
		d.claimOf[r.Device] = claim.UID
		result.Devices = append(result.Devices, kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device})
		fmt.Printf("%s: prepared for the claim %s/%s\n", r.Device, claim.Namespace, claim.Name)
	}
	return result
}

// UnprepareResourceClaims takes devices back.
func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = nil
		for device, of := range d.claimOf {
			if of == claim.UID {
				delete(d.claimOf, device)
				fmt.Printf("%s: given back by the claim %s/%s\n", device, claim.Namespace, claim.Name)
			}
		}
	}
	return results, nil
}

// HandleError is told what goes wrong in the background.
func (d *driver) HandleError(_ context.Context, err error, what string) {
	fmt.Fprintf(os.Stderr, "devices: %s: %v\n", what, err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.fail(err)
	}
}

// WatchHealthStatus says that nothing is known of the devices' health.
func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
