package settings

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube"
)

// kubernetesSettings are for kernels that run as pods.
var kubernetesSettings = []group{
	{"Run kernels on Kubernetes", []Option{
		{
			Name: "kubeconfig", Env: []string{"EKG_KUBECONFIG"},
			defDoc: "in a pod its service account, else $KUBECONFIG, else ~/.kube/config",
			value:  text(func(s *Settings) *string { return &s.Kubeconfig }),
			Usage:  "file with the address and credentials of the cluster. Pods are reached by port-forward through it",
		},
		{
			Name: "kube-context", Env: []string{"EKG_KUBE_CONTEXT"}, defDoc: "the file's current one",
			value: text(func(s *Settings) *string { return &s.KubeContext }),
			Usage: "context of the kubeconfig",
		},
		{
			Name: "kube-namespace", Env: []string{"EKG_KUBE_NAMESPACE"}, defDoc: "the gateway's own, or the context's",
			value: text(func(s *Settings) *string { return &s.KubeNamespace }),
			Usage: "namespace of the kernels' pods",
		},
		{
			Name: "kube-policy", Env: []string{"EKG_KUBE_POLICY"},
			value: text(func(s *Settings) *string { return &s.KubePolicy }),
			Usage: "YAML file that limits what kernelspecs and clients may ask of a pod; see docs/kernelspecs.md",
		},
		{
			Name: "supervisor-image", Env: []string{"EKG_SUPERVISOR_IMAGE"},
			value: text(func(s *Settings) *string { return &s.SupervisorImage }),
			Usage: "ekg's own image. Each kernel's pod has a container of it",
		},
		{
			Name: "kernel-image", Env: []string{"EKG_KERNEL_IMAGE"},
			value: text(func(s *Settings) *string { return &s.KernelImage }),
			Usage: "image of kernelspecs that name none",
		},
		{
			Name: "master-key-file", Env: []string{"EKG_MASTER_KEY_FILE"},
			defDoc: "outside a cluster generated once, kept in the state directory",
			value:  text(func(s *Settings) *string { return &s.MasterKeyFile }),
			Usage: "file with a secret of at least 32 characters from which the kernels' keys are derived. All replicas " +
				"need the same",
		},
		{
			Name: "start-limit", Env: []string{"EKG_START_LIMIT"}, def: kube.DefaultStartLimit.String(),
			value: duration(func(s *Settings) *time.Duration { return &s.StartLimit }, positive),
			Usage: "how long the start of a kernel's pod may make no progress before it is given up. Progress is a node, " +
				"an image or the kernel's first answer. A longer KERNEL_LAUNCH_TIMEOUT of a request counts instead",
		},
		{
			Name: "keep-endings", Env: []string{"EKG_KEEP_ENDINGS"}, def: kube.DefaultKeepEndings.String(),
			value: duration(func(s *Settings) *time.Duration { return &s.KeepEndings }, positive),
			Usage: "how long the cluster keeps the reasons why kernels ended",
		},
		{
			Name: "kube-peers", Env: []string{"EKG_KUBE_PEERS"},
			value: text(func(s *Settings) *string { return &s.KubePeers }),
			Usage: "label selector of the pods of all replicas of this gateway, in its own namespace. With --pod-ip, " +
				"replicas tell each other about changes",
		},
		{
			Name: "pod-ip", Env: []string{"EKG_POD_IP", "POD_IP"},
			value: text(func(s *Settings) *string { return &s.PodIP }),
			Usage: "address of this gateway's own pod",
		},
	}},
}
