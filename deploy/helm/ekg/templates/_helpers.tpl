{{/* The namespace of the kernels. */}}
{{- define "ekg.kernels" -}}
{{- .Values.kernels.namespace | default (printf "%s-kernels" .Release.Namespace) -}}
{{- end }}

{{/* The image of gateways and supervisors. */}}
{{- define "ekg.image" -}}
{{- .Values.image | default (printf "ghcr.io/elastic-kernel-gateway/ekg:%s" .Chart.AppVersion) -}}
{{- end }}

{{/* The PriorityClass of placeholders. */}}
{{- define "ekg.placeholderClass" -}}
{{- printf "%s-placeholder" .Release.Namespace -}}
{{- end }}

{{/* Labels that select the gateways' pods. */}}
{{- define "ekg.selector" -}}
app.kubernetes.io/name: ekg
app.kubernetes.io/component: gateway
{{- end }}

{{/* Labels of every object. */}}
{{- define "ekg.labels" -}}
app.kubernetes.io/name: ekg
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.global.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The subjects of role bindings. */}}
{{- define "ekg.subjects" -}}
- kind: ServiceAccount
  name: {{ .Values.deployment.serviceAccountName }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{/* A role, or a cluster role, and its binding. Takes a dict: root, name, namespace ("" for the cluster), rules. */}}
{{- define "ekg.role" -}}
{{- $kind := ternary "Role" "ClusterRole" (ne .namespace "") -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "ekg.labels" .root | nindent 4 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "ekg.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .name }}
subjects:
  {{- include "ekg.subjects" .root | nindent 2 }}
{{- end }}

{{/* Where users come from: "token" for one token for all, "users" otherwise. */}}
{{- define "ekg.auth" -}}
{{- $s := .Values.settings -}}
{{- if or .Values.users.file .Values.users.existingSecret .Values.users.tokenReview (index $s "oidc-issuer")
  (index $s "hub-api-url") (index $s "no-auth") -}}
users
{{- else -}}
token
{{- end -}}
{{- end }}

{{/* The Service's port: Enterprise Gateway's list of ports counts if it is given. */}}
{{- define "ekg.port" -}}
{{- $port := .Values.service.port -}}
{{- range .Values.service.ports -}}
{{- if eq .name "http" -}}{{- $port = .port -}}{{- end -}}
{{- end -}}
{{- $port -}}
{{- end }}

{{/* The port of each node that leads to the Service, or nothing: service.nodePort, or that of the entry "http". */}}
{{- define "ekg.nodePort" -}}
{{- $port := .Values.service.nodePort -}}
{{- range .Values.service.ports -}}
{{- if eq .name "http" -}}{{- $port = $port | default .nodePort -}}{{- end -}}
{{- end -}}
{{- $port | default "" -}}
{{- end }}

{{/* The Service's external addresses, as YAML: a list, or the values of Enterprise Gateway's map. */}}
{{- define "ekg.externalIPs" -}}
{{- $ips := .Values.service.externalIPs -}}
{{- if kindIs "map" $ips }}{{ $ips = values $ips }}{{ end -}}
{{- with compact $ips }}{{ toYaml . }}{{ end -}}
{{- end }}

{{/* Settings by Enterprise Gateway's names of values, and those of .Values.settings, which precede. As YAML. */}}
{{- define "ekg.settings" -}}
{{- $s := dict -}}
{{- $k := .Values.kernel -}}
{{- if not (kindIs "invalid" $k.cullIdleTimeout) }}{{ $_ := set $s "cull-idle-timeout" (toString $k.cullIdleTimeout) }}{{ end -}}
{{- if not (kindIs "invalid" $k.cullConnected) }}{{ $_ := set $s "cull-connected" $k.cullConnected }}{{ end -}}
{{- if $k.defaultKernelName }}{{ $_ := set $s "default-kernel" $k.defaultKernelName }}{{ end -}}
{{- with $k.allowedKernels }}{{ $_ := set $s "allowed-kernelspec" . }}{{ end -}}
{{- with .Values.logLevel -}}
{{- $levels := dict "debug" "debug" "info" "info" "warning" "warn" "warn" "warn" "error" "error" "critical" "error" -}}
{{- $_ := set $s "log-level" (get $levels (lower .)) -}}
{{- end -}}
{{- if .Values.users.tokenReview }}{{ $_ := set $s "auth-token-review" true }}{{ end -}}
{{- toYaml (merge (dict) .Values.settings $s) -}}
{{- end }}

{{/* The secret of this name, made once. It is a hook, so no upgrade, rollback or uninstallation touches it. Takes a dict:
     root, name, key. */}}
{{- define "ekg.secretOnce" -}}
{{- if not (lookup "v1" "Secret" .root.Release.Namespace .name) -}}
apiVersion: v1
kind: Secret
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "ekg.labels" .root | nindent 4 }}
  annotations:
    helm.sh/hook: pre-install,pre-upgrade
    # Argo CD cannot look at the cluster while it renders, and would replace the secret with each synchronisation.
    argocd.argoproj.io/hook: Skip
    meta.helm.sh/release-name: {{ .root.Release.Name }}
    meta.helm.sh/release-namespace: {{ .root.Release.Namespace }}
data:
  {{ .key }}: {{ randAlphaNum 64 | b64enc }}
{{- end }}
{{- end }}

{{/* The path of a probe under the base URL. Takes a dict: root, path. */}}
{{- define "ekg.probe" -}}
{{ printf "%s/%s" (trimSuffix "/" (toString (index .root.Values.settings "base-url" | default ""))) .path }}
{{- end }}
