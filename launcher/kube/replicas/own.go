package replicas

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// longestHost is the length to which Kubernetes shortens the name of a pod for its machine.
const longestHost = 63

// FindIP returns the IP of this gateway's own pod among the pods with the labels of gateways. The pod has the name of
// this machine, or the machine's address on the way to the API server at a URL. FindIP returns "" if this gateway has
// no such pod, or no right to list pods, and says so in the log.
func FindIP(ctx context.Context, pods corev1client.PodInterface, server string, log *slog.Logger) (string, error) {
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: Selector})
	switch {
	case apierrors.IsForbidden(err):
		log.Warn("this gateway may not list the gateways' pods, so it knows no other gateway", logkey.Err, err)
		return "", nil
	case err != nil:
		return "", err
	}
	host, err := os.Hostname()
	if err != nil {
		log.Debug("this machine has no name", logkey.Err, err)
	}
	address := addressTowards(ctx, server, log)
	for i := range list.Items {
		pod := &list.Items[i]
		switch {
		case pod.Name == host && cmp.Or(pod.Status.PodIP, address) != "":
			return cmp.Or(pod.Status.PodIP, address), nil
		case pod.Name == host:
			return "", errors.New("the address of this gateway's pod is not known yet")
		case address == "":
		case pod.Status.PodIP == address, len(pod.Name) > longestHost && strings.HasPrefix(pod.Name, host):
			return address, nil
		}
	}
	log.Info("this gateway is no pod with the labels of gateways, so it knows no other gateway")
	return "", nil
}

// addressTowards returns the address of this machine on the way to a URL, and sends nothing. It returns "" if there is
// no such address that other machines reach.
func addressTowards(ctx context.Context, to string, log *slog.Logger) string {
	u, err := url.Parse(to)
	if err == nil {
		var conn net.Conn
		if conn, err = new(net.Dialer).DialContext(ctx, "udp", net.JoinHostPort(u.Hostname(), "443")); err == nil {
			defer func() { _ = conn.Close() }()
			if at, ok := conn.LocalAddr().(*net.UDPAddr); ok && !at.IP.IsLoopback() {
				return at.IP.String()
			}
			return ""
		}
	}
	log.Debug("the address of this machine is not known", logkey.Err, err)
	return ""
}
