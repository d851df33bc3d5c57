package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// Rates of requests to the API server, per second, for each gateway: it has its own limits, and these are for a fault of ours.
const (
	apiRate  = 100
	apiBurst = 200
)

// ownNamespace is where a pod finds the name of its namespace.
const ownNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Cluster is a way to a Kubernetes cluster. It may be used concurrently.
type Cluster struct {
	client    kubernetes.Interface
	forward   *rest.Config // for port-forward; nil where pods are dialled directly
	asked     *asked
	Namespace string // this gateway's own in the cluster, or that of the kubeconfig's context
	Host      string // the API server's URL, to be shown
}

// LogTo has what the Kubernetes client says by itself, that it waits for its turn or a lease, written to log and not to standard
// error. It is for the whole process, and to be called before anything else of this package.
// Only the first call counts: what is running may be logging.
func LogTo(log *slog.Logger) {
	logTo.Do(func() { klog.SetSlogLogger(log.With("component", "client-go")) })
}

var logTo sync.Once

// Connect finds the cluster as kubectl does: by the kubeconfig file that is named or that KUBECONFIG names; else, in a pod, by
// its service account; else by ~/.kube/config. Context is one of the file's contexts, "" for its current one. Nothing is asked
// of the cluster yet.
func Connect(kubeconfig, context string) (*Cluster, error) {
	if kubeconfig == "" && context == "" && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		config, err := rest.InClusterConfig()
		if err == nil {
			namespace, err := os.ReadFile(ownNamespace)
			if err != nil {
				return nil, err
			}
			return newCluster(config, strings.TrimSpace(string(namespace)), true)
		}
		if !errors.Is(err, rest.ErrNotInCluster) {
			return nil, err
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	file := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context})
	config, err := file.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("this is no pod of a cluster, and there is no kubeconfig: name one with --kubeconfig or KUBECONFIG")
	}
	if err != nil {
		return nil, err
	}
	namespace, _, err := file.Namespace()
	if err != nil {
		return nil, err
	}
	return newCluster(config, namespace, false)
}

func newCluster(config *rest.Config, namespace string, inside bool) (*Cluster, error) {
	config.QPS, config.Burst = apiRate, apiBurst
	config.UserAgent = "ekg"
	requests := new(asked)
	requests.watch(config)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	c := &Cluster{client: client, Namespace: namespace, Host: config.Host, asked: requests}
	if !inside {
		c.forward = config
	}
	return c, nil
}

// Inside reports whether this process is a pod of the cluster.
func (c *Cluster) Inside() bool { return c.forward == nil }
