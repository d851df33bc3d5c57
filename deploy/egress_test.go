package deploy_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// The shipped overlay keeps kernels from the cloud's metadata and from the API server, by every address and in both
// families. Names, pods and all other addresses stay reachable.
func TestManifests_Egress(t *testing.T) {
	policy := find[*networkingv1.NetworkPolicy](t, token, "ekg-kernels-egress")
	s := policy.Spec
	if e := s.PodSelector.MatchExpressions; policy.Namespace != "ekg-kernels" || len(e) != 1 ||
		e[0].Key != podspec.LabelKernel || !slices.Equal(s.PolicyTypes, []networkingv1.PolicyType{"Egress"}) ||
		len(s.Ingress) > 0 {
		t.Errorf("the policy is for %s in %s: %+v", s.PolicyTypes, policy.Namespace, s.PodSelector)
	}
	const tcp, udp, sctp = corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP
	for _, tt := range []struct {
		name     string
		protocol corev1.Protocol
		address  string // "": a pod
		port     int32
		permits  bool
	}{
		{"metadata", tcp, "169.254.169.254", 80, false},
		{"metadata by UDP", udp, "169.254.169.254", 80, false},
		{"Google's workload identity", tcp, "169.254.169.252", 988, false},
		{"credentials of ECS", tcp, "169.254.170.2", 80, false},
		{"metadata of AWS, IPv6", tcp, "fd00:ec2::254", 80, false},
		{"metadata of Google, IPv6", tcp, "fd20:ce::254", 80, false},
		{"metadata of Oracle, IPv6", tcp, "fd00:c1::a9fe:a9fe", 80, false},
		{"metadata by NAT64", tcp, "64:ff9b::a9fe:a9fe", 80, false},
		{"metadata of Alibaba", tcp, "100.100.100.200", 80, false},
		{"Azure's host", tcp, "168.63.129.16", 80, false},
		{"Azure's host, IPv6", tcp, "64:ff9b::a83f:8110", 32526, false},
		{"link-local, IPv6", tcp, "fe80::1", 80, false},
		{"API server", tcp, "10.0.0.5", 6443, false},
		{"API server, public", tcp, "203.0.113.5", 6443, false},
		{"API server, IPv6", tcp, "2001:db8::5", 6443, false},
		{"API server in a pod", tcp, "", 6443, false},
		{"names in a pod", udp, "", 53, true},
		{"names in a pod by TCP", tcp, "", 53, true},
		{"names of OpenShift", udp, "", 5353, true},
		{"names of the node", udp, "169.254.20.10", 53, true},
		{"names of Google", udp, "169.254.169.254", 53, true},
		{"names of Azure", udp, "168.63.129.16", 53, true},
		{"a package index", tcp, "151.101.0.223", 443, true},
		{"a package index, IPv6", tcp, "2a04:4e42::223", 443, true},
		{"a database of the site", tcp, "10.1.2.3", 5432, true},
		{"a service in a pod", tcp, "", 8080, true},
		{"beside the API server's port", tcp, "10.0.0.5", 6442, true},
		{"the last port", tcp, "10.0.0.5", 65535, true},
		{"UDP of that port", udp, "10.0.0.5", 6443, true},
		{"SCTP", sctp, "10.0.0.5", 9999, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := permits(t, s.Egress, tt.protocol, tt.address, tt.port); got != tt.permits {
				t.Errorf("%s %s port %d: permitted %v", tt.protocol, tt.address, tt.port, got)
			}
		})
	}
}

// permits follows Kubernetes' description of NetworkPolicyEgressRule: a connection is permitted if a rule has both its
// destination and its port. A rule without destinations has all of them. An address that is "" stands for a pod, which
// only selectors match.
func permits(
	t *testing.T,
	rules []networkingv1.NetworkPolicyEgressRule,
	protocol corev1.Protocol,
	address string,
	port int32,
) bool {
	t.Helper()
	in := func(cidr string) bool {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil || prefix != prefix.Masked() {
			t.Fatalf("%s is not a range of addresses: %v", cidr, err)
		}
		return prefix.Contains(netip.MustParseAddr(address))
	}
	return slices.ContainsFunc(rules, func(r networkingv1.NetworkPolicyEgressRule) bool {
		return slices.ContainsFunc(r.Ports, func(p networkingv1.NetworkPolicyPort) bool {
			last := p.Port.IntVal
			if p.EndPort != nil {
				last = *p.EndPort
			}
			return *p.Protocol == protocol && p.Port.IntVal <= port && port <= last
		}) && (len(r.To) == 0 || slices.ContainsFunc(r.To, func(to networkingv1.NetworkPolicyPeer) bool {
			if to.IPBlock == nil || address == "" {
				return to.IPBlock == nil && address == ""
			}
			return in(to.IPBlock.CIDR) && !slices.ContainsFunc(to.IPBlock.Except, in)
		}))
	})
}

// Without the component kernels connect to every address.
func TestManifests_EgressIsAComponent(t *testing.T) {
	for _, o := range base.objects(t) {
		if p, ok := o.(*networkingv1.NetworkPolicy); ok && slices.Contains(p.Spec.PolicyTypes, "Egress") {
			t.Errorf("%s restricts where kernels connect to", p.Name)
		}
	}
}

// The documented example of a user's namespace has the egress policy of ekg-kernels, for all pods.
func TestEgress_OwnerNamespace(t *testing.T) {
	text, err := os.ReadFile("../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(text), "```yaml\nownerNamespace:")
	example, _, _ = strings.Cut(example, "```")
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("ownerNamespace:"+example), 0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := wish.ReadPolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	want := find[*networkingv1.NetworkPolicy](t, token, "ekg-kernels-egress")
	for _, object := range policy.OwnerNamespace.Objects {
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		got := &networkingv1.NetworkPolicy{}
		if json.Unmarshal(text, got) == nil && got.Name == want.Name {
			if !reflect.DeepEqual(got.Spec.Egress, want.Spec.Egress) || got.Spec.PodSelector.Size() > 0 {
				t.Errorf("the example is %+v", got.Spec)
			}
			return
		}
	}
	t.Error("the example has no egress policy")
}
