package wish

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// serviceTypes are the types of Services that a policy can allow. ExternalName leads to no kernel.
var serviceTypes = []string{string(corev1.ServiceTypeClusterIP), string(corev1.ServiceTypeNodePort),
	string(corev1.ServiceTypeLoadBalancer)}

// secretTypes are the types of Secrets that a kernelspec can create. The cluster gives others a meaning: it puts the
// token of a service account into a kubernetes.io/service-account-token.
var secretTypes = []string{string(corev1.SecretTypeOpaque), string(corev1.SecretTypeBasicAuth),
	string(corev1.SecretTypeSSHAuth), string(corev1.SecretTypeTLS), string(corev1.SecretTypeDockercfg),
	string(corev1.SecretTypeDockerConfigJson)}

// Fields of objects that kernelspecs can set.
var (
	metaFields    = []string{"name", "labels", "annotations"}
	serviceFields = []string{"allocateLoadBalancerNodePorts", "clusterIP", "externalTrafficPolicy",
		"internalTrafficPolicy", "ipFamilies", "ipFamilyPolicy", "loadBalancerClass", "loadBalancerSourceRanges", "ports",
		"publishNotReadyAddresses", "sessionAffinity", "sessionAffinityConfig", "trafficDistribution", "type"}
	claimFields = []string{"accessModes", "dataSource", "dataSourceRef", "resources", "storageClassName", "volumeMode"}
)

// fieldReasons say why other fields cannot be set.
var fieldReasons = map[string]string{
	"clusterIPs":      "the cluster chooses the addresses",
	"externalIPs":     "a Service could take the traffic of other addresses",
	"externalName":    "the Service leads to the kernel's pod",
	"finalizers":      "the object would stay after its kernel",
	"generateName":    "write name",
	"namespace":       "the object is in the namespace of its kernel",
	"ownerReferences": "the kernel's pod owns the object",
	"selector":        "ekg sets it to the kernel's pod",
	"status":          "the cluster sets it",
	"volumeName":      "the claim could take a volume of others",
}

// declareObjects collects the names of the kernelspec's objects. It is called before the checks of what refers to them.
func (c *checker) declareObjects(e *Extension) {
	for i := range e.Objects {
		c.objects = append(c.objects, objectName{e.Objects[i].Kind, e.Objects[i].Meta().Name})
	}
}

// isOwn reports whether a name is that of one of the kernelspec's objects.
func (c *checker) isOwn(kind, name string) bool {
	return slices.Contains(c.objects, objectName{kind, name})
}

// ofKernel refuses the names of objects that were created with a kernel's pod. It reports whether it has refused one.
func (c *checker) ofKernel(path, value string) bool {
	if realObjectName.MatchString(value) {
		c.refuse(path, "%s is an object of one kernel, which a kernelspec names as in its %s", Quoted(value),
			ShortPath(ObjectsKey))
		return true
	}
	return false
}

// configMap refuses a config map that is not listed.
func (c *checker) configMap(path, value string) {
	if !c.isOwn(kindConfigMap, value) && !c.ofKernel(path, value) {
		c.listedIn(path, value, c.bounds.ConfigMaps)
	}
}

// claim refuses a claim that is not listed.
func (c *checker) claim(path, value string) {
	if !c.isOwn(kindClaim, value) && !c.ofKernel(path, value) {
		c.listedIn(path, value, c.bounds.PersistentVolumeClaims)
	}
}

// kernelObjects checks the objects that are created with a kernel's pod.
func (c *checker) kernelObjects(e *Extension) {
	if len(e.Objects) == 0 {
		return
	}
	c.keyAllowed(ShortPath(ObjectsKey), ObjectsKey)
	if len(e.Objects) > maxObjects {
		c.refuse(ShortPath(ObjectsKey), "has %d objects; at most %d are allowed", len(e.Objects), maxObjects)
	}
	for i := range e.Objects {
		o, at := &e.Objects[i], ObjectPath(i)
		if !slices.Contains(c.spec.Objects, o.Kind) {
			c.refuse(at+".kind", "the policy does not let kernelspecs create a %s; it allows: %s", o.Kind,
				listOrNothing(c.spec.Objects))
		}
		c.objectMeta(at+".metadata", o.Meta())
		if slices.Contains(c.objects[:i], c.objects[i]) {
			c.refuse(at+".metadata.name", "%q is given twice", o.Meta().Name)
		}
		switch v := o.Value.(type) {
		case *corev1.Service:
			c.onlyFields(at, v, "spec", "metadata")
			c.service(at+".spec", &v.Spec, e.Ports)
		case *corev1.PersistentVolumeClaim:
			c.onlyFields(at, v, "spec", "metadata")
			c.claimAnnotations(at+".metadata.annotations", v.Annotations)
			c.claimObject(at+".spec", &v.Spec)
		case *corev1.ConfigMap:
			c.dataKeys(at+".data", v.Data)
			c.dataKeys(at+".binaryData", v.BinaryData)
		case *corev1.Secret:
			c.dataKeys(at+".data", v.Data)
			c.dataKeys(at+".stringData", v.StringData)
			if v.Type != "" && !slices.Contains(secretTypes, string(v.Type)) {
				c.refuse(at+".type", "%s is not a type that is created; valid: %s", Quoted(string(v.Type)),
					strings.Join(secretTypes, ", "))
			}
		}
	}
	named := func(key, text string) string {
		for _, mark := range serviceMark.FindAllStringSubmatch(text, -1) {
			if !c.isOwn(kindService, mark[1]) {
				c.refuse(key, "no Service among the objects is named %s", Quoted(mark[1]))
			}
		}
		return text
	}
	e.envTexts(named)
	e.objectTexts(named)
}

