package settings

// kubernetesSettings are for kernels that run as pods.
var kubernetesSettings = []Group{
	{"Run kernels on Kubernetes", []Option{
		{
			Name: "kubeconfig", Env: []string{"EKG_KUBECONFIG"},
			defDoc: "in a pod its service account, else $KUBECONFIG, else ~/.kube/config",
			value:  text(func(s *Settings) *string { return &s.Kubeconfig }),
			Usage: "file with the address and credentials of the cluster. With it, the gateway reaches pods by port-forward " +
				"through the API server",
		},
		{
			Name: "kube-context", Env: []string{"EKG_KUBE_CONTEXT"}, defDoc: "the file's current one",
			value: text(func(s *Settings) *string { return &s.KubeContext }),
			Usage: "context of the kubeconfig",
		},
		{
			Name: "kube-namespace", Env: []string{"EKG_KUBE_NAMESPACE"},
			defDoc: "the gateway's own, or the context's",
			value:  text(func(s *Settings) *string { return &s.Pods.Namespace }),
			Usage:  "namespace of the kernels' pods",
		},
		{
			Name: "kube-policy", Env: []string{"EKG_KUBE_POLICY"},
			value: text(func(s *Settings) *string { return &s.KubePolicy }),
			Usage: "YAML file that limits what kernelspecs and clients may ask of a pod; see docs/kernelspecs.md",
		},
		{
			Name: "flavors", Env: []string{"EKG_FLAVORS"},
			value: text(func(s *Settings) *string { return &s.Flavors }),
			Usage: "YAML file with flavors: the GPUs that users choose by name; see docs/gpus.md",
		},
		{
			Name: "supervisor-image", Env: []string{"EKG_SUPERVISOR_IMAGE"},
			value: text(func(s *Settings) *string { return &s.Pods.SupervisorImage }),
			Usage: "image of ekg. The supervisor's container in each kernel's pod runs it",
		},
		{
			Name: "kernel-image", Env: []string{"EKG_KERNEL_IMAGE"},
			value: text(func(s *Settings) *string { return &s.Pods.KernelImage }),
			Usage: "image of kernels whose kernelspec names none",
		},
		{
			Name: "master-key-file", Env: []string{"EKG_MASTER_KEY_FILE"},
			defDoc: "outside a cluster generated once, kept in the state directory",
			value:  text(func(s *Settings) *string { return &s.MasterKeyFile }),
			Usage: "file with a secret of at least 32 characters, from which the kernels' keys are derived. All replicas " +
				"need the same secret",
		},
		{
			Name: "second-master-key-file", Env: []string{"EKG_SECOND_MASTER_KEY_FILE"},
			value: text(func(s *Settings) *string { return &s.SecondMasterKeyFile }),
			Usage: "file with another master key, for a change of keys. The gateway also reaches kernels and replicas with " +
				"this key. New kernels get keys of the first one. A file that does not exist is ignored",
		},
	}},
}
