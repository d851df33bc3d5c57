package replicas

import (
	"context"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	longestHost = 63                     // length to which Kubernetes shortens the name of a pod for its machine
	addressWait = 10 * time.Second       // for an answer of the API server, and for addresses that pods do not have yet
	addressPoll = 250 * time.Millisecond // between two looks
)

// FindIP returns the IP of this gateway's own pod among the pods with the labels of gateways. The pod has the name of
// this machine, host, or the machine's address on the way to the API server at a URL. FindIP returns "" if this gateway
// has no such pod, or no right to list pods, and says so in the log. A pod's address is known moments after its start,
// so FindIP looks again for addressWait while one has none. bound limits each request.
func FindIP(ctx context.Context, bound func(context.Context) (context.Context, context.CancelFunc),
	pods corev1client.PodInterface, host, server string, log *slog.Logger) (string, error) {
	address := addressTowards(ctx, server, log)
	for until := time.Now().Add(addressWait); ; {
		asking, cancel := bound(ctx)
		list, err := pods.List(asking, metav1.ListOptions{LabelSelector: Selector})
		cancel()
		last := time.Now().After(until)
		switch {
		case apierrors.IsForbidden(err):
			log.Warn("this gateway may not list the gateways' pods, so it knows no other gateway", logkey.Err, err)
			return "", nil
		case err != nil && last:
			return "", err
		case err == nil:
			if ip, sure := ownIP(list.Items, host, address); ip != "" && (sure || last) {
				return ip, nil
			} else if sure || last {
				log.Info("this gateway has not found its pod among those with the labels of gateways, so it knows no other " +
					"gateway")
				return "", nil
			}
		}
		if err := goroutines.Sleep(ctx, addressPoll); err != nil {
			return "", err
		}
	}
}

// ownIP returns the IP of the pod with the name of this machine, or else with its address. sure is false while a pod
// that may be this one has no address yet: ip is then a guess.
func ownIP(pods []corev1.Pod, host, address string) (ip string, sure bool) {
	sure = true
	for i := range pods {
		switch pod := &pods[i]; {
		case pod.Name == host && pod.Status.PodIP == "":
			return address, false
		case pod.Name == host, address != "" && pod.Status.PodIP == address:
			return pod.Status.PodIP, true
		case pod.Status.PodIP == "":
			sure = false
			if len(pod.Name) > longestHost && strings.HasPrefix(pod.Name, host) {
				ip = address
			}
		}
	}
	return ip, sure
}

// addressTowards returns the address of this machine on the way to a URL, and sends nothing. It returns "" if other
// machines do not reach that address, or if it is not known.
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
