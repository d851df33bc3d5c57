package deploy_test

import (
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// Only the components watch-nodes and watch-gpus, besides owner-namespaces, give gateways rights in the whole cluster:
// to read nodes, pods and devices.
func TestManifests_ClusterRights(t *testing.T) {
	for _, o := range token.objects(t) {
		if role, ok := o.(*rbacv1.ClusterRole); ok {
			t.Errorf("%s has rights for the cluster", role.Name)
		}
	}
	for _, c := range []struct {
		build     build
		role      string
		resources []string
	}{
		{watchNodes, "ekg-nodes", []string{"nodes"}},
		{watchGPUs, "ekg-gpus", []string{"nodes", "pods", "resourceclaims", "resourceslices"}},
	} {
		role := find[*rbacv1.ClusterRole](t, c.build, c.role)
		var resources []string
		for _, rule := range role.Rules {
			resources = append(resources, rule.Resources...)
			if !slices.Equal(rule.Verbs, []string{"list", "watch"}) {
				t.Errorf("%s may %v", c.role, rule.Verbs)
			}
		}
		if !slices.Equal(resources, c.resources) {
			t.Errorf("%s reads %v", c.role, resources)
		}
		bound := find[*rbacv1.ClusterRoleBinding](t, c.build, c.role)
		account := find[*corev1.ServiceAccount](t, c.build, "ekg")
		if bound.RoleRef.Name != role.Name || len(bound.Subjects) != 1 || bound.Subjects[0].Name != account.Name ||
			bound.Subjects[0].Namespace != account.Namespace {
			t.Errorf("%+v is bound to %+v", bound.RoleRef, bound.Subjects)
		}
	}
}

// The agent of GPUs has no right in the cluster, no capability and no way out, and its port is closed.
func TestManifests_GPUAgent(t *testing.T) {
	const name = "ekg-gpu-agent"
	set := find[*appsv1.DaemonSet](t, gpuAgent, name)
	pod := set.Spec.Template.Spec
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken || pod.ServiceAccountName != "" ||
		!pod.HostPID || pod.HostNetwork || pod.HostIPC {
		t.Errorf("%+v", pod)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		s := c.SecurityContext
		if s == nil || s.Privileged != nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
			!*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: %+v", c.Name, s)
		}
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil && v.HostPath.Path != "/var/lib/kubelet/pod-resources" {
			t.Errorf("it has the node's %s", v.HostPath.Path)
		}
	}
	gateway := find[*appsv1.Deployment](t, gpuAgent, "ekg").Spec.Template.Spec.Containers[0].Image
	if got := pod.InitContainers[0].Image; got != gateway {
		t.Errorf("its program is from %s, and the gateway's image is %s", got, gateway)
	}
	closed := find[*networkingv1.NetworkPolicy](t, gpuAgent, name)
	if closed.Namespace != set.Namespace || len(closed.Spec.PolicyTypes) != 2 || len(closed.Spec.Egress) != 0 ||
		len(closed.Spec.Ingress) != 1 || len(closed.Spec.Ingress[0].From) != 1 {
		t.Errorf("%+v", closed.Spec)
	}
}

// Only the component homes lets gateways create claims, and in the kernels' namespace alone.
func TestManifests_Homes(t *testing.T) {
	onlyRole(t, homes, "ekg-homes", "persistentvolumeclaims", rbacv1.PolicyRule{APIGroups: []string{""},
		Resources: []string{"persistentvolumeclaims"}, Verbs: []string{"create", "get"}})
}

