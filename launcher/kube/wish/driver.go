package wish

import (
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// maxPorts bounds the ports of one kernel.
const maxPorts = 32

// driver checks the service account's token and the ports of a kernel that is the driver of other pods.
func (c *checker) driver(e *Extension) {
	if e.ServiceAccountToken {
		where := ShortPath("serviceAccountToken")
		c.keyAllowed(where, "serviceAccountToken")
		account := e.Pod.Spec.ServiceAccountName
		if account == "" {
			account = e.ServiceAccountName
		}
		if account == "" {
			c.refuse(where, "needs serviceAccountName, which says whose token it is")
		} else {
			c.listedIn(where, account, c.tokens)
		}
		for i, m := range slices.Concat(e.VolumeMounts, e.Pod.Kernel().VolumeMounts) {
			if clean := path.Clean(m.MountPath); within(clean, podspec.TokenDir) || within(podspec.TokenDir, clean) {
				c.refuse(where, "cannot be mounted: a volume is mounted at %s (mount %d)", Quoted(m.MountPath), i+1)
			}
		}
	}
	if e.Ports != nil {
		c.keyAllowed(ShortPath("ports"), "ports")
	}
	if len(e.Ports) > maxPorts {
		c.refuse(ShortPath("ports"), "has %d ports; at most %d are allowed", len(e.Ports), maxPorts)
	}
	names, numbers := []string{podspec.SupervisorPortName}, []string{}
	for i := range e.Ports {
		p, where := &e.Ports[i], fmt.Sprintf("%s[%d]", ShortPath("ports"), i)
		number := fmt.Sprint(p.Protocol, p.ContainerPort)
		switch {
		case p.HostPort != 0:
			c.refuse(where+".hostPort", "cannot be set: a kernel has no ports of the node")
		case p.HostIP != "":
			c.refuse(where+".hostIP", "cannot be set: a kernel has no ports of the node")
		case !slices.Contains([]corev1.Protocol{"", corev1.ProtocolTCP, corev1.ProtocolUDP}, p.Protocol):
			c.refuse(where+".protocol", "is %s; it must be TCP or UDP", Quoted(string(p.Protocol)))
		case p.ContainerPort == podspec.SupervisorPort:
			c.refuse(where+".containerPort", "%d is the supervisor's port", p.ContainerPort)
		case !c.spec.Ports.contains(int64(p.ContainerPort)) || len(validation.IsValidPortNum(int(p.ContainerPort))) > 0:
			c.refuse(where+".containerPort", "%d is not allowed; allowed: %s", p.ContainerPort, c.spec.Ports)
		case slices.Contains(numbers, number):
			c.refuse(where+".containerPort", "%d is given twice", p.ContainerPort)
		case p.Name != "" && len(validation.IsValidPortName(p.Name)) > 0:
			c.refuse(where+".name", "%s is not a valid name of a port: at most 15 small letters, digits and '-'", Quoted(p.Name))
		case p.Name != "" && slices.Contains(names, p.Name):
			c.refuse(where+".name", "%q is taken", p.Name)
		}
		names, numbers = append(names, p.Name), append(numbers, number)
	}
}
