// Command devices is a driver of dynamic resource allocation for tests. It offers two devices, device-0 and device-1.
// They are only names: no hardware stands behind them. Claims are allocated, prepared and unprepared as for real
// devices. A container sees nothing of its device, because Debian's containerd does not support CDI.
//
//	devices KUBECONFIG NODE KUBELET-FOLDER
//
// It registers with the kubelet of NODE and runs until SIGINT or SIGTERM. The cluster withdraws the devices a little
// later.
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

// run offers the devices until ctx ends. It returns an error if the driver cannot start, or cannot go on.
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
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(node),
		kubeletplugin.DriverName(driverName),
		kubeletplugin.PluginDataDirectoryPath(folder),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(kubelet, "plugins_registry")),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	devices := []resourceapi.Device{{Name: "device-0"}, {Name: "device-1"}}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}
	if err := helper.PublishResources(ctx, resources); err != nil {
		return err
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// driver records which claim uses which device. kubeletplugin calls its methods one at a time, except HandleError.
type driver struct {
	claimOf map[string]types.UID    // by name of the device
	fail    context.CancelCauseFunc // ends run with an error
}

// PrepareResourceClaims gives each claim the devices that were allocated to it. The kubelet may repeat a call.
func (d *driver) PrepareResourceClaims(
	_ context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
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
		result.Devices = append(result.Devices, kubeletplugin.Device{
			Requests:   []string{r.Request},
			PoolName:   r.Pool,
			DeviceName: r.Device,
		})
		fmt.Printf("%s: prepared for the claim %s/%s\n", r.Device, claim.Namespace, claim.Name)
	}
	return result
}

// UnprepareResourceClaims takes the devices of these claims back. A claim without devices is no error.
func (d *driver) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = nil
		for device, owner := range d.claimOf {
			if owner == claim.UID {
				delete(d.claimOf, device)
				fmt.Printf("%s: given back by the claim %s/%s\n", device, claim.Namespace, claim.Name)
			}
		}
	}
	return results, nil
}

// HandleError logs an error of kubeletplugin's own goroutines. An error that is not recoverable ends run.
func (d *driver) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintf(os.Stderr, "devices: %s: %v\n", message, err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.fail(err)
	}
}

// WatchHealthStatus returns ErrHealthNotSupported: the devices have no health.
func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
