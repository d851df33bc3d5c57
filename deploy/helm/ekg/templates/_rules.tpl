{{- define "ekg.rules" }}
- apiGroups: [""]
  resources: [pods]
  verbs: [create, get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [list, watch]
# The ends of kernels, one config map per hour, and jobs with their notebooks, which are encrypted.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, get, list, patch, update, delete]
# The leases of the gateways that clean up and that decide about limits, and of GPUs at which pods take turns.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, get, update]
{{- end }}

{{- define "ekg.rulesPeers" }}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- end }}

{{- define "ekg.rulesFlavors" }}
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [create]
{{- end }}

{{- define "ekg.rulesHomes" }}
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create, get]
{{- end }}

{{- define "ekg.rulesDeleteHomes" }}
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [delete, list, patch]
{{- end }}

{{- define "ekg.rulesOwnerNamespaces" }}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [create, get, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [create, get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [list, watch]
# Homes.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create, get]
# Flavors of the kind dra.
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [create]
# The objects of the policy. Those that it no longer has are removed; without get and delete they stay.
- apiGroups: [""]
  resources: [configmaps, limitranges, resourcequotas, serviceaccounts]
  verbs: [create, get, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, get, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [create, get, patch, delete]
{{- end }}

{{- define "ekg.rulesDriverPorts" }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create]
{{- end }}

{{- define "ekg.rulesObjects" }}
- apiGroups: [""]
  resources: [persistentvolumeclaims, services]
  verbs: [create, get, patch, delete]
{{- end }}

{{- define "ekg.rulesNodes" }}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- end }}

{{- define "ekg.rulesGPUs" }}
- apiGroups: [""]
  resources: [nodes, pods]
  verbs: [list, watch]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims, resourceslices]
  verbs: [list, watch]
{{- end }}

{{- define "ekg.rulesTokens" }}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- end }}