// onlyFields refuses the fields of a struct of Kubernetes' types that have a value and are not allowed.
func (c *checker) onlyFields(where string, of any, allowed ...string) {
	v := reflect.Indirect(reflect.ValueOf(of))
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if name == "" || v.Field(i).IsZero() || slices.Contains(allowed, name) {
			continue
		}
		why := "cannot be set"
		if reason := fieldReasons[name]; reason != "" {
			why += ": " + reason
		}
		c.refuse(where+"."+name, "%s", why)
	}
}

// objectMeta checks the metadata of an object.
func (c *checker) objectMeta(where string, m *metav1.ObjectMeta) {
	c.onlyFields(where, m, metaFields...)
	c.labels(where+".labels", m.Labels, true)
	c.labels(where+".annotations", m.Annotations, false)
	if len(validation.IsDNS1035Label(m.Name)) > 0 || len(m.Name) > maxObjectName {
		c.refuse(where+".name", "%s is not at most %d small letters, digits and '-', with a letter first",
			Quoted(m.Name), maxObjectName)
	}
}

// dataKeys checks the keys of a config map or a Secret.
func (c *checker) dataKeys(where string, data any) {
	for _, key := range reflect.ValueOf(data).MapKeys() {
		if len(validation.IsConfigMapKey(key.String())) > 0 {
			c.refuse(where+"."+key.String(), "is not a valid key: at most 253 letters, digits, '-', '_' and '.'")
		}
	}
}

// service checks a Service, which leads to the kernel's pod and to nothing else.
func (c *checker) service(where string, s *corev1.ServiceSpec, open []corev1.ContainerPort) {
	c.onlyFields(where, s, serviceFields...)
	kind := string(cmp.Or(s.Type, corev1.ServiceTypeClusterIP))
	if !slices.Contains(c.spec.ServiceTypes, kind) {
		c.refuse(where+".type", "%s is not allowed; allowed: %s", Quoted(kind), listOrNothing(c.spec.ServiceTypes))
	}
	if s.ClusterIP != "" && s.ClusterIP != corev1.ClusterIPNone {
		c.refuse(where+".clusterIP", "can only be None: the cluster chooses the addresses")
	}
	if len(s.Ports) == 0 && s.ClusterIP != corev1.ClusterIPNone {
		c.refuse(where+".ports", "is missing")
	}
	for i := range s.Ports {
		p, at := &s.Ports[i], fmt.Sprintf("%s.ports[%d]", where, i)
		if p.NodePort != 0 {
			c.refuse(at+".nodePort", "cannot be set: each kernel has a Service, and the cluster chooses its port")
		}
		target := p.TargetPort
		if target == (intstr.IntOrString{}) {
			target = intstr.FromInt32(p.Port)
		}
		if !slices.ContainsFunc(open, func(o corev1.ContainerPort) bool {
			named := target.Type == intstr.String && o.Name == target.StrVal && o.Name != ""
			return (named || target.Type == intstr.Int && o.ContainerPort == target.IntVal) &&
				cmp.Or(o.Protocol, corev1.ProtocolTCP) == cmp.Or(p.Protocol, corev1.ProtocolTCP)
		}) {
			c.refuse(at, "leads to %s, which is not a port in %s", target.String(), ShortPath("ports"))
		}
	}
}

// claimObject checks a claim that is created with a kernel's pod.
func (c *checker) claimObject(where string, s *corev1.PersistentVolumeClaimSpec) {
	if len(s.AccessModes) == 0 {
		c.refuse(where+".accessModes", "is missing")
	}
	if _, ok := s.Resources.Requests[corev1.ResourceStorage]; !ok {
		c.refuse(where+".resources.requests.storage", "is missing")
	}
	c.claimSources(where, s, false)
}

// claimAnnotations refuses annotations of new claims that Kubernetes reads. One of them chooses a storage class, and
// another one a volume.
func (c *checker) claimAnnotations(where string, annotations map[string]string) {
	for key := range annotations {
		domain, _, _ := strings.Cut(key, "/")
		if domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
			c.refuse(where+"."+key, "cannot be set: Kubernetes reads it")
		}
	}
}

// claimSources checks how large a new claim is, from which class its volume comes, and from what it is filled. Without
// snapshots it can only be a copy of a claim that could be mounted as well.
func (c *checker) claimSources(where string, s *corev1.PersistentVolumeClaimSpec, snapshots bool) {
	c.onlyFields(where, s, claimFields...)
	r := &s.Resources
	for part, list := range map[string]corev1.ResourceList{"requests": r.Requests, "limits": r.Limits} {
		for name, q := range list {
			c.quantity(fmt.Sprintf("%s.resources.%s.%s", where, part, name), string(name), q, nil)
		}
	}
	if s.StorageClassName != nil {
		c.listedIn(where+".storageClassName", *s.StorageClassName, c.storageClasses)
	}
	from := func(at string, group *string, kind, name string, ns *string) {
		switch {
		case ns != nil:
			c.refuse(at+".namespace", "cannot be set: a claim of another namespace is not of this kernel")
		case kind == kindClaim && (group == nil || *group == ""):
			if !c.ofKernel(at+".name", name) {
				c.listedIn(at+".name", name, c.bounds.PersistentVolumeClaims)
			}
		case !snapshots:
			c.refuse(at, "can only be a %s", kindClaim)
		}
	}
	if d := s.DataSource; d != nil {
		from(where+".dataSource", d.APIGroup, d.Kind, d.Name, nil)
	}
	if d := s.DataSourceRef; d != nil {
		from(where+".dataSourceRef", d.APIGroup, d.Kind, d.Name, d.Namespace)
	}
}