// onlyRole checks that only one role of a build has rights on a resource. The role has this rule in the kernels'
// namespace. Only gateways have the role. A build without the component gives no right on the resource.
func onlyRole(t *testing.T, b build, name, resource string, rule rbacv1.PolicyRule) {
	t.Helper()
	for _, b := range []build{token, b} {
		for _, o := range b.objects(t) {
			role, ok := o.(*rbacv1.Role)
			if !ok || role.Name == name {
				continue
			}
			for _, rule := range role.Rules {
				if slices.Contains(rule.Resources, resource) {
					t.Errorf("%s may %v %s", role.Name, rule.Verbs, resource)
				}
			}
		}
	}
	role, bound := find[*rbacv1.Role](t, b, name), find[*rbacv1.RoleBinding](t, b, name)
	account := find[*corev1.ServiceAccount](t, b, "ekg")
	if role.Namespace != "ekg-kernels" || !reflect.DeepEqual(role.Rules, []rbacv1.PolicyRule{rule}) ||
		bound.RoleRef.Name != role.Name || len(bound.Subjects) != 1 || bound.Subjects[0].Name != account.Name ||
		bound.Namespace != role.Namespace {
		t.Errorf("%+v, %+v", role, bound)
	}
}

// Only the component delete-homes lets gateways delete claims, and in the kernels' namespace alone.
func TestManifests_DeleteHomes(t *testing.T) {
	role := find[*rbacv1.Role](t, deleteHomes, "ekg-delete-homes")
	bound := find[*rbacv1.RoleBinding](t, deleteHomes, "ekg-delete-homes")
	if role.Namespace != "ekg-kernels" || len(role.Rules) != 1 ||
		!slices.Equal(role.Rules[0].Resources, []string{"persistentvolumeclaims"}) ||
		!slices.Equal(role.Rules[0].Verbs, []string{"delete", "list", "patch"}) || bound.RoleRef.Name != role.Name ||
		bound.Namespace != role.Namespace {
		t.Errorf("%+v, %+v", role, bound)
	}
}

// The component owner-namespaces gives rights in every namespace: none reads secrets, deletes a namespace, or gives the
// gateways rights that they do not have.
func TestManifests_OwnerNamespaces(t *testing.T) {
	role := find[*rbacv1.ClusterRole](t, ownerSpaces, "ekg-owner-namespaces")
	bound := find[*rbacv1.ClusterRoleBinding](t, ownerSpaces, "ekg-owner-namespaces")
	account := find[*corev1.ServiceAccount](t, ownerSpaces, "ekg")
	if bound.RoleRef.Name != role.Name || len(bound.Subjects) != 1 || bound.Subjects[0].Name != account.Name ||
		bound.Subjects[0].Namespace != account.Namespace {
		t.Errorf("%+v", bound)
	}
	for _, rule := range role.Rules {
		has := func(list []string, any ...string) bool {
			return slices.ContainsFunc(list, func(s string) bool { return slices.Contains(any, s) })
		}
		if has(rule.Resources, "secrets") && !slices.Equal(rule.Verbs, []string{"create"}) ||
			has(rule.Resources, "namespaces") && has(rule.Verbs, "delete") || has(rule.Verbs, "bind", "escalate", "*") ||
			has(rule.Resources, "*") || has(rule.APIGroups, "*") {
			t.Errorf("%+v", rule)
		}
	}
}

// Only the component driver-ports lets gateways create network policies, and in the kernels' namespace alone.
func TestManifests_DriverPorts(t *testing.T) {
	onlyRole(t, ports, "ekg-driver-ports", "networkpolicies", rbacv1.PolicyRule{
		APIGroups: []string{networkingv1.GroupName}, Resources: []string{"networkpolicies"}, Verbs: []string{"create"}})
}

// Only the component objects lets gateways create Services, and in the kernels' namespace alone. It gives no right on
// secrets.
func TestManifests_Objects(t *testing.T) {
	onlyRole(t, kernelObjects, "ekg-objects", "services", rbacv1.PolicyRule{APIGroups: []string{""},
		Resources: []string{"persistentvolumeclaims", "services"}, Verbs: []string{"create", "get", "patch", "delete"}})
}

// No gateway has a right on Deployments or DaemonSets, also where the manifests have some of their own.
func TestManifests_NoWorkloads(t *testing.T) {
	for _, b := range []build{token, prePull, places} {
		for _, o := range b.objects(t) {
			if role, ok := o.(*rbacv1.Role); ok && slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.APIGroups, appsv1.GroupName)
			}) {
				t.Errorf("%s may change workloads: %+v", role.Name, role.Rules)
			}
		}
	}
}
