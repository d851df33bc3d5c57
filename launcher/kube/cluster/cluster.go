// Package cluster is access to a Kubernetes cluster: clients whose requests are bounded and counted, the API server's
// clock, and what an answer says. Begin with Connect. Package kube runs kernels with it, and cmd/ekg reviews tokens.
//
// It starts no goroutines. A Cluster may be used concurrently. The difference between the clocks and the observers are
// atomic values.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/poddial"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// rate bounds the requests of one gateway to the API server. The server has limits of its own; a rate contains a fault
// of the gateway.
type rate struct {
	qps   int // requests per second
	burst int // requests at one moment after a pause
}

var (
	// requestRate is the rate of all requests but those for leases.
	requestRate = rate{qps: 100, burst: 200}
	// leaseRate is the rate of the requests for leases: two elections with a request per second each, and their retries.
	leaseRate = rate{qps: 10, burst: 20}
)

// ownNamespace is the file in which a pod finds the name of its namespace.
const ownNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// AnswerTime bounds one request to the API server: a frozen server must not freeze the gateway.
const AnswerTime = 10 * time.Second

// Cluster is access to a Kubernetes cluster. It may be used concurrently.
type Cluster struct {
	Client    kubernetes.Interface
	Leases    kubernetes.Interface // for leases alone: many starts at one time must not delay their renewal
	Metadata  metadata.Interface   // nil: Client is asked instead
	Objects   dynamic.Interface    // for objects of any kind
	Forward   *rest.Config         // for port-forward; nil if pods are dialled directly
	requests  requestCounter
	Namespace string // this gateway's own in the cluster, or the kubeconfig context's
	Host      string // the API server's URL, for display
}

// LogTo sends the Kubernetes client's own messages to log instead of standard error. It acts on the whole process and
// must be called before anything else of this package. Only the first call counts: running code may be logging.
func LogTo(log *slog.Logger) {
	logTo.Do(func() { klog.SetSlogLogger(log.With(logkey.Component, "client-go")) })
}

var logTo sync.Once

// Connect finds the cluster as kubectl does: by the given kubeconfig file or the one that KUBECONFIG names; else, in a
// pod, by its service account; else by ~/.kube/config. context is one of the file's contexts, "" for its current one.
// Connect sends no request.
func Connect(kubeconfig, context string) (*Cluster, error) {
	if kubeconfig == "" && context == "" && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" {
		config, err := rest.InClusterConfig()
		if err == nil {
			namespace, err := os.ReadFile(ownNamespace)
			if err != nil {
				return nil, err
			}
			return newCluster(config, strings.TrimSpace(string(namespace)), true, requestRate)
		}
		if !errors.Is(err, rest.ErrNotInCluster) {
			return nil, err
		}
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	file := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: context})
	config, err := file.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New(
			"this is not a pod of a cluster, and no kubeconfig was found: name one with --kubeconfig or KUBECONFIG")
	}
	if err != nil {
		return nil, err
	}
	namespace, _, err := file.Namespace()
	if err != nil {
		return nil, err
	}
	return newCluster(config, namespace, false, requestRate)
}

func newCluster(config *rest.Config, namespace string, inside bool, r rate) (*Cluster, error) {
	config.UserAgent = "ekg"
	c := &Cluster{Namespace: namespace, Host: config.Host}
	c.requests.countRequests(config)
	forLeases := rest.CopyConfig(config)
	c.requests.limit(config, "requests", r)
	c.requests.limit(forLeases, "leases", leaseRate)
	if !inside {
		c.Forward = config
	}
	var errs [4]error
	c.Client, errs[0] = kubernetes.NewForConfig(config)
	c.Metadata, errs[1] = metadata.NewForConfig(config)
	c.Objects, errs[2] = dynamic.NewForConfig(config)
	c.Leases, errs[3] = kubernetes.NewForConfig(forLeases)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return c, nil
}

// Dialer returns the dialer for the place where this gateway runs.
func (c *Cluster) Dialer() poddial.Dialer {
	if c.Inside() {
		return poddial.Direct{}
	}
	return poddial.NewForwarder(c.Forward, c.Client.CoreV1().RESTClient())
}

// PodsMetadata returns the metadata of a namespace's pods.
func (c *Cluster) PodsMetadata(ctx context.Context, ns string, o metav1.ListOptions) ([]metav1.ObjectMeta, error) {
	if c.Metadata == nil {
		pods, err := c.Client.CoreV1().Pods(ns).List(ctx, o)
		if err != nil {
			return nil, err
		}
		return metadataOf(pods.Items, func(pod *corev1.Pod) metav1.ObjectMeta { return pod.ObjectMeta }), nil
	}
	pods, _, err := c.metadataPage(ctx, "pods", ns, o)
	return pods, err
}

// ConfigMapsMetadata returns the metadata of one page of a namespace's config maps, and where the next page begins.
func (c *Cluster) ConfigMapsMetadata(
	ctx context.Context, ns string, o metav1.ListOptions,
) (page []metav1.ObjectMeta, next string, err error) {
	if c.Metadata == nil {
		maps, err := c.Client.CoreV1().ConfigMaps(ns).List(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return metadataOf(maps.Items, func(m *corev1.ConfigMap) metav1.ObjectMeta { return m.ObjectMeta }), maps.Continue, nil
	}
	return c.metadataPage(ctx, "configmaps", ns, o)
}

// metadataPage asks for nothing but the metadata of one page of objects.
func (c *Cluster) metadataPage(
	ctx context.Context, resource, ns string, o metav1.ListOptions,
) (page []metav1.ObjectMeta, next string, err error) {
	list, err := c.Metadata.Resource(corev1.SchemeGroupVersion.WithResource(resource)).Namespace(ns).List(ctx, o)
	if err != nil {
		return nil, "", err
	}
	return metadataOf(list.Items, func(object *metav1.PartialObjectMetadata) metav1.ObjectMeta {
		return object.ObjectMeta
	}), list.Continue, nil
}

func metadataOf[T any](items []T, of func(*T) metav1.ObjectMeta) []metav1.ObjectMeta {
	all := make([]metav1.ObjectMeta, len(items))
	for i := range items {
		all[i] = of(&items[i])
	}
	return all
}

// Inside reports whether this process is a pod of the cluster.
func (c *Cluster) Inside() bool { return c.Forward == nil }

// ChoosesUsers reports whether the cluster chooses the users of pods by their namespaces, as OpenShift does. Such a
// cluster rejects a pod that sets a user. Every account may normally read which kinds of objects a cluster has.
// ChoosesUsers returns false for an account that may not.
func (c *Cluster) ChoosesUsers(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, AnswerTime)
	defer cancel()
	err := c.Client.CoreV1().RESTClient().Get().AbsPath("/apis/security.openshift.io").Do(ctx).Error()
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil
	}
	return err == nil, err
}
