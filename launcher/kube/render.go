package kube

import (
	"bytes"
	"fmt"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// redacted stands for what only a kernel's pod may know.
const redacted = "<redacted>"

// Render returns, as YAML, the pod that a request would get and its secret, without the secret's content. It asks nothing of
// a cluster. The error is that of Launcher.Start for such a request.
func Render(o PodOptions, req launcher.Request, created time.Time) ([]byte, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	pod, err := buildPod(o, req, record{id: req.ID, generation: 1, owner: req.Owner, spec: req.Spec.Name, created: created,
		protocol: supervisor.ProtocolVersion, keyVersion: keyVersion})
	if err != nil {
		return nil, err
	}
	secret := buildSecret(pod, keyMaterial{})
	secret.OwnerReferences[0].UID = "<of the pod>"
	secret.StringData = map[string]string{}
	for name := range secret.Data {
		secret.StringData[name] = redacted
	}
	secret.Data = nil
	var out bytes.Buffer
	for i, object := range []any{pod, secret} {
		text, err := yaml.Marshal(object)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			fmt.Fprintln(&out, "---")
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}
